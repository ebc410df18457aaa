"""How long a search takes on a database of N rows, and what each part of it takes.

    python -m benchmarks latency [FILE…] [--rows N] [--questions N] [--json]

Rows are real sentences of the FILEs recombined, in 20 projects (see `_corpus`), written by the product's own write path
on an embedded server of its own. The measures take turns, each with another question, so that noise and warm pages
fall on all alike; the figures are milliseconds.

    hnsw           pgvector's index alone: the 60 nearest chunks, hnsw.ef_search = 60; hnsw_ef100 with the 100 of recall
    sql            memory_hybrid_search alone, 20 hits
    sql_filtered   the same, of one project: 1 row in 20
    sql_few        the same, of one project and one source type: 1 row in 200
    embed_query    the question's vector
    recall         `Memory.recall` of a question never asked before; recall_repeat: of one just asked
    naive          a function that scores and ranks every row, its words read from the content; up to 100,000 rows
    naive_stored   the same with the words in a column, as ours are

`full` is the share of filtered answers that have all 20 hits, `exact` the share of hits that a search without the
vector index finds too. `clients4_qps` are searches a second of four concurrent clients.
"""

from __future__ import annotations

import argparse
import functools
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self
from uuid import UUID

import numpy as np
from pgvector import HalfVector

from afterrun.client import Memory
from afterrun.db import Connection, Database
from afterrun.embed import Embedder, load_embedder, model_spec
from afterrun.settings import Settings
from afterrun.store import SearchFilter, Store
from benchmarks import _corpus, _scratch

SEED: Final = 20250101
REALLY_EMBEDDED: Final = 2000
WARM_UP: Final = 30
NAIVE_QUESTIONS: Final = 5
NAIVE_ROWS: Final = 100_000
CHECKED: Final = 20
HITS: Final = 20
CLIENTS: Final = 4
ONE_PROJECT: Final = SearchFilter(project=_corpus.PROJECTS[3], only_project=True)
FEW: Final = SearchFilter(project=_corpus.PROJECTS[5], only_project=True, source_types=("bug_fix",))

_NEAREST: Final = """
SELECT memory_id FROM chunks WHERE model = '{model}' AND is_active
ORDER BY embedding::halfvec({dimension}) <=> %s::halfvec({dimension}) LIMIT 60
"""
# The function of many a guide: score and rank every row by both arms in one CTE, then fuse, sort and limit. Most
# have no column for a text's words and read them at each question; `naive_stored` has it.
_NAIVE: Final = """
CREATE FUNCTION pg_temp.{name}(question text, question_vector halfvec) RETURNS TABLE (
    id uuid, content text, collection text, project text, source_type text, category text, metadata jsonb,
    created_at timestamptz, score double precision
) LANGUAGE sql STABLE AS $$
    WITH scored AS (
        SELECT
            m.id, m.content, m.collection, m.project, m.source_type, m.category, m.metadata, m.created_at,
            row_number() OVER (ORDER BY c.embedding <=> question_vector) AS by_vector,
            row_number() OVER (ORDER BY ts_rank({words}, words.query) DESC) AS by_words,
            power(0.5, extract(epoch FROM now() - m.created_at) / 86400 / t.half_life_days) * t.weight AS weight
        FROM memories m
        JOIN chunks c ON c.memory_id = m.id
        JOIN source_types t USING (source_type)
        CROSS JOIN (
            SELECT replace(plainto_tsquery('afterrun', question)::text, '&', '|')::tsquery AS query
        ) AS words
        WHERE m.is_active
    )
    SELECT
        id, content, collection, project, source_type, category, metadata, created_at,
        (1.0 / (60 + by_vector) + 1.0 / (60 + by_words)) * weight AS score
    FROM scored
    ORDER BY score DESC
    LIMIT 20
$$
"""
_NAIVE_WORDS: Final = {"naive": "to_tsvector('afterrun', m.content)", "naive_stored": "m.search"}

Ask = Callable[[int], object]
"""Asks the question with this number in one way."""


