"""Runs on a throwaway SLURM that something is done to, and what is measured of how they came through it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from study.storage.files import read_json
from tests.slurm.cluster import ThrowawayCluster, wait_for
from tests.slurm.daemons import Daemons
from tests.slurm.lab import TINY, Lab

STEPS, INTERVAL = 20, 4
"""Steps of a run, and between its checkpoints."""
RUN = (*TINY, f"runtime.checkpoint_keep_steps={INTERVAL}", "runtime.checkpoint_seconds=1e6", "runtime.log_steps=1")
DISTURBED_STEP = 6
PATIENCE_SECONDS = 60.0
"""A run that nothing in the queue stands for is taken up by hand after this long."""
WITHIN_SECONDS = 240.0

Losses = Mapping[int, float]


@dataclass(frozen=True)
class Result:
    """What became of one class of faults.

    steps_lost: most that one try did again. seconds: longest from the fault to the first step beyond it. bitwise: all
    losses of all tries are the undisturbed run's; None: the fault itself changes them, or there are none. by: who took
    the run up again.
    """

    fault: str
    tried: int
    survived: int
    kinds: str
    by: str
    steps_lost: int | None = None
    duplicates: int = 0
    lost: int = 0
    bitwise: bool | None = None
    seconds: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Field:
    """Where all of it happens. reference: losses of the undisturbed runs by seed."""

    cluster: ThrowawayCluster
    lab: Lab
    reference: dict[int, Losses]
    tries: int
    daemons: Daemons

    def patient(self, study: str, *overrides: str, slow: float = 0.7, trainer: str = "slow", **more: object) -> Patient:
        """Submit `tries` slow runs under one study's name."""
        marker = self.lab.folder / f"{study}.slow"
        marker.write_text(str(slow), encoding="utf-8")
        lab = self.lab.with_trainer(trainer, SLOW=marker, **more) if trainer else self.lab
        seeds = ",".join(map(str, range(self.tries)))
        lab.sweep(f"study.name={study}", *RUN, f"seed={seeds}", *overrides)
        return Patient(self, lab, study, marker)


@dataclass
class Patient:
    """A study of slow runs that something is done to."""

    on: Field
    lab: Lab
    study: str
    slow: Path
    at: float = 0.0
    last: dict[str, int] = field(default_factory=dict)
    by: Counter[str] = field(default_factory=Counter)

    @property
    def keys(self) -> list[str]:
        """The points."""
        return self.lab.keys(self.study)

    def run(self, key: str) -> Path:
        """Return a point's folder."""
        return self.lab.run_folder(self.study, key)

    def wait_for_step(self, step: int = DISTURBED_STEP) -> None:
        """Wait until every run has recorded this step."""
        wait_for(
            f"step {step} of {self.study}",
            lambda: all(max(train_losses(self.run(key)), default=0) >= step for key in self.keys),
            WITHIN_SECONDS,
            every=0.2,
        )

    def supervisor(self, key: str) -> psutil.Process:
        """Return the process of the latest attempt that started the trainer."""
        attempts = sorted((self.run(key) / "attempts").glob("*/job.json"), key=lambda path: int(path.parent.name))
        job = read_json(attempts[-1])
        assert job is not None
        return psutil.Process(job["pid"])

    def disturb(self, act: Callable[[str], None]) -> None:
        """Do it to every run, write down where they were, and let them take their normal time from now on."""
        self.last = {key: max(train_losses(self.run(key)), default=0) for key in self.keys}
        self.at = time.time()
        for key in self.keys:
            act(key)
        self.slow.unlink(missing_ok=True)

    def recovered(self) -> None:
        """Wait until every run has its outcome; take up by hand what nobody takes up."""
        limit, quiet = time.monotonic() + WITHIN_SECONDS, time.monotonic() + PATIENCE_SECONDS
        while not all((self.run(key) / "outcome.json").exists() for key in self.keys):
            if time.monotonic() > limit:
                return
            time.sleep(3.0)
            states = {point["state"] for point in self._points()}
            if states & {"running", "queued", "waiting", "pending"}:
                quiet = time.monotonic() + PATIENCE_SECONDS
            elif time.monotonic() > quiet:
                self.retry("failed,interrupted,time_limit,cancelled")
                quiet = time.monotonic() + PATIENCE_SECONDS

    def retry(self, states: str) -> None:
        """Take the runs up as a person does."""
        done = subprocess.run(
            [sys.executable, "-m", "study", "retry", self.study, "--state", states],
            check=False,
            cwd=self.lab.folder,
            env=self.lab.environment,
            capture_output=True,
        )
        self.by["retry"] += done.returncode == 0

    def _points(self) -> list[dict[str, Any]]:
        """Return what `status --json` says; nothing where it cannot say."""
        try:
            return self.lab.points(self.study)
        except (AssertionError, ValueError, subprocess.TimeoutExpired):
            return []

    def result(self, fault: str, *, bitwise: bool = True, note: str = "", ends: bool = False) -> Result:
        """Return what became of it. ends: it ends an attempt; a run in which it did not was not tried."""
        seen = [self._measured(key, seed) for seed, key in enumerate(self._by_seed())]
        return Result(
            fault=fault,
            tried=len(seen),
            survived=sum(one.survived and (one.attempts > 1 or not ends) for one in seen),
            kinds=", ".join(sorted({kind for one in seen for kind in one.kinds})) or "-",
            by=", ".join(sorted({*self.by, *(one.by for one in seen if one.by and not self.by)})) or "not needed",
            steps_lost=max((one.steps_lost for one in seen), default=0),
            duplicates=sum(one.duplicates for one in seen),
            lost=sum(one.lost for one in seen),
            bitwise=all(one.bitwise for one in seen) if bitwise else None,
            seconds=max((one.seconds for one in seen if one.seconds is not None), default=None),
            note=note,
        )

    def _by_seed(self) -> list[str]:
        lines = (self.lab.folder / "runs" / self.study / "points.jsonl").read_text(encoding="utf-8").splitlines()
        points = [json.loads(line) for line in lines]
        return [point["key"] for point in sorted(points, key=lambda point: int(point["config"]["seed"]))]

    def _measured(self, key: str, seed: int) -> Measured:
        run, losses = self.run(key), train_losses(self.run(key))
        steps = [record["step"] for record in records(run) if record["kind"] == "train"]
        attempts = sorted((run / "attempts").glob("[0-9]*"), key=lambda path: int(path.name))
        kinds = {str(kind) for path in attempts[:-1] if (kind := self._kind(path)) is not None}
        outcome = read_json(run / "outcome.json") or {}
        again = (read_json(attempts[-1] / "job.json") or {}).get("started", self.at) if len(attempts) > 1 else self.at
        beyond = [r for r in records(run) if r["kind"] == "train" and r["step"] > self.last.get(key, 0)]
        after = [r["time"] for r in beyond if r["time"] >= again]
        return Measured(
            survived=outcome.get("state") == "completed",
            attempts=len(attempts),
            kinds=tuple(sorted(kinds)),
            by="" if len(attempts) < 2 else self._taken_up(attempts),
            steps_lost=sum(done_again(run, attempts)),
            duplicates=len(steps) - len(set(steps)),
            lost=len(set(range(1, STEPS + 1)) - set(steps)),
            bitwise=losses == self.on.reference.get(seed),
            seconds=min(after) - self.at if after and self.at and len(attempts) > 1 else None,
        )

    def _kind(self, attempt: Path) -> str | None:
        """Return how an attempt ended: by its own word, else by the ledger's."""
        ended = read_json(attempt / "outcome.json")
        if ended is not None:
            return str(ended.get("kind") or ended.get("state"))
        told = [e["kind"] for e in self.lab.ledger(self.study) if e["event"] == "ended"]
        return told[-1] if told else "none written"

    def _taken_up(self, attempts: Sequence[Path]) -> str:
        """Return who took a run up: SLURM by a requeue of the same job, or the study by another job."""
        jobs = [read_json(path / "job.json") or {} for path in attempts]
        return "requeue" if len({job.get("job_id") for job in jobs}) < len(jobs) else "study"


