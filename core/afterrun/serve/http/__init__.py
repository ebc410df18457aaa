"""The HTTP server: routes under `/api/memory/`, probes at the root. docs/http.md shows each route with an example."""
