"""The command that serves HTTP."""

from __future__ import annotations

import logging
import sys

import click

from afterrun.serve.cli.output import say, write_json
from afterrun.serve.cli.program import Command, load_settings


@click.command(cls=Command)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; any other address needs keys.")
@click.option("--port", type=click.IntRange(0, 65535), default=8767, show_default=True, help="0 takes any free one.")
@click.option(
    "--threads", type=click.IntRange(1, 256), default=8, show_default=True, help="Requests worked on at once."
)
@click.option("--waiting", type=click.IntRange(0, 100_000), default=128, show_default=True, help="… and kept waiting.")
@click.option("--rate", type=click.FloatRange(0), default=100.0, show_default=True, help="Requests a second of a key.")
@click.option("--burst", type=click.IntRange(1), default=200, show_default=True, help="How many of them at once.")
@click.option(
    "--max-body", type=click.IntRange(1_024), default=2_097_152, show_default=True, help="Bytes of a request."
)
def serve(
    host: str, port: int, threads: int, waiting: int, rate: float, burst: int, max_body: int, as_json: bool
) -> None:
    """Serve the memory over HTTP until Ctrl-C; /docs there describes every route.

    \b
    Example:
      afterrun serve --port 8767
    """
    settings = load_settings()
    settings.require_database()
    from afterrun.serve.http.options import Limits
    from afterrun.serve.http.server import serve as serve_http

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("afterrun").setLevel(settings.log_level)
    limits = Limits(threads=threads, waiting=waiting, rate=rate, burst=burst, body=max_body)
    serve_http(settings, host=host, port=port, limits=limits, on_listening=lambda url: _report(url, as_json=as_json))
    say("stopped")


def _report(url: str, *, as_json: bool) -> None:
    if as_json:
        write_json({"url": url, "docs": f"{url}/docs"})
    else:
        click.echo(f"Afterrun listens on {url}, see {url}/docs. Ctrl-C stops it.")
    sys.stdout.flush()
