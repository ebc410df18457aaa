"""The MCP server: Afterrun's verbs as tools for agents, over stdio and over Streamable HTTP.

`server` puts it together and runs it, `reading` and `writing` hold the tools, `arguments` and `answers` what they take
and give, `calls` runs them in threads on the memory that the settings name at that moment, `gate` says who asks.
"""

from afterrun.serve.mcp.calls import Calls
from afterrun.serve.mcp.gate import Gate, owner
from afterrun.serve.mcp.server import make_server
from afterrun.serve.mcp.transports import http_app, listen, require_keys, serve_http, serve_stdio

__all__ = [
    "Calls",
    "Gate",
    "http_app",
    "listen",
    "make_server",
    "owner",
    "require_keys",
    "serve_http",
    "serve_stdio",
]
