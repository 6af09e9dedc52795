"""Ctrl-C at random moments of the commands: exit code 130, one line, nothing half written."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import filelock
import pytest

from study.storage.layout import StudyFolder
from study.tracking.mlflow_store import ENVIRONMENT
from tests.environment import python_path
from tests.study.support import made
from tests.study.support.studies import LIMIT_SECONDS, SYNCER, TRAINER, make_study, run_to_end, wait_until
from tests.warm import fresh, warm
from train.spec.interrupts import guarded
from train.spec.manifest import read_manifest

ROOT = Path(__file__).parents[1]
STARTING = ("runpy", "site", "init_sys_streams", "init_interp_main", "def guarded(")
"""What a traceback names where Python had not come to the command yet."""
EARLY = {
    *("__init__.py", "namesakes.py", "analysis/text/start.py", "train/spec/interrupts.py", "tests/warm.py"),
    *("train/prepare.py", "study/sweep/__main__.py", "analysis/fit.py", "study/__main__.py"),
}
"""Our files that such a traceback may name: of a command's own file the few lines by which Ctrl-C is minded."""
MOMENTS = {"prepare": 50, "sweep": 20, "fit": 20, "status": 60, "watch": 40, "sync": 10}
"""How often each command is interrupted: 200 times in all, the ones that take longest less often."""
CORPUS = ("train.data.corpus.build", "train.data.corpus.prepare")
SOURCE = ("data.name=text", "data.tokenizer=bytes", "data.vocab_size=257", "data.validation_fraction=0.2")


@dataclass(frozen=True)
class Case:
    """A command, what its process has imported beforehand, and what must hold of its folder afterwards.

    done: its exit codes when nothing interrupts it. made: fills a fresh folder. whole: checks it, whatever happened.
    """

    module: str
    words: tuple[str, ...]
    imported: tuple[str, ...]
    done: tuple[int, ...]
    made: Callable[[Path], None]
    whole: Callable[[Path], None]
    environment: tuple[tuple[str, str], ...] = ()


def environment() -> dict[str, str]:
    ours = {"STUDY_TRAINER": TRAINER, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    return {**{k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}, **ours}


def text(folder: Path) -> Path:
    """Return a folder of a third of a megabyte of text."""
    source = folder / "text"
    source.mkdir()
    for number in range(12):
        lines = (f"{line} and {number} make {line + number}" for line in range(1500))
        (source / f"{number}.txt").write_text("\n".join(lines))
    return source


def no_leftovers(folder: Path) -> None:
    left = [path.name for path in folder.rglob(".*") if not path.name.endswith((".lock", ".json", ".code"))]
    assert not left


def prepared(folder: Path) -> None:
    no_leftovers(folder)
    for manifest in folder.glob("data/*/manifest.json"):
        read_manifest(manifest.parent)
    assert all((path / "manifest.json").exists() for path in folder.glob("data/[!.]*"))


def fitted(folder: Path) -> None:
    no_leftovers(folder)
    for path in folder.glob("out/fit.json"):
        assert json.loads(path.read_text())["params"]


def swept(folder: Path) -> None:
    no_leftovers(folder)
    study = folder / "runs" / "two"
    for name in ("points.jsonl", "ledger.jsonl"):
        rows = (study / name).read_text().splitlines() if (study / name).exists() else []
        assert all(isinstance(json.loads(row), dict) for row in rows)


def synced(folder: Path) -> None:
    study = made.Made(StudyFolder(folder / "runs" / "sent"), (made.key(0), made.key(1)))
    rows = made.stored(folder / "mlflow.db", "sent")
    assert len(set(rows)) == len(rows)
    assert set(rows) <= set(made.expected(study))


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory, session_folder: Path) -> Path:
    """A folder with the text, a corpus of it, a study that has ended and an empty database of MLflow."""
    folder = tmp_path_factory.mktemp("templates")
    source = text(folder)
    command = [sys.executable, "-m", "train.prepare", "--set", *SOURCE, f"data.source={source}", "data.max_bytes=4e7"]
    subprocess.run(command, cwd=folder, env=environment(), check=True, capture_output=True)
    study, _ = make_study(folder / "runs" / "ended", [1, 2])
    assert run_to_end(study)[0] == 0
    database = session_folder / "template" / "mlflow.db"  # the tracking tests make the same one
    with filelock.FileLock(database.parent.with_suffix(".lock")):
        if not database.exists():
            warmed = warm(*SYNCER, **ENVIRONMENT, MLFLOW_LOGGING_LEVEL="ERROR")
            words = (str(database), f"file://{database.parent}")
            process = warmed.start("tests.study.support.creating", *words, cwd=ROOT, env=environment())
            assert process.communicate(timeout=LIMIT_SECONDS)[0] == "True\n"
    shutil.copy(database, folder / "mlflow.db")
    return folder


