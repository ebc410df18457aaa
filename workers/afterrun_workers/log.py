"""What a worker writes of messages that it cannot use: never their contents, which may be memory text.

Celery shows the whole body and the headers of a message for an unknown task, of an invalid one, and of one that it
cannot decode.
"""

from __future__ import annotations

import logging
from typing import Final

from afterrun.redact import scrub

CONSUMER: Final = "celery.worker.consumer.consumer"
"""Celery's logger of received messages."""
_LONGEST: Final = 60


class TextFree(logging.Filter):
    """Keeps the first words of a record that shows a message's body, and the name of the task; the rest goes."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, without contents."""
        if "body" in str(record.msg):
            words = str(record.msg).strip().splitlines()[0].partition("%")[0].rstrip(" :")
            record.args = (words, _cause(record.args))
            record.msg = "%s%s; its contents are not logged"
            record.exc_info = record.exc_text = None
        return True


def install() -> None:
    """Have the consumer's log filtered in this process."""
    logger = logging.getLogger(CONSUMER)
    if not any(isinstance(one, TextFree) for one in logger.filters):
        logger.addFilter(TextFree())


def _cause(values: object) -> str:
    cause = values[0] if isinstance(values, tuple) and values else None
    if isinstance(cause, KeyError):
        return f" {scrub(str(cause.args[0]))[:_LONGEST]!r}"
    return f" ({type(cause).__name__})" if isinstance(cause, Exception) else ""
