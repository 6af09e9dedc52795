"""What a run records of itself: metrics.jsonl, and a line for people now and then. Only the writing rank does."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from train.metrics.file import ROLLBACK, MetricsFile, Rollback
from train.metrics.system import system_metrics
from train.metrics.throughput import devices, peak_memory, rates
from train.metrics.timers import Times
from train.metrics.validation import Validation
from train.runtime.console import say, warn
from train.runtime.distributed import World
from train.spec.config import RunConfig
from train.spec.counts import flops_per_token
from train.state import TrainState

PRINT_SECONDS = 2.0


@dataclass(frozen=True)
class Stamp:
    """What the host knows of a step when it starts it: where the run stands after it, its learning rate, its times.

    record: whether its metrics are written. further: names of the scalars that come beside loss and gradient norm.
    """

    step: int
    tokens: int
    sequences: int
    lr: float
    times: Times
    record: bool
    further: tuple[str, ...] = ()


class Recorder:
    """Writes what happens; on other ranks than the writing one it does nothing."""

    def __init__(self, config: RunConfig, folder: Path, world: World, device: torch.device) -> None:
        self._config, self._path, self._world, self._device = config, folder / "metrics.jsonl", world, device
        self._file = MetricsFile(self._path) if world.writes else None
        self._system = system_metrics(config.runtime.system_seconds, world, device)
        self._noted: int | None = None
        self._speed = Speed()
        self._per_token = flops_per_token(config.model, config.data.vocab_size, config.data.sequence_length)
        measure = config.runtime.measure_peak and world.writes
        self.devices = devices(world.size, device, config.precision.name, measure)

    def went_to(self, state: TrainState) -> None:
        """Start to count speed from here."""
        self._speed = Speed(state.tokens, state.seconds["train"], state.step)

    def rollbacks(self, after: int) -> list[Rollback]:
        """Return the rollbacks in the file that began a path above `after`; every rank calls this, all get the same."""
        found = [] if self._file is None else [one for one in self._file.written.rollbacks if one.path > after]
        return list(self._world.gather(found)[0])

    def follow(self, path: int) -> None:
        """Write on along this path."""
        if self._file is not None:
            self._file.path = path

    def state_dict(self) -> int:
        """Return the last step whose training is recorded on this path; -1: none."""
        return -1 if self._file is None else self._file.written.reached(self._file.path, "train")[0]

    def load_state_dict(self, state: int | None) -> None:
        """Take in what was recorded when a checkpoint was saved, for `miss`; None: it does not say."""
        self._noted = state

    def miss(self, state: TrainState) -> None:
        """Say and record which records are lost that the checkpoint of `state` is beyond: no step writes them again.

        A file loses its end where a disk does, or somebody cuts it: checkpoints are saved after their metrics. Where
        the checkpoint does not say what was recorded, `runtime.log_steps` was what it is now.
        """
        if self._file is None or state.step == state.inherited_steps:
            return
        held, path, every = self._file.written, self._file.path, self._config.runtime.log_steps
        due = state.step - state.step % every if self._noted is None else self._noted
        step, _ = held.reached(path, "train")
        _, evaluated = held.reached(path, "validation")
        lost = due > max(step, state.inherited_steps)
        if not lost and state.evaluated <= max(evaluated, state.inherited):
            return
        first = max(step, state.inherited_steps) + 1 if lost else state.step
        self.event("missing", state.step, state.tokens, {"from_step": first, "to_step": state.step})
        what = f"training from step {first} on" if lost else "the latest validation"
        warn(
            f"{self._path} has lost records up to step {state.step} ({what}), and the run "
            "resumes from a later checkpoint: they are not written again; to have them, remove the checkpoints "
            "after them and start the run again"
        )

    def went_back(self, step: int, tokens: int, rollback: Rollback) -> int:
        """Record a rollback after `step`, at `tokens`, at once on disk, and return the number of the path it begins.

        A run that is killed before its next checkpoint goes on from this record. Every rank calls this.
        """
        number = 0
        if self._file is not None:
            self._file.write(ROLLBACK, step, tokens, rollback.metrics())
            number = self._file.path
            with contextlib.suppress(OSError):  # no room: then it does not go on from it, nor is a checkpoint saved
                self._file.sync()
        return int(self._world.gather(number)[0])

    def train(
        self, stamp: Stamp, loss: float, norm: float, others: Sequence[float], *, seconds: float, skipped: int
    ) -> None:
        """Record a step. loss in nats per token; others: the scalars that `stamp.further` names.

        seconds: of training until now. skipped: how many steps were, until now.
        """
        if self._file is None:
            return
        rate, per_step = self._speed.rate(stamp.tokens, seconds, stamp.step)
        values = {"loss": loss, "lr": stamp.lr, "grad_norm": norm, **rates(rate, self._per_token, self.devices)}
        values |= {f"seconds_{name}": took for name, took in stamp.times.seconds().items()}
        values |= {
            "seconds_step": per_step,
            **peak_memory(self._device),
            **dict(zip(stamp.further, others, strict=True)),
        }
        values |= {"skipped_steps": float(skipped)} if skipped else {}
        self.event("train", stamp.step, stamp.tokens, values)
        if sample := self._system.due():
            self.event("system", stamp.step, stamp.tokens, sample)
        config = self._config
        if self._speed.print_due(stamp.tokens == config.budget.tokens):
            say(line(stamp.step, stamp.tokens, config, loss, stamp.lr, rate))

    def validation(self, state: TrainState, found: Validation) -> None:
        """Record what a validation gave."""
        if self._file is None or not math.isfinite(found.loss):
            return
        values = found.metrics()
        self.event("validation", state.step, state.tokens, values)
        bits = values["bits_per_byte"]
        each = "".join(f", {name} {loss:.4f}" for name, loss in found.sources.items())
        say(f"step {state.step} validation {found.loss:.4f} nats/token, {bits:.4f} bits/byte{each}")

    def event(self, kind: str, step: int, tokens: int, values: Mapping[str, float]) -> None:
        """Record metrics of a kind of their own, leaving out what is not finite."""
        if self._file is not None:
            finite = {name: value for name, value in values.items() if math.isfinite(value)}
            self._file.write(kind, step, tokens, finite)

    def say(self, text: str) -> None:
        """Tell a person."""
        if self._file is not None:
            say(text)

    def sync(self) -> None:
        """Wait until the records are on disk; OSError where some of them cannot be written."""
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class Speed:
    """Training speed between records, and when to print; changes nothing that is computed."""

    def __init__(self, tokens: int = 0, seconds: float = 0.0, step: int = 0) -> None:
        self._tokens = tokens
        self._seconds = seconds
        self._step = step
        self._printed = -PRINT_SECONDS

    def rate(self, tokens: int, seconds: float, step: int) -> tuple[float, float]:
        """Return tokens per second and seconds per step since the previous call; `seconds` counts training only."""
        spent = max(seconds - self._seconds, 1e-9)
        rate, per_step = (tokens - self._tokens) / spent, spent / max(1, step - self._step)
        self._tokens, self._seconds, self._step = tokens, seconds, step
        return rate, per_step

    def print_due(self, last: bool) -> bool:
        """Say whether it is time for a line; always at the last step."""
        now = time.monotonic()
        if not last and now - self._printed < PRINT_SECONDS:
            return False
        self._printed = now
        return True


def line(step: int, tokens: int, config: RunConfig, loss: float, lr: float, rate: float) -> str:  # noqa: PLR0917
    """Return the progress line; `rate` in tokens per second of training, time left without evaluations."""
    budget = config.budget.tokens or 1
    left = (budget - tokens) / max(rate, 1e-9)
    return (
        f"step {step}  tokens {tokens:,}/{budget:,} ({100 * tokens / budget:.0f} %)  "
        f"loss {loss:.4f}  lr {lr:.3g}  {rate:,.0f} tokens/s  {duration(left)} left"
    )


def duration(seconds: float) -> str:
    """Return seconds as a person would say them: 42 s, 3 min 20 s, 2 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
