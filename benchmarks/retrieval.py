"""Does recall find the right memory? Known answers in given files, against simple retrievers on the same texts.

    python -m benchmarks retrieval FILE… [--json]

Takes two formats: LoCoMo-like JSON (a list of conversations with `turns` and `questions`) and JSON Lines of
documents, some with a `query` whose one right answer is that document. Every document is written through `remember`
as a `fact` with the date in its file, embedded by the product's own embedder, and searched through the product's own
`search`. The newest date in a file is now. A conversation is a project and is searched by itself; JSON Lines are
searched as a whole.

Baselines see the same texts: `vector` (cosine of the best chunk), `text` (all words joined by OR, `ts_rank`), `bm25`
(the library bm25s), `rrf` (vector and text, fused by reciprocal rank with k = 60). `NAME#aged` gives documents seeded
source types and ages of 0 to 2 years that have nothing to do with the questions.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

import bm25s
import numpy as np

from afterrun import recall, schema
from afterrun.client import Memory
from afterrun.embed import Embedder, load_embedder
from afterrun.local import Stack
from afterrun.models import parse_time
from afterrun.settings import Settings
from afterrun.store import SearchFilter
from afterrun.vectors import embed_pending

DEPTH: Final = 20
RRF_K: Final = 60
SEED: Final = 7
SOURCE_TYPES: Final = (
    "decision", "architecture", "preference", "fact", "convention", "bug_fix", "debugging", "session_summary",
    "document_chunk", "code_context",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Document:
    """A text to remember; `id` is unique within its project."""

    id: str
    project: str
    text: str
    created_at: datetime
    source_type: str = "fact"
    session: str | None = None
    session_ordinal: int | None = None


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question with the ids of the documents that answer it; `project` limits the search where it is set."""

    text: str
    answers: frozenset[str]
    project: str | None


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The content of one file."""

    documents: list[Document]
    questions: list[Question]


Retriever = Callable[[Question], Sequence[str]]
"""Ids of the documents found for a question, best first."""


def run(argv: Sequence[str]) -> dict[str, object]:
    """Measure each file, as it is and aged."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks retrieval")
    parser.add_argument("files", nargs="+", type=Path)
    options = parser.parse_args(argv)
    figures: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="afterrun-bench-") as folder:
        settings = Settings(home=Path(folder), run_store=Path(folder) / "memory.db")
        with Stack(settings, migrate=lambda url: None, commands=()) as stack:
            for path in options.files:
                corpus = read(path)
                figures[path.name] = _measured(stack, corpus, baselines=True)
                figures[f"{path.name}#aged"] = _measured(stack, aged(corpus), baselines=False)
    return {"files": figures}


def read(path: Path) -> Corpus:
    """The documents and questions of a file of either format."""
    text = path.read_text(encoding="utf-8")
    if text.lstrip().startswith("["):
        return _conversations(json.loads(text))
    return _documents(json.loads(line) for line in text.splitlines() if line.strip())


def aged(corpus: Corpus) -> Corpus:
    """The same with seeded source types, and ages of up to two years."""
    chance = random.Random(SEED)
    newest = max(document.created_at for document in corpus.documents)
    documents = [
        replace(
            document,
            source_type=chance.choice(SOURCE_TYPES),
            created_at=newest - timedelta(days=chance.uniform(0, 730)),
        )
        for document in corpus.documents
    ]
    return Corpus(documents=documents, questions=corpus.questions)


