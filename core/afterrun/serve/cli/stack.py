"""Commands on the local stack and its surroundings: up, down, migrate, config."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import click

from afterrun.errors import ConfigurationError, EmbeddingError, ModelMismatchError
from afterrun.masking import masked_url
from afterrun.serve.cli.output import say, waiting, write_json, write_table
from afterrun.serve.cli.program import Command, load_settings
from afterrun.settings import Settings

if TYPE_CHECKING:
    from afterrun.embed import Embedder
    from afterrun.local import Command as StackCommand
    from afterrun.local import Stack
    from afterrun.local.embedding import LoadModel, Vectors
    from afterrun.schema import Migrated

FLOWER_ADDRESS: Final = ("127.0.0.1", 5555)


@click.command(cls=Command)
@click.option("--detach", is_flag=True, help="Leave it running and return; `afterrun down` stops it.")
@click.option("--flower", is_flag=True, help="Start Flower, too, at http://127.0.0.1:5555.")
def up(detach: bool, flower: bool, as_json: bool) -> None:
    """Start Postgres, the broker, workers and beat on this machine, and stay until Ctrl-C.

    What DATABASE_URL and REDIS_URL name is used instead of servers of its own. Other commands find what runs.

    \b
    Example:
      afterrun up --detach
    """
    settings = load_settings()
    if flower:
        _require_flower()
    if detach:
        _start_detached(settings, flower)
        _report(load_settings(), flower, "`afterrun down` stops it", as_json=as_json)
        return
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("afterrun").setLevel(settings.log_level.upper())
    embedder = lazy_embedder(settings)
    stack = make_stack(settings, embedder, flower=flower)
    with ExitStack() as starting:
        starting.enter_context(waiting("starting …"))

        def report() -> None:
            starting.close()
            _report(load_settings(), flower, "Ctrl-C stops it", as_json=as_json)
            sys.stdout.flush()
            threading.Thread(target=_load_ahead, args=[embedder], name="load-model").start()

        stack.run_forever(on_started=report)
    say("stopped")


@click.command(cls=Command)
def down(as_json: bool) -> None:
    """Stop what `afterrun up` started; data stays.

    \b
    Example:
      afterrun down
    """
    from afterrun.local import stop_running

    home = load_settings().home
    with waiting("stopping …"):
        stopped = stop_running(home)
    if as_json:
        write_json({"stopped": stopped, "home": home})
    else:
        click.echo(f"stopped the local stack of {home}" if stopped else f"no local stack runs on {home}")


@click.command(cls=Command)
def migrate(as_json: bool) -> None:
    """Bring the database to this version's schema. Running it again changes nothing.

    \b
    Example:
      DATABASE_URL=postgresql://… afterrun migrate
    """
    settings = load_settings()
    url = settings.require_database()
    with waiting("migrating …"):
        done = bring_up_to_date(settings, url)
    if as_json:
        write_json({"changed": done.changed, "migrated": done})
        return
    for what, names in (("applied", done.applied), ("function", done.functions), ("built index", done.indexes)):
        for name in names:
            click.echo(f"{what}: {name}")
    if not done.changed:
        click.echo("nothing to do: the schema is this version's")
    click.echo(f"embedding model: {done.model}")


@click.command(cls=Command)
def config(as_json: bool) -> None:
    """Every setting with its value and where it comes from; secrets are masked.

    \b
    Example:
      afterrun config
    """
    rows = load_settings().shown()
    columns = ("variable", "value", "origin", "meaning")
    if as_json:
        write_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        write_table(columns, rows)


def make_stack(
    settings: Settings, embedder: Embedder, *, flower: bool = False, environ: dict[str, str] | None = None
) -> Stack:
    """The local stack of these settings; it migrates the database, and answers other commands with `embedder`."""
    from afterrun.local import Stack, default_commands

    extra = (_flower_command(),) if flower else ()
    return Stack(
        settings,
        migrate=lambda url: _migrate(settings, url),
        load_model=_model_loader(embedder),
        commands=(*default_commands(settings), *extra),
        environ=os.environ if environ is None else environ,
    )


def lazy_embedder(settings: Settings) -> Embedder:
    """The settings' embedding model, which is loaded (and once converted) when it is first needed."""
    from afterrun.embed import LazyEmbedder, model_spec

    return LazyEmbedder(model_spec(settings.model), cache=settings.home / "models")


