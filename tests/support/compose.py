"""docker-compose.yml without Docker: each service's own command, environment and health check, as processes here."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import yaml

ROOT: Final = Path(__file__).parents[2]
DEFAULT_GRACE: Final = 10.0
"""Seconds that Docker gives a service to stop where the file names none."""

_T = TypeVar("_T")


def until(condition: Callable[[], _T], seconds: float = 60.0, *, every: float = 0.1) -> _T:
    """The first true value of `condition`, which is asked again and again for at most `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"it did not come true within {seconds:g} s"
        time.sleep(every)
    return value


def image_environment() -> dict[str, str]:
    """The variables that the Dockerfile's last stage sets."""
    last_stage = (ROOT / "Dockerfile").read_text(encoding="utf-8").rpartition("\nFROM ")[2]
    instructions = re.findall(r"^ENV ((?:.*\\\n)*.*)$", last_stage, flags=re.MULTILINE)
    return dict(re.findall(r"(\w+)=(\S+)", " ".join(instructions)))


class Compose:
    """The parsed file with `variables` filled in, as `docker compose` would with them in `.env`."""

    def __init__(self, file: Path, variables: Mapping[str, str]) -> None:
        self._variables = variables
        self._services: Mapping[str, Mapping[str, Any]] = yaml.safe_load(file.read_text(encoding="utf-8"))["services"]

    def command(self, service: str) -> list[str]:
        """The program and its arguments."""
        return [self._filled(part) for part in self._services[service]["command"]]

    def environment(self, service: str) -> dict[str, str]:
        """What the service adds to the image's environment; a name without a value is passed on where it is set."""
        named = {
            name: self._variables.get(name) if value is None else self._filled(value)
            for name, value in self._services[service]["environment"].items()
        }
        return {name: value for name, value in named.items() if value is not None}

    def health_check(self, service: str) -> list[str]:
        """The command that must exit with 0."""
        kind, *parts = self._services[service]["healthcheck"]["test"]
        filled = [self._filled(part) for part in parts]
        return ["/bin/sh", "-c", *filled] if kind == "CMD-SHELL" else filled

    def timeout(self, service: str) -> float:
        """Seconds within which the health check must answer."""
        return _seconds(self._services[service]["healthcheck"]["timeout"])

    def grace(self, service: str) -> float:
        """Seconds between SIGTERM and SIGKILL."""
        period = self._services[service].get("stop_grace_period")
        return _seconds(period) if period else DEFAULT_GRACE

    def _filled(self, text: str) -> str:
        return re.sub(r"\$\$|\$\{(\w+)(?::([-?])([^}]*))?\}", self._value, text)

    def _value(self, found: re.Match[str]) -> str:
        name, kind, rest = found.groups()
        if name is None:
            return "$"
        if value := self._variables.get(name):
            return value
        assert kind == "-", f"{name} must be set: {rest}"
        return str(rest)


class Topology:
    """The services of a compose file as processes on this machine. Use it as a context manager: all are stopped then.

    `moved` replaces what only exists between containers (addresses, folders, ports) in commands and environments;
    `extra` is added to every environment, as a host's own variables would be.
    """

    def __init__(
        self, compose: Compose, folder: Path, moved: Mapping[str, str], extra: Mapping[str, str] | None = None
    ) -> None:
        self.compose = compose
        self.folder = folder
        self._moved = moved
        self._extra = extra or {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, service: str, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run a service that ends by itself."""
        return self._call(service, self.compose.command(service), timeout)

    def check(self, service: str) -> subprocess.CompletedProcess[str]:
        """Run the service's health check once, within its timeout."""
        return self._call(service, self.compose.health_check(service), self.compose.timeout(service))

    def call(self, service: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run another command where the service runs, as `docker compose exec` does."""
        return self._call(service, command, timeout=120.0)

    def start(self, *services: str) -> None:
        """Start those that do not run yet, and wait until each passes its health check."""
        new = [service for service in services if service not in self._processes]
        for service in new:
            self._start(service)
        for service in new:
            until(partial(self._healthy, service), 90.0)

    def ask_to_stop(self, service: str) -> None:
        """Send SIGTERM, as Docker does: to the service's own process only."""
        self._processes[service].send_signal(signal.SIGTERM)

    def wait(self, service: str) -> tuple[int, float]:
        """The exit code of a service that was asked to stop, and the seconds until then, at most its grace period."""
        started = time.monotonic()
        try:
            return self._processes[service].wait(self.compose.grace(service)), time.monotonic() - started
        finally:
            self._kill(service)

    def stop(self, service: str) -> tuple[int, float]:
        """Ask the service to stop, and wait for it."""
        self.ask_to_stop(service)
        return self.wait(service)

    def log(self, service: str) -> str:
        """What the service has written so far."""
        return self._log(service).read_text(encoding="utf-8")

    def workplace(self, service: str) -> Path:
        """The folder in which the service runs."""
        folder = self.folder / service
        folder.mkdir(exist_ok=True)
        return folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for service in list(self._processes):
            self._kill(service)

    def _start(self, service: str) -> None:
        with self._log(service).open("ab") as log:
            self._processes[service] = subprocess.Popen(
                self._replaced(self.compose.command(service)),
                env=self._environment(service),
                cwd=self.workplace(service),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _healthy(self, service: str) -> bool:
        code = self._processes[service].poll()
        assert code is None, f"{service} ended with exit code {code}: {self.log(service)}"
        # A ping that comes before its receiver is lost: the next one is better than the whole wait for its answer.
        impatient = [part.replace("--timeout=20", "--timeout=2") for part in self.compose.health_check(service)]
        return self._call(service, impatient, self.compose.timeout(service)).returncode == 0

    def _call(self, service: str, command: Sequence[str], timeout: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._replaced(command),
            env=self._environment(service),
            cwd=self.workplace(service),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def _kill(self, service: str) -> None:
        process = self._processes.pop(service)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _environment(self, service: str) -> dict[str, str]:
        programs = os.pathsep.join((str(Path(sys.executable).parent), os.defpath))
        ours = {**image_environment(), **self.compose.environment(service)}
        moved = {name: self._replaced([value])[0] for name, value in ours.items()}
        home = moved["AFTERRUN_HOME"]
        return {**self._extra, **moved, "PATH": programs, "HOME": home, "HOSTNAME": socket.gethostname()}

    def _replaced(self, parts: Sequence[str]) -> list[str]:
        replaced = list(parts)
        for there, here in self._moved.items():
            replaced = [part.replace(there, here) for part in replaced]
        return replaced

    def _log(self, service: str) -> Path:
        return self.folder / f"{service}.log"


def _seconds(duration: str) -> float:
    assert duration.endswith("s"), "the file uses no other unit"
    return float(duration.removesuffix("s"))
