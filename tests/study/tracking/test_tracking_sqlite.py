"""Against MLflow's own SQLite store, in real processes, some of them killed."""

import fcntl
import json
import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from study.tracking import __main__ as command
from tests.environment import python_path
from tests.processes import has_ended
from tests.study.support.made import (
    LIMIT_SECONDS,
    append,
    complete,
    end_attempt,
    expected,
    latest,
    make_study,
    record,
    start_run,
    stored,
    wait_for,
)
from tests.study.tracking.conftest import REPOSITORY, Start, creating
from train.spec.config import RunConfig
from train.spec.interrupts import INTERRUPTED

OFFLINE = """
import sys
def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        print("NETWORK", event, arguments, file=sys.stderr)
sys.addaudithook(watch)
from study.tracking.__main__ import main
code = main(sys.argv[1:])
import threading
print("THREADS", threading.active_count(), file=sys.stderr)
sys.exit(code)
"""


def query(database: Path, text: str, *values: object) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(f"file:{database}?mode=rw", uri=True)) as connection:
        return connection.execute(text, values).fetchall()


def count(database: Path) -> int:
    try:
        return int(str(query(database, "select count(*) from metrics")[0][0]))
    except sqlite3.OperationalError:
        return 0


def test_importing_is_light() -> None:
    code = "import sys, study.tracking; print([m for m in ('mlflow','pandas','torch','yaml') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_everything_arrives_quietly_and_without_the_network(tmp_path: Path) -> None:
    made = make_study(tmp_path / "runs" / "iso", 3, "sqlite:///mlflow.db")
    for index in (0, 1):
        start_run(made.run(index))
    append(made.run(0), 1, 400)
    complete(made.run(0))
    made.run(1).metrics.write_text(record("train", 1, loss=math.nan, lr=math.inf, grad_norm=-math.inf))
    end_attempt(made.run(1), "failed", error="boom WANDB_API_KEY=hunter22")
    made.run(1).attempt(1).stderr(0).write_text("boom WANDB_API_KEY=hunter22\n")
    report = tmp_path / "reports" / "iso"
    report.mkdir(parents=True)
    (report / "valleys.png").write_bytes(b"png")
    line = [sys.executable, "-c", OFFLINE, "sync", "runs/iso"]
    env = {**os.environ, "PYTHONPATH": python_path(), "MLFLOW_TRACKING_PASSWORD": "hunter22hunter22"}
    done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "THREADS 1\n")
    assert done.stdout.count("\n") == 2
    assert f"mlflow ui --backend-store-uri sqlite:///{tmp_path}/mlflow.db --host 127.0.0.1" in done.stdout
    assert "http://127.0.0.1:5000/#/experiments/1/runs?viewStateShareKey=study&workflowType=machine_lear" in done.stdout

    database = tmp_path / "mlflow.db"
    assert stored(database, "iso") == expected(made)
    assert stored(database, "iso", "latest_metrics") == latest(expected(made))
    runs = query(database, "select name, status, start_time, end_time from runs order by start_time, name")
    assert ("iso", "RUNNING") in [run[:2] for run in runs]
    assert ("w64 L2 s0", "FINISHED", 1_760_000_001_000, 1_760_000_900_000) in runs
    assert ("w64 L2 s1", "FAILED", 1_760_000_001_000, 1_760_000_900_000) in runs
    files = sorted(p.name for p in (tmp_path / "mlartifacts" / "iso").rglob("*") if p.is_file())
    assert files == ["config.yaml"] * 2 + ["outcome.json"] * 3 + ["stderr.txt", "study.yaml", "valleys.png"]
    assert "boom WANDB_API_KEY=***" in next((tmp_path / "mlartifacts").rglob("stderr.txt")).read_text()
    assert query(database, "select distinct name, digest from datasets") == [("code-bpe4096", "123456789012")]
    assert query(database, "select count(*) from inputs") == [(3,)], "two runs and the study's own"
    assert b"hunter22" not in database.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mlartifacts", "mlflow.db", "reports", "runs"]