def bring_up_to_date(settings: Settings, url: str) -> Migrated:
    """Migrate the database at `url` for the settings' embedding model."""
    from afterrun.embed import model_spec
    from afterrun.schema import migrate as migrate_schema

    return migrate_schema(url, model_spec(settings.model))


def _migrate(settings: Settings, url: str) -> None:
    bring_up_to_date(settings, url)


def _model_loader(embedder: Embedder) -> LoadModel:
    from afterrun.embed import CachedEmbedder

    cached = CachedEmbedder(embedder)

    def load(model_id: str) -> Callable[[list[str]], Vectors]:
        if model_id != cached.spec.id:
            raise ModelMismatchError(
                f"this stack embeds with {cached.spec.id}, not with {model_id}: set AFTERRUN_MODEL alike"
            )
        return lambda texts: cached.encode(texts).tolist()

    return load


def _load_ahead(embedder: Embedder) -> None:
    """Load the model, so that the first question does not wait for it."""
    try:
        embedder.encode(["ready?"])
    except EmbeddingError as error:
        logging.getLogger(__name__).error("questions cannot be embedded: %s", error)


def _start_detached(settings: Settings, flower: bool) -> None:
    from afterrun.local import detach

    command = [sys.executable, "-m", "afterrun.serve.cli", "up", *(["--flower"] if flower else [])]
    with waiting("starting …"):
        detach(command, settings.home)


def _report(settings: Settings, flower: bool, how_to_stop: str, *, as_json: bool) -> None:
    embedded = {name for name in ("database_url", "redis_url") if settings.origins.get(name) == "local stack"}
    if as_json:
        write_json(
            {
                "home": settings.home,
                "database": {"url": masked_url(settings.require_database()), "embedded": "database_url" in embedded},
                "broker": {"url": masked_url(settings.require_broker()), "embedded": "redis_url" in embedded},
                "flower": _flower_url() if flower else None,
                "logs": settings.home / "logs",
            }
        )
        return
    click.echo(click.style("Afterrun is up", bold=True, fg="green"))
    for name, value in _lines(settings, embedded, flower):
        click.echo(f"  {name:<10} {value}")
    click.echo(f"{how_to_stop[0].upper()}{how_to_stop[1:]}.")


def _lines(settings: Settings, embedded: set[str], flower: bool) -> list[tuple[str, str]]:
    database, broker = masked_url(settings.require_database()), masked_url(settings.require_broker())
    servers = [
        ("Postgres", f"{'embedded, with pgvector' if 'database_url' in embedded else 'DATABASE_URL'}: {database}"),
        ("broker", f"{'embedded Valkey' if 'redis_url' in embedded else 'REDIS_URL'}: {broker}"),
    ]
    if not embedded:
        servers.append(("note", "both servers are the environment's: only workers and beat run here"))
    return [
        *servers,
        ("workers", "index, embed, consolidate and maintenance, and beat"),
        *([("Flower", _flower_url())] if flower else []),
        ("model", f"{settings.model}; questions are embedded here for other commands"),
        ("data", str(settings.home)),
        ("logs", str(settings.home / "logs")),
    ]


def _require_flower() -> None:
    if importlib.util.find_spec("flower") is None:
        raise ConfigurationError("Flower is not installed: run `pip install 'afterrun[flower]'`")


def _flower_command() -> StackCommand:
    from afterrun.local import Command as StackCommand

    host, port = FLOWER_ADDRESS
    celery = (sys.executable, "-m", "celery", "-A", "afterrun_workers.app")
    return StackCommand(name="flower", arguments=(*celery, "flower", f"--address={host}", f"--port={port}"))


def _flower_url() -> str:
    host, port = FLOWER_ADDRESS
    return f"http://{host}:{port}"
