"""Source code by its symbols: a function whole, a class whole or as its outline and methods, and the rest of the file.

Files of other languages, and other texts beside the code, come in blocks of lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from textwrap import dedent
from typing import Final

from afterrun.sources.definitions import Definition, definitions
from afterrun.sources.languages import CPP, SUFFIXES, Grammar
from afterrun.sources.parts import Part

WHOLE_CLASS_LINES: Final = 20
"""A class of so many lines is one part; of a longer one each method is a part, beside its outline."""
BLOCK_LINES: Final = 60
"""Lines of a block, at most; it ends at a blank line where one is in its second half."""

_OF_CPP: Final = re.compile(r"^\s*(namespace|template|class)\b", re.MULTILINE)
"""What a header of C++ has and one of C has not; both are named .h."""


def code_parts(path: str, text: str) -> Iterator[Part]:
    """The parts of a source file, by its suffix; in the order of their first lines."""
    suffix = PurePosixPath(path).suffix.lower()
    grammar = CPP if suffix == ".h" and _OF_CPP.search(text) else SUFFIXES.get(suffix)
    # As editors and the parser count them, which know no other line end.
    lines = text.split("\n")
    if grammar is None:
        yield from blocks(lines, range(len(lines)), {"language": suffix.lstrip(".")} if suffix else {})
        return
    details: dict[str, object] = {"language": grammar.name}
    found = _found(grammar, text)
    yield from sorted(
        [*_defined(lines, found, details), *_rest(lines, found, details)], key=lambda part: part.start_line
    )


def _found(grammar: Grammar, text: str) -> list[Definition]:
    try:
        return definitions(grammar, text.encode("utf-8", "replace"))
    except RecursionError:
        # Nested deeper than any person writes: the file comes in blocks.
        return []


def blocks(lines: Sequence[str], rows: Sequence[int], details: dict[str, object]) -> Iterator[Part]:
    """These rows of a file in blocks, each with the lines that it spans; those without a word are left out."""
    start = 0
    while start < len(rows):
        end = min(start + BLOCK_LINES, len(rows))
        if end < len(rows):
            blank = (place for place in range(end, start + BLOCK_LINES // 2, -1) if not lines[rows[place - 1]].strip())
            end = next(blank, end)
        written = [row for row in rows[start:end] if lines[row].strip()]
        block = [row for row in rows[start:end] if written and written[0] <= row <= written[-1]]
        text = "\n".join(lines[row] for row in block)
        if any(character.isalnum() for character in text):
            yield Part(text=text, start_line=block[0] + 1, end_line=block[-1] + 1, details=details)
        start = end


def _defined(lines: Sequence[str], found: Sequence[Definition], details: dict[str, object]) -> Iterator[Part]:
    for definition in found:
        whole = definition.end - definition.start < WHOLE_CLASS_LINES or not definition.members
        if definition.kind == "class" and not whole:
            yield _part(lines, definition, _outline(definition), details)
            yield from _defined(lines, definition.members, details)
        else:
            yield _part(lines, definition, range(definition.start, definition.end + 1), details)


def _outline(definition: Definition) -> list[int]:
    """The rows of a class without the bodies of what is defined in it."""
    rows = set(range(definition.start, definition.end + 1))
    for member in definition.members:
        rows -= set(range(max(member.body, member.start + 1), member.end + 1))
    return sorted(rows)


def _part(lines: Sequence[str], definition: Definition, rows: Sequence[int], details: dict[str, object]) -> Part:
    parameters = {"parameters": list(definition.parameters)} if definition.parameters else {}
    return Part(
        text=dedent("\n".join(lines[row] for row in rows)),
        place=definition.symbol,
        kind=definition.kind,
        start_line=definition.start + 1,
        end_line=definition.end + 1,
        details=details | parameters,
    )


def _rest(lines: Sequence[str], found: Sequence[Definition], details: dict[str, object]) -> Iterator[Part]:
    taken = {row for definition in found for row in range(definition.start, definition.end + 1)}
    yield from blocks(lines, [row for row in range(len(lines)) if row not in taken], details)