def _conversations(conversations: Iterable[Mapping[str, object]]) -> Corpus:
    documents: list[Document] = []
    questions: list[Question] = []
    for conversation in conversations:
        name = str(conversation["conversation"])
        for ordinal, turn in enumerate(_objects(conversation["turns"])):
            documents.append(
                Document(
                    id=f"{name}/{turn['id']}",
                    project=name,
                    text=str(turn["text"]),
                    created_at=datetime.strptime(str(turn["at"]), "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC),
                    session=str(turn["session"]),
                    session_ordinal=ordinal,
                )
            )
        questions += [
            Question(
                text=str(asked["question"]),
                answers=frozenset(f"{name}/{turn}" for turn in _texts(asked["evidence"])),
                project=name,
            )
            for asked in _objects(conversation["questions"])
        ]
    return _answerable(documents, questions)


def _documents(lines: Iterable[Mapping[str, object]]) -> Corpus:
    documents: list[Document] = []
    questions: list[Question] = []
    for line in lines:
        documents.append(
            Document(
                id=str(line["id"]),
                project=str(line["project"]),
                text=str(line["text"]),
                created_at=parse_time(str(line["created_at"])),
            )
        )
        if line.get("query"):
            questions.append(Question(text=str(line["query"]), answers=frozenset({str(line["id"])}), project=None))
    return _answerable(documents, questions)


def _answerable(documents: list[Document], questions: list[Question]) -> Corpus:
    known = {document.id for document in documents if document.text.strip()}
    return Corpus(
        documents=[document for document in documents if document.text.strip()],
        questions=[
            replace(question, answers=question.answers & known) for question in questions if question.answers & known
        ],
    )


def _objects(value: object) -> list[Mapping[str, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _texts(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def _measured(stack: Stack, corpus: Corpus, *, baselines: bool) -> dict[str, object]:
    settings = replace(stack.settings, database_url=stack.database_url)
    with Memory(settings=settings) as unmigrated:
        spec = unmigrated.chunker.spec
    embedder = load_embedder(spec, cache=stack.home / "models")
    schema.migrate(stack.database_url, spec)
    with Memory(settings=settings, embedder=embedder) as memory:
        documents = _loaded(memory, corpus.documents)
        retrievers: dict[str, Retriever] = {"afterrun": _afterrun(memory, corpus, documents)}
        if baselines:
            vector, text = _vector(memory, embedder, documents), _text(memory, documents)
            retrievers |= {"vector": vector, "text": text, "bm25": _bm25(corpus), "rrf": _rrf(vector, text)}
        figures = {name: _scores(retriever, corpus.questions) for name, retriever in retrievers.items()}
        with memory.database.transaction() as connection:
            connection.execute("TRUNCATE memories, consolidations CASCADE")
    return dict(figures)


def _loaded(memory: Memory, documents: Sequence[Document]) -> dict[UUID, list[str]]:
    """Write and embed every document; the ids of the documents that each memory holds (the same text is one memory)."""
    held: dict[UUID, list[str]] = {}
    for document in documents:
        written = memory.remember(
            document.text,
            project=document.project,
            source_type=document.source_type,
            session=document.session,
            session_ordinal=document.session_ordinal,
            created_at=document.created_at,
        )
        held.setdefault(written.id, []).append(document.id)
    while embed_pending(memory.database, memory.embedder).more:
        pass
    with memory.database.transaction() as connection:
        connection.execute("ANALYZE")
    return held


def _afterrun(memory: Memory, corpus: Corpus, held: Mapping[UUID, list[str]]) -> Retriever:
    newest = max(document.created_at for document in corpus.documents)

    def ask(question: Question) -> list[str]:
        where = SearchFilter(project=question.project, only_project=question.project is not None)
        hits = recall.search(memory.database, question.text, memory.embedder, where, limit=DEPTH, now=lambda: newest)
        return [document for hit in hits for document in held[hit.id]]

    return ask


def _vector(memory: Memory, embedder: Embedder, held: Mapping[UUID, list[str]]) -> Retriever:
    with memory.database.transaction() as connection:
        rows = connection.execute("SELECT memory_id, project, embedding FROM chunks ORDER BY memory_id").fetchall()
    matrix = np.stack([row[2].to_numpy() for row in rows]).astype(np.float32)

    def ask(question: Question) -> list[str]:
        similarity = matrix @ embedder.encode([question.text])[0]
        best: dict[UUID, float] = {}
        for (memory_id, project, _), score in zip(rows, similarity, strict=True):
            if question.project in (None, project):
                best[memory_id] = max(best.get(memory_id, -1.0), float(score))
        ranked = sorted(best, key=lambda one: (-best[one], str(one)))[:DEPTH]
        return [document for one in ranked for document in held[one]]

    return ask


def _text(memory: Memory, held: Mapping[UUID, list[str]]) -> Retriever:
    every_word = (
        "WITH q AS (SELECT string_agg(quote_literal(lexeme), ' | ')::tsquery AS words"
        " FROM unnest(tsvector_to_array(to_tsvector('afterrun', %s))) AS lexeme)"
        " SELECT id FROM memories, q WHERE search @@ words AND (%s::text IS NULL OR project = %s)"
        " ORDER BY ts_rank(search, words) DESC, id LIMIT %s"
    )

    def ask(question: Question) -> list[str]:
        with memory.database.transaction() as connection:
            values = [question.text.replace("\\", " "), question.project, question.project, DEPTH]
            rows = connection.execute(every_word, values).fetchall()
        return [document for row in rows for document in held[row[0]]]

    return ask


def _bm25(corpus: Corpus) -> Retriever:
    indexes: dict[str | None, tuple[bm25s.BM25, list[str]]] = {}
    for scope in {question.project for question in corpus.questions}:
        inside = [document for document in corpus.documents if scope in (None, document.project)]
        index = bm25s.BM25()
        index.index(bm25s.tokenize([document.text for document in inside], show_progress=False), show_progress=False)
        indexes[scope] = (index, [document.id for document in inside])

    def ask(question: Question) -> list[str]:
        index, ids = indexes[question.project]
        tokens = bm25s.tokenize([question.text], show_progress=False, return_ids=False)
        found, _ = index.retrieve(tokens, k=min(DEPTH, len(ids)), show_progress=False)
        return [ids[place] for place in found[0]]

    return ask


def _rrf(*retrievers: Retriever) -> Retriever:
    def ask(question: Question) -> list[str]:
        scores: dict[str, float] = {}
        for retriever in retrievers:
            for rank, document in enumerate(retriever(question), 1):
                scores[document] = scores.get(document, 0.0) + 1 / (RRF_K + rank)
        return sorted(scores, key=lambda document: (-scores[document], document))[:DEPTH]

    return ask


def _scores(retriever: Retriever, questions: Sequence[Question]) -> dict[str, float]:
    found = [list(dict.fromkeys(retriever(question)))[:DEPTH] for question in questions]
    pairs = list(zip(questions, found, strict=True))

    def recall_at(depth: int) -> float:
        return float(np.mean([len(asked.answers & set(ids[:depth])) / len(asked.answers) for asked, ids in pairs]))

    firsts = [
        next((rank for rank, one in enumerate(ids[:10], 1) if one in asked.answers), None) for asked, ids in pairs
    ]
    return {
        "recall@5": recall_at(5),
        "recall@10": recall_at(10),
        "recall@20": recall_at(20),
        "mrr@10": float(np.mean([1 / first if first else 0.0 for first in firsts])),
        "r@1": float(np.mean([first == 1 for first in firsts])),
        "n": len(questions),
    }
