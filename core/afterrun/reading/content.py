"""What the deterministic judge reads in a text: its content in order, and the small words that decide what it means."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from afterrun.reading import lexicon
from afterrun.reading.lexemes import Lexeme, lexemes
from afterrun.reading.words import canonical, normalise, sentences, skeleton, tokens

LONGEST_READ: Final = 40_000
"""Characters beyond which a text is not read word by word; only an equal one is the same then."""
ItemKind = Literal["word", "name", "quantity", "code"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One piece of content: a canonical word, a capitalised name, a quantity or code.

    `marker` is the preposition of its phrase (empty: none), `clause` counts the clauses before it, `surface` is the
    lower-case word as written.
    """

    key: str
    kind: ItemKind
    surface: str
    marker: str
    clause: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """A text as the guards compare it. `heads` maps a marker to the items that directly follow it."""

    skeleton: tuple[str, tuple[str, ...]]
    sentences: tuple[str, ...]
    items: tuple[Item, ...]
    keys: frozenset[str]
    negated: frozenset[str]
    quantifiers: frozenset[str]
    modals: frozenset[str]
    comparators: frozenset[str]
    tenses: frozenset[str]
    revisers: frozenset[str]
    persons: frozenset[str]
    conjunctions: frozenset[str]
    """`and` and `or`, as far as they stand in it."""
    denied: frozenset[int]
    """The clauses in which something is negated."""
    sequenced: bool
    heads: Mapping[str, frozenset[str]]
    marked: frozenset[str]
    question: bool
    english: bool
    plain: bool
    """Whether nothing but letters of the Latin script stands in it."""

    def keys_of(self, *kinds: ItemKind) -> frozenset[str]:
        """The keys of the items of these kinds."""
        return frozenset(item.key for item in self.items if item.kind in kinds)


def read(text: str) -> Reading:
    """Read `text`, in time linear to its length; a text beyond `LONGEST_READ` has no items."""
    walk = _Walk()
    scanned = list(tokens(text))
    found = lexemes(scanned) if len(text) <= LONGEST_READ else []
    for at, lexeme in enumerate(found):
        walk.step(lexeme, found[at + 1] if at + 1 < len(found) else None)
    walk.settle()
    words = [lexeme.key for lexeme in found if lexeme.kind == "word"]
    return Reading(
        skeleton=skeleton(text, scanned),
        sentences=tuple(" ".join(sentence.split()) for sentence in sentences(text)),
        items=tuple(walk.items),
        keys=frozenset(item.key for item in walk.items),
        negated=frozenset(walk.negated),
        quantifiers=frozenset(walk.quantifiers),
        modals=frozenset(walk.modals),
        comparators=frozenset(walk.comparators),
        tenses=frozenset(walk.tenses),
        revisers=frozenset(walk.revisers),
        persons=frozenset(lexicon.PERSONS[word] for word in words if word in lexicon.PERSONS),
        conjunctions=frozenset(walk.conjunctions),
        denied=frozenset(walk.denied),
        heads={marker: frozenset(keys) for marker, keys in walk.heads.items()},
        marked=frozenset(walk.markers),
        sequenced=not lexicon.SEQUENCE.isdisjoint(words),
        question="?" in normalise(text),
        english=_is_english(words),
        plain=_is_latin(text),
    )


_NEGATING_SIGNS: Final = frozenset({"!=", "≠", "!"})
_REVISERS: Final = frozenset(canonical(word) for word in lexicon.REVISERS)


