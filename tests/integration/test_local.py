"""The local stack with its real servers."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import psycopg
import pytest
import redis

from afterrun.errors import AfterrunError, ConflictError, EmbeddingError, NotRunningError
from afterrun.local import Command, EmbedService, LazyModel, Stack, default_commands, detach, stop_running
from afterrun.local.leftovers import MARK
from afterrun.local.postgres import Postgres
from afterrun.local.processes import LOG_BYTES, Child, Program
from afterrun.settings import Settings, load, stack_runs, state_path

SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")
RUNNER = """
import sys
from pathlib import Path
from afterrun.local import Command, Stack
from afterrun.settings import Settings
home, script = Path(sys.argv[1]), sys.argv[2]
names = ("worker", "beat") if script else ()
commands = [Command(name=name, arguments=[sys.executable, "-c", script, name]) for name in names]
settings = Settings(home=home, run_store=home / "memory.db")
Stack(settings, migrate=lambda url: None, commands=commands).run_forever()
"""
NOTE_TERM = """
import signal, sys, time
def stop(number, frame):
    with open("stopped.txt", "a") as file:
        file.write(sys.argv[1] + "\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
open(sys.argv[1] + ".ready", "w").close()
time.sleep(600)
"""


def wait_for(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def processes_of(home: Path) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            text = " ".join([process.cwd(), *process.cmdline(), process.environ().get(MARK, "")])
        except (psutil.Error, OSError):
            continue
        if str(home) in text and process.pid != os.getpid():
            found.append(text)
    return found


def make_stack(home: Path, *commands: Command, migrate: Callable[[str], None] = lambda url: None) -> Stack:
    return Stack(Settings(home=home, run_store=home / "memory.db"), migrate=migrate, commands=commands)


def run_stack(home: Path, script: str = "") -> subprocess.Popen[bytes]:
    return detach([sys.executable, "-c", RUNNER, str(home), script], home)


def query(url: str, sql: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, connect_timeout=5, autocommit=True) as connection:
        cursor = connection.execute(sql)
        return cursor.fetchall() if cursor.description else []


def client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, socket_timeout=5)


def store(stack: Settings | Stack) -> None:
    query(str(stack.database_url), "CREATE TABLE kept (n int); INSERT INTO kept VALUES (42)")
    with client(str(stack.redis_url)) as broker:
        broker.set("kept", "42")


def stored(stack: Settings | Stack) -> bool:
    rows = query(str(stack.database_url), "SELECT n FROM kept")
    with client(str(stack.redis_url)) as broker:
        return rows == [(42,)] and broker.get("kept") == b"42"


def settings_of(home: Path) -> Settings:
    return load({"AFTERRUN_HOME": str(home)})


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def remove(home: Path) -> None:
    stop_running(home)
    assert processes_of(home) == []
    for link in home.rglob("postgres"):
        if link.is_symlink():
            shutil.rmtree(link.resolve())
    shutil.rmtree(home)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    """A new cluster, made by a stack, for the tests to copy."""
    folder = Path(tempfile.mkdtemp(prefix="afterrun-test-")).resolve()
    with make_stack(folder):
        pass
    yield folder / "postgres"
    remove(folder)


@pytest.fixture
def home(cluster: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="afterrun-test-")).resolve()
    subprocess.run(["cp", "-a", cluster, folder / "postgres"], check=True)
    yield folder
    remove(folder)


def test_a_stack_reaches_both_servers_and_leaves_nothing_behind(home: Path) -> None:
    with make_stack(home, Command(name="worker", arguments=SLEEP)) as stack:
        assert query(stack.database_url, "SELECT current_database()") == [("afterrun",)]
        assert query(stack.database_url, "SHOW listen_addresses") == [("",)]
        with client(stack.redis_url) as broker:
            assert broker.ping()
            assert broker.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
            assert broker.config_get("appendonly")["appendonly"] == "yes"
        assert stack.healthy() == {"guardian": True, "postgres": True, "broker": True, "worker": True}
        assert settings_of(home).database_url == stack.database_url
    assert processes_of(home) == []
    assert not state_path(home).exists()
    assert not stack_runs(home)


def test_secrets_and_data_are_closed_to_other_users(home: Path) -> None:
    with make_stack(home) as stack:
        for name in ("broker", "logs", "postgres", "postgres/data", "postgres/socket"):
            assert mode(home / name) == 0o700, name
        for name in ("stack.json", "broker/password", "broker/valkey.conf", "logs/postgres.log"):
            assert mode(home / name) == 0o600, name
        assert mode(home) & 0o007 == 0
        stranger = redis.Redis.from_url(stack.redis_url.replace(stack.redis_url.split("@")[0], "redis://:guess"))
        with stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()


def test_a_second_start_on_the_same_home_is_refused_and_changes_nothing(home: Path) -> None:
    with make_stack(home) as stack:
        with pytest.raises(ConflictError, match="already runs"):
            make_stack(home).start()
        with pytest.raises(ConflictError, match="started already"):
            stack.start()
        with pytest.raises(ConflictError, match="already runs"):
            detach(SLEEP, home)
        assert all(stack.healthy().values())


def test_a_restart_keeps_data_and_addresses(home: Path) -> None:
    with make_stack(home) as stack:
        store(stack)
        before = (stack.database_url, stack.redis_url)
    with make_stack(home) as again:
        assert stored(again)
        assert (again.database_url, again.redis_url) == before


def test_a_taken_port_is_replaced(home: Path) -> None:
    with make_stack(home) as stack:
        before = stack.redis_url
    with socket.create_server(("127.0.0.1", int(before.rsplit(":", 1)[1].split("/")[0]))), make_stack(home) as again:
        assert again.redis_url != before
        assert again.healthy()["broker"]


def test_the_parts_of_a_killed_stack_stop_by_themselves(home: Path) -> None:
    process = run_stack(home, NOTE_TERM)
    wait_for((home / "worker.ready").exists)
    store(settings_of(home))
    process.kill()
    process.wait()
    wait_for(lambda: not processes_of(home))
    assert set((home / "stopped.txt").read_text().split()) == {"worker", "beat"}
    with make_stack(home) as stack:
        assert stored(stack)


def test_leftovers_of_a_killed_stack_and_guardian_do_not_block_the_next_start(home: Path) -> None:
    process = run_stack(home, NOTE_TERM)
    wait_for((home / "worker.ready").exists)
    store(settings_of(home))
    for child in psutil.Process(process.pid).children():
        if "afterrun.local.guardian" in child.cmdline():
            process.send_signal(signal.SIGSTOP)
            child.kill()
    process.kill()
    process.wait()
    assert processes_of(home)
    with make_stack(home) as stack:
        assert stored(stack)
        assert all(stack.healthy().values())


def test_down_stops_what_a_killed_stack_left(home: Path) -> None:
    process = run_stack(home, NOTE_TERM)
    process.kill()
    process.wait()
    stop_running(home)
    assert processes_of(home) == []


@pytest.mark.parametrize("part", ["postgres", "broker"])
def test_a_killed_server_is_noticed_and_started_again(home: Path, part: str) -> None:
    others = psutil.Process().children()
    with make_stack(home) as stack:
        store(stack)
        names = {"postgres": "postgres", "broker": "valkey-server"}
        children = [child for child in psutil.Process().children() if child not in others]
        next(child for child in children if child.name() == names[part]).kill()
        assert stack.healthy()[part] is False
        assert all(works for name, works in stack.healthy().items() if name != part)
        wait_for(lambda: stack.healthy()[part])
        assert stored(stack)


def test_a_program_that_dies_is_started_again(home: Path) -> None:
    script = "open('starts.txt', 'a').write('x'); print('hello'); raise SystemExit(3)"
    with make_stack(home, Command(name="flaky", arguments=(sys.executable, "-c", script))):
        wait_for(lambda: len(read(home / "starts.txt")) >= 2)
        assert "hello" in (home / "logs" / "flaky.log").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_beat_then_workers_then_servers(home: Path, number: signal.Signals) -> None:
    process = run_stack(home, NOTE_TERM)
    wait_for(lambda: (home / "worker.ready").exists() and (home / "beat.ready").exists())
    process.send_signal(number)
    assert process.wait(20) == 0
    assert (home / "stopped.txt").read_text().split() == ["beat", "worker"]
    assert processes_of(home) == []
    assert "database system is shut down" in (home / "logs" / "postgres.log").read_text()


def test_a_program_that_ignores_the_signal_is_killed_with_its_children(home: Path) -> None:
    script = (
        "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"child = subprocess.Popen({SLEEP!r}); open('pids', 'w').close(); child.wait()"
    )
    stubborn = Command(name="stubborn", arguments=(sys.executable, "-c", script), stop_seconds=0.3)
    with make_stack(home, stubborn):
        wait_for((home / "pids").exists)
    wait_for(lambda: not processes_of(home), 2)


def test_down_works_from_another_process_and_says_when_nothing_runs(home: Path) -> None:
    assert stop_running(home) is False
    process = run_stack(home)
    assert stop_running(home) is True
    assert process.wait(5) == 0
    assert processes_of(home) == []
    assert stop_running(home) is False


def test_down_says_so_when_a_stack_does_not_stop(home: Path) -> None:
    process = run_stack(home)
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(AfterrunError, match="did not stop"):
        stop_running(home, timeout=0.2)
    process.send_signal(signal.SIGCONT)
    assert process.wait(20) == 0


@pytest.mark.parametrize("text", ["{pid}\n", "", "{pid}\n{data}\n1\n5432\n{data}\n\n  1 2\nready\n"])
def test_a_stale_or_half_written_postmaster_pid_does_not_block_a_start(home: Path, text: str) -> None:
    with make_stack(home) as stack:
        store(stack)
    data = home / "postgres" / "data"
    owner = data.stat()
    stranger = subprocess.Popen(["sleep", "60"], user=owner.st_uid)
    try:
        (data / "postmaster.pid").write_text(text.format(pid=stranger.pid, data=data))
        os.chown(data / "postmaster.pid", owner.st_uid, owner.st_gid)
        with make_stack(home) as again:
            assert stored(again)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_an_interrupted_initdb_is_done_again(home: Path) -> None:
    (home / "postgres" / "data").rename(home / "postgres" / "data.draft")
    with make_stack(home) as stack:
        assert all(stack.healthy().values())


def test_a_home_too_long_for_sockets_works_and_keeps_its_addresses(home: Path) -> None:
    deep = home / ("with space, and é" + "x" * 60) / ("y" * 60)
    with make_stack(deep) as stack:
        store(stack)
        before = (stack.database_url, stack.embed_socket)
        assert mode(stack.embed_socket.parent) == 0o700
        assert len(os.fsencode(stack.embed_socket)) <= 107
    with make_stack(deep) as again:
        assert stored(again)
        assert (again.database_url, again.embed_socket) == before
    shutil.rmtree(again.embed_socket.parent)
    shutil.rmtree(Postgres(deep, os.environ).socket)


def test_two_stacks_do_not_disturb_one_another(home: Path) -> None:
    with make_stack(home / "a") as a, make_stack(home / "b") as b:
        store(a)
        assert b.redis_url != a.redis_url
        assert query(b.database_url, "SELECT to_regclass('kept')") == [(None,)]
        b.stop()
        assert all(a.healthy().values())
        assert stored(a)


def test_programs_get_our_addresses_and_no_foreign_celery_settings(home: Path) -> None:
    script = (
        "import json, os; json.dump(dict(os.environ), open('environ.tmp', 'w')); os.rename('environ.tmp', 'environ')"
    )
    command = Command(name="dump", arguments=(sys.executable, "-c", script))
    environ = {**os.environ, "CELERY_BROKER_URL": "redis://elsewhere", "REDIS_URL": "", "KEPT": "yes"}
    settings = Settings(home=home, run_store=home / "memory.db", run_stores=(Path("other.db"),), embed_batch=7)
    with Stack(settings, migrate=lambda url: None, commands=[command], environ=environ) as stack:
        wait_for((home / "environ").exists)
        seen = json.loads((home / "environ").read_text())
        assert (seen["DATABASE_URL"], seen["REDIS_URL"]) == (stack.database_url, stack.redis_url)
    assert not [name for name in seen if name.startswith("CELERY_")]
    assert (seen["KEPT"], seen["AFTERRUN_EMBED_BATCH"], seen["AFTERRUN_HOME"]) == ("yes", "7", str(home))
    assert seen["AFTERRUN_RUN_STORES"] == str(Path("other.db").absolute())


def test_servers_named_by_the_environment_are_used_instead_of_ours(home: Path) -> None:
    urls = {"DATABASE_URL": "postgresql://db.example/afterrun", "REDIS_URL": "redis://broker.example/0"}
    migrated: list[str] = []
    settings = load({"AFTERRUN_HOME": str(home), **urls})
    with Stack(settings, migrate=migrated.append, commands=[]) as stack:
        assert migrated == [urls["DATABASE_URL"]]
        assert stack.healthy() == {"guardian": True}
        assert json.loads(state_path(home).read_text())["redis_url"] == urls["REDIS_URL"]
    assert not (home / "postgres" / "data" / "postmaster.pid").exists()


def test_a_failed_migration_stops_what_was_started(home: Path) -> None:
    def migrate(url: str) -> None:
        raise AfterrunError("no such migration")

    with pytest.raises(AfterrunError, match="no such migration"):
        make_stack(home, migrate=migrate).start()
    assert processes_of(home) == []
    assert not stack_runs(home)


def test_a_server_that_cannot_start_is_an_error_with_the_end_of_its_log(home: Path) -> None:
    with make_stack(home):
        pass
    configuration = home / "postgres" / "data" / "postgresql.conf"
    configuration.write_text(configuration.read_text() + "\nmax_connections = many\n")
    with pytest.raises(NotRunningError, match="max_connections"):
        make_stack(home).start()
    assert processes_of(home) == []


def test_detach_gives_the_end_of_the_log_of_a_command_that_failed(home: Path) -> None:
    with pytest.raises(NotRunningError, match="out of luck"):
        detach([sys.executable, "-c", "raise SystemExit('out of luck')"], home)


def test_a_long_log_is_moved_aside_at_a_start(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"x" * (LOG_BYTES + 1))
    child = Child(Program(name="x", command=["true"], environ={}, cwd=tmp_path, log=log))
    child.start()
    Child.stop_all([child])
    assert log.stat().st_size == 0
    assert (tmp_path / "x.log.1").stat().st_size == LOG_BYTES + 1


def test_restarts_in_a_row_wait_longer_each_time_up_to_a_bound(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    log = tmp_path / "x.log"
    child = Child(Program(name="x", command=["false"], environ={}, cwd=tmp_path, log=log), clock=lambda: now)
    child.start()
    for _ in range(8):
        wait_for(lambda: not child.alive)
        child.restart_if_dead()
        now += 31
        child.restart_if_dead()
    Child.stop_all([child])
    waits = [re.findall(r"starts again in (\S+) s", record.getMessage()) for record in caplog.records]
    assert waits == [[wait] for wait in ("0.2", "1", "2", "5", "10", "30", "30", "30")]


def test_embedding_and_upkeep_by_default_have_workers_of_their_own(home: Path) -> None:
    commands = {command.name: command.arguments for command in default_commands(Settings(home=home))}
    assert list(commands) == ["worker", "upkeep", "embed", "beat"]
    queues = {name: words[words.index("-Q") + 1] for name, words in commands.items() if "-Q" in words}
    assert queues == {"worker": "index,celery", "upkeep": "consolidate,maintenance", "embed": "embed"}


def test_celery_takes_the_default_commands_and_stops_in_good_order(home: Path) -> None:
    (home / "stand_in.py").write_text("import celery, os; app = celery.Celery('x', broker=os.environ['REDIS_URL'])")
    commands = [
        Command(name=c.name, arguments=[a.replace("afterrun_workers.app", "stand_in") for a in c.arguments])
        for c in default_commands(Settings(home=home))
    ]
    logs = {"worker": "worker@", "embed": "embed@", "beat": "beat: Starting"}
    with make_stack(home, *commands):
        wait_for(lambda: all(text in read(home / "logs" / f"{name}.log") for name, text in logs.items()), 60)
        wait_for(lambda: all("ready." in read(home / "logs" / f"{name}.log") for name in ("worker", "embed")), 60)
    for name in ("worker", "embed"):
        assert "Warm shutdown" in read(home / "logs" / f"{name}.log")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as another account")
def test_under_root_closed_folders_above_the_home_keep_their_modes(home: Path) -> None:
    closed = home / "closed"
    closed.mkdir(mode=0o700)
    with make_stack(closed / "home") as stack:
        store(stack)
    with make_stack(closed / "home") as stack:
        assert stored(stack)
    assert mode(closed) == 0o700
    assert (closed / "home" / "postgres").readlink().is_relative_to("/var/lib/afterrun")


def ask(path: Path, request: bytes) -> dict[str, object]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(str(path))
        connection.sendall(request)
        answer = json.loads(connection.makefile("rb").readline())
        assert isinstance(answer, dict)
        return answer


def test_the_embedding_service_answers_with_one_vector_a_text(tmp_path: Path) -> None:
    loaded: list[str] = []

    def load_model(model: str) -> Callable[[list[str]], Sequence[Sequence[float]]]:
        loaded.append(model)
        return lambda texts: [[float(len(text)), 0.10000000149011612] for text in texts]

    path = tmp_path / "e.sock"
    with EmbedService(path, LazyModel(load_model)):
        assert mode(path) == 0o600
        for _ in range(2):
            request = json.dumps({"model": "m", "texts": ["a", "bcd"]}).encode() + b"\n"
            assert ask(path, request) == {"vectors": [[1.0, 0.100000001], [3.0, 0.100000001]]}
    assert loaded == ["m"]
    assert not path.exists()


@pytest.mark.parametrize("request_line", [b"nonsense\n", b'{"model": 1}\n', b'{"model": "m", "texts": [1]}\n', b"[]\n"])
def test_the_embedding_service_says_what_is_wrong_with_a_request(tmp_path: Path, request_line: bytes) -> None:
    with EmbedService(tmp_path / "e.sock", lambda model, texts: []):
        assert "bad request" in str(ask(tmp_path / "e.sock", request_line)["error"])


def test_the_embedding_service_passes_on_why_the_model_failed(tmp_path: Path) -> None:
    def embed(model: str, texts: list[str]) -> list[list[float]]:
        raise EmbeddingError(f"no model {model}")

    with EmbedService(tmp_path / "e.sock", embed):
        assert ask(tmp_path / "e.sock", b'{"model": "m", "texts": ["a"]}\n') == {"error": "no model m"}


def test_a_running_stack_serves_embeddings_at_the_socket_in_its_state(home: Path) -> None:
    settings = Settings(home=home, run_store=home / "memory.db")
    with Stack(settings, migrate=lambda url: None, load_model=lambda model: lambda texts: [[0.5]], commands=[]):
        path = settings_of(home).embed_socket
        assert path is not None
        assert ask(path, b'{"model": "m", "texts": ["a"]}\n') == {"vectors": [[0.5]]}
