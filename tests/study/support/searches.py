"""Small searches with a stand-in trainer: no torch, no corpus."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

from study.config.schema import StudyConfig, plain
from study.search.event_log import Record
from study.search.settings import Settings, described, save
from study.search.state import ended, reported, started
from study.search.trial_queue import TrialQueue
from study.storage.layout import StudyFolder
from sweeps.space import Choice, Domain, Interval
from tests.environment import python_path
from tests.study.support.studies import REPOSITORY
from train.spec.config import BudgetConfig

TRAINER = f"{sys.executable} {REPOSITORY / 'tests/study/support/stand_in_search_trainer.py'}"
SPACE: dict[str, Domain] = {"optim.lr": Interval(2e-3, 4e-1, log=True), "model.layers": Choice((1, 2))}


def search_settings(**changes: object) -> Settings:
    base = replace(StudyConfig().run(), budget=BudgetConfig(tokens=27_008))
    found = Settings(
        scheduler="asha_promotion",
        sampler="random",
        r=1_000,
        R=27_008,
        eta=3,
        trials=12,
        seed=1,
        budget=None,
        lease=120.0,
        space={name: described(domain) for name, domain in SPACE.items()},
        base=plain(asdict(base)),
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def make_search(folder: Path, **changes: object) -> StudyFolder:
    study = StudyFolder(folder)
    save(study, search_settings(**changes))
    study.points.touch()
    study.study.write_text("cluster: {executor: local}\ntracking: {enabled: false}\n")
    return study


def diary(study: StudyFolder, key: str) -> list[tuple[int, int]]:
    """Return what the stand-in trainer wrote of its runs of a trial: the tokens where each began and ended."""
    lines = (study.run(key).path / "diary").read_text().splitlines()
    return [(int(a), int(b)) for a, b in (line.split() for line in lines)]


def advance(study: StudyFolder, units: int, seed: int = 0, lose: float = 0.1) -> TrialQueue:
    """Let one worker take and end units: some fail, some diverge, the rest come to a loss that falls with tokens."""
    queue, rng = TrialQueue.of(study), random.Random(seed)

    def tell(*records: Record) -> None:
        queue.log.append(records)
        for record in records:
            queue.search.apply(record)

    for _ in range(units):
        unit = queue.search.decide()
        if unit is None:
            break
        now, number = float(len(queue.log.records)), len(queue.log.records)
        key = (
            f"{unit.trial:06x}{number:06x}" if not queue.search.is_begun(unit) else queue.search.trials[unit.trial].key
        )
        tell(started(unit, key, "w", 1.0, now))
        claim = queue.search.claims[number]
        draw = rng.random()
        if draw < lose:
            tell(ended(claim, "failed", "it broke", now + 1))
            continue
        loss = math.inf if draw < 2 * lose else draw + 1e3 / unit.until
        tell(reported(claim, unit.until, loss, now + 1), ended(claim, "reached", "", now + 1))
    return queue


def environment(seconds: float = 0.0) -> dict[str, str]:
    ours = {"STUDY_TRAINER": TRAINER, "PYTHONPATH": python_path(), "STAND_IN_SECONDS": str(seconds)}
    return {**os.environ, **ours}


def begin_worker(study: StudyFolder, name: str = "pool", seconds: float = 0.0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "study.workers.worker", str(study.path), "--name", name],
        env=environment(seconds),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run_worker(study: StudyFolder, name: str = "pool", seconds: float = 0.0) -> str:
    worker = begin_worker(study, name, seconds)
    said, _ = worker.communicate(timeout=900)
    assert worker.returncode == 0, said
    return said