@dataclass(frozen=True)
class Measured:
    """One run."""

    survived: bool
    attempts: int
    kinds: tuple[str, ...]
    by: str
    steps_lost: int
    duplicates: int
    lost: int
    bitwise: bool
    seconds: float | None


def records(run: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a run's metrics."""
    try:
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    except OSError:
        return []
    return [json.loads(line) for line in lines]


def train_losses(run: Path) -> dict[int, float]:
    """Return the training loss of every recorded step."""
    return {record["step"]: record["metrics"]["loss"] for record in records(run) if record["kind"] == "train"}


def times_run(run: Path) -> int:
    """Return how often the quick trainer ran for a point."""
    return len((run / "ran").read_text(encoding="utf-8").split()) if (run / "ran").exists() else 0


def done_again(run: Path, attempts: Sequence[Path]) -> list[int]:
    """Return the steps that each attempt after the first did again: recorded before it, behind where it resumed."""
    again = []
    for attempt in attempts[1:]:
        job = read_json(attempt / "job.json") or {}
        before = [r["step"] for r in records(run) if r["kind"] == "train" and r["time"] < job.get("started", 0.0)]
        said = (attempt / "stdout").read_text(encoding="utf-8") if (attempt / "stdout").exists() else ""
        found = re.search(r"resumed from step-(\d+)", said)
        again.append(max(0, max(before, default=0) - (int(found[1]) if found else 0)))
    return again


def undisturbed(lab: Lab, seeds: int, study: str = "undisturbed", *overrides: str) -> dict[int, Losses]:
    """Return the losses of the same runs as processes of this machine, by seed."""
    lab.sweep(f"study.name={study}", *RUN, f"seed={','.join(map(str, range(seeds)))}", *overrides, cluster="local")
    lines = (lab.folder / "runs" / study / "points.jsonl").read_text(encoding="utf-8").splitlines()
    points = [json.loads(line) for line in lines]
    return {int(p["config"]["seed"]): train_losses(lab.run_folder(study, p["key"])) for p in points}


def with_field(patient: Patient, reference: dict[int, Losses]) -> Patient:
    """Return the patient, to be compared with other undisturbed runs."""
    return replace(patient, on=replace(patient.on, reference=reference))
