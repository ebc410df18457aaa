"""Questions drawn from runs' own words, so that a demo asks something sensible of any data."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from afterrun.models import Run
from afterrun.redact import scrub

WORDS: Final = 3
"""Words a question; fewer where a run has fewer."""

_WORD: Final = re.compile(r"(?<![\w./:@-])[^\W\d_]{4,18}(?![\w/@]|\.\w)")
_FORMS: Final = ("What do we know about {}?", "What was done about {}?")
_BORING: Final = {
    *("about", "above", "after", "again", "also", "always", "another", "because", "been", "before", "being", "below"),
    *("between", "both", "cannot", "could", "does", "doing", "done", "down", "each", "even", "every", "from", "have"),
    *("having", "here", "into", "itself", "just", "like", "made", "make", "makes", "many", "more", "most", "much"),
    *("must", "need", "needs", "only", "other", "over", "same", "should", "since", "some", "such", "than", "that"),
    *("their", "them", "then", "there", "these", "they", "this", "those", "through", "under", "until", "used", "uses"),
    *("using", "very", "want", "well", "were", "what", "when", "where", "which", "while", "will", "with", "without"),
    *("would", "your", "redacted", "private", "merge", "merged", "branch", "commit", "change", "changes", "changed"),
    *(
        "update",
        "updated",
        "updates",
        "remove",
        "removed",
        "removes",
        "added",
        "adds",
        "adding",
        "seem",
        "seems",
        "still",
    ),
    *("fixed", "fixes", "fixing", "instead", "sure", "work", "works", "working", "able", "might"),
    *("within", "right", "really", "actually", "already", "first", "last", "next", "previous", "following"),
}


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question, and the run whose words it is made of."""

    text: str
    run: Run


def draw(runs: Sequence[Run]) -> list[Question]:
    """Two questions, each from another run where there are two; none if no run has a word to ask for.

    A run is asked for by its rarest words; those of its first line come first, since they say what it is about.
    """
    known = Counter(word for run in runs for word in set(_words(run.summary)))
    ranked = [(run, words) for run in runs if (words := _ranked(run, known))]
    able = [entry for entry in ranked if len(entry[1]) >= WORDS] or ranked
    if not able:
        return []
    (first, its_words), (second, other_words) = able[len(able) // 4], able[-1 - len(able) // 4]
    if second is first:
        other_words = other_words[WORDS:] or other_words
    return [_question(_FORMS[0], first, its_words[:WORDS]), _question(_FORMS[1], second, other_words[:WORDS])]


def _question(form: str, run: Run, chosen: Sequence[str]) -> Question:
    *first, last = (word for word in dict.fromkeys(_words(run.summary)) if word in chosen)
    return Question(text=form.format(f"{', '.join(first)} and {last}" if first else last), run=run)


def _ranked(run: Run, known: Counter[str]) -> list[str]:
    """The run's words: those of its first line before the others, rare before common, long before short."""
    title = set(_words(run.summary.partition("\n")[0]))
    return sorted(dict.fromkeys(_words(run.summary)), key=lambda word: (word not in title, known[word], -len(word)))


def _words(text: str) -> list[str]:
    found = (match.group().casefold() for match in _WORD.finditer(scrub(text)))
    return [word for word in found if word not in _BORING]