def cases(templates: Path) -> dict[str, Case]:
    def nothing(folder: Path) -> None:
        del folder

    def corpus(folder: Path) -> None:
        shutil.copytree(templates / "data", folder / "data")

    def ended(folder: Path) -> None:
        shutil.copytree(templates / "runs" / "ended", folder / "runs" / "ended")

    def waiting(folder: Path) -> None:
        study, keys = make_study(folder / "runs" / "live", [1])
        intent = {"time": time.time(), "event": "intent", "name": "batch-1", "executor": "slurm", "resources": {}}
        study.ledger.write_text(json.dumps({**intent, "keys": list(keys.values()), "code": "0123abc-none"}) + "\n")

    def unsent(folder: Path) -> None:
        shutil.copy(templates / "mlflow.db", folder / "mlflow.db")
        study = made.make_study(folder / "runs" / "sent", 2, f"sqlite:///{folder}/mlflow.db")
        for index in range(2):
            made.start_run(study.run(index))
            made.append(study.run(index), 1, 60)
            made.complete(study.run(index))

    source = f"data.source={templates / 'text'}"
    point = (*SOURCE, source, "data.sequence_length=16", "budget.tokens=128000", "batch.tokens=128", "tracking=none")
    runs = f"runs={ROOT / 'docs' / 'example-runs.csv'}"
    hydra = (
        "hydra",
        "hydra.core.plugins",
        "hydra._internal.hydra",
        "omegaconf",
        "study.config.compose",
        "study.sweep.plugins",
    )
    fit = ("pandas", "scipy.optimize", "scipy.stats", "analysis.results.study_fit")
    small = ("resamples=20", "sensitivity=no", "report=no", "out=out")
    return {
        "prepare": Case("train.prepare", ("--set", *SOURCE, source, "--workers", "1"), CORPUS, (0,), nothing, prepared),
        "sweep": Case("study.sweep", ("study.name=two", *point, "-m", "seed=1,2"), hydra, (0,), corpus, swept),
        "fit": Case("analysis.fit", (runs, *small), fit, (0,), nothing, fitted),
        "status": Case("study", ("status", "ended"), ("study.commands.status",), (0,), ended, no_leftovers),
        "watch": Case("study", ("watch", "live"), ("study.watch.follow",), (), waiting, no_leftovers),
        "sync": Case("study", ("sync", "sent"), SYNCER, (0,), unsent, synced, tuple(ENVIRONMENT.items())),
    }


def named(said: str) -> set[str]:
    """Return which of our files a traceback names; of packages, what they begin with.

    An environment in the checkout is none of ours: Python's own start imports what finds an editable installation.
    """
    paths = [Path(path) for path in re.findall(rf'File "{re.escape(str(ROOT))}/([^"]+)"', said)]
    ours = [path for path in paths if path.parts[0] != ".venv"]
    return {path.name if path.name in ("__init__.py", "namesakes.py") else str(path) for path in ours}


