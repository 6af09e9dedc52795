"""Small studies for the tests of execution, advanced by a stand-in trainer whose behaviour each seed decides."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from study.records.point import Point, point
from study.records.points import append_points
from study.status.observer import observe
from study.storage.layout import StudyFolder
from tests.environment import python_path
from tests.warm import warm
from train.spec.config import BudgetConfig, RunConfig
from train.spec.resolve import resolve

LIMIT_SECONDS = 900.0
"""What ends in a moment is waited for so long: a machine that is busy elsewhere or syncs slowly is not wrong."""

REPOSITORY = Path(__file__).resolve().parents[3]
TRAINER = f"{sys.executable} {Path(__file__).with_name('stand_in_trainer.py')}"
COMMANDS = tuple(
    f"study.commands.{name}" for name in ("cancel", "gc", "list", "logs", "retry", "show", "status", "watch")
)
"""What most commands that tests give are in, and all that these import."""
SYNCER = (
    *("mlflow.tracking.client", "mlflow.store.tracking.sqlalchemy_store", "mlflow.store.tracking.rest_store"),
    *("study.tracking.follow", "study.tracking.syncer"),
)
"""What a syncer imports once it runs: seconds of a core, most of them MLflow's."""
FAILS, DIVERGES, SILENT, KILLS_ITSELF, FULL, SLOW, SAVES_SLOWLY = 101, 102, 103, 104, 105, 200, 300
OUT_OF_MEMORY, HANGS = 106, 107
"""Seeds: what the stand-in does with them; every other one completes in a moment, SLOW and above not until told."""


def make_study(folder: Path, seeds: Sequence[int], width: int = 64) -> tuple[StudyFolder, dict[int, str]]:
    """Write a study of one point per seed; return its folder and the key of each seed."""
    study = StudyFolder(folder)
    points = {seed: seeded(seed, width) for seed in seeds}
    append_points(study, points.values())
    study.study.write_text("cluster: {executor: local, slots: 2, poll_seconds: 0.5}\ntracking: {enabled: false}\n")
    return study, {seed: p.key for seed, p in points.items()}


def seeded(seed: int, width: int = 64) -> Point:
    base = RunConfig()
    config = replace(base, seed=seed, budget=BudgetConfig(tokens=12_800), model=replace(base.model, width=width))
    return point(resolve(config), (f"seed={seed}",))


def environment() -> dict[str, str]:
    """Return the environment of a process that runs the stand-in instead of the trainer."""
    ours = {"STUDY_TRAINER": TRAINER, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **ours}


def study_command(*arguments: str | Path, cwd: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `python -m study …` to its end."""
    process = warm(*COMMANDS).start("study", *map(str, arguments), cwd=Path(cwd), env=environment())
    said, trouble = process.communicate(timeout=LIMIT_SECONDS)
    return subprocess.CompletedProcess(process.args, int(process.returncode or 0), said, trouble)


RUN = """
import sys
from pathlib import Path
from study.reconcile.services import Services
from study.reconcile.step import step
from study.reconcile.triggers import Submit
from study.watch.follow import follow
from study.records.points import load_points
from study.storage.layout import StudyFolder
from study.records.settings import load_submission
folder = StudyFolder(Path(sys.argv[1]))
cluster = load_submission(folder).cluster
step(folder, Services(), Submit(list(load_points(folder)), cluster))
sys.exit(follow(folder, cluster))
"""


def begin(study: StudyFolder) -> subprocess.Popen[str]:
    """Start the process that submits all points and stays with them, as `python -m study.sweep` does."""
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(study.path)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run_to_end(study: StudyFolder) -> tuple[int, str]:
    """Submit all points, stay with them, and return the exit code and what was printed."""
    process = begin(study)
    said, _ = process.communicate(timeout=LIMIT_SECONDS)
    return process.returncode, said


def states(study: StudyFolder) -> dict[str, str]:
    return {status.key: status.state for status in observe(study)}


def wait_until(what: str, check: Callable[[], bool], seconds: float = LIMIT_SECONDS) -> None:
    limit = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < limit, f"waited {seconds:.0f} s for: {what}"
        time.sleep(0.05)


def diary(study: StudyFolder, key: str) -> list[str]:
    """Return what the stand-in noted of a run: begin, end, saved, each with the step."""
    path = study.run(key).path / "diary"
    return path.read_text().splitlines() if path.exists() else []


def saved_step(study: StudyFolder, key: str) -> int:
    path = study.run(key).checkpoints / "step"
    return int(path.read_text()) if path.exists() else 0


def supervisor(study: StudyFolder, key: str, attempt: int = 1) -> int:
    """Return the process id of the job of an attempt."""
    return int(json.loads(study.run(key).attempt(attempt).job.read_text())["pid"])


def end_group(process: subprocess.Popen[str]) -> None:
    """Kill a process and wait for it; its children get SIGTERM from the kernel."""
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
    process.wait()
