"""Which content of one text the other one has: by stem and synonym, as a compound, or as an acronym."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from afterrun.reading import Item, ItemKind, Reading, canonical

_LONGEST_ACRONYM: Final = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Alignment:
    """The items of either text that the other one does not have."""

    a: tuple[Item, ...]
    b: tuple[Item, ...]

    @property
    def only_a(self) -> frozenset[str]:
        """Keys that only the first text has."""
        return frozenset(item.key for item in self.a)

    @property
    def only_b(self) -> frozenset[str]:
        """Keys that only the second text has."""
        return frozenset(item.key for item in self.b)

    @property
    def quantities(self) -> tuple[frozenset[str], frozenset[str]]:
        """Quantities that only one text has."""
        return self._of("quantity")

    @property
    def codes(self) -> tuple[frozenset[str], frozenset[str]]:
        """Identifiers, paths and signs that only one text has."""
        return self._of("code")

    @property
    def names(self) -> tuple[frozenset[str], frozenset[str]]:
        """Capitalised names that only one text has."""
        return self._of("name")

    @property
    def surfaces(self) -> tuple[frozenset[str], frozenset[str]]:
        """Words as written that only one text has."""
        return frozenset(item.surface for item in self.a), frozenset(item.surface for item in self.b)

    def _of(self, kind: ItemKind) -> tuple[frozenset[str], frozenset[str]]:
        a, b = (frozenset(item.key for item in side if item.kind == kind) for side in (self.a, self.b))
        return a, b


def align(a: Reading, b: Reading) -> Alignment:
    """Match the content of two texts; the word order plays no part here."""
    matched_a, matched_b = set(a.keys & b.keys), set(a.keys & b.keys)
    for short, long, in_short, in_long in ((a, b, matched_a, matched_b), (b, a, matched_b, matched_a)):
        for single, parts in _composed(short, long):
            in_short.add(single)
            in_long.update(parts)
    return Alignment(
        a=tuple(item for item in a.items if item.key not in matched_a),
        b=tuple(item for item in b.items if item.key not in matched_b),
    )


def _composed(short: Reading, long: Reading) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Single words of `short` that `long` spells as several: `subdomain` and sub domain, `ADR` and its long form."""
    wanted = {item.surface: item.key for item in short.items if item.kind in ("word", "name")}
    wanted |= {canonical(surface): key for surface, key in wanted.items()}
    acronyms = {surface.removesuffix("s"): key for surface, key in wanted.items()}
    for at, item in enumerate(long.items):
        pair = long.items[at : at + 2]
        compound = "".join(part.surface for part in pair)
        if len(pair) == 2 and (key := wanted.get(compound) or wanted.get(canonical(compound))):
            yield key, (item.key, pair[1].key)
        for length in range(3, _LONGEST_ACRONYM + 1):
            run = long.items[at : at + length]
            initials = "".join(part.surface[:1] for part in run)
            if len(run) == length and (key := acronyms.get(initials)):
                yield key, tuple(part.key for part in run)