class Bench:
    """A loaded database with questions and their vectors; opened as a context manager."""

    def __init__(self, url: str, home: Path, embedder: Embedder, questions: Sequence[str], now: datetime) -> None:
        self.questions = questions
        self._vectors = embedder.encode(questions)
        self._embedder = embedder
        self._now = now
        self._model = embedder.spec.id
        self._nearest = _NEAREST.format(model=self._model, dimension=embedder.spec.dimension).encode()
        self._opened = ExitStack()
        settings = Settings(home=home, run_store=home / "memory.db", database_url=url)
        self._memory = self._opened.enter_context(Memory(settings=settings, embedder=embedder))
        self._database = self._opened.enter_context(Database(url, size=12))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def measures(self) -> dict[str, Ask]:
        """Every quick measure by its name, in the order in which they take turns."""
        plain, exploring = self.connection(ef_search=60), self.connection(ef_search=100)
        return {
            "hnsw": lambda number: self.nearest(plain, number),
            "hnsw_ef100": lambda number: self.nearest(exploring, number),
            "sql": lambda number: self.search(plain, number, SearchFilter()),
            "sql_filtered": lambda number: self.search(plain, number, ONE_PROJECT),
            "sql_few": lambda number: self.search(plain, number, FEW),
            "embed_query": lambda number: self._embedder.encode([self.questions[number]]),
            "recall": self.recall,
            "recall_repeat": self.recall,
        }

    def connection(self, *, ef_search: int | None = None, indexes: bool = True) -> Connection:
        """One more connection, in a transaction, until the bench is closed."""
        connection = self._opened.enter_context(self._database.transaction())
        if ef_search is not None:
            connection.execute(f"SET LOCAL hnsw.ef_search = {ef_search}".encode())
        if not indexes:
            # Bitmaps stay: without them each candidate's chunks would be looked for in the whole table.
            connection.execute("SET LOCAL enable_indexscan = off")
        return connection

    def nearest(self, connection: Connection, number: int) -> object:
        """What pgvector's index alone finds."""
        return connection.execute(self._nearest, [HalfVector(self._vectors[number])]).fetchall()

    def search(self, connection: Connection, number: int, where: SearchFilter) -> list[UUID]:
        """Ids of what `memory_hybrid_search` finds."""
        hits = Store(connection).hybrid_search(
            self.questions[number],
            self._vectors[number],
            self._model,
            where,
            max_hits=HITS,
            min_hits=5,
            asked_at=self._now,
        )
        return [hit.id for hit in hits]

    def recall(self, number: int) -> object:
        """The product's recall, from the question's text to the block for a prompt."""
        return self._memory.recall(self.questions[number])

    def naive_measures(self) -> dict[str, Ask]:
        """The slow measures by their names: functions that score every row."""
        connection = self.connection()
        for name, words in _NAIVE_WORDS.items():
            connection.execute(_NAIVE.format(name=name, words=words).encode())
        return {name: functools.partial(self.naive, connection, name) for name in _NAIVE_WORDS}

    def naive(self, connection: Connection, name: str, number: int) -> object:
        """What a function that scores every row finds."""
        values = [self.questions[number], HalfVector(self._vectors[number])]
        return connection.execute(f"SELECT * FROM pg_temp.{name}(%s, %s)".encode(), values).fetchall()


