"""The local stack: embedded PostgreSQL and broker, Celery workers, beat and the query-embedding service.

`Stack` runs in the process of `afterrun up`; `stop_running` and `detach` handle it from another one. The state that
other commands read (`stack.lock`, `stack.json`) is described in `afterrun.settings`.
"""

from afterrun.local.commands import Command, default_commands
from afterrun.local.control import detach, stop_running
from afterrun.local.embedding import EmbedService, LazyModel
from afterrun.local.stack import Stack

__all__ = ["Command", "EmbedService", "LazyModel", "Stack", "default_commands", "detach", "stop_running"]
