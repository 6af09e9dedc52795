"""PostgreSQL behind `mlflow server` behind a network that fails: afterwards the store equals the spools."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.study.tracking import postgres
from tests.study.tracking.conftest import Start
from tests.study.tracking.made import append, complete, expected, make_study, start_run, wait_for
from tests.study.tracking.proxy import Trouble, proxy
from tests.study.tracking.test_tracking_server import free_port, served


@pytest.fixture
def database_server() -> Iterator[postgres.Postgres]:
    why = postgres.unavailable()
    if why is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI=true, but the test on a real PostgreSQL cannot run: {why}")
        pytest.skip(why)
    with postgres.running(free_port()) as running:
        yield running


@pytest.mark.slow
def test_nothing_is_lost_or_doubled(database_server: postgres.Postgres, start: Start, tmp_path: Path) -> None:
    made = make_study(tmp_path / "runs" / "iso", 5)
    front, back = free_port(), free_port()
    trouble = Trouble(back)
    line = ["mlflow", "server", "--host", "127.0.0.1", "--port", str(back), "--workers", "1"]
    line += ["--backend-store-uri", database_server.uri, "--artifacts-destination", str(tmp_path / "artifacts")]
    for index in range(5):
        start_run(made.run(index))
        append(made.run(index), 1, 30)
    with served(line, tmp_path, f"http://127.0.0.1:{back}"), proxy(front, trouble):
        follower = start("runs/iso", "--uri", f"http://127.0.0.1:{front}", "--follow", "--interval", "0.1")
        trouble.share = 0.35
        for part in range(1, 6):
            for index in range(5):
                append(made.run(index), part * 30 + 1, part * 30 + 30)
            asked = trouble.done.total()
            wait_for(lambda asked=asked: trouble.done.total() >= asked + 10, 180)
            if part == 3:  # the database dies under the server, in the middle of whatever it does
                database_server.kill()
                time.sleep(1.0)
                database_server.start()
        assert follower.poll() is None
        trouble.share = 0.0
        complete(made.run(0))
        wait_for(lambda: database_server.stored("iso") == expected(made), 180)
        follower.terminate()
        out, said = follower.communicate(timeout=60)
        assert follower.returncode == 0, said
        assert "5 of 5 runs" in out
    assert min(trouble.done[fault] for fault in ("before", "after")) > 0, trouble.done
    assert database_server.stored("iso") == expected(made)
    assert database_server.runs() == 6
