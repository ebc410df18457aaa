"""What the server measures, in the format of Prometheus. Labels are routes and statuses, never what a client sent."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from afterrun.care import ProjectStatus

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Measures:
    """The counters of one server process, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "afterrun_http_requests", "Requests answered", ("method", "route", "status"), registry=registry
        )
        self.seconds = Histogram(
            "afterrun_http_request_seconds", "Time to answer", ("route",), buckets=SECONDS, registry=registry
        )
        self.events = Counter("afterrun_http_events", "Events accepted, repeated requests apart", registry=registry)
        self.admitted = Gauge("afterrun_http_work_admitted", "Verbs that run or wait for a thread", registry=registry)
        self._database_up = Gauge("afterrun_database_up", "Whether Postgres answered just now", registry=registry)
        self._memories = Gauge("afterrun_memories", "Memories by state", ("state",), registry=registry)
        self._pending = Gauge("afterrun_pending_chunks", "Chunks that wait for a vector", registry=registry)
        self._oldest = Gauge(
            "afterrun_oldest_pending_seconds", "Age of the oldest chunk that waits for a vector", registry=registry
        )

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        self.requests.labels(method, route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self, status: ProjectStatus | None, now: datetime) -> bytes:
        """Everything, with what the database says; `status` is None where it did not answer."""
        self._database_up.set(status is not None)
        if status is not None:
            for state in ("active", "superseded", "forgotten"):
                self._memories.labels(state).set(getattr(status.memories, state))
            self._pending.set(status.pending_chunks)
            self._oldest.set((now - status.oldest_pending).total_seconds() if status.oldest_pending else 0)
        return generate_latest(self._registry)
