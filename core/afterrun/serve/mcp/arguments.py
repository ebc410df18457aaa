"""What the tools take: types with their bounds, and with the words that a model reads before it fills them in."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias
from uuid import UUID

from pydantic import Field

from afterrun.limits import MAX_CHARACTERS, MAX_NAME

MOST_HITS: Final = 50
"""Hits that one call gives: what no agent reads costs it tokens all the same."""
MOST_IDS: Final = 100
MOST_AROUND: Final = 50
MOST_TOKENS: Final = 20_000

Collection: TypeAlias = Literal["memory", "codebase", "docs", "standards"]
Place: TypeAlias = Annotated[
    Collection, Field(description="Where it lies: memory (runs and notes), codebase, docs or standards.")
]
Importance: TypeAlias = Annotated[float, Field(ge=0, le=1, description="How much it matters, from 0 to 1.")]
Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]

Query: TypeAlias = Annotated[
    str,
    Field(description="What you want to know: a question or some words, in any form. Empty: the newest."),
]
TopK: TypeAlias = Annotated[int, Field(ge=1, le=MOST_HITS, description="How many hits to return at most.")]
Project: TypeAlias = Annotated[
    Name | None,
    Field(description="Your project's name: its own come first, others are still found. Leave out to treat all alike."),
]
OnlyProject: TypeAlias = Annotated[
    bool, Field(description="Return nothing but memories of `project`, which must be given then.")
]
Owner: TypeAlias = Annotated[
    Name, Field(description="The project that it belongs to; `global` is shared by all projects.")
]
Collections: TypeAlias = Annotated[
    list[Collection] | None,
    Field(
        min_length=1,
        description="Only these: memory (runs and notes), codebase, docs, standards. Leave out for all of them.",
    ),
]
SourceTypes: TypeAlias = Annotated[
    list[Name] | None,
    Field(
        min_length=1,
        max_length=20,
        description="Only these types: decision, architecture, preference, fact, convention, bug_fix, debugging, "
        "session_summary, document_chunk, code_context, or one of your own.",
    ),
]
SourceType: TypeAlias = Annotated[
    Name,
    Field(
        description="What it is: decision, architecture, preference, fact, convention, bug_fix, debugging, or a word "
        "of your own. Decisions and preferences stay fresh for a year, facts for months, bug fixes for weeks."
    ),
]
Since: TypeAlias = Annotated[str | None, Field(description="Only from this time on (ISO 8601, UTC if naive).")]
Until: TypeAlias = Annotated[str | None, Field(description="Only before this time (ISO 8601, UTC if naive).")]
CreatedAt: TypeAlias = Annotated[
    str | None, Field(description="When it became true (ISO 8601, UTC if naive). Leave out for now.")
]
Session: TypeAlias = Annotated[
    Name | None, Field(description="The conversation or run that it comes from; groups memories for the timeline.")
]
Category: TypeAlias = Annotated[Name | None, Field(description="A word of your own to sort by.")]
Metadata: TypeAlias = Annotated[
    dict[str, Any] | None, Field(description="Anything else worth keeping with it, such as a ticket or a path.")
]
TokenBudget: TypeAlias = Annotated[
    int, Field(ge=50, le=MOST_TOKENS, description="Tokens that the memories may take together.")
]
MinResults: TypeAlias = Annotated[
    int, Field(ge=0, le=MOST_HITS, description="Return at least so many, if so many exist, even beyond the budget.")
]
Anchor: TypeAlias = Annotated[
    UUID | None, Field(description="The id of the memory to look around, as the other tools give it.")
]
AnchorQuery: TypeAlias = Annotated[
    str | None, Field(description="Instead of an id: what to look for; the best hit becomes the anchor.")
]
Ids: TypeAlias = Annotated[
    list[UUID],
    Field(min_length=1, max_length=MOST_IDS, description="Ids of memories, as the other tools give them."),
]
Count: TypeAlias = Annotated[int, Field(ge=0, le=MOST_AROUND, description="How many memories to show on this side.")]
InSession: TypeAlias = Annotated[
    bool, Field(description="Only memories of the anchor's session instead of its whole project.")
]
Note: TypeAlias = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_CHARACTERS,
        description="One statement that makes sense without this conversation: with names, versions, reasons.",
    ),
]
Transcript: TypeAlias = Annotated[
    str, Field(min_length=1, max_length=MAX_CHARACTERS, description="The session's text, with who said what.")
]
