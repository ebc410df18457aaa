"""Commands on API keys: key create, key list, key revoke."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from afterrun.serve.cli.output import say, write_json, write_table
from afterrun.serve.cli.program import Command, open_memory

if TYPE_CHECKING:
    from afterrun.store import ApiKey


class KeyGroup(click.Group):
    """The group `afterrun key`."""

    command_class = Command


@click.group(cls=KeyGroup)
def key() -> None:
    """API keys for `afterrun serve` and MCP over HTTP.

    Once a key was made, every request needs one.

    \b
    Example:
      afterrun key create --name ci --project shop
    """


@key.command()
@click.option("--name", required=True, help="What the key is for; shown in the list.")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(("read", "write", "admin")),
    multiple=True,
    default=("read", "write"),
    show_default=True,
    help="What it may do; repeat it for more. admin includes the others.",
)
@click.option("--project", "projects", multiple=True, help="Only this project; repeat it for more. Default: all.")
@click.option("--no-global", is_flag=True, help="Do not read the project global, which all share.")
@click.option("--expires", help="When it ends (ISO 8601, naive is UTC). Default: never.")
def create(
    name: str, scopes: tuple[str, ...], projects: tuple[str, ...], no_global: bool, expires: str | None, as_json: bool
) -> None:
    """Make a key and show it, once: only a hash of it is kept.

    \b
    Example:
      afterrun key create --name ci --scope write --project shop --expires 2027-01-01
    """
    with open_memory() as memory:
        from afterrun import keys
        from afterrun.models import parse_time

        made, token = keys.create(
            memory.database,
            name,
            scopes=scopes,
            projects=projects,
            reads_global=not no_global,
            expires_at=None if expires is None else parse_time(expires),
        )
    if as_json:
        write_json({"key": made, "token": token})
        return
    click.echo(token)
    say(f"this is key {made.id}, {_what(made)}; it is not shown again, and every request needs a key from now on")


@key.command("list")
def list_keys(as_json: bool) -> None:
    """Every key that was ever made, without its secret.

    \b
    Example:
      afterrun key list
    """
    with open_memory() as memory:
        from afterrun import keys

        found = keys.listed(memory.database)
    if as_json:
        write_json(found)
        return
    columns = ("id", "name", "scopes", "projects", "created", "expires", "last used", "revoked")
    write_table(columns, [_row(made) for made in found])
    if not found:
        say("there is no key: only this machine may send requests, and they need none")


@key.command()
@click.argument("key_id", metavar="ID")
def revoke(key_id: str, as_json: bool) -> None:
    """Make a key useless for good, from the next request on. The ids are those of `afterrun key list`.

    \b
    Example:
      afterrun key revoke 5f0c3a520c6e
    """
    with open_memory() as memory:
        from afterrun import keys

        revoked = keys.revoke(memory.database, key_id)
    if as_json:
        write_json(revoked)
    else:
        click.echo(f"revoked: {revoked.id} ({revoked.name})")


def _row(made: ApiKey) -> tuple[object, ...]:
    times = (made.created_at, made.expires_at, made.last_used_at, made.revoked_at)
    return made.id, made.name, ", ".join(made.scopes), _projects(made), *times


def _projects(made: ApiKey) -> str:
    if not made.projects:
        return "all"
    shared = () if "global" in made.projects or not made.reads_global else ("global (reads)",)
    return ", ".join((*made.projects, *shared))


def _what(made: ApiKey) -> str:
    return f"scopes {', '.join(made.scopes)}, projects {_projects(made)}"