@pytest.mark.slow
@pytest.mark.parametrize("name", MOMENTS)
def test_ctrl_c_at_any_moment_is_one_line_and_130(name: str, templates: Path, tmp_path: Path) -> None:
    case = cases(templates)[name]
    warmed = warm(*case.imported, **{**dict(case.environment), "MLFLOW_LOGGING_LEVEL": "ERROR"})
    draw = random.Random(name)
    longest = 1.5
    interrupted = begun = 0
    while interrupted < MOMENTS[name]:
        begun += 1
        assert begun < 5 * MOMENTS[name], f"{interrupted} of {begun} runs were interrupted"
        folder = tmp_path / str(begun)
        folder.mkdir()
        case.made(folder)
        # Now and then with all of its imports, most of the time without: they are seconds of a core each time.
        start = warmed.start if begun % 12 else fresh
        process = start(case.module, *case.words, cwd=folder, env=environment())
        moment = draw.uniform(0.0, longest)
        began = time.monotonic()
        while process.poll() is None and time.monotonic() < began + moment:
            time.sleep(0.002)
        over = time.monotonic() - began
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LIMIT_SECONDS)
        if process.returncode in case.done:
            longest = min(longest, max(0.05, over))
        elif ("in guarded" not in said or "def guarded(" in said) and "Traceback" in said:
            assert any(word in said for word in STARTING), (moment, said)
            assert named(said) <= EARLY, (moment, said)
            if begun % 12 and moment > longest / 2:
                longest *= 1.5  # the machine has become slower: no moment would be late enough
        else:
            # Once a command is over, Python itself dies of the signal: to a shell the same 130.
            assert process.returncode in (130, -signal.SIGINT), (moment, said)
            assert process.returncode == 130 or not said.endswith("interrupted\n"), (moment, said)
            assert "Traceback" not in said, (moment, said)
            assert "xception" not in said, (moment, said)
            interrupted += 1
        case.whole(folder)
        shutil.rmtree(folder)