def run(argv: Sequence[str]) -> dict[str, object]:
    """Run the benchmark; the keys are those of the design's table and the module's docstring."""
    args = _arguments(argv)
    rng, now = random.Random(SEED), datetime.now(UTC)
    pool = _corpus.sentences(args.files, rng, most=min(_corpus.SENTENCES, args.rows))
    memory = _scratch.Memory.for_rows(args.rows)
    with _scratch.server(memory) as (url, home):
        model = load_embedder(model_spec(Settings.model), cache=home / "models")
        started = time.perf_counter()
        rows_embedder = _corpus.RecombinedEmbedder(model, pool, real=min(REALLY_EMBEDDED, args.rows // 10))
        indexes = _scratch.load(url, args.rows, pool, rows_embedder, now, rng)
        load_s = time.perf_counter() - started
        asked = _corpus.questions(WARM_UP + 2 * args.questions, pool, rng)
        with Bench(url, home, model, asked, now) as bench:
            times = _take_turns(bench, WARM_UP + args.questions, naive=args.rows <= NAIVE_ROWS)
            figures = {name: _percentiles(seconds) for name, seconds in times.items()}
            return {
                "rows": args.rows,
                "sentences": len(pool),
                "model": model.spec.id,
                **figures,
                "ratios": _ratios(figures),
                "filtered": _answers(bench),
                **_concurrent(bench, args.questions),
                "index_mb": round(sum(index.mb for index in indexes.values()), 1),
                "build_s": round(sum(index.build_s or 0 for index in indexes.values()), 2),
                "indexes": {name: asdict(index) for name, index in indexes.items()},
                "load_s": round(load_s, 1),
                "server": asdict(memory),
            }


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks latency", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="LoCoMo JSON, JSON lines with a text, or plain text")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--questions", type=int, default=200, help="how many are asked in each way")
    args = parser.parse_args(argv)
    if args.rows < 1000 or args.questions < NAIVE_QUESTIONS:
        parser.error(f"use at least 1,000 rows and {NAIVE_QUESTIONS} questions")
    return args


def _take_turns(bench: Bench, count: int, *, naive: bool) -> dict[str, list[float]]:
    """Seconds of `count` questions in every way, the first `WARM_UP` questions of each left out."""
    measures, slow = bench.measures(), bench.naive_measures() if naive else {}
    times: dict[str, list[float]] = {name: [] for name in (*measures, *slow)}
    for turn in range(count):
        for place, (name, ask) in enumerate(measures.items()):
            # Each way asks another question in this turn, but a repeat asks the one before it again.
            offset = place - 1 if name == "recall_repeat" else place
            times[name].append(_seconds(ask, (turn + offset * count // len(measures)) % count))
        if turn >= WARM_UP and (turn - WARM_UP) % ((count - WARM_UP) // NAIVE_QUESTIONS) == 0:
            for name, ask in slow.items():
                times[name].append(_seconds(ask, turn))
    return {name: seconds if name in slow else seconds[WARM_UP:] for name, seconds in times.items()}


def _seconds(ask: Ask, number: int) -> float:
    started = time.perf_counter()
    ask(number)
    return time.perf_counter() - started


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    p50, p95 = np.percentile(seconds, [50, 95]) * 1000
    return {"p50_ms": round(float(p50), 3), "p95_ms": round(float(p95), 3)}


def _ratios(figures: dict[str, dict[str, float]]) -> dict[str, float]:
    """The figures that goals are set for, independent of how fast the machine is."""
    p50 = {name: figure["p50_ms"] for name, figure in figures.items()}
    ratios = {
        "sql/hnsw": p50["sql"] / p50["hnsw"],
        "sql/hnsw_ef100": p50["sql"] / p50["hnsw_ef100"],
        "sql_p95/sql_p50": figures["sql"]["p95_ms"] / p50["sql"],
        "recall/(embed_query+sql)": p50["recall"] / (p50["embed_query"] + p50["sql"]),
    }
    ratios |= {f"{name}/sql": p50[name] / p50["sql"] for name in ("naive", "naive_stored") if name in p50}
    return {name: round(ratio, 2) for name, ratio in ratios.items()}


def _answers(bench: Bench) -> dict[str, dict[str, float]]:
    """Whether answers are full, and the share of their hits that a search without the vector index gives as well."""
    quick, exact = bench.connection(), bench.connection(indexes=False)
    filters = {"sql": SearchFilter(), "sql_filtered": ONE_PROJECT, "sql_few": FEW}
    figures = {}
    for name, where in filters.items():
        pairs = [(bench.search(quick, number, where), bench.search(exact, number, where)) for number in range(CHECKED)]
        figures[name] = {
            "full": sum(len(found) == HITS for found, _ in pairs) / len(pairs),
            "exact": sum(len(set(found) & set(best)) / max(len(best), 1) for found, best in pairs) / len(pairs),
        }
    return figures


def _concurrent(bench: Bench, count: int) -> dict[str, float]:
    """Questions a second of `CLIENTS` clients at once: of the SQL function alone, and of recall with its embedding."""
    connections = [bench.connection() for _ in range(CLIENTS)]
    unasked = range(len(bench.questions) - count, len(bench.questions))

    def searches(client: int) -> None:
        for number in unasked[client::CLIENTS]:
            bench.search(connections[client], number, SearchFilter())

    def recalls(client: int) -> None:
        for number in unasked[client::CLIENTS]:
            bench.recall(number)

    return {
        "clients4_qps": round(count / _together(searches), 1),
        "clients4_recall_qps": round(count / _together(recalls), 1),
    }


def _together(work: Callable[[int], None]) -> float:
    started = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(work, range(CLIENTS)))
    return time.perf_counter() - started
