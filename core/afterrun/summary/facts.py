"""What is read in a session: discrete facts, and what was taken for one and is none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

from afterrun.errors import Spend

FACT_TYPES: Final = ("decision", "architecture", "preference", "fact", "convention", "bug_fix", "debugging")
"""The source types that a statement of a session can have; the other three are a run's, a document's and a code's."""
LONGEST_FACT: Final = 1_000
"""Characters: a fact is a statement, not a report."""
LONGEST_CATEGORY: Final = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """One statement that can be understood by itself. `importance` is from 0 to 1, `category` a word to sort by."""

    content: str
    source_type: str = "fact"
    category: str | None = None
    importance: float = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Dropped:
    """What was taken for a fact and is not remembered, and why not."""

    content: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Extracted:
    """The facts of one window, what was dropped, and what it cost to read it."""

    facts: tuple[Fact, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    spend: Spend = field(default_factory=Spend)


class Extractor(Protocol):
    """Reads facts in a text that is scrubbed already. `name` is told in results."""

    @property
    def name(self) -> str:
        """Who reads: `rules`, or the language model's name."""

    def most_tokens(self, text: str) -> int:
        """The most tokens that reading `text` may cost; 0 where no language model is asked."""

    def extract(self, text: str) -> Extracted:
        """The facts of `text`. Raises LanguageModelError where a language model gives no usable answer."""
