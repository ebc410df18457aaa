"""Does a search find the function that a sentence describes? The answers are in the code: docstrings.

    python -m benchmarks code --path DIR… [--json]

Takes any Python trees. The first line of each function's docstring is a question whose one right answer is that
function, and the docstring is taken out of the text. The trees are indexed as `codebase` by the product's own source,
embedded by its own embedder, and searched through its own search. All pieces that hold functions are documents:
functions, methods, and short classes; class outlines and what stands between functions are left out, and are in for
`afterrun_all`.

`vector` and `text` are the same search with one arm alone, on the same pieces.
"""

from __future__ import annotations

import argparse
import ast
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from uuid import UUID

from afterrun import recall
from afterrun.client import Memory
from afterrun.models import Hit
from afterrun.store import SearchFilter, Store
from afterrun.vectors import embed_pending
from benchmarks._fresh import fresh_memory

DEPTH: Final = 10
_NO_FUNCTION: Final = """
DELETE FROM memories m
WHERE metadata ->> 'kind' = 'block' OR (metadata ->> 'kind' = 'class' AND EXISTS (
    SELECT FROM memories inside
    WHERE inside.metadata ->> 'path' = m.metadata ->> 'path' AND inside.metadata ->> 'kind' = 'function'
    AND (inside.metadata ->> 'start_line')::int
        BETWEEN (m.metadata ->> 'start_line')::int AND (m.metadata ->> 'end_line')::int
))
"""
_PIECES: Final = """
SELECT id, metadata ->> 'path', (metadata ->> 'start_line')::int, (metadata ->> 'end_line')::int
FROM memories WHERE metadata ->> 'kind' <> 'block'
"""

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, kw_only=True)
class Question:
    """A docstring's first line, and where the function stands that had it: path and first line without docstrings."""

    text: str
    path: str
    line: int


def run(argv: Sequence[str]) -> dict[str, object]:
    """Measure; `documents` counts the pieces that hold functions, `all_documents` all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks code")
    parser.add_argument("--path", nargs="+", action="extend", type=Path, required=True, help="folders with Python code")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="afterrun-bench-") as folder, fresh_memory() as memory:
        questions = [question for path in options.path for question in bared(path.resolve(), Path(folder))]
        memory.index_folder(Path(folder), source="codebase", project="code")
        while embed_pending(memory.database, memory.embedder).more:
            pass
        answers = _answers(memory, questions)
        everything = _ready(memory)
        in_all = _scores(
            lambda text: recall.search(memory.database, text, memory.embedder, limit=DEPTH), questions, answers
        )
        with memory.database.transaction() as connection:
            connection.execute(_NO_FUNCTION)
        documents = _ready(memory)
        return {
            **{name: _scores(search, questions, answers) for name, search in _searches(memory).items()},
            "afterrun_all": in_all,
            "documents": documents,
            "all_documents": everything,
            "model": memory.chunker.spec.id,
        }


def _searches(memory: Memory) -> dict[str, Callable[[str], list[Hit]]]:
    def afterrun(text: str) -> list[Hit]:
        return recall.search(
            memory.database, text, memory.embedder, SearchFilter(collections=("codebase",)), limit=DEPTH
        )

    def vector(text: str) -> list[Hit]:
        return _one_arm(memory, "", text)

    def words(text: str) -> list[Hit]:
        return recall.search(memory.database, text, None, SearchFilter(collections=("codebase",)), limit=DEPTH)

    return {"afterrun": afterrun, "vector": vector, "text": words}


def _one_arm(memory: Memory, question: str, text: str) -> list[Hit]:
    vector = memory.embedder.encode([text])[0]
    with memory.database.transaction() as connection:
        return Store(connection).hybrid_search(
            question,
            vector,
            memory.chunker.spec.id,
            SearchFilter(collections=("codebase",)),
            max_hits=DEPTH,
            min_hits=0,
            asked_at=datetime.now(UTC),
        )


def bared(tree: Path, target: Path) -> Iterator[Question]:
    """Write the tree's Python files without their functions' docstrings; the questions that those answer."""
    for file in sorted(tree.rglob("*.py")):
        path = f"{tree.name}/{file.relative_to(tree).as_posix()}"
        try:
            text = file.read_bytes().decode()
            docstrings = [(node, ast.get_docstring(node)) for node in _functions(text)]
        except (SyntaxError, ValueError):
            continue
        bare = _without(text, [node for node, docstring in docstrings if docstring is not None])
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_text(bare, encoding="utf-8")
        for (_, docstring), node in zip(docstrings, _functions(bare), strict=True):
            if docstring and docstring.strip():
                yield Question(text=docstring.strip().splitlines()[0], path=path, line=node.lineno)


def _functions(text: str) -> list[_Function]:
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, _Function)]
    return sorted(found, key=lambda node: (node.lineno, node.col_offset))


def _without(text: str, functions: Sequence[_Function]) -> str:
    """The text without these functions' docstrings; `...` stays where there was nothing else."""
    lines = text.splitlines(keepends=True)
    for node in functions:
        docstring = node.body[0]
        first, last = docstring.lineno - 1, (docstring.end_lineno or docstring.lineno) - 1
        kept = lines[first].encode()[: docstring.col_offset].decode()
        rest = lines[last].encode()[docstring.end_col_offset :].decode()
        alone = len(node.body) == 1 or first == node.lineno - 1
        lines[first : last + 1] = [""] * (last - first) + [f"{kept}...{rest}" if alone else rest.lstrip("; ")]
    return "".join(lines)


def _answers(memory: Memory, questions: Sequence[Question]) -> list[UUID | None]:
    """For each question the smallest piece that holds its function whole."""
    with memory.database.transaction() as connection:
        rows = connection.execute(_PIECES).fetchall()
    by_path: dict[str, list[tuple[int, int, UUID]]] = {}
    for piece, path, first, last in rows:
        by_path.setdefault(path, []).append((first, last, piece))
    return [_smallest(by_path.get(question.path, ()), question.line) for question in questions]


def _smallest(pieces: Sequence[tuple[int, int, UUID]], line: int) -> UUID | None:
    around = [(last - first, piece) for first, last, piece in pieces if first <= line <= last]
    return min(around)[1] if around else None


def _ready(memory: Memory) -> int:
    with memory.database.transaction() as connection:
        connection.execute("ANALYZE")
        row = connection.execute("SELECT count(*) FROM memories").fetchone()
    return int(row[0]) if row else 0


def _scores(
    search: Callable[[str], list[Hit]], questions: Sequence[Question], answers: Sequence[UUID | None]
) -> dict[str, float]:
    total = 0.0
    for question, answer in zip(questions, answers, strict=True):
        found = [hit.id for hit in search(question.text)]
        total += 1 / (1 + found.index(answer)) if answer in found else 0
    return {"mrr@10": total / max(len(questions), 1), "n": len(questions)}
