"""The summary of a period without a language model: the sentences that say most, of every text one at least.

A word counts by how often the texts use it and how few of their sentences have it; a sentence by the mean of its words,
the first of a text a little more. The same texts give the same summary.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from afterrun.errors import Spend
from afterrun.reading import canonical, sentences
from afterrun.reading.lexicon import STOP
from afterrun.runrows import shortened

LONGEST_SUMMARY: Final = 2_000
"""Characters of a roll-up: a screen, and some 500 tokens of the block that goes into the next run."""
_FIRST: Final = 1.25
"""A summary tends to begin with what it is about."""
_DAMPING: Final = 3
"""Words that a sentence is taken to have more, so that two rare words are no good sentence."""
_NEWS: Final = 0.5
"""The share of its words that a further sentence must add to what is taken."""
_WORD: Final = re.compile(r"\w{2,}")
_BULLET: Final = re.compile(r"^(?:[-*+•>#]+\s+|[-*+•>#\s]+$)+")
_ENDS: Final = (".", "!", "?", ";", ":", "…", "\u3002", "\uff01", "\uff1f")
_DATED: Final = re.compile(r"\d{4}-\d{2}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One text of a period; `label` is its day or its months."""

    label: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Worded:
    """A summary, and what it cost."""

    text: str
    spend: Spend = field(default_factory=Spend)


class Writer(Protocol):
    """Words the summary of several texts, which are scrubbed already. `name` is kept with what it words."""

    @property
    def name(self) -> str:
        """Who words: `digest`, or the language model's name."""

    def most_tokens(self, entries: Sequence[Entry]) -> int:
        """The most tokens that the summary may cost; 0 where no language model is asked."""

    def write(self, entries: Sequence[Entry]) -> Worded:
        """The summary of `entries`, which are in order. Raises LanguageModelError."""


class DigestWriter:
    """Words a summary of the texts' own sentences."""

    name = "digest"

    def most_tokens(self, entries: Sequence[Entry]) -> int:
        """0: no language model is asked."""
        return 0

    def write(self, entries: Sequence[Entry]) -> Worded:
        """The digest of `entries`."""
        return Worded(text=digest(entries))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sentence:
    entry: int
    place: int
    text: str
    terms: frozenset[str]


def digest(entries: Sequence[Entry], *, longest: int = LONGEST_SUMMARY) -> str:
    """The best sentences of `entries`, a line an entry, in at most `longest` characters.

    Every entry that is not blank has its best sentence in it, cut at a word where it is longer than its share.
    """
    found = [
        _Sentence(entry=entry, place=place, text=text, terms=_terms(text))
        for entry, of in enumerate(entries)
        for place, text in enumerate(_statements(of.text))
    ]
    if not found:
        return ""
    scores = _scores(found)
    ranked = sorted(
        found, key=lambda sentence: (-scores[sentence.entry, sentence.place], sentence.entry, sentence.place)
    )
    chosen = _one_of_each(ranked, entries, longest)
    _fill(chosen, ranked, longest - sum(len(_line(entries[at], said)) + 1 for at, said in chosen.items()))
    return "\n".join(_line(entries[at], chosen[at]) for at in sorted(chosen))


def _statements(text: str) -> list[str]:
    """The sentences of `text` without bullets, each with an end, so that they can stand in one line."""
    bare = [stripped for sentence in sentences(text) if (stripped := _BULLET.sub("", sentence))]
    return [sentence if sentence.endswith(_ENDS) else f"{sentence}." for sentence in bare]


def _one_of_each(ranked: Sequence[_Sentence], entries: Sequence[Entry], longest: int) -> dict[int, dict[int, str]]:
    filled = {sentence.entry for sentence in ranked}
    share = longest // len(filled)
    chosen: dict[int, dict[int, str]] = {}
    for sentence in ranked:
        if sentence.entry not in chosen:
            room = share - len(_line(entries[sentence.entry], {0: ""})) - 1
            chosen[sentence.entry] = {sentence.place: shortened(sentence.text, room)}
    return chosen


def _fill(chosen: Mapping[int, dict[int, str]], ranked: Sequence[_Sentence], room: int) -> None:
    """Add further sentences to `chosen`, the best first, while they fit and say something new."""
    said = {term for taken in chosen.values() for text in taken.values() for term in _terms(text)}
    for sentence in ranked:
        taken = chosen[sentence.entry]
        new = len(sentence.terms - said)
        if sentence.place in taken or len(sentence.text) + 1 > room or new < max(_NEWS * len(sentence.terms), 1):
            continue
        taken[sentence.place] = sentence.text
        said |= sentence.terms
        room -= len(sentence.text) + 1


def _line(entry: Entry, said: Mapping[int, str]) -> str:
    text = " ".join(said[place] for place in sorted(said))
    # A sentence of a roll-up that names its own day needs no period before it.
    return text if _DATED.match(text) else f"{entry.label}: {text}"


def _scores(found: Sequence[_Sentence]) -> dict[tuple[int, int], float]:
    used = Counter(term for sentence in found for term in sentence.terms)
    weight = {term: count * math.log((len(found) + 1) / count) for term, count in used.items()}
    return {
        (sentence.entry, sentence.place): sum(weight[term] for term in sorted(sentence.terms))
        / (len(sentence.terms) + _DAMPING)
        * (_FIRST if sentence.place == 0 else 1.0)
        for sentence in found
    }


def _terms(text: str) -> frozenset[str]:
    return frozenset(canonical(word) for word in _WORD.findall(text.casefold()) if word not in STOP)
