"""Against a real `mlflow server` on loopback, away for a while; and the command that opens the UI."""

import json
import math
import os
import shlex
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from study.config.tracking_uri import ui_command
from study.process.children import die_with_parent
from tests.slurm.settings import free_ports
from tests.study.support import postgres
from tests.study.support.loopback import opened
from tests.study.support.made import (
    LIMIT_SECONDS,
    Row,
    append,
    complete,
    expected,
    latest,
    make_study,
    record,
    start_run,
    stored,
    wait_for,
)
from tests.study.tracking.conftest import Start
from tests.warm import Started

SMALL = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}


def free_port() -> int:
    """Return a port that a server can bind seconds later: the kernel gives it to nobody meanwhile."""
    return free_ports(1)[0]


def fetch(url: str, body: dict[str, Any] | None = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with opened(request, LIMIT_SECONDS) as answer:
        return bytes(answer.read())


def answers(url: str) -> bool:
    try:
        return fetch(f"{url}/health") == b"OK"
    except OSError:
        return False


@contextmanager
def served(command: list[str], cwd: Path, url: str) -> Iterator[None]:
    """Run an MLflow server in a process group of its own; kill all of it in the end, or when this process dies."""
    line = [str(Path(sys.executable).with_name(command[0])), *command[1:]]
    with (cwd / "server.log").open("ab") as log:
        process = subprocess.Popen(
            line,
            cwd=cwd,
            env={**os.environ, **SMALL},
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=die_with_parent(),  # a benchmark that is killed leaves none behind  # noqa: PLW1509
        )
    try:
        wait_for(lambda: answers(url) or process.poll() is not None)
        assert process.poll() is None, (cwd / "server.log").read_text()[-2000:]
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        wait_for(lambda: not answers(url))


def server(port: int, uri: str, artifacts: Path) -> list[str]:
    text = f"mlflow server --host 127.0.0.1 --port {port} --workers 1 --backend-store-uri {uri}"
    return [*text.split(), "--artifacts-destination", str(artifacts)]


@dataclass(frozen=True)
class Sqlite:
    """What stands behind the server where there is no PostgreSQL: nobody can kill it."""

    path: Path

    @property
    def uri(self) -> str:
        return f"sqlite:///{self.path}"

    def stored(self, study: str, table: str = "metrics") -> list[Row]:
        return stored(self.path, study, table)

    def kill(self) -> None:
        pass

    def start(self) -> None:
        pass


@pytest.fixture
def backing(request: pytest.FixtureRequest) -> Iterator[postgres.Postgres | Sqlite]:
    """A PostgreSQL, which is what stands behind a server that many use; SQLite where none can run."""
    why = postgres.unavailable()
    if why is None:
        with postgres.running(free_port()) as running:
            yield running
    else:
        warnings.warn(f"the server's store is SQLite: {why}", stacklevel=1)
        yield Sqlite(request.getfixturevalue("database"))


def killed(process: Started) -> str:
    """Kill a process outright; return what it has said on stderr."""
    process.kill()
    return process.communicate()[1]


def knocked_at(port: int) -> None:
    """Wait until a syncer has tried to reach this port of loopback, and let it fail."""
    with socket.create_server(("127.0.0.1", port)) as listening:
        listening.settimeout(LIMIT_SECONDS)
        listening.accept()[0].close()


def test_a_server_that_is_not_there(start: Start, tmp_path: Path) -> None:
    made = make_study(tmp_path / "runs" / "iso", 1)
    start_run(made.run(0))
    port = free_port()
    away = start("runs/iso", "--uri", f"http://me:hunter22@127.0.0.1:{port}")
    _, said = away.communicate(timeout=LIMIT_SECONDS)
    assert away.returncode == 75
    assert f"cannot write to http://***@127.0.0.1:{port}" in said
    assert "hunter22" not in said
    assert said.count("\n") == 2


@pytest.mark.slow
def test_a_server_its_database_and_the_syncer_die_in_the_middle(
    backing: postgres.Postgres | Sqlite, start: Start, tmp_path: Path
) -> None:
    """Afterwards the store equals the spools, to the last value."""
    made = make_study(tmp_path / "runs" / "iso", 3)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    line, follow = server(port, backing.uri, tmp_path / "artifacts"), ("runs/iso", "--uri", url, "--follow")

    def until_equal() -> None:
        want = expected(made)
        wait_for(lambda: backing.stored("iso") == want, every=0.3)

    def until_more() -> None:
        have, all_there = len(backing.stored("iso")), len(expected(made))
        wait_for(lambda: have < len(backing.stored("iso")) or have == all_there, every=0.3)

    for index in (0, 1):
        start_run(made.run(index))
        append(made.run(index), 1, 300)
    follower = start(*follow, "--interval", "0.2")
    knocked_at(port)
    with served(line, tmp_path, url):
        until_equal()
        append(made.run(1), 301, 1200)  # much, so that what dies does so in the middle of it
        until_more()
        said = killed(follower)
        assert "nothing is lost" in said
        assert "is back" in said
        follower = start(*follow, "--interval", "0.2")
        until_more()
        backing.kill()
        backing.start()
        append(made.run(0), 301, 1200)
        until_more()
    start_run(made.run(2))
    append(made.run(2), 1, 50)
    with made.run(1).metrics.open("a") as file:
        file.write(record("train", 1201, loss=math.nan, lr=math.inf, grad_norm=-math.inf))
    assert follower.poll() is None
    killed(follower)  # instead of waiting until it tries again
    with served(line, tmp_path, url):
        follower = start(*follow, "--interval", "0.2")
        complete(made.run(1))
        until_equal()
        follower.terminate()
        out, said = follower.communicate(timeout=LIMIT_SECONDS)
        assert follower.returncode == 0, said
        assert "3 of 3 runs" in out
        body = {"experiment_ids": ["1"], "filter": f"tags.point_key = '{made.keys[1]}'"}
        (run,) = json.loads(fetch(f"{url}/api/2.0/mlflow/runs/search", body))["runs"]
        assert run["info"]["status"] == "FINISHED"
        assert len(run["data"]["params"]) > 40
        path = f"{url}/get-artifact?path=config.yaml&run_uuid={run['info']['run_id']}"
        assert fetch(path) == made.run(1).config.read_bytes()
    assert backing.stored("iso") == expected(made)
    assert backing.stored("iso", "latest_metrics") == latest(expected(made))


@pytest.mark.slow
def test_the_ui_opens_with_the_one_command(database: Path, start: Start, tmp_path: Path) -> None:
    made = make_study(tmp_path / "runs" / "iso", 1)
    start_run(made.run(0))
    append(made.run(0), 1, 20)
    complete(made.run(0))
    uri = f"sqlite:///{database}"
    process = start("runs/iso", "--uri", uri)
    out, said = process.communicate(timeout=LIMIT_SECONDS)
    assert ui_command(uri) in out, said
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with served([*shlex.split(ui_command(uri, port)), "--workers", "1"], tmp_path, url):
        assert b"<title>MLflow" in fetch(url)
        body: dict[str, Any] = {"max_results": 10}
        found = json.loads(fetch(f"{url}/api/2.0/mlflow/experiments/search", body))["experiments"]
        (study,) = [one for one in found if one["name"] == "iso"]
        body = {"experiment_ids": [study["experiment_id"]]}
        runs = json.loads(fetch(f"{url}/api/2.0/mlflow/runs/search", body))["runs"]
        assert {run["info"]["status"] for run in runs} == {"FINISHED"}
        run = next(r["info"]["run_id"] for r in runs if r["info"]["run_name"].endswith(" s0"))
        assert fetch(f"{url}/get-artifact?path=config.yaml&run_uuid={run}") == made.run(0).config.read_bytes()
