"""Does a statement stand on a text? Every number, identifier and name of it must be found there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from afterrun.reading import Item, ItemKind, read
from afterrun.reading.words import normalise

_PART: Final = 20_000
"""Characters read at once: `read` takes longer texts as a whole."""
_CHECKED: Final[tuple[ItemKind, ...]] = ("quantity", "code", "name")


class Ground:
    """What stands in `text`, to check statements against. Building it takes time linear in the length of the text."""

    def __init__(self, text: str) -> None:
        self._keys = frozenset(key for part in _parts(text) for key in read(part).keys)
        self._text = normalise(text).casefold()

    def missing(self, statement: str, kinds: tuple[ItemKind, ...] = _CHECKED) -> tuple[str, ...]:
        """The items of these kinds in `statement` that the text does not have, as they are written there."""
        items = [item for item in read(statement).items if item.kind in kinds]
        return tuple(dict.fromkeys(item.surface for item in items if not self._has(item, statement)))

    def _has(self, item: Item, statement: str) -> bool:
        if item.key in self._keys or _is_counting_word(item, statement):
            return True
        # A number that differs in its unit only, or code that is quoted in another way, stands there literally.
        surface = item.surface.rpartition(":")[2] if item.kind == "quantity" else item.surface.casefold()
        literal = rf"(?<![\w.]){re.escape(surface)}(?![\w]|\.\w)"
        return bool(surface) and re.search(literal, self._text) is not None


def _is_counting_word(item: Item, statement: str) -> bool:
    """Whether it is the "one" of "one of them", which counts nothing."""
    return item.key == "number:1" and not re.search(r"(?<!\w)1(?!\w)", statement)


def _parts(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > _PART:
        end = text.rfind("\n", start + _PART // 2, start + _PART) + 1 or start + _PART
        yield text[start:end]
        start = end
    yield text[start:]
