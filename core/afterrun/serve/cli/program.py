"""The frame of every command: `--json` and `--debug`, exit codes, errors without tracebacks.

Exit codes: 0 done, 1 an Afterrun error, 2 wrong usage, 130 interrupted, 141 the reader of stdout went away.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from afterrun import settings as settings_module
from afterrun.errors import AfterrunError
from afterrun.serve.cli.output import say, write_json
from afterrun.settings import Settings

if TYPE_CHECKING:
    from afterrun.client import Memory

FAILED: Final = 1
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
"""What a shell gives for a program that SIGPIPE ended."""
BROKER_SECONDS: Final = 5.0
"""How long a command waits for the broker: longer than a pipeline's hook, since it also has to import Celery first."""

_JSON: Final = "as_json"


class Command(click.Command):
    """A command with `--json`, whose Afterrun errors become a message and exit code 1."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        help_text = "Write one JSON document to stdout and nothing else."
        self.params.append(click.Option(["--json", _JSON], is_flag=True, help=help_text))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an Afterrun error ends it with exit code 1."""
        try:
            return super().invoke(ctx)
        except AfterrunError as error:
            report(error, as_json=ctx.params[_JSON], debug=ctx.find_root().params.get("debug", False))
            ctx.exit(FAILED)


class Program(click.Group):
    """The group `afterrun`."""

    command_class = Command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; a reader of stdout that goes away ends it without a word."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # Python flushes stdout once more when it ends, and would complain about the same pipe.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(BROKEN_PIPE)
        return result

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the program and exit; with `standalone_mode=False` return and raise as click does."""
        frame = super().main
        if not standalone_mode:
            return frame(args, prog_name, complete_var, standalone_mode=False, **extra)
        sys.exit(_exit_code(lambda: frame(args, prog_name, complete_var, standalone_mode=False, **extra)))


def _exit_code(work: Callable[[], object]) -> int:
    try:
        if hasattr(sys.stdout, "reconfigure"):
            # What a terminal's encoding cannot show must not end a command.
            sys.stdout.reconfigure(errors="backslashreplace")
        result = work()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        say("interrupted")
        return INTERRUPTED
    return result if isinstance(result, int) else 0


def report(error: AfterrunError, *, as_json: bool, debug: bool) -> None:
    """Say what went wrong: on stderr for people, on stdout for programs; the traceback only where asked."""
    if debug:
        say("".join(traceback.format_exception(error)))
    if as_json:
        write_json({"error": {"type": type(error).__name__, "message": str(error)}})
    else:
        say(f"error: {error}")


def load_settings() -> Settings:
    """The settings of this process."""
    return settings_module.load()


def open_memory() -> Memory:
    """The memory of this process's settings, to be used in a `with` block. Raises NotRunningError."""
    settings = load_settings()
    settings.require_database()
    # Only now: the database driver costs more time than everything else that a refusal needs.
    from afterrun.client import Memory

    return Memory(settings=replace(settings, publish_timeout=BROKER_SECONDS))


def wrong_usage(message: str) -> NoReturn:
    """End with exit code 2 and the command's usage line."""
    raise click.UsageError(message, click.get_current_context())
