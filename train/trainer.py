"""The trainer on one page: a step is batch, forward and backward, clip, update; between steps validate, save, stop.

Losses reach the host a step late, so that the GPU never waits for the host (train.metrics.deferred); before a run ends
or saves, all of them are awaited. The wall clock decides when checkpoints and progress lines are written, never what is
computed.
"""

from __future__ import annotations

if __name__ == "__main__":  # above the other imports, which take their time
    from train.spec.interrupts import no_command

    no_command(
        "train.trainer",
        "python -m train.run --config runs/STUDY/KEY/config.yaml trains one run, python -m study.sweep a study",
    )

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from train.build import build_data, build_mesh, build_model, build_optimizer, build_step_graph
from train.checkpoint.identity import identity_of
from train.checkpoint.manager import CheckpointManager
from train.checkpoint.save import WRITE_SECONDS, SaveError
from train.checkpoint.unsaved import Unsaved
from train.data.batch import Batch
from train.data.dataloader import RowSource
from train.evaluate import evaluate
from train.health.inspection import Inspection, Watch
from train.health.loss_spikes import Action
from train.health.monitor import Judged, Monitor
from train.health.nonfinite import skip_flag
from train.health.rollback import begin_path, resume_path
from train.metrics import outcome
from train.metrics.deferred import Late
from train.metrics.profiler import Profiler, memory_told
from train.metrics.recorder import Recorder, Stamp
from train.metrics.timers import UNTIMED, Clock
from train.metrics.validation import past_lowest
from train.optim.optimizer import set_lr
from train.parallel.grad_norm import clip_factor, total_norm
from train.parallel.parallelize import Fill
from train.parallel.routing import move_biases, routing_metrics
from train.precision.history import History
from train.precision.loss_scaler import LossScaler
from train.runtime.compile import Compilation
from train.runtime.distributed import World
from train.runtime.gpu_share import TimeShare
from train.runtime.liveness import Liveness
from train.runtime.signals import StopFlag
from train.runtime.step_graph import Values
from train.spec.config import RunConfig
from train.spec.schedule import learning_rate
from train.state import TrainState


class End(Enum):
    """How a call of `Trainer.fit` ended."""

    REACHED = "reached"
    DIVERGED = "diverged"
    INTERRUPTED = "interrupted"


@dataclass(eq=False)
class _Ended(Exception):  # noqa: N818  (no error)
    """Ends the attempt: raised where the trainer sees that it is over, caught in `Trainer.fit`."""

    end: End


