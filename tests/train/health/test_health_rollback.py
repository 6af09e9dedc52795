"""Rollbacks and kills: a run that was killed takes the decisions of one that was not."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from train.health.loss_spikes import Action
from train.health.monitor import Monitor
from train.health.rollback import resume_path
from train.metrics.file import Rollback
from train.metrics.recorder import Recorder, Stamp
from train.metrics.timers import UNTIMED
from train.runtime.distributed import World
from train.spec.config import RunConfig, SpikesConfig
from train.state import TrainState
from train.trainer import Trainer

LAST = 40
"""The step at which a run here is complete; each takes one row."""


class Killed(BaseException):
    """Ends an attempt without its leave."""


@dataclass
class Disk:
    """Checkpoints of a run by their step: every `every` steps, also (`again`) at once where the run went back to."""

    every: int
    again: bool
    held: dict[int, str] = field(default_factory=dict)

    def save(self, state: TrainState, monitor: Monitor) -> None:
        self.held[state.step] = json.dumps([state.state_dict(), monitor.state_dict()])

    def load(self, step: int, state: TrainState, monitor: Monitor) -> None:
        reached, judged = json.loads(self.held[step])
        state.load_state_dict(reached)
        monitor.load_state_dict(judged)


class Attempt:
    """One process of a run whose loss is high on some rows; the trainer's own code goes back and resumes."""

    def __init__(self, config: RunConfig, folder: Path, disk: Disk, bad: set[int], killed: int | None) -> None:
        self.disk, self.bad, self.left = disk, bad, killed
        self.state, self.monitor = TrainState(), Monitor(config)
        self.recorder = Recorder(config, folder, World(), torch.device("cpu"))
        self.saved = max(disk.held, default=-1)
        if disk.held:
            disk.load(self.saved, self.state, self.monitor)
        record = self.recorder.went_back

        def went_back(step: int, tokens: int, rollback: Rollback) -> int:
            self.tick()  # checkpoints are gone, and nothing says so yet
            number = record(step, tokens, rollback)
            self.tick()
            return number

        self.recorder.went_back = went_back  # type: ignore[method-assign]
        self.trainer = cast(Trainer, SimpleNamespace(
            monitor=self.monitor, state=self.state, recorder=self.recorder, checkpoints=self,
            liveness=SimpleNamespace(beat=lambda seconds: None), share=SimpleNamespace(add=lambda seconds, spent: None),
            deferred=SimpleNamespace(forget=lambda: 0.0),
        ))  # fmt: skip

    def tick(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed

    def back_to(self, before: int) -> bool:
        older = [step for step in self.disk.held if step < before]
        if not older:
            return False
        for step in set(self.disk.held) - set(older):
            del self.disk.held[step]
        self.saved = -1 if self.disk.again else max(older)
        self.disk.load(max(older), self.state, self.monitor)
        return True

    def advance(self, rows: dict[int, int]) -> bool:
        """Train to the end; return whether the run diverged. rows: which each step took, filled in."""
        try:
            resume_path(self.state, self.monitor, self.recorder)
            while self.state.step < LAST:
                self.step(rows)
                self.tick()
                if self.state.step % self.disk.every == 0 and self.state.step not in {0, self.saved}:
                    self.disk.save(self.state, self.monitor)
                    self.saved = self.state.step
                    self.tick()
        except StopIteration:
            return True
        finally:
            self.recorder.close()
        return False

    def step(self, rows: dict[int, int]) -> None:
        state = self.state
        rows[state.step + 1] = state.sequences
        loss = 9.0 if state.sequences in self.bad else 1.0
        state.step, state.tokens, state.sequences = state.step + 1, state.tokens + 1, state.sequences + 1
        stamp = Stamp(state.step, state.tokens, state.sequences, 0.1, UNTIMED.begin(False, False), record=True)
        judged = self.monitor.judge(state.step, loss, 1.0)
        self.recorder.event("train", state.step, state.tokens, {"loss": loss})
        if judged.diverged:
            raise StopIteration
        if judged.action is Action.ROLL_BACK:
            Trainer._go_back(self.trainer, stamp, judged)


def run(
    config: RunConfig, disk: Disk, bad: set[int], kills: Sequence[tuple[int, int]] = ()
) -> tuple[dict[str, int], list[tuple[int, int, int]], bool, dict[int, int]]:
    """Run until no kill is left; return counts, rollbacks, whether it diverged, and the row that each step took.

    kills: after how many events of an attempt, at most at its end before the outcome is written, and how many of the
    newest checkpoints are lost with it.
    """
    rows: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        for after, lost in kills:
            with suppress(Killed):
                Attempt(config, Path(folder), disk, bad, after).advance(rows)
            for step in sorted(disk.held, reverse=True)[:lost]:
                del disk.held[step]
        last = Attempt(config, Path(folder), disk, bad, None)
        over = last.advance(rows)
    rows = {step: row for step, row in rows.items() if step <= last.state.step}
    return last.monitor.counts(), last.monitor.went_back, over, rows


def watching(tiny: RunConfig, limit: int) -> RunConfig:
    spikes = SpikesConfig(policy="rollback", window=8, warmup_steps=2, persistence=3, limit=limit)
    return replace(tiny, spikes=spikes, runtime=replace(tiny.runtime, system_seconds=0.0))


def high_rows(draw: Random) -> set[int]:
    """Return rows whose loss is high, in stretches of a few: some spike, some only lie where a checkpoint falls."""
    begins, lasts = draw.uniform(0.4, 0.6), draw.uniform(0.5, 0.8)
    rows, high = set[int](), False
    for row in range(3, 4 * LAST):
        high = draw.random() < (lasts if high else begins)
        rows |= {row} if high else set()
    return rows


@pytest.mark.parametrize("seed", range(8))
def test_a_run_that_is_killed_decides_as_one_that_is_not(tiny: RunConfig, seed: int) -> None:
    """Also where checkpoints are lost with it: then it takes again what it had done since, in all the same way."""
    draw, taken = Random(seed), 0
    for _ in range(15):
        bad, every, again = high_rows(draw), draw.randint(1, 5), draw.random() < 0.5
        config = watching(tiny, limit=draw.randint(1, 12))
        kills = [(draw.randint(0, 60), draw.choice((0, 0, 0, 1, 2))) for _ in range(draw.randint(1, 12))]
        whole = run(config, Disk(every, again), bad)
        assert run(config, Disk(every, again), bad, kills) == whole, (every, again, kills)
        taken += whole[0]["rollbacks"]
    assert taken > 20, "there is something to count"


def test_a_rollback_past_an_earlier_one_counts_both_after_a_kill(tiny: RunConfig) -> None:
    """High: step 15; then 17 to 19, from which it goes back to 15; then 16 and 17, which with 15 are a spike before it.

    The checkpoint of step 10 knows nothing of either, and the run is killed at the second.
    """
    config, bad = watching(tiny, limit=2), {14, 16, 17, 18, 19, 20, 30, 31, 32}
    whole = run(config, Disk(5, False), bad)
    assert whole[:3] == ({"skipped_steps": 0, "spikes": 3, "rollbacks": 2}, [(19, 15, 15), (17, 10, 10)], True)
    assert run(config, Disk(5, False), bad, [(28, 0)]) == whole
