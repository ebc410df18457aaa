"""What requests and answers look like: the source of the OpenAPI description. Unknown fields are refused."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from afterrun.client.arguments import as_time
from afterrun.events import State as EventState
from afterrun.limits import MAX_CHARACTERS, MAX_NAME
from afterrun.models import GLOBAL_PROJECT, Hit, NewMemory
from afterrun.recall import DEFAULT_MIN_RESULTS, DEFAULT_TOKEN_BUDGET, MAX_RESULTS

MOST_IDS: Final = 100
MOST_TOKENS: Final = 100_000
REMEMBER_SECONDS: Final = 8.0
_VISIBLE: Final = r"[!-~]|[^\x00-\xa0]"
"""At least one character that can be seen."""

Collection = Literal["memory", "codebase", "docs", "standards"]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME, pattern=_VISIBLE)]
Integral = BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value)
"""JSON knows no whole numbers of their own: 5.0 is one."""
Ordinal = Annotated[int, Field(ge=-(2**31), le=2**31 - 1), Integral]
Time = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]
Id = Annotated[UUID, Field(strict=False)]


class Shape(BaseModel):
    """An object of a request: no unknown field, and no value taken for one of another type."""

    model_config = ConfigDict(extra="forbid", strict=True)


class EventIn(Shape):
    """A note to remember. `created_at` is ISO 8601 (naive is UTC); without one it is now."""

    content: str = Field(
        min_length=1, max_length=MAX_CHARACTERS, pattern=_VISIBLE, examples=["Orders are stored in Postgres."]
    )
    project: Name = Field(default=GLOBAL_PROJECT, description="Whose memory it is; global is everybody's.")
    source_type: Name = Field(default="fact", description="decision, architecture, preference, bug_fix, …")
    collection: Collection = "memory"
    category: Name | None = None
    importance: float = Field(default=0.5, ge=0, le=1)
    session: Name | None = None
    session_ordinal: Ordinal | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    created_at: Time | None = None

    def fields(self) -> dict[str, Any]:
        """The arguments of `Memory.remember`."""
        return {name: getattr(self, name) for name in EventIn.model_fields}


class RememberIn(EventIn):
    """The same; with `wait` the answer comes when it is embedded, or after `timeout` seconds, 8 at most.

    Whoever needs longer asks for the event with the memory's id as its receipt.
    """

    wait: Literal["embedded"] | None = None
    timeout: float = Field(default=REMEMBER_SECONDS, ge=0, le=60)


class Where(Shape):
    """Where to look. `project` prefers its own memories and hides none; with `only_project` it filters."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"only_project": {"const": True}}, "required": ["only_project"]},
            "then": {"properties": {"project": {"type": "string"}}, "required": ["project"]},
        }
    )

    query: str = Field(default="", description="Any text; empty: the newest.", examples=["where are orders stored?"])
    project: Name | None = None
    only_project: bool = False
    collections: list[Collection] | None = Field(default=None, max_length=10)
    source_types: list[Name] | None = Field(default=None, max_length=50)
    since: Time | None = Field(default=None, description="Only memories from this time on.")
    until: Time | None = Field(default=None, description="Only memories before this time.")
    min_results: Annotated[int, Integral] = Field(default=DEFAULT_MIN_RESULTS, ge=0, le=MAX_RESULTS)

    def fields(self) -> dict[str, Any]:
        """The keyword arguments of `Memory.recall` or `Memory.search`."""
        return {name: getattr(self, name) for name in type(self).model_fields if name != "query"}


class RecallIn(Where):
    """A question, and how many tokens the answer may take."""

    token_budget: Annotated[int, Integral] = Field(default=DEFAULT_TOKEN_BUDGET, ge=1, le=MOST_TOKENS)
    explain: bool = Field(default=False, description="List what was withheld, and why.")


class SearchIn(Where):
    """A question, and how many hits to give at most."""

    limit: Annotated[int, Integral] = Field(default=20, ge=1, le=MAX_RESULTS)


class ForgetIn(Shape):
    """The memories to forget; where one does not exist, none is forgotten."""

    ids: list[Id] = Field(min_length=1, max_length=MOST_IDS)


class Receipts(BaseModel):
    """One receipt an event, in the order of the request. `replayed`: this Idempotency-Key was answered before."""

    receipts: list[UUID]
    replayed: bool = False


class EventOut(BaseModel):
    """How far an event is. The receipt is the id of its memory."""

    receipt: UUID
    state: EventState
    detail: str | None = None


class Hits(BaseModel):
    """What a search found, best first."""

    hits: list[Hit]


class Forgotten(BaseModel):
    """The ids that were not forgotten before."""

    forgotten: list[UUID]


class Detail(BaseModel):
    """One thing that is wrong with a request: where (a field's path, or an event's place in its batch) and what."""

    where: str
    message: str


class ErrorOut(BaseModel):
    """What went wrong, and what to do about it."""

    type: str
    message: str
    details: list[Detail] = []


class Problem(BaseModel):
    """The answer to every request that failed."""

    error: ErrorOut


class Health(BaseModel):
    """Whether a part is well; `problems` says what is not."""

    status: Literal["ok", "not ready"]
    problems: list[str] = []


def as_note(event: EventIn) -> NewMemory:
    """The event as the library takes it. Raises InputError for a time that is none."""
    fields = event.fields()
    created = fields.pop("created_at")
    return NewMemory(**fields, created_at=None if created is None else as_time("created_at", created))
