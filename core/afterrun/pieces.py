"""What of a memory is embedded: its text in pieces that fit the model, and of indexed files more than that.

What a reader wants to see of a function is its code; what a question shares with it is mostly its name. So each piece
of a code memory is embedded under a line that says in plain words which function this is, and one more piece holds only
the name, its parameters, and where it belongs. A piece of a document begins with the headings it stands under. All of
it follows from the memory's own row, so that it can be embedded anew at any time. Measured in
docs/decisions/0013-sources.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Protocol

from afterrun.chunking import Chunker

LONGEST_HEADER: Final = 200
"""Characters of a header that a piece begins with: it must leave the room for the text."""

_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD: Final = re.compile(r"[^\W_]+")


class Embeddable(Protocol):
    """The part of a memory that says what is embedded."""

    @property
    def collection(self) -> str: ...
    @property
    def content(self) -> str: ...
    @property
    def metadata(self) -> Mapping[str, object]: ...
    @property
    def source_key(self) -> str | None: ...


def pieces_of(memory: Embeddable, chunker: Chunker) -> list[str]:
    """The texts that are embedded for a memory, in order; none for a blank one. Raises as `Chunker.split`."""
    header, separator, text = memory.content.partition("\n")
    if memory.source_key is None or memory.collection == "memory" or not separator:
        return chunker.split(memory.content)
    if memory.collection != "codebase":
        return chunker.split_under(header[:LONGEST_HEADER], text)
    symbol, path = _text(memory.metadata, "symbol"), _text(memory.metadata, "path")
    if not symbol:
        return chunker.split_under(plain_words(path)[:LONGEST_HEADER], text)
    code = chunker.split_under(_named(symbol, memory.metadata)[:LONGEST_HEADER], text)
    return [*code, *chunker.split(_placed(symbol, path, memory.metadata))[:1]]


def plain_words(name: str) -> str:
    """The words of an identifier or a path, in lower case: `getUserById` is `get user by id`."""
    return " ".join(_WORD.findall(_HUMP.sub(" ", name))).lower()


def _named(symbol: str, metadata: Mapping[str, object]) -> str:
    scope, name = _scope(symbol)
    return " ".join(filter(None, (f"{name}.", scope, name))) + _parameters(metadata)


def _placed(symbol: str, path: str, metadata: Mapping[str, object]) -> str:
    scope, name = _scope(symbol)
    of_scope = f" of {scope}" if scope else ""
    return f"{name}{_parameters(metadata)}{of_scope} in {plain_words(path.rpartition('.')[0] or path)}"


def _scope(symbol: str) -> tuple[str, str]:
    scope, _, name = symbol.rpartition(".")
    return plain_words(scope), plain_words(name) or name


def _parameters(metadata: Mapping[str, object]) -> str:
    names = metadata.get("parameters")
    if not isinstance(names, list) or not names:
        return ""
    return f" ({', '.join(plain_words(str(name)) for name in names[:12])})"


def _text(metadata: Mapping[str, object], key: str) -> str:
    value = metadata.get(key)
    return value if isinstance(value, str) else ""
