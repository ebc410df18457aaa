"""What the language model is asked for, and whether its answer may be believed.

The answer is plain JSON from outside. It becomes a `Verdict` only if every part of it holds; otherwise
`LanguageModelError` says which part does not, without quoting the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeGuard
from uuid import UUID

from afterrun.errors import LanguageModelError
from afterrun.models import Member, Spend, Verdict
from afterrun.redact import scrub

TOOL: Final = "record_verdict"
WORDING_SLACK: Final = 200
"""Characters by which a merged text may be longer than its members together."""
LONGEST_REASON: Final = 500

_NUMBERS: Final[dict[str, object]] = {"type": "array", "items": {"type": "integer"}}
SCHEMA: Final[dict[str, object]] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["same", "wording", "contradictions", "related", "reason"],
    "properties": {
        "same": {**_NUMBERS, "description": "Numbers of the memories that state the same fact; empty if no two do"},
        "wording": {"type": "string", "description": "One text with every detail of the same memories; empty if none"},
        "contradictions": {
            "type": "array",
            "description": "Pairs of which both cannot be true now; the newer one wins",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["newer", "older", "reason"],
                "properties": {
                    "newer": {"type": "integer"},
                    "older": {"type": "integer"},
                    "reason": {"type": "string"},
                },
            },
        },
        "related": {
            **_NUMBERS,
            "description": "Numbers of the memories that are about other facts and stay as they are",
        },
        "reason": {"type": "string", "description": "Why, in one sentence"},
    },
}
"""JSON schema of the tool's input. Counts, lengths and relations are checked here, where a schema cannot say them."""


def verdict(answer: object, members: Sequence[Member], *, judge: str, spend: Spend) -> Verdict:
    """The verdict that `answer` gives on `members`, which it names by their numbers from 1.

    Raises:
        LanguageModelError: a part of the answer is missing, malformed, names no member, or contradicts another part.
    """
    try:
        return _verdict(answer, members, judge, spend)
    except ValueError as error:
        raise LanguageModelError(f"the language model's answer cannot be used: {error}", spend=spend) from None


def _verdict(answer: object, members: Sequence[Member], judge: str, spend: Spend) -> Verdict:
    fields = _object(answer, "the answer", ("same", "wording", "contradictions", "related", "reason"))
    same = _members(fields["same"], "same", members)
    related = _members(fields["related"], "related", members)
    superseded, reasons = _contradictions(fields["contradictions"], members)
    _check_groups(same, related, superseded)
    return Verdict(
        same=same,
        superseded=superseded,
        reason="; ".join([_text(fields["reason"], "reason"), *reasons])[:LONGEST_REASON],
        wording=_wording(fields["wording"], [member for member in members if member.id in same]),
        judge=judge,
        spend=spend,
    )


def _check_groups(same: Sequence[UUID], related: Sequence[UUID], superseded: Mapping[UUID, UUID]) -> None:
    if len(same) == 1:
        raise ValueError("same names one memory only")
    groups = [*same, *related, *superseded]
    if len(groups) != len(set(groups)):
        raise ValueError("a memory stands in more than one group")


def _members(value: object, name: str, members: Sequence[Member]) -> tuple[UUID, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{name} is no list")
    ids = tuple(_member(number, name, members).id for number in value)
    if len(ids) != len(set(ids)):
        raise ValueError(f"{name} names a memory twice")
    return ids


def _member(number: object, name: str, members: Sequence[Member]) -> Member:
    if not isinstance(number, int) or isinstance(number, bool):
        raise ValueError(f"{name} holds something else than whole numbers")
    if not 1 <= number <= len(members):
        raise ValueError(f"{name} names a memory that is not in the cluster")
    return members[number - 1]


def _contradictions(value: object, members: Sequence[Member]) -> tuple[dict[UUID, UUID], list[str]]:
    if not isinstance(value, list):
        raise ValueError("contradictions is no list")
    superseded: dict[UUID, UUID] = {}
    reasons = []
    for entry in value:
        fields = _object(entry, "a contradiction", ("newer", "older", "reason"))
        newer = _member(fields["newer"], "contradictions", members)
        older = _member(fields["older"], "contradictions", members)
        if newer.created_at <= older.created_at:
            raise ValueError("a contradiction names as newer what is not newer")
        if older.id in superseded:
            raise ValueError("contradictions supersede a memory twice")
        superseded[older.id] = newer.id
        reasons.append(_text(fields["reason"], "a contradiction's reason"))
    return superseded, reasons


def _wording(value: object, same: Sequence[Member]) -> str | None:
    if not isinstance(value, str):
        raise ValueError("wording is no text")
    if not same:
        return None
    wording = scrub(value).strip()
    if not wording:
        raise ValueError("wording is empty")
    if len(wording) > sum(len(member.content) for member in same) + WORDING_SLACK:
        raise ValueError("wording is longer than the memories that it merges")
    return wording


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not (text := scrub(value).strip()):
        raise ValueError(f"{name} is empty or no text")
    return text


def _object(value: object, name: str, keys: tuple[str, ...]) -> Mapping[str, object]:
    if not _is_object(value) or set(value) != set(keys):
        raise ValueError(f"{name} has not exactly the fields {', '.join(keys)}")
    return value


def _is_object(value: object) -> TypeGuard[Mapping[str, object]]:
    return isinstance(value, dict)
