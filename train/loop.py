"""The training loop: evaluate, stop, save or take a step, always at a step boundary.

The wall clock decides when checkpoints and progress lines happen, never what is computed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from enum import Enum

from train import checkpoint, outcome
from train.evaluate import bits_per_byte, evaluate
from train.metrics import MetricsFile
from train.progress import Progress, evaluation_due
from train.report import Speed, line, say
from train.setup import Setup
from train.signals import StopFlag
from train.spec.counts import flops_per_token
from train.step import lr_at, step


class End(Enum):
    """How a call of `Loop.run` ended."""

    REACHED = "reached"
    DIVERGED = "diverged"
    INTERRUPTED = "interrupted"


class Loop:
    """One attempt at advancing a run."""

    def __init__(self, setup: Setup, flag: StopFlag, started: float) -> None:
        """`started` is the moment this process began, by time.perf_counter [s]."""
        self.setup = setup
        self.flag = flag
        self.progress = Progress()
        self.metrics = MetricsFile(setup.folder / "metrics.jsonl") if setup.world.writes else None
        self.speed = Speed()
        self.started = started
        self.saved_at = time.perf_counter()
        self.saved = (-1, -1)
        self.root = setup.folder / "checkpoints"
        self.saver = checkpoint.Saver(self.root, setup.world.rank, setup.world.size)

    def run(self, until: int) -> End:
        """Train to `until` tokens (at most the budget) from where `restore` found the run."""
        config, progress = self.setup.config, self.progress
        budget = config.budget.tokens
        assert budget is not None
        until = min(until, budget)
        while True:
            due = evaluation_due(progress.evaluated, progress.tokens, budget, config.eval.count)
            if due and not self._evaluate():
                self._save()
                return End.INTERRUPTED
            if due and not math.isfinite(progress.validation_loss or 0.0):
                return self._finish("diverged")
            if progress.tokens >= until:
                break
            stop, save = self.setup.world.any((bool(self.flag), self._save_due()))
            if stop or save:
                self._save(wait=stop)
            if stop:
                return End.INTERRUPTED
            if not self._step(budget):
                return self._finish("diverged")
        if self.saved != (progress.step, progress.evaluated):
            self._save(keep=1 if progress.tokens == budget else None)
        self.saver.wait()
        return self._finish("completed") if progress.tokens == budget else End.REACHED

    def close(self) -> None:
        """Close what the loop holds open."""
        if self.metrics is not None:
            self.metrics.close()

    def _step(self, budget: int) -> bool:
        """Take one step; return whether its loss is finite (on a GPU only asked where a record is due)."""
        progress, setup = self.progress, self.setup
        with self._timed("train"):
            loss, norm = step(setup, progress)
            last = progress.tokens == budget
            record = last or progress.step % setup.config.runtime.log_steps == 0
            if not record and setup.device.type != "cpu":
                return True
            progress.train_loss = float(loss)
        if not math.isfinite(progress.train_loss):
            return False
        if record:
            self._record(progress.train_loss, float(norm))
        return True

    def _record(self, loss: float, norm: float) -> None:
        progress, setup, config = self.progress, self.setup, self.setup.config
        rate = self.speed.rate(progress.tokens, progress.seconds["train"])
        per_token = flops_per_token(config.model, config.data.vocab_size, config.data.sequence_length)
        lr = lr_at(setup, progress.tokens)
        if self.metrics is None:
            return
        values = {"loss": loss, "lr": lr, "grad_norm": norm}
        values |= {"tokens_per_second": rate, "model_flops_per_second": rate * per_token}
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        self.metrics.write("train", progress.step, progress.tokens, finite)
        if self.speed.print_due(progress.tokens == config.budget.tokens):
            say(line(progress, config, loss, lr, rate))

    def _evaluate(self) -> bool:
        """Validate and record it; return False if a stop signal came first."""
        progress, setup = self.progress, self.setup
        with self._timed("validation"):
            loss = evaluate(setup, lambda: setup.world.any((bool(self.flag),))[0])
        if loss is None:
            return False
        progress.validation_loss, progress.evaluated = loss, progress.tokens
        if self.metrics is not None and math.isfinite(loss):
            bits = bits_per_byte(loss, setup.manifest.bytes_per_token)
            self.metrics.write("validation", progress.step, progress.tokens, {"loss": loss, "bits_per_byte": bits})
            say(f"step {progress.step} validation {loss:.4f} nats/token, {bits:.4f} bits/byte")
        return True

    def _finish(self, state: str) -> End:
        self.saver.settle()
        self._count_total()
        if self.setup.world.writes:
            self._sync_metrics()
            outcome.write(self.setup.folder / "outcome.json", outcome.describe(self.setup, self.progress, state))
        return End.REACHED if state == "completed" else End.DIVERGED

    def _save_due(self) -> bool:
        """Say whether the clock of the writing rank asks for a checkpoint here."""
        if not self.setup.world.writes or self.progress.step == self.saved[0] or self.saver.busy:
            return False
        return time.perf_counter() - self.saved_at >= self.setup.config.runtime.checkpoint_seconds

    def _save(self, keep: int | None = None, wait: bool = True) -> None:
        """Save a checkpoint of this step; every rank takes part. With `wait` it is whole when this returns."""
        setup, progress = self.setup, self.progress
        with self._timed("checkpoint"):
            self._count_total()
            self._sync_metrics()
            state = checkpoint.collect([setup.model], [setup.optimizer])
            random = checkpoint.random_states(setup.device)
            state |= {f"random.{setup.world.rank}.{name}": value for name, value in random.items()}
            manifest = {"progress": asdict(progress), "identity": setup.identity}
            retention = None if keep is None else replace(self.saver.retention, newest=keep)
            self.saver.save(progress.step, state, manifest, retention)
            if wait:
                self.saver.wait()
        self.saved_at, self.saved = time.perf_counter(), (progress.step, progress.evaluated)

    def restore(self) -> None:
        """Go to the newest whole checkpoint if there is one; ValueError if it belongs to another config."""
        setup, world = self.setup, self.setup.world
        found = checkpoint.newest(self.root, world.rank, world.size, world.gather)
        if found is None:
            return
        checkpoint.check_identity(found, setup.identity)
        checkpoint.restore(found, [setup.model], [setup.optimizer])
        checkpoint.set_random_states(checkpoint.random_state(found, world.rank), setup.device)
        self.progress = Progress(**found.progress)
        self.started -= self.progress.seconds["total"]
        self.saved = (self.progress.step, self.progress.evaluated)
        self.speed = Speed(self.progress.tokens, self.progress.seconds["train"])
        if world.writes:
            say(f"resumed from {found.folder.name} at {self.progress.tokens:,} tokens")

    def _sync_metrics(self) -> None:
        if self.metrics is not None:
            self.metrics.sync()

    def _count_total(self) -> None:
        self.progress.seconds["total"] = time.perf_counter() - self.started

    @contextmanager
    def _timed(self, kind: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.progress.seconds[kind] += time.perf_counter() - began