def test_the_first_look_of_watch_is_left_at_once(templates: Path, tmp_path: Path) -> None:
    cases(templates)["watch"].made(tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("squeue", "sacct"):  # a controller that is busy elsewhere
        (programs / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\nexec sleep {LIMIT_SECONDS:.0f}\n")
        (programs / name).chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    process = fresh("study", "watch", "live", cwd=tmp_path, env=environment() | {"PATH": path})
    wait_until("the scheduler is asked", (tmp_path / "asked").exists)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=LIMIT_SECONDS)
    assert (process.returncode, said) == (130, "study: interrupted\n")
    assert time.monotonic() - began < LIMIT_SECONDS / 10


TOLD = """
import signal, sys, time
told = []
def tell(*_):
    told.append(print("told", file=sys.stderr, flush=True))
signal.signal(signal.SIGINT, tell)
open(sys.argv[1], "w").close()
while not told:
    time.sleep(0.01)
time.sleep(0.3)
"""
WAITS = """
import os, sys
from study.executors import prepare_data
prepare_data._TOLD_SECONDS = float(sys.argv[1])
try:
    prepare_data._wait_for([sys.executable, "-c", *sys.argv[2:]], os.environ)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("by_terminal", [True, False])
def test_what_a_command_waits_for_is_told_of_ctrl_c_once(by_terminal: bool, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    # Told by the terminal it ends by itself, late as that may be on a busy machine.
    patience = LIMIT_SECONDS if by_terminal else 0.1
    words = [sys.executable, "-c", WAITS, str(patience), TOLD, str(begun)]
    process = subprocess.Popen(
        words, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_until("the process that is waited for runs", begun.exists)
    if by_terminal:
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=LIMIT_SECONDS)
    assert (process.returncode, said) == (130, "told\n")


def test_a_sweep_whose_data_is_being_prepared_says_one_line(tmp_path: Path) -> None:
    """The terminal tells the process that prepares them, too, which says that nothing was left behind."""
    source = tmp_path / "text"
    source.mkdir()
    for number in range(400):
        (source / f"{number}.txt").write_text("\n".join(f"{line} of {number}" for line in range(9000)))
    words = ("study.name=two", *SOURCE, f"data.source={source}", "data.sequence_length=16", "budget.tokens=128000")
    process = subprocess.Popen(
        [sys.executable, "-m", "study.sweep", *words, "batch.tokens=128", "tracking=none"],
        cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip

    def begun() -> bool:
        assert process.poll() is None, process.communicate()
        return any(path.name[1:8] != "prepare" for path in tmp_path.glob("data/.*"))

    wait_until("shards are written", begun)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=LIMIT_SECONDS)
    lines = [line for line in said.replace("\r", "\n").splitlines() if "interrupted" in line]
    assert (process.returncode, len(lines)) == (130, 1), said
    assert "Traceback" not in said
    no_leftovers(tmp_path)


ENDS = """
import atexit, os, signal, sys, types
how, code = sys.argv[1:]
class Garbage:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
def press():
    signal.raise_signal(signal.SIGINT)
def main():
    print("done")
    if how == "at exit":
        atexit.register(press)
    elif how == "as garbage":
        command.cycle = [Garbage()]
        command.cycle.append(command.cycle)
    if code == "parser":
        sys.exit(2)
    return int(code)
command = types.ModuleType("command")
command.main = main
sys.modules["command"] = command
from train.spec.interrupts import run
run("command")
"""


@pytest.mark.parametrize(
    ("how", "code", "ended"),
    [
        ("", "0", (0, "")),
        ("", "3", (3, "")),
        ("at exit", "0", (130, "command: interrupted\n")),
        ("at exit", "3", (130, "command: interrupted\n")),
        ("at exit", "parser", (130, "command: interrupted\n")),
        ("as garbage", "0", (0, "")),
        ("as garbage", "parser", (2, "")),
    ],
)
def test_ctrl_c_as_a_command_ends_is_one_line_and_130_or_comes_too_late(
    how: str, code: str, ended: tuple[int, str]
) -> None:
    words = [sys.executable, "-c", ENDS, how, code]
    done = subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == ended
    assert done.stdout == "done\n"


def test_what_cannot_be_written_at_the_end_is_still_said() -> None:
    words = [sys.executable, "-c", ENDS, "", "0"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, cwd=ROOT, env=environment(), stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode != 0
    assert b"No space left on device" in done.stderr


@pytest.fixture
def as_before() -> Iterator[None]:
    """Leave this process with the handlers that it had."""
    handler, hook = signal.getsignal(signal.SIGINT), sys.unraisablehook
    yield
    signal.signal(signal.SIGINT, handler)
    sys.unraisablehook = hook


def test_what_ctrl_c_became_on_its_way_is_still_ctrl_c(as_before: None, capsys: pytest.CaptureFixture[str]) -> None:
    def given_up() -> int:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("half a module") from None
        return 0

    def said_by_itself() -> int:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            return 1
        return 0

    assert guarded(given_up, "study status") == 130
    assert capsys.readouterr().err == "study status: interrupted\n"
    assert guarded(said_by_itself, "study status") == 130
    assert capsys.readouterr().err == ""


def test_ctrl_c_once_more_does_not_cut_the_words_short(as_before: None, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    class Pressed:
        def write(self, text: str) -> None:
            signal.raise_signal(signal.SIGINT)
            said.append(text)

    def pressed() -> int:
        monkeypatch.setattr(sys, "stderr", Pressed())
        signal.raise_signal(signal.SIGINT)
        return 0

    assert guarded(pressed, "study status") == 130
    assert "".join(said) == "study status: interrupted\n"


def test_without_ctrl_c_nothing_is_changed(as_before: None) -> None:
    def fails() -> int:
        raise ImportError("no module")

    def leaves() -> int:
        raise SystemExit(2)

    assert guarded(lambda: 3, "study") == 3
    with pytest.raises(ImportError):
        guarded(fails, "study")
    with pytest.raises(SystemExit):
        guarded(leaves, "study")


class Finalized:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def drops() -> int:
    found = Finalized()
    del found
    time.sleep(LIMIT_SECONDS)
    return 0


def test_ctrl_c_in_a_finalizer_is_not_lost(as_before: None) -> None:
    began = time.monotonic()
    assert guarded(drops, "study") == 130
    assert time.monotonic() - began < LIMIT_SECONDS / 2


def test_ctrl_c_while_a_dropped_one_is_sent_again_is_not_lost(as_before: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(threading.Timer):
        """The first has fired before its start returns, as on a busy machine."""

        first = True

        def start(self) -> None:
            super().start()
            if Late.first:
                Late.first = False
                self.join()
                time.sleep(0.01)

    monkeypatch.setattr(threading, "Timer", Late)
    began = time.monotonic()
    assert guarded(drops, "study") == 130
    assert time.monotonic() - began < LIMIT_SECONDS / 2