def test_the_studys_own_run_has_parameters_that_tell_it_from_others(
    database: Path, start: Start, tmp_path: Path
) -> None:
    """Also where points come later: parameters cannot change, so tags of their names say what holds then."""
    made = make_study(tmp_path / "runs" / "iso", 3)
    start_run(made.run(0))
    table = "select key, value from {} join runs using (run_uuid) where name = 'iso'"
    for grown in (False, True):
        if grown:
            line = json.loads(made.folder.points.read_text().splitlines()[0])
            line |= {"key": "00000000000a", "overrides": ["model.width=128"]}
            line["config"]["model"]["width"] = 128
            with made.folder.points.open("a") as file:
                file.write(json.dumps(line) + "\n")
        process = start("runs/iso", "--uri", f"sqlite:///{database}")
        assert process.wait(LIMIT_SECONDS) == 0, process.communicate()
        params = {str(key): str(value) for key, value in query(database, table.format("params"))}
        assert max(map(len, params.values())) < 500
        assert (params["points"], params["swept"], params["seed"]) == ("3", "seed", "0, 1, 2")
        assert (params["model.family"], params["model.width"]) == ("dense transformer", "64")
        assert (params["data.name"], params["data.sequence_length"]) == ("code", str(RunConfig().data.sequence_length))
        tags = {str(key): str(value) for key, value in query(database, table.format("tags"))}
        told = {name: tags.get(name) for name in ("points", "swept", "model.width", "data.name")}
        swept = (
            {"swept": "model.width, seed", "model.width": "64, 128"} if grown else {"swept": None, "model.width": None}
        )
        assert told == {"points": "4" if grown else "3", **swept, "data.name": None}
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{database}")
    (experiment,) = [one.experiment_id for one in client.search_experiments() if one.name == "iso"]
    asked = "params.swept LIKE '%seed%' AND params.`data.name` = 'code' AND tags.role = 'study'"
    assert [run.info.run_name for run in client.search_runs([experiment], asked)] == ["iso"]


def test_a_study_in_which_a_run_diverged_is_finished_and_says_so(database: Path, start: Start, tmp_path: Path) -> None:
    made = make_study(tmp_path / "runs" / "iso", 3)
    for index, state in enumerate(("completed", "diverged", "completed")):
        start_run(made.run(index))
        append(made.run(index), 1, 5)
        complete(made.run(index), state)
    process = start("runs/iso", "--uri", f"sqlite:///{database}")
    assert process.wait(LIMIT_SECONDS) == 0, process.communicate()
    runs = query(database, "select name, status from runs order by name")
    assert runs == [("iso", "FINISHED"), ("w64 L2 s0", "FINISHED"), ("w64 L2 s1", "FAILED"), ("w64 L2 s2", "FINISHED")]
    text = "select value from tags join runs using (run_uuid) where name = 'iso' and key = ?"
    assert query(database, text, "states") == [("2 completed, 1 diverged",)]
    (described,) = query(database, text, "mlflow.note.content")
    assert "**Points**: 2 completed, 1 diverged" in str(described[0])
    assert "w64 L2 s1](#/experiments/1/runs/" in str(described[0]).partition("**Went wrong**")[2]


