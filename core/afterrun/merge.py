"""How is the merged memory worded? The protocol, and the merger that needs no model and loses nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from afterrun.models import Member
from afterrun.reading import read, sentences, skeleton

_SMALL = ("not ", "quantity ", "modal ", "compares ")
"""What begins a piece that stands for a small word that decides; see `_pieces`."""
_ENDS = (".", "!", "?", "\u3002", "\uff01", "\uff1f")


class Merger(Protocol):
    """Words the one memory that takes the place of several."""

    def merge(self, members: Sequence[Member]) -> str:
        """The text of the memory that says what all `members` say."""


class DeterministicMerger:
    """The newest text, followed by those sentences of the others that add something.

    Where one text says all that the others say, it stands as it is, so that a fact which is merged, recalled,
    remembered and merged again never grows nor changes.

    Nothing is lost: whatever a member says in content words, numbers, code or small words that decide (not, only, may)
    stands in the result. The result is at most as long as the members together, and merging it again with one of them
    gives it back unchanged.
    """

    def merge(self, members: Sequence[Member]) -> str:
        """The merged text; members are taken by age, the newest first, so their order does not matter."""
        ordered = sorted(members, key=lambda member: (member.created_at, member.id), reverse=True)
        if complete := _complete(ordered):
            return complete
        text, known = "", set[str]()
        for member in ordered:
            if not text:
                text, known = member.content.strip(), _says(member.content)
                continue
            for sentence in sentences(member.content):
                said = _says(sentence)
                if not said <= known:
                    text, known = f"{text}{_separator(text, member.content)}{sentence}", known | said
        return text


def wording(members: Sequence[Member], proposed: str | None = None, merger: Merger | None = None) -> str:
    """`proposed` if it has the numbers, identifiers, paths and names of the members, else what `merger` words.

    It must have all of them, and no number, identifier or path beside: such a text would say what nobody has said.

    `merger` is the deterministic one unless another one is given.
    """
    if proposed and proposed.strip():
        kept = _facts(proposed)
        theirs = frozenset[str]().union(*(_facts(member.content) for member in members))
        added = read(proposed).keys_of("quantity", "code") - theirs
        if theirs <= kept and not added:
            return proposed.strip()
    return (merger or DeterministicMerger()).merge(members)


def _complete(ordered: Sequence[Member]) -> str | None:
    """The first text that says all that the others say, if they also agree in the small words."""
    says = [_says(member.content) for member in ordered]
    everything = set[str]().union(*says)
    small = {piece for piece in everything if piece.startswith(_SMALL)}
    if not everything or any(small - said for said in says):
        return None
    return next(
        (member.content.strip() for member, said in zip(ordered, says, strict=True) if said == everything), None
    )


def _facts(text: str) -> frozenset[str]:
    return read(text).keys_of("quantity", "code", "name")


def _says(text: str) -> set[str]:
    """All that `text` says, sentence by sentence, so that a text says exactly what its sentences say."""
    return {piece for sentence in sentences(text) for piece in _pieces(sentence)}


def _pieces(sentence: str) -> set[str]:
    words, signs = skeleton(sentence)
    reading = read(sentence)
    if not (reading.english and reading.plain):
        return {*reading.keys, *(f"exact {word}" for word in (*words.split(), *signs))}
    small = {
        *(f"not {key}" for key in reading.negated),
        *(f"quantity {word}" for word in reading.quantifiers),
        *(f"modal {word}" for word in reading.modals),
        *(f"compares {word}" for word in reading.comparators),
    }
    return {*reading.keys, *small}


def _separator(text: str, addition: str) -> str:
    return " " if text.endswith(_ENDS) and "\n" not in text and "\n" not in addition.strip() else "\n"
