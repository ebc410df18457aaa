"""The command line `afterrun`. Each module holds a group of commands; heavy imports happen inside them."""

from __future__ import annotations

import click

from afterrun.serve.cli.archives import export, import_
from afterrun.serve.cli.consolidation import consolidate
from afterrun.serve.cli.demo import demo
from afterrun.serve.cli.keys import key
from afterrun.serve.cli.mcp import mcp
from afterrun.serve.cli.memories import forget, get, history, recall, remember, search
from afterrun.serve.cli.program import Program
from afterrun.serve.cli.runs import finish, index
from afterrun.serve.cli.serve import serve
from afterrun.serve.cli.sessions import summarize
from afterrun.serve.cli.stack import config, down, migrate, up
from afterrun.serve.cli.upkeep import retry, status, undo

__all__ = ["main"]


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="afterrun", message="afterrun %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Long-term memory for AI pipelines: finished runs become memories that are recalled in milliseconds.

    \b
    A first look, with nothing installed or kept:   afterrun demo
    To work with:                                   afterrun up
      and in another terminal:                      afterrun finish --repo shop --summary "Moved orders to Postgres"
                                                    afterrun recall "where are orders stored?"
    """


for _command in (
    *(up, down, demo, migrate, config),
    *(finish, index),
    *(remember, summarize, recall, search, get, forget, history),
    *(status, consolidate, undo, retry),
    *(export, import_),
    *(mcp,),
    *(serve, key),
):
    main.add_command(_command)