def test_sending_all_again_changes_nothing(database: Path, start: Start, tmp_path: Path) -> None:
    """Also NaN, whose key in the database is another one, and after the state file was lost."""
    made = make_study(tmp_path / "runs" / "iso", 2)
    for index in (0, 1):
        start_run(made.run(index))
        append(made.run(index), 1, 250)
    with made.run(0).metrics.open("a") as file:
        file.write(record("train", 251, loss=math.nan, lr=math.inf))
    tables = ("metrics", "latest_metrics", "params", "tags", "runs")
    states = []
    for _ in range(2):
        process = start("runs/iso", "--uri", f"sqlite:///{database}")
        assert process.wait(LIMIT_SECONDS) == 0, process.communicate()
        states.append({table: sorted(map(repr, query(database, f"select * from {table}"))) for table in tables})
        made.folder.tracking.unlink()
    assert states[0] == states[1]
    assert stored(database, "iso") == expected(made)


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_random_moments(database: Path, start: Start, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    made = make_study(tmp_path / "runs" / "iso", 6)
    for kill in range(3):
        for index in range(6):
            if kill == 0:
                start_run(made.run(index))
            append(made.run(index), kill * 250 + 1, kill * 250 + 250)
            with made.run(index).metrics.open("a") as file:
                file.write('{"torn')
        before = count(database)
        process = start("runs/iso", "--uri", f"sqlite:///{database}", "--follow", "--interval", "0.1")
        wait_for(lambda before=before, p=process: count(database) > before or p.poll() is not None)
        time.sleep(dice.uniform(0, 0.4))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, process.communicate()
        for index in range(6):
            text = made.run(index).metrics.read_text()
            made.run(index).metrics.write_text(text.removesuffix('{"torn'))
        if kill == 1:
            made.folder.tracking.unlink()
    process = start("runs/iso", "--uri", f"sqlite:///{database}")
    assert process.wait(LIMIT_SECONDS) == 0, process.communicate()
    assert stored(database, "iso") == expected(made)
    assert stored(database, "iso", "latest_metrics") == latest(expected(made))
    names = query(database, "select name from runs")
    assert len(names) == len(set(names)) == 7


def grown(path: Path) -> int:
    """Return the size of a database that is being made; 0 for every other file, and where it has gone meanwhile."""
    try:
        return path.stat().st_size if path.name.endswith(".new") else 0
    except FileNotFoundError:
        return 0


def test_killed_while_the_database_is_made(tmp_path: Path) -> None:
    """The file is there whole or not at all, and who comes later makes it."""
    path = tmp_path / "mlflow.db"
    for size in (1, 200_000):  # of the 700 kB that it gets, step by step
        process = creating(path, "")
        wait_for(lambda size=size: any(grown(p) >= size for p in tmp_path.iterdir()), every=0.002)
        process.kill()
        process.wait()
        assert not path.exists()
    left = [p for p in tmp_path.iterdir() if ".new" in p.name]
    assert left
    for file in left:
        os.utime(file, (0, 0))
    both = [creating(path, "") for _ in range(2)]
    assert sorted(process.communicate()[0] for process in both) == ["False\n", "True\n"]
    assert [row[0] for row in query(path, "pragma integrity_check")] == ["ok"]
    assert query(path, "select count(*) from experiments") == [(1,)]
    assert [p.name for p in tmp_path.iterdir()] == ["mlflow.db"]


def test_the_log_of_a_database_that_another_process_just_made_is_not_swept(tmp_path: Path) -> None:
    database, log = tmp_path / "mlflow.db", tmp_path / "mlflow.db-wal"
    log.write_bytes(b"log")
    descriptor = os.open(tmp_path, os.O_RDONLY)  # stands for the other process, about to publish
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    code = "import sys; from pathlib import Path; from study.tracking.sqlite import create_database as c; "
    code += "print('started', flush=True); sys.exit(c(Path(sys.argv[1]), 'file:///nowhere'))"
    command = [sys.executable, "-c", code, str(database)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.3)
        database.write_bytes(b"database")
        os.close(descriptor)
        assert process.wait(LIMIT_SECONDS) == 0  # False: it was made by another
    assert (database.read_bytes(), log.read_bytes()) == (b"database", b"log")


def test_two_at_once(database: Path, start: Start, tmp_path: Path) -> None:
    made = make_study(tmp_path / "runs" / "iso", 4)
    for index in range(4):
        start_run(made.run(index))
        append(made.run(index), 1, 300)
    both = [start("runs/iso", "--uri", f"sqlite:///{database}") for _ in range(2)]
    said = [process.communicate(timeout=LIMIT_SECONDS) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert sorted("(4 new" in out for out, _ in said) == [False, True]
    assert stored(database, "iso") == expected(made)
    assert query(database, "select count(*) from runs") == [(5,)]


def test_following_is_idle_when_nothing_happens_and_ends_with_a_last_pass(
    database: Path, start: Start, tmp_path: Path
) -> None:
    made = make_study(tmp_path / "runs" / "iso", 50)
    for index in range(50):
        start_run(made.run(index))
        append(made.run(index), 1, 2)
    process = start("runs/iso", "--uri", f"sqlite:///{database}", "--follow", "--interval", "2")
    wait_for(lambda: stored(database, "iso") == expected(made))
    watched = psutil.Process(process.pid)
    sent = sum(watched.cpu_times()[:2])

    def idle() -> bool:
        """Whether three looks take less than 4 % of the processor time of sending, which is as slow as the machine.

        They take 0.05 to 0.07 s here, where sending takes 4 s; what it still ends up with is not counted.
        """
        before = sum(watched.cpu_times()[:2])
        time.sleep(6)
        return bool(sum(watched.cpu_times()[:2]) - before < 0.04 * sent)

    wait_for(idle)
    append(made.run(7), 3, 9)
    process.terminate()
    out, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0
    assert "50 of 50 runs" in out
    assert stored(database, "iso") == expected(made)


def test_a_child_ends_when_its_parent_has_gone(database: Path, tmp_path: Path) -> None:
    made = make_study(tmp_path / "runs" / "iso", 1)
    start_run(made.run(0))
    sync = f"{sys.executable} -m study.tracking sync runs/iso --uri sqlite:///{database} --follow --until-idle"
    env = {**os.environ, "PYTHONPATH": python_path()}
    parent = subprocess.Popen(
        ["sh", "-c", f"{sync} & echo $!; wait"], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    try:
        wait_for(lambda: query(database, "select count(*) from runs") == [(2,)])
        child.send_signal(signal.SIGINT)  # Ctrl-C reaches the whole group: the parent says when to end
        append(made.run(0), 1, 30)
        parent.kill()
        parent.wait()
        wait_for(lambda: has_ended(child.pid))
    finally:
        if child.is_running():
            child.kill()
        parent.stdout.close()
    assert stored(database, "iso") == expected(made)


def test_wrong_arguments_say_what_to_do(start: Start, tmp_path: Path) -> None:
    nothing = start("runs/nothing")
    made = make_study(tmp_path / "runs" / "iso", 1, "file:///x")
    wrong = start("runs/iso")
    assert "no study at runs/nothing" in nothing.communicate()[1]
    assert "use sqlite:///FILE" in wrong.communicate()[1]
    assert (nothing.returncode, wrong.returncode) == (2, 2)
    for torn in ("tracking: {enabled: tr", "just words", "tracking: 3\n"):
        made.folder.study.write_text(torn)
        damaged = start("runs/iso")
        said = damaged.communicate()[1]
        assert (damaged.returncode, said.count("\n")) == (2, 1), said
        assert "study.yaml" in said
        assert "run the study's command again" in said
    made.folder.study.write_text("tracking: {enabled: false}\n")
    off = start("runs/iso")
    assert "nothing was sent" in off.communicate()[0]
    assert off.returncode == 0


def test_ctrl_c_that_breaks_an_import_off_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_study(tmp_path / "runs" / "iso", 1, "sqlite:///mlflow.db")

    def broken_off(*_: object) -> int:
        try:
            raise KeyboardInterrupt
        except BaseException:
            raise AttributeError("partially initialized module 'mlflow' has no attribute 'version'") from None

    monkeypatch.setattr(command, "_once", broken_off)
    assert command.main(["sync", str(made.folder.path)]) == INTERRUPTED
    assert capsys.readouterr().err == "study.tracking: stopped; the next sync carries on from here\n"