@dataclass(slots=True)
class _Walk:
    """One pass over the lexemes, with what it has collected so far."""

    items: list[Item] = field(default_factory=list)
    negated: set[str] = field(default_factory=set)
    quantifiers: set[str] = field(default_factory=set)
    modals: set[str] = field(default_factory=set)
    comparators: set[str] = field(default_factory=set)
    tenses: set[str] = field(default_factory=set)
    revisers: set[str] = field(default_factory=set)
    conjunctions: set[str] = field(default_factory=set)
    denied: set[int] = field(default_factory=set)
    markers: set[str] = field(default_factory=set)
    heads: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    clause: int = 0
    marker: str = ""
    fresh: bool = False
    """Whether the marker still waits for its first item."""
    negates: bool = False
    onlies: bool = False

    def step(self, lexeme: Lexeme, following: Lexeme | None) -> None:
        """Take the next lexeme; `following` is the one after it."""
        if lexeme.kind == "break":
            self._break(lexeme.key)
        elif lexeme.kind == "operator":
            self._operator(lexeme.key)
        elif lexeme.kind == "word":
            self._word(lexeme, following)
        else:
            self._item(lexeme, following)

    def _break(self, sign: str) -> None:
        if sign == ".":
            self.settle()
        self.clause += 1
        self.marker, self.fresh = "", False

    def settle(self) -> None:
        """End a sentence: a negation that has found nothing to deny denies what stands before it."""
        if self.negates:
            self.negated.add("")
            self.denied.add(self.clause)
        self.negates = self.onlies = False

    def _operator(self, sign: str) -> None:
        if sign in lexicon.COMPARATORS:
            self.comparators.add(lexicon.COMPARATORS[sign])
        elif sign in _NEGATING_SIGNS:
            self.negates = True
        self.items.append(Item(key=f"sign:{sign}", kind="code", surface=sign, marker="", clause=self.clause))

    def _word(self, lexeme: Lexeme, following: Lexeme | None) -> None:
        word = lexeme.key
        self._small_words(word, following, lexeme.capital)
        if word in ("and", "or"):
            self.conjunctions.add(word)
        if word in ("and", "or", "while", "whereas", "but"):
            self.clause += 1
        if word in lexicon.MARKERS and not self._compares(word, following):
            self._mark(word)
        elif word in lexicon.AUXILIARIES | lexicon.RELATIVES or (word in lexicon.DETERMINERS and not self.fresh):
            self.marker = ""
        if self._is_content(word, following) or (lexeme.capital and word in lexicon.MODAL_ONLY):
            self._item(lexeme, following)

    def _small_words(self, word: str, following: Lexeme | None, capital: bool) -> None:
        # A capital inside a sentence: the month of May is no permission.
        if (key := canonical(word)) in _REVISERS:
            self.revisers.add(key)
        if word in lexicon.NEGATORS:
            self.negates = True
        if word in lexicon.QUANTIFIERS:
            self.quantifiers.add(lexicon.QUANTIFIERS[word])
            self.onlies |= lexicon.QUANTIFIERS[word] == "only"
        if word in lexicon.MODALS and not capital:
            self.modals.add(lexicon.MODALS[word])
        if word in lexicon.PRESENT or word in lexicon.PAST:
            self.tenses.add("past" if word in lexicon.PAST else "present")
        if self._compares(word, following):
            self.comparators.add(lexicon.COMPARATORS[word])

    def _compares(self, word: str, following: Lexeme | None) -> bool:
        number = following is not None and following.kind == "quantity"
        return word in lexicon.COMPARATORS and (number or word not in lexicon.COMPARATORS_BY_NUMBER)

    def _is_content(self, word: str, following: Lexeme | None) -> bool:
        small = word in lexicon.STOP or word in lexicon.NEGATORS or word in lexicon.MARKERS
        return not (
            small or word in lexicon.QUANTIFIERS or word in lexicon.MODAL_ONLY or self._compares(word, following)
        )

    def _mark(self, word: str) -> None:
        self.marker, self.fresh = lexicon.SAME_MARKER.get(word, word), True
        self.markers.add(self.marker)

    def _item(self, lexeme: Lexeme, following: Lexeme | None) -> None:
        item = _item(lexeme, self.marker, self.clause)
        self.items.append(item)
        light = item.key in lexicon.LIGHT
        if self.negates and not light:
            self.negated.add(item.key)
            self.denied.add(self.clause)
        if self.onlies:
            self.heads["only"].add(item.key)
        self.negates &= light
        self.onlies = False
        if self.fresh:
            self.heads[self.marker].add(item.key)
        self.fresh = False


def _item(lexeme: Lexeme, marker: str, clause: int) -> Item:
    if lexeme.kind in ("code", "quantity"):
        kind: ItemKind = "code" if lexeme.kind == "code" else "quantity"
        return Item(key=lexeme.key, kind=kind, surface=lexeme.key, marker=marker, clause=clause)
    kind = "name" if lexeme.capital or lexeme.kind == "name" else "word"
    return Item(key=canonical(lexeme.key), kind=kind, surface=lexeme.key, marker=marker, clause=clause)


def _is_english(words: list[str]) -> bool:
    english = sum(word in lexicon.ENGLISH for word in words)
    foreign = sum(word in lexicon.FOREIGN and word not in lexicon.ENGLISH for word in words)
    return english > foreign


def _is_latin(text: str) -> bool:
    return all(
        sign.isascii() or not sign.isalpha() or unicodedata.name(sign, "").startswith("LATIN") for sign in set(text)
    )
