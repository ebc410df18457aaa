"""Every error that Afterrun raises on purpose.

AfterrunError
├── ConfigurationError      a setting is missing or has a value that cannot be used
├── InputError              what the caller passed cannot be used
│   └── EmptyError             … because nothing is left of its text
├── NotFoundError           no row has the id that the caller named
├── ConflictError           the request is fine, the state of the data does not allow it
├── AccessError             who asks may not do what was asked
│   ├── UnauthenticatedError   … because there is no key, or one that is not valid (any more)
│   └── ForbiddenError         … because the key lacks the scope, or the project is not among its projects
├── NotRunningError         a part of the local stack is needed and does not run
├── RunStoreError           the SQLite run store cannot be read or written
├── QueueError              the broker cannot be reached in time
├── DatabaseError           Postgres refused or failed
│   ├── DatabaseUnavailableError   … because it cannot be reached (trying again may help)
│   │   └── ContendedError             … but others worked on the same rows (trying again will help)
│   ├── RefusedError               … because of the data it was given
│   └── SchemaError                … because its schema is not the one this code needs
├── EmbeddingError          the embedding model failed
│   └── ModelMismatchError         … because the database holds another model's vectors
├── BudgetError             the language model may not be called now: a cap on spend is reached
└── LanguageModelError      the language model's answer cannot be used, or it gave none
    ├── LanguageModelUnavailableError  … because its service is busy or cannot be reached (trying again will help)
    ├── LanguageModelRejectedError     … and trying again cannot help (bad key, bad request)
    └── UnreadError                    … so that a part of a session was not read

Messages say what happened, on what, and what to do about it. They never contain memory text or secrets.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


class AfterrunError(Exception):
    """Base of all errors that Afterrun raises on purpose."""


class ConfigurationError(AfterrunError):
    """A setting is missing or cannot be used."""


class InputError(AfterrunError, ValueError):
    """The caller passed something that cannot be used."""


class EmptyError(InputError):
    """Nothing is left of a text: it was blank, or all of it was private."""


class NotFoundError(AfterrunError, LookupError):
    """No row has the id that the caller named."""


class ConflictError(AfterrunError):
    """The data's state does not allow what was asked, for example the undo of a merge that was merged again."""


class AccessError(AfterrunError):
    """Who asks may not do what was asked."""


class UnauthenticatedError(AccessError):
    """No API key came with the request, or one that is unknown, expired or revoked."""


class ForbiddenError(AccessError):
    """The API key is valid, but has not the scope, or not the project."""


class NotRunningError(AfterrunError):
    """A part of the local stack is needed and does not run."""


class RunStoreError(AfterrunError):
    """The run store (SQLite) cannot be read or written."""


class QueueError(AfterrunError):
    """The broker did not take the message in time."""


class DatabaseError(AfterrunError):
    """Postgres refused or failed."""


class DatabaseUnavailableError(DatabaseError):
    """Postgres cannot be reached, or the connection broke; trying again may help."""


class ContendedError(DatabaseUnavailableError):
    """Postgres ended a transaction because it and others waited for each other; the same again will pass."""


class RefusedError(DatabaseError):
    """Postgres refused the data of a statement; the same data will be refused again."""


class SchemaError(DatabaseError):
    """The database's schema is not the one this code needs."""


class EmbeddingError(AfterrunError):
    """The embedding model cannot be loaded or failed on a text."""


class ModelMismatchError(EmbeddingError):
    """The database holds vectors of another model, or of another dimension."""


class BudgetError(AfterrunError):
    """A cap on what the language model may cost is reached.

    `setting` names the cap, `frees_at` is when it frees again, `of_run` says that it is that of a run: another run may
    go on at once.
    """

    def __init__(self, message: str, *, setting: str, frees_at: datetime, of_run: bool = False) -> None:
        super().__init__(message)
        self.setting = setting
        self.frees_at = frees_at
        self.of_run = of_run


@dataclass(frozen=True, kw_only=True, slots=True)
class Spend:
    """What an answer of the language model cost. Errors carry it: a useless answer costs as much as a good one."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class LanguageModelError(AfterrunError):
    """The language model gave no usable answer; nothing was changed. `spend` is what it cost all the same."""

    def __init__(self, message: str, *, spend: Spend | None = None) -> None:
        super().__init__(message)
        self.spend = spend or Spend()


class LanguageModelUnavailableError(LanguageModelError):
    """The language model's service is busy, fails or cannot be reached.

    `retry_after` is how many seconds the service asks to wait; None where it does not say.
    """

    def __init__(self, message: str, *, spend: Spend | None = None, retry_after: float | None = None) -> None:
        super().__init__(message, spend=spend)
        self.retry_after = retry_after


class LanguageModelRejectedError(LanguageModelError):
    """The language model's service refuses this client (bad key, bad request); trying again cannot help.

    `status` is the HTTP status of the refusal, where it is one.
    """

    def __init__(self, message: str, *, spend: Spend | None = None, status: int | None = None) -> None:
        super().__init__(message, spend=spend)
        self.status = status


class UnreadError(LanguageModelError):
    """A part of a session could not be read; `__cause__` says why, and the same call again goes on there.

    `read` of `parts` parts are done with, and the memories with the ids `written` are written and stay.
    """

    def __init__(self, message: str, *, spend: Spend, written: tuple[UUID, ...], read: int, parts: int) -> None:
        super().__init__(message, spend=spend)
        self.written = written
        self.read = read
        self.parts = parts
