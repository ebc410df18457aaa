"""Facts by rules: sentences that say by a cue word that they state a decision, a convention, a fix or a fact.

It needs no language model, takes each sentence as it stands, and knows English cue words only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from afterrun.reading import read, sentences
from afterrun.summary.facts import LONGEST_FACT, Dropped, Extracted, Fact
from afterrun.summary.windows import SPEAKER

NAME: Final = "rules"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rule:
    source_type: str
    importance: float
    cue: re.Pattern[str]


def _rule(source_type: str, importance: float, cue: str) -> _Rule:
    return _Rule(source_type=source_type, importance=importance, cue=re.compile(rf"\b(?:{cue})\b", re.IGNORECASE))


_RULES: Final = (
    _rule(
        "decision",
        0.8,
        r"decided|decision|chose|chosen|(?:have|we|they|team) (?:agreed|picked)|agreed (?:to|on|that)|settled on"
        r"|opted for|(?:go|going|went) with|switch(?:ed|ing) (?:from|to)|mov(?:ed|ing) (?:\S+ ){1,4}(?:from|to)"
        r"|migrat(?:ed|ing) (?:\S+ ){0,4}(?:from|to)|(?:will|let's|shall) (?:use|keep|drop|adopt|replace)|instead of",
    ),
    _rule(
        "bug_fix",
        0.7,
        r"fixed|fixes|the fix (?:is|was)|hotfix|root cause|caused by|the (?:bug|problem|culprit) (?:is|was)"
        r"|turned out|resolved by|workaround",
    ),
    _rule(
        "preference",
        0.7,
        r"prefers?|preferred|preferences?|i'd rather|i (?:don't )?(?:like|want)|please (?:always|never|don't)",
    ),
    _rule(
        "convention",
        0.6,
        r"always|never|must|should|by convention|conventions?|by default|(?:make|be) sure (?:to|that)"
        r"|we (?:name|write|put|keep|format|prefix|follow)|not allowed|required to|has to be|have to be",
    ),
    _rule(
        "architecture",
        0.6,
        r"architecture|consists? of|(?:is|are) split into|talks? to|depends? on"
        r"|(?:is|are) (?:stored|deployed|hosted|served|exposed|built|written|cached|queued) (?:in|on|by|with|from|at)"
        r"|sits? behind|publishes?|subscribes?",
    ),
    _rule(
        "debugging",
        0.4,
        r"error|exception|traceback|fail(?:s|ed|ing)?|crash(?:es|ed)?|timed? out|times out|reproduc\w+",
    ),
)
_STATES: Final = re.compile(
    r"\b(?:is|are|was|were|has|uses?|runs?|lives?|listens?|returns?|requires?|supports?|takes?|costs?|contains?|holds?"
    r"|expires?|belongs?|starts?|stops?|owns?|equals?)\b",
    re.IGNORECASE,
)
_CATEGORIES: Final = tuple(
    (name, re.compile(rf"\b(?:{words})", re.IGNORECASE))
    for name, words in (
        ("security", r"auth|secret|password|credential|permission|tls\b|oauth|encrypt|csrf|vulnerab"),
        ("testing", r"tests?\b|testing|pytest|coverage|flaky|fixture|mock"),
        (
            "database",
            r"postgres|mysql|sqlite|mongo|database|schema|migration|tables?\b|sql\b|query|queries|index\b|redis",
        ),
        ("deployment", r"deploy|docker|kubernetes|k8s|helm|rollback|releases?\b|staging|production|ci\b|pipeline"),
        ("performance", r"latency|slow|cach|throughput|memory\b|p9[59]|benchmark|timeout"),
        ("api", r"api\b|endpoint|routes?\b|http|(?<!pull )request|response|webhook|grpc|graphql"),
        ("tooling", r"lint|ruff|mypy|format|editor|git\b|branch|commit|package|dependenc|version"),
    )
)
_NO_STATEMENT: Final = re.compile(
    r"(?:maybe|perhaps|what if|should (?:we|i)|could (?:we|you|i)|can (?:we|you|i)|would (?:you|it)|let me|i'll|i will"
    r"|i'm going to|i am going to|now i|i think|i guess|not sure|thanks|thank you|great|sure|ok(?:ay)?\b)",
    re.IGNORECASE,
)
_POINTS_BACK: Final = re.compile(r"(?:(?:it|they|that)|(?:i|we) \w+ (?:it|them|this))\b", re.IGNORECASE)
"""How a sentence begins that cannot be understood without the one before it."""
_STRONG: Final = re.compile(r"\b(?:important|critical|crucial|must|never|production|security)\b", re.IGNORECASE)
_FENCE: Final = "```"
_LEAD: Final = re.compile(rf"(?:{SPEAKER})|[ \t]*(?:[-*+•>]|#+|\d+[.)])[ \t]+", re.IGNORECASE)
_LEAST_WORDS: Final = 4
_TOO_LONG: Final = f"it has more than {LONGEST_FACT:,} characters without an end of a sentence"


class RuleExtractor:
    """Reads facts by the cue words of their sentences."""

    name = NAME

    def most_tokens(self, text: str) -> int:
        """0: no language model is asked."""
        return 0

    def extract(self, text: str) -> Extracted:
        """The sentences of `text` that state something by a rule, each once, in order."""
        facts: dict[str, Fact] = {}
        dropped: list[Dropped] = []
        for sentence in _statements(text):
            fact = _fact(sentence)
            if fact is None or sentence in facts:
                continue
            if len(sentence) > LONGEST_FACT:
                dropped.append(Dropped(content=sentence[:LONGEST_FACT], reason=_TOO_LONG))
            else:
                facts[sentence] = fact
        return Extracted(facts=tuple(facts.values()), dropped=tuple(dropped))


def _statements(text: str) -> Iterator[str]:
    """The sentences outside of fenced code that may state something, without bullets and speakers' names.

    One that points back is joined to the sentence before it, or left out where that one states nothing.
    """
    whole = ""
    for raw in sentences(_outside_code(text)):
        sentence = _bare(raw)
        states = not sentence.endswith(("?", ":", "\uff1f")) and not _NO_STATEMENT.match(sentence)
        if states and _POINTS_BACK.match(sentence):
            joined = f"{whole} {sentence}"
            whole = joined if whole and sentence == raw and len(joined) <= LONGEST_FACT else whole
            continue
        yield from _long_enough(whole)
        whole = sentence if states else ""
    yield from _long_enough(whole)


def _bare(sentence: str) -> str:
    while lead := _LEAD.match(sentence):
        sentence = sentence[lead.end() :]
    return sentence.strip().rstrip(";")


def _long_enough(sentence: str) -> list[str]:
    return [sentence] if len(sentence.split(maxsplit=_LEAST_WORDS)) >= _LEAST_WORDS else []


def _outside_code(text: str) -> str:
    lines = text.splitlines()
    fences = [at for at, line in enumerate(lines) if line.lstrip().startswith(_FENCE)]
    # A fence without its other half hides nothing: the window may have cut it off.
    for first, last in zip(fences[::2], fences[1::2], strict=False):
        lines[first : last + 1] = [""] * (last + 1 - first)
    return "\n".join(lines)


def _fact(sentence: str) -> Fact | None:
    rule = next((rule for rule in _RULES if rule.cue.search(sentence)), None)
    if rule is None and not _is_plain_fact(sentence):
        return None
    importance = rule.importance if rule else 0.5
    return Fact(
        content=sentence,
        source_type=rule.source_type if rule else "fact",
        category=next((name for name, words in _CATEGORIES if words.search(sentence)), "general"),
        importance=round(importance + 0.1, 2) if _STRONG.search(sentence) else importance,
    )


def _is_plain_fact(sentence: str) -> bool:
    """Whether it says of something what it is, with a number, an identifier or a name in it."""
    return bool(_STATES.search(sentence)) and bool(read(sentence).keys_of("quantity", "code", "name"))