class Trainer:
    """One attempt at advancing a run. Before `restore` it opens no files, sends no heartbeat and can only step."""

    recorder: Recorder
    checkpoints: CheckpointManager
    liveness: Liveness

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        world: World,
        device: torch.device,
        *,
        flag: StopFlag | None = None,
        started: float = 0.0,
        rows: RowSource | None = None,
        fill: Fill | None = None,
    ) -> None:
        """Build the parts of a resolved config; ValueError where data or layout do not fit it.

        started: of this process, by time.perf_counter [s]. rows, fill: instead of the corpus and of the seeded weights.
        """
        assert config.budget.tokens is not None
        self.config, self.folder, self.world, self.device = config, folder, world, device
        self.flag, self.started = StopFlag() if flag is None else flag, started
        self.budget = self.until = config.budget.tokens
        self.state = TrainState()
        self.mesh = build_mesh(config, world, device)
        self.data = build_data(config, self.state, self.mesh, device, rows)
        self.model = build_model(config, self.mesh, device, fill)
        self.optimizer = build_optimizer(config, self.model)
        precision, formats = config.precision, self.model.formats
        self.scaler = LossScaler(device, precision.loss_scale, precision.loss_scale_steps, formats.scaled)
        self.history = History(self.model.modules, device, precision.fp8_history, shared=world.size > 1)
        self.compilation = Compilation(config.compile)
        self.graph = build_step_graph(config, self.model, self.optimizer, self.scaler, self._update)
        self.monitor = Monitor(config)
        self.inspection = Inspection(config.health, world, self.model.named_parameters, self.optimizer, self.scaler)
        self.deferred: Late[Stamp] = Late(device)
        self.clock = Clock(device, config.profile.nvtx)
        self.profiler = Profiler(config.profile, folder, world.rank, partial(self._event, "profile"))
        self.before_update: Callable[[], None] = lambda: None  # called before weights and moments change

    def restore(self, saves: bool = True) -> None:
        """Open the run's files and load its newest checkpoint, if any; ValueError if that is of another config.

        saves: whether the run reads and writes checkpoints.
        """
        self.recorder = Recorder(self.config, self.folder, self.world, self.device)
        self.checkpoints = (CheckpointManager if saves else Unsaved)(
            self.folder, self.config, self.world, self.device, modules=self.model.modules, optimizer=self.optimizer,
            identity=identity_of(self.config, self.data.fingerprint), state=self.state,
            parts={"data": self.data.loader, "monitor": self.monitor, "scaler": self.scaler, "fp8": self.history,
                   "recorded": self.recorder},
        )  # fmt: skip
        self.before_update = self.checkpoints.before_update
        self.share = TimeShare(os.environ if self.device.type == "cuda" else {})
        self.liveness = Liveness(self.state, self.world, self.config.runtime, self.folder)
        resumed = self.checkpoints.restore()
        resume_path(self.state, self.monitor, self.recorder)
        if resumed:
            self.recorder.miss(self.state)
        self.recorder.went_to(self.state)
        self.started -= self.state.seconds["total"]

    def fit(self, until: int) -> End:
        """Train to `until` tokens (at most the budget) from where `restore` found the run."""
        self.until = min(until, self.budget)
        self.profiler.begin(self.state.step)
        with memory_told(self.folder, self.world.rank):
            if self.state.tokens < self.until:
                self.model.shrink_to_fit(self.data.loader.peek, self.optimizer.zero_grad)
            try:
                while True:
                    self._between_steps()
                    self._logged_step()
            except _Ended as ended:
                return ended.end

    def _between_steps(self) -> None:
        """Judge the losses that have arrived; validate, stop, save and inspect if these are due."""
        self._judge()
        if self._still(lambda: self.state.evaluation_due(self.until, self.budget, self.config.eval.count)):
            self._validate()
        if self._still(lambda: self.state.tokens >= self.until):
            done = self.state.tokens == self.budget
            self._save_at_the_end(keep=1 if done else None)
            if done:
                self._finish("completed")
            raise _Ended(End.REACHED)
        stop, save = self.world.any((bool(self.flag), self.checkpoints.due()))
        if stop or save:
            self._judge(everything=True)
        if stop:
            self._interrupted()
        if save:
            self._save(wait=False)
        self.inspection.before_step(
            self.state.step + 1, self.data.loader.peek, self.model, self.forward_backward, self._event
        )

    def _still(self, due: Callable[[], bool]) -> bool:
        """Return whether something is due after all steps so far have been judged, which may roll the run back."""
        if not due():
            return False
        self._judge(everything=True)
        return due()

    def train_step(self, watch: Watch | None = None) -> tuple[Tensor, Tensor]:
        """Take one step: batch, forward and backward, clip, update. `watch` looks at it from inside.

        Returns loss [nats/token] and gradient norm before clipping, scalars on the device, the same on every rank.
        """
        state, config = self.state, self.config
        with self.clock.phase("data"):
            sequences = self.data.loader.next_sequences()
            tokens = sequences * config.data.sequence_length
            batch = self.data.loader.next_batch()
        trained, lr = float(batch.valid()), learning_rate(config, state.tokens + tokens)
        if self.graph is not None and watch is None:
            self.before_update()
            with self.clock.phase("graph"):
                loss, norm = self.graph((*batch.arrays, trained, lr))
        else:
            self._make_room()
            self.optimizer.seed(state.step)
            loss, norm = self._update((*batch.to(self.device).arrays, trained, lr), self.clock, watch)
        self.model.micro_batch.after_step()
        if self.model.filler is not None:
            self.model.filler.after_step()
        state.step, state.sequences, state.tokens = state.step + 1, state.sequences + sequences, state.tokens + tokens
        return loss, norm

    def _update(self, values: Values, clock: Clock = UNTIMED, watch: Watch | None = None) -> tuple[Tensor, Tensor]:
        """Do what a step does on the device. values: arrays of the batch there, tokens it trains on, learning rate."""
        *arrays, trained, lr = values
        attempt = partial(self.model.forward_backward, Batch(*arrays), trained, self.scaler, clock)
        forget = self.optimizer.zero_grad
        forget()
        with self.compilation.step():
            loss = self.mesh.sum_losses_(self.model.micro_batch.fitted(attempt, forget))
        weights = [weight for _, weight in self.model.named_parameters()]
        with clock.phase("optimizer"):
            if self.scaler.enabled:
                self.scaler.unscale_([weight.grad for weight in weights if weight.grad is not None])
            norm = total_norm(weights, self.mesh)
            if watch is not None:
                watch.gradients()
            clip = clip_factor(norm, most) if (most := self.config.optim.grad_clip) > 0 else None
            set_lr(self.optimizer, lr)
            self.before_update()
            skip = skip_flag(loss, norm)
            self.optimizer.step(skip=skip, grad_scale=clip)
            move_biases(self.model.modules, self.config.model, self.mesh, skip)
            self.scaler.update(skip)
            self.history.update(skip)
            if watch is not None:
                watch.updated()
        return loss, norm

    def forward_backward(self, batch: Batch, clock: Clock = UNTIMED) -> Tensor:
        """Accumulate this rank's gradients of a global `batch`; return its part of the mean loss [nats/token], fp64."""
        self._make_room()
        return self.model.forward_backward(batch.to(self.device), float(batch.valid()), self.scaler, clock)

    def _make_room(self) -> None:
        if self.graph is not None:
            self.graph.make_room()

    def _logged_step(self) -> None:
        """Take one step and log it: its loss and gradient norm come to the host later (`_judge`)."""
        state, number = self.state, self.state.step + 1
        with self.liveness.during("train"):
            self.deferred.begin()
            due = number % self.config.runtime.log_steps == 0
            times = self.clock.begin(timed=due, marked=self.profiler.records)
            watch = self.inspection.watch(number)
            loss, norm = self.train_step(watch)
            record = due or state.tokens == self.budget
            further = self.scaler.metrics() if record else {}
            if record:
                further |= routing_metrics(self.model.modules, self.config.model, self.mesh)
            lr = learning_rate(self.config, state.tokens)
            stamp = Stamp(number, state.tokens, state.sequences, lr, times, record, further=tuple(further))
            self.deferred.put(stamp, (loss, norm, *further.values()))
        if watch is not None:
            self._event("statistics", number, watch.metrics(self.world))
        self.inspection.compare_copies(number)
        self.profiler.boundary(number)

    def _judge(self, everything: bool = False) -> None:
        """Record the losses and times that have arrived, and act on spikes and non-finite values."""
        for stamp, (loss, norm, *others), seconds in self.deferred.arrived(everything):
            self.share.add(self.state.seconds, seconds)
            self.liveness.took(seconds, stamp.times.seconds() if stamp.record else None)
            if math.isfinite(loss):  # an outcome says numbers, also where the last step was skipped
                self.state.train_loss = loss
            judged = self.monitor.judge(stamp.step, loss, norm)
            if stamp.record:
                spent, skipped = self.state.seconds["train"], self.monitor.skipped.total
                self.recorder.train(stamp, loss, norm, others, seconds=spent, skipped=skipped)
            self.monitor.report(self.recorder, stamp.step, stamp.tokens, judged)
            if judged.diverged:
                self._finish("diverged")
            if judged.action is Action.ROLL_BACK and self._go_back(stamp, judged):
                break

    def _go_back(self, stamp: Stamp, judged: Judged) -> bool:
        """Return to the checkpoint before a spike and go on behind the batches of `stamp`; False: there is none."""
        spike, went_back, spikes = judged.verdict.spike, self.monitor.went_back, self.monitor.spikes
        assert spike is not None
        state, seconds = self.state, self.state.seconds
        self.liveness.beat(WRITE_SECONDS)
        if not self.checkpoints.back_to(spike):
            self.recorder.say(f"step {stamp.step}: no checkpoint is older than step {spike}: the run continues")
            return False
        self.share.add(seconds, self.deferred.forget())
        # What the checkpoint does not know: that the run has been further, and must not read those rows again.
        state.seconds, state.sequences = seconds, stamp.sequences
        self.monitor.spikes = spikes
        self.monitor.went_back = [*went_back, (stamp.step, state.step, state.tokens)]
        self.recorder.went_to(state)
        begin_path(state, self.monitor, self.recorder, (stamp.step, stamp.tokens), spikes)
        self.recorder.say(f"went back from step {stamp.step} to step {state.step}; its batches are skipped")
        return True

    def _validate(self) -> None:
        self._make_room()
        with self.liveness.during("validation"):
            found = evaluate(self.model, self.data.validation, self.config.eval.by_position, self._asked_to_stop)
        if found is None:
            self._interrupted()
        self.state.validated(found.loss)
        self.recorder.validation(self.state, found)
        if not math.isfinite(found.loss):
            self._finish("diverged")

    def _asked_to_stop(self) -> bool:
        self.liveness.beat()
        return self.world.any((bool(self.flag),))[0]

    def _interrupted(self) -> NoReturn:
        self._save_at_the_end()
        raise _Ended(End.INTERRUPTED)

    def _save_at_the_end(self, keep: int | None = None) -> None:
        """Save this state if it is not yet: there may be little time."""
        self.liveness.beat(WRITE_SECONDS)
        if not self.checkpoints.there():
            self._save(keep=keep)

    def _save(self, keep: int | None = None, wait: bool = True) -> None:
        """Save a checkpoint of this step; every rank takes part."""
        with self.liveness.during("checkpoint"):
            self.liveness.beat(WRITE_SECONDS)
            self.state.seconds["total"] = time.perf_counter() - self.started
            obstacle = None
            try:
                self.recorder.sync()
            except OSError as error:  # without its metrics there is no checkpoint; every rank hears of it there
                obstacle = error
            self.checkpoints.save(keep=keep, wait=wait, obstacle=obstacle)

    def _finish(self, state: str) -> NoReturn:
        """Write the outcome."""
        self.liveness.beat(WRITE_SECONDS)
        self.checkpoints.join()
        self.state.seconds["total"] = time.perf_counter() - self.started
        if self.world.writes:
            try:
                self.recorder.sync()
                if remark := past_lowest(self.state, self.data.loader.epochs()) if state == "completed" else "":
                    self.recorder.say(remark)
                outcome.write(
                    self.folder, self.config, self.state, state, health=self.monitor.counts(), device=self.device,
                    bytes_per_token=self.data.validation.bytes_per_token, epochs=self.data.loader.epochs(),
                    world_size=self.world.size,
                )  # fmt: skip
            except OSError as error:
                raise SaveError(f"{self.folder}: {error}") from error
        raise _Ended(End.REACHED if state == "completed" else End.DIVERGED)

    def _event(self, kind: str, step: int, values: dict[str, float]) -> None:
        self.recorder.event(kind, step, self.state.tokens, values)

    def close(self) -> None:
        """Close what is open."""
        self.data.loader.close()
        self.profiler.close()
        self.recorder.close()
        self.liveness.close()
