"""The image without Docker: the build stage's own steps, run in folders of the test's, and what they install."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import yaml

ROOT: Final = Path(__file__).parents[2]
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ENVIRONMENT: Final = "/opt/afterrun"
"""Where the image keeps the virtual environment."""
INSTALL_SECONDS: Final = 1500

pytestmark = [pytest.mark.slow, pytest.mark.timeout(INSTALL_SECONDS)]


@dataclass(frozen=True, kw_only=True)
class Installed:
    """What the steps left: a virtual environment, and an empty folder far from the sources to use it from."""

    environment: Path
    elsewhere: Path

    def call(self, program: str, *arguments: str, **variables: str) -> str:
        """What a program of the image writes; it must succeed."""
        environ = {"PATH": f"{self.environment}/bin:{os.defpath}", "HOME": str(self.elsewhere), **variables}
        done = subprocess.run(
            [str(self.environment / "bin" / program), *arguments],
            cwd=self.elsewhere,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def python(self, script: str, **variables: str) -> str:
        """What a Python script writes with the image's packages."""
        return self.call("python", "-c", script, **variables).strip()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    folder = tmp_path_factory.mktemp("image")
    context, source, home, elsewhere = (folder / name for name in ("context", "src", "home", "elsewhere"))
    for empty in (context, source, home, elsewhere):
        empty.mkdir()
    copy_tree(context)
    build(context, source, home, environment=folder / "environment")
    shutil.rmtree(context)
    shutil.rmtree(source)
    yield Installed(environment=folder / "environment", elsewhere=elsewhere)
    shutil.rmtree(folder)  # more than a gigabyte, and pytest keeps the folders of its last runs


def test_the_command_runs_and_says_its_version(installed: Installed) -> None:
    assert PROJECT["version"] in installed.call("afterrun", "--version")


def test_the_configuration_is_shown_without_any_server(installed: Installed) -> None:
    home = str(installed.elsewhere / "data")
    shown = json.loads(installed.call("afterrun", "config", "--json", AFTERRUN_HOME=home))
    assert home in str(shown)


def test_every_package_has_the_versions_that_the_others_need(installed: Installed) -> None:
    installed.call("python", "-m", "pip", "check")


def test_the_workers_modules_come_from_the_installed_package(installed: Installed) -> None:
    script = "from afterrun_workers import app, request, runtime, schedule, tasks; print(tasks.__file__)"
    file = installed.python(script, REDIS_URL="redis://127.0.0.1:1/0", DATABASE_URL="postgresql://127.0.0.1:1/none")
    assert Path(file).is_relative_to(installed.environment)


def test_the_migrations_are_packaged_whole(installed: Installed) -> None:
    script = """
from afterrun.schema import directory
print(*(file.relative_to(directory()) for file in directory().rglob("*.sql")))
"""
    sources = (ROOT / "migrations").rglob("*.sql")
    assert set(installed.python(script).split()) == {str(path.relative_to(ROOT / "migrations")) for path in sources}


def test_the_queries_the_sample_and_the_model_are_packaged(installed: Installed) -> None:
    script = """
from pathlib import Path
from afterrun.embed import model_spec
from afterrun.settings import Settings
from afterrun.sources import samples
from afterrun.sql import queries
print(len(queries()) > 10, len(list(samples.runs())) > 5, Path(model_spec(Settings.model).path).is_dir())
"""
    assert installed.python(script) == "True True True"


def test_a_host_gets_our_two_packages_and_nothing_named_core(installed: Installed) -> None:
    script = """
from importlib.metadata import files
print(*{file.parts[0] for file in files("afterrun") if file.parts[0] != ".." and "dist-info" not in file.parts[0]})
"""
    assert set(installed.python(script).split()) == {"afterrun", "afterrun_workers"}
    assert installed.python("from importlib.util import find_spec; print(find_spec('core'))") == "None"


def test_every_program_that_the_services_run_is_installed(installed: Installed) -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    for name, service in services.items():
        if "build" in service:
            assert (installed.environment / "bin" / service["command"][0]).is_file(), name
    assert "flower" in installed.call("celery", "--app=afterrun_workers.app", "--help", REDIS_URL="redis://127.0.0.1:1")


def copy_tree(target: Path) -> None:
    """Copy what git tracks or would track, as a clone of the next commit would have it."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def build(context: Path, source: Path, home: Path, environment: Path) -> None:
    """Carry out the COPY and RUN steps of the Dockerfile's first stage, in its order."""
    environ = build_environment(home, environment)
    for step, arguments in build_steps():
        if step == "COPY":
            *names, target = arguments.split()
            copy(context, names, source / target)
        else:
            command = arguments.replace(ENVIRONMENT, str(environment))
            subprocess.run(["/bin/sh", "-c", command], cwd=source, env=environ, check=True, timeout=INSTALL_SECONDS)


def build_steps() -> list[tuple[str, str]]:
    """Name and arguments of the first stage's COPY and RUN instructions."""
    _, stage, *_ = re.split(r"^FROM .+$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return re.findall(r"^(COPY|RUN) (.+)$", stage, flags=re.MULTILINE)


def copy(context: Path, names: list[str], target: Path) -> None:
    """COPY: a folder's content into `target`, files into the folder `target`."""
    for name in names:
        if (context / name).is_dir():
            shutil.copytree(context / name, target)
        else:
            shutil.copy2(context / name, target)


def build_environment(home: Path, environment: Path) -> Mapping[str, str]:
    """This machine's environment with an empty HOME and the new virtual environment first on PATH.

    pip's settings stay what they are here. An index that cannot be reached is asked only once.
    """
    programs = os.pathsep.join((f"{environment}/bin", str(Path(sys.executable).parent), os.defpath))
    kept = {name: value for name, value in os.environ.items() if name not in {"VIRTUAL_ENV", "PYTHONPATH"}}
    return {**pip_settings(), **arguments(), "PIP_RETRIES": "0", **kept, "HOME": str(home), "PATH": programs}


def arguments() -> dict[str, str]:
    """The Dockerfile's build arguments with their defaults."""
    return dict(re.findall(r"^ARG (\w+)=(\S+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE))


def pip_settings() -> dict[str, str]:
    """Where pip finds packages on this machine, as variables; the user's own file does not count with another HOME."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    option = r"^(?:global|install)\.(find-links|index-url|extra-index-url)='(.*)'$"
    found = re.findall(option, listed, re.MULTILINE)
    return {f"PIP_{name.upper().replace('-', '_')}": value for name, value in found}
