"""What a run writes down of itself: metrics.jsonl, and a line for people now and then. Only the writing rank does."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

from train.evaluate import Validation
from train.metrics.console import Speed, line, say, warn
from train.metrics.file import ROLLBACK, MetricsFile, Rollback
from train.metrics.throughput import devices, peak_memory, rates
from train.metrics.timers import Times
from train.progress import Progress
from train.setup import Setup
from train.spec.counts import flops_per_token


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

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        config = setup.config
        self._file = MetricsFile(setup.folder / "metrics.jsonl") if setup.world.writes else None
        self._speed = Speed()
        self._per_token = flops_per_token(config.model, config.data.vocab_size, config.data.sequence_length)
        measure = config.runtime.measure_peak and setup.world.writes
        self.devices = devices(setup.world.size, setup.device, config.precision.name, measure)

    def went_to(self, progress: Progress) -> None:
        """Start to count speed from here."""
        self._speed = Speed(progress.tokens, progress.seconds["train"], progress.step)

    def rollbacks(self, after: int) -> list[Rollback]:
        """Return the rollbacks in the file that began a path above `after`; every rank calls this, all get the same."""
        found = [] if self._file is None else [one for one in self._file.written.rollbacks if one.path > after]
        return list(self._setup.world.gather(found)[0])

    def follow(self, path: int) -> None:
        """Write on along this path."""
        if self._file is not None:
            self._file.path = path

    def recorded(self) -> int:
        """Return the last step whose training is recorded on this path, as a checkpoint notes it; -1: none."""
        return -1 if self._file is None else self._file.written.reached(self._file.path, "train")[0]

    def miss(self, progress: Progress, noted: int | None) -> None:
        """Say and record which records are lost that the checkpoint of `progress` is beyond: no step writes them again.

        A file loses its end where a disk does, or somebody cuts it: checkpoints are saved after their metrics. noted:
        what `recorded` was then; None where the checkpoint does not say, and `runtime.log_steps` was what it is now.
        """
        if self._file is None or progress.step == progress.inherited_steps:
            return
        held, path, every = self._file.written, self._file.path, self._setup.config.runtime.log_steps
        due = progress.step - progress.step % every if noted is None else noted
        step, _ = held.reached(path, "train")
        _, evaluated = held.reached(path, "validation")
        lost = due > max(step, progress.inherited_steps)
        if not lost and progress.evaluated <= max(evaluated, progress.inherited):
            return
        first = max(step, progress.inherited_steps) + 1 if lost else progress.step
        self.event("missing", progress.step, progress.tokens, {"from_step": first, "to_step": progress.step})
        what = f"training from step {first} on" if lost else "the latest validation"
        warn(
            f"{self._setup.folder / 'metrics.jsonl'} has lost records up to step {progress.step} ({what}), and the run "
            "goes on from a checkpoint beyond them: they are not written again; to have them, remove the checkpoints "
            "from there on and start it anew"
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
        return int(self._setup.world.gather(number)[0])

    def train(self, stamp: Stamp, loss: float, norm: float, seconds: float, further: Mapping[str, float]) -> None:
        """Record a step. loss in nats per token; `seconds` of training until now; further metrics by name."""
        if self._file is None:
            return
        rate, per_step = self._speed.rate(stamp.tokens, seconds, stamp.step)
        values = {"loss": loss, "lr": stamp.lr, "grad_norm": norm, **rates(rate, self._per_token, self.devices)}
        values |= {f"seconds_{name}": took for name, took in stamp.times.seconds().items()}
        values |= {"seconds_step": per_step, **peak_memory(self._setup.device), **further}
        self.event("train", stamp.step, stamp.tokens, values)
        config = self._setup.config
        if self._speed.print_due(stamp.tokens == config.budget.tokens):
            say(line(stamp.step, stamp.tokens, config, loss, stamp.lr, rate))

    def validation(self, progress: Progress, found: Validation) -> None:
        """Record what a validation gave."""
        if self._file is None or not math.isfinite(found.loss):
            return
        values = found.metrics()
        self.event("validation", progress.step, progress.tokens, values)
        bits = values["bits_per_byte"]
        each = "".join(f", {name} {loss:.4f}" for name, loss in found.sources.items())
        say(f"step {progress.step} validation {found.loss:.4f} nats/token, {bits:.4f} bits/byte{each}")

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
