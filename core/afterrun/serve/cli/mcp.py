"""The command that serves agents: mcp."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Final

import click

from afterrun.serve.cli.output import say, write_json
from afterrun.serve.cli.program import Command, load_settings, wrong_usage

if TYPE_CHECKING:
    from afterrun.serve.mcp import Calls

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8766


@click.command(cls=Command)
@click.option("--http", "over_http", is_flag=True, help="Serve Streamable HTTP instead of stdin and stdout.")
@click.option("--host", help=f"Address to listen at, with --http. Default: {DEFAULT_HOST}. Any other needs API keys.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), help=f"Port, with --http; 0 takes a free one. Default: {DEFAULT_PORT}."
)
def mcp(over_http: bool, host: str | None, port: int | None, as_json: bool) -> None:
    """Serve the memory to agents as MCP tools, over stdio or, with --http, over Streamable HTTP.

    It may start before `afterrun up`: a tool that needs the stack says so until it runs.

    \b
    Example:
      claude mcp add afterrun -- afterrun mcp
    """
    if not over_http and (host is not None or port is not None or as_json):
        wrong_usage("--host, --port and --json need --http: over stdio, stdout carries the protocol alone")
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("afterrun").setLevel(load_settings().log_level)
    from afterrun.serve.mcp import Calls

    calls = Calls()
    try:
        if over_http:
            _serve_http(calls, host or DEFAULT_HOST, DEFAULT_PORT if port is None else port, as_json=as_json)
        else:
            _serve_stdio(calls)
    finally:
        calls.close()


def _serve_stdio(calls: Calls) -> None:
    from afterrun.serve.mcp import make_server, owner, serve_stdio

    if sys.stdin.isatty():
        say("waiting for an MCP client on stdin; clients start this by themselves: see docs/mcp.md")
    serve_stdio(make_server(calls, owner))


def _serve_http(calls: Calls, host: str, port: int, *, as_json: bool) -> None:
    from afterrun.serve.http.gate import Gate, is_loopback
    from afterrun.serve.mcp import listen, make_server, require_keys, serve_http

    public = not is_loopback(host)
    if public:
        require_keys(calls, host)
    gate = Gate(always=public)
    with listen(host, port) as listening:
        url = _url(*listening.getsockname()[:2])
        if as_json:
            write_json({"url": url, "keys": public})
            sys.stdout.flush()
        else:
            say(f"Afterrun's MCP server listens at {url}; Ctrl-C stops it")
        serve_http(make_server(calls, gate), calls, gate, listening)


def _url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/mcp"
