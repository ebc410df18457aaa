"""`afterrun key` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from afterrun import keys
from afterrun.db import Database
from afterrun.errors import UnauthenticatedError
from afterrun.serve.cli import main


@pytest.fixture
def run(tmp_path: Path, database_url: str) -> Any:
    def run(*arguments: str) -> Result:
        environ = {"AFTERRUN_HOME": str(tmp_path), "DATABASE_URL": database_url, "REDIS_URL": None}
        return CliRunner(env=environ).invoke(main, ["key", *arguments])

    return run


def test_a_key_is_made_shown_once_listed_and_revoked(run: Any, database: Database) -> None:
    made = run("create", "--name", "ci", "--scope", "read", "--project", "shop", "--expires", "2999-01-01")
    token = made.stdout.strip()
    assert keys.check(database, token).projects == {"shop"}
    assert "not shown again" in made.stderr
    shown = run("list").stdout
    assert "shop, global (reads)" in shown
    assert token.rsplit("_", 1)[1] not in shown + run("list", "--json").stdout
    (key,) = json.loads(run("list", "--json").stdout)
    assert run("revoke", key["id"]).stdout == f"revoked: {key['id']} (ci)\n"
    with pytest.raises(UnauthenticatedError):
        keys.check(database, token)


def test_with_json_the_token_stands_beside_the_key(run: Any, database: Database) -> None:
    made = json.loads(run("create", "--name", "ops", "--scope", "admin", "--no-global", "--json").stdout)
    assert keys.check(database, made["token"]).may("write")
    assert made["key"]["reads_global"] is False
    assert "secret" not in str(made["key"])


def test_without_a_key_the_list_says_what_that_means(run: Any) -> None:
    assert "only this machine" in run("list").stderr
    assert run("revoke", "0" * 12).exit_code == 1
    assert run("create", "--name", "x", "--expires", "2001-01-01").exit_code == 1
