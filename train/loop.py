"""The training loop: a list of things that happen at step boundaries, and a step.

Each thing looks at where the run stands and may end the attempt. The wall clock decides when checkpoints and progress
lines happen, never what is computed.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum

from train.checkpoint.manager import CheckpointManager, Notes
from train.checkpoint.save import WRITE_SECONDS, SaveError
from train.data.dataset import TrainingData
from train.evaluate import evaluate
from train.health.inspection import Inspection
from train.health.loss_spikes import Action
from train.health.monitor import Judged, Monitor
from train.metrics import outcome
from train.metrics.deferred import Late
from train.metrics.file import Rollback, from_here
from train.metrics.profiler import Profiler, memory_told
from train.metrics.recorder import Recorder, Stamp
from train.metrics.timers import Clock
from train.precision import notes as precision
from train.runtime.heartbeat import Heartbeat
from train.runtime.signals import StopFlag
from train.runtime.watchdog import watch
from train.setup import Setup
from train.state import TrainState, evaluation_due
from train.step import accumulate_own, look, lr_at, next_sequences, step, take


class End(Enum):
    """How a call of `Loop.run` ended."""

    REACHED = "reached"
    DIVERGED = "diverged"
    INTERRUPTED = "interrupted"


class Loop:
    """One attempt at advancing a run."""

    def __init__(self, setup: Setup, flag: StopFlag, started: float) -> None:
        """`started` is the moment this process began, by time.perf_counter [s]."""
        config = setup.config
        assert config.budget.tokens is not None
        self.setup = setup
        self.flag = flag
        self.progress = TrainState()
        self.budget = self.until = config.budget.tokens
        self.started = started
        self.recorder = Recorder(config, setup.folder, setup.world, setup.device)
        self.saving = CheckpointManager(
            setup.folder,
            config,
            setup.world,
            setup.device,
            modules=setup.modules,
            optimizer=setup.optimizer,
            identity=setup.identity,
        )
        self.monitor = Monitor(config)
        self.inspection = Inspection(config.health, setup.world, setup.named_parameters, setup.optimizer, setup.scaler)
        self.late: Late[Stamp] = Late(setup.device)
        self.clock = Clock(setup.device, config.profile.nvtx)
        self.profiler = Profiler(config.profile, setup.folder, setup.world.rank, self._profiled)
        self.watchdog = watch(setup.world, config.runtime, setup.folder)
        self.heartbeat = Heartbeat.of(os.environ, config.runtime.start_seconds)
        self._phase = "start"
        self.boundary = (self._judge, self._evaluate, self._reach, self._stop_or_save, self._inspect)
        """What happens between steps, in this order, until one of them ends the attempt."""

    def restore(self) -> None:
        """Go to where the run stands on disk, if anywhere; ValueError if that belongs to another config."""
        found = self.saving.restore()
        if found is not None:
            self._stand_at(*found)
        self._take_up()
        if found is not None:
            self.recorder.miss(self.progress, found[1].get("recorded"))
        self.recorder.went_to(self.progress)
        self.started -= self.progress.seconds["total"]

    def run(self, until: int) -> End:
        """Train to `until` tokens (at most the budget) from where `restore` found the run."""
        self.until = min(until, self.budget)
        self.profiler.begin(self.progress.step)
        with memory_told(self.setup.folder, self.setup.world.rank):
            while True:
                for happen in self.boundary:
                    end = happen()
                    if end is not None:
                        return end
                self._step()

    def close(self) -> None:
        """Close what the loop holds open."""
        self.setup.reader.close()
        self.profiler.close()
        self.recorder.close()
        self.heartbeat.close()
        if self.watchdog is not None:
            self.watchdog.close()

    def _step(self) -> None:
        """Take one step. Its loss and gradient norm come to the host later (`_judge`)."""
        progress, config = self.progress, self.setup.config
        number = progress.step + 1
        with self._timed("train"):
            self.late.begin()
            due = number % config.runtime.log_steps == 0
            times = self.clock.begin(timed=due)
            watch = self.inspection.watch(number)
            taken = step(
                self.setup, progress, clock=self.clock, observer=watch, before_update=self.saving.before_update
            )
            last = progress.tokens == self.budget
            lr = lr_at(self.setup, progress.tokens)
            stamp = Stamp(number, progress.tokens, progress.sequences, lr, times, due or last)
            scaling = self.setup.scaler.metrics() if stamp.record else {}
            self.late.put(replace(stamp, further=tuple(scaling)), (taken.loss, taken.norm, *scaling.values()))
        if watch is not None:
            self.recorder.event("statistics", number, progress.tokens, watch.metrics(self.setup.world))
        self.inspection.compare_copies(number)
        self.profiler.boundary(number)

    def _judge(self, everything: bool = False) -> End | None:
        """Take in the losses that have arrived, and times: record them, and see what follows from them."""
        for stamp, (loss, norm, *others), seconds in self.late.arrived(everything):
            self.progress.seconds["train"] += seconds
            self.heartbeat.took(seconds)
            if math.isfinite(loss):  # an outcome says numbers, also where the last step was skipped
                self.progress.train_loss = loss
            if stamp.record:
                self.heartbeat.alone(stamp.times.seconds())
            judged = self.monitor.judge(stamp.step, loss, norm)
            if stamp.record:
                skipped = self.monitor.skipped.total
                further = dict(zip(stamp.further, others, strict=True))
                further |= {"skipped_steps": float(skipped)} if skipped else {}
                self.recorder.train(stamp, loss, norm, self.progress.seconds["train"], further)
            self._tell(stamp, judged)
            if judged.diverged:
                return self._finish("diverged")
            if judged.action is Action.ROLL_BACK and self._go_back(stamp, judged):
                break
        return None

    def _evaluate(self) -> End | None:
        """Validate where that is due, once every step before has been judged."""
        if not self._evaluation_due():
            return None
        end = self._judge(everything=True)
        if end is not None or not self._evaluation_due():
            return end
        progress = self.progress
        with self._timed("validation"):
            found = evaluate(self.setup, self._asked_to_stop)
        if found is None:
            return self._interrupted()
        progress.validation_loss, progress.evaluated = found.loss, progress.tokens
        self.recorder.validation(progress, found)
        return None if math.isfinite(found.loss) else self._finish("diverged")

    def _asked_to_stop(self) -> bool:
        self._moves()
        return self.setup.world.any((bool(self.flag),))[0]

    def _evaluation_due(self) -> bool:
        progress = self.progress
        # Where a search pauses a run, it compares losses: they are measured there.
        paused = progress.evaluated < progress.tokens >= self.until
        return paused or evaluation_due(progress.evaluated, progress.tokens, self.budget, self.setup.config.eval.count)

    def _reach(self) -> End | None:
        """End where the tokens are reached, with a checkpoint of this state."""
        if self.progress.tokens < self.until:
            return None
        end = self._judge(everything=True)
        if end is not None or self.progress.tokens < self.until:
            return end
        done = self.progress.tokens == self.budget
        self._moves(WRITE_SECONDS)
        if not self.saving.there(self.progress):
            self._save(keep=1 if done else None)
        return self._finish("completed") if done else End.REACHED

    def _stop_or_save(self) -> End | None:
        """Save where the clock or a signal to any rank asks for it; end after a signal."""
        stop, save = self.setup.world.any((bool(self.flag), self.saving.due(self.progress)))
        if not (stop or save):
            return None
        end = self._judge(everything=True)
        if end is not None:
            return end
        if stop:
            return self._interrupted()
        self._save(wait=False)
        return None

    def _interrupted(self) -> End:
        """End with this state saved, if it is not yet: there may be little time."""
        self._moves(WRITE_SECONDS)
        if not self.saving.there(self.progress):
            self._save()
        return End.INTERRUPTED

    def _inspect(self) -> None:
        """Measure activations and repeat gradients where that is due at the next step."""
        number, setup = self.progress.step + 1, self.setup
        activations, probe = self.inspection.wants_activations(number), self.inspection.wants_probe(number)
        if not (activations or probe):
            return
        batch = take(setup, self.progress.sequences, next_sequences(setup, self.progress))
        if activations:
            values = self.inspection.activations(setup.modules, lambda: look(setup, batch))
            self.recorder.event("activations", number, self.progress.tokens, values)
        if probe:
            self.inspection.probe(number, lambda: accumulate_own(setup, batch))

    def _tell(self, stamp: Stamp, judged: Judged) -> None:
        """Record and say a spike; say a skipped step."""
        verdict = judged.verdict
        if verdict.spike is not None:
            values = {"loss_z": verdict.loss_z, "grad_norm_z": verdict.norm_z, "spike_began": float(verdict.spike)}
            self.recorder.event("spike", stamp.step, stamp.tokens, values)
            self.recorder.say(
                f"step {stamp.step}: loss spike since step {verdict.spike} (loss {verdict.loss_z:.1f}, gradient norm "
                f"{verdict.norm_z:.1f} standard deviations up); docs/loss-spikes.md says what to look at"
            )
        if self.monitor.skipped.in_row:
            what = "skipped" if self.setup.config.optim.nonfinite == "skip" else "the run ends"
            self.recorder.say(f"step {stamp.step}: loss or gradient norm is not finite: {what}")

    def _go_back(self, stamp: Stamp, judged: Judged) -> bool:
        """Return to the checkpoint before a spike and go on behind the batches of `stamp`; False: there is none."""
        spike, went_back, spikes = judged.verdict.spike, self.monitor.went_back, self.monitor.spikes
        assert spike is not None
        seconds = self.progress.seconds
        self._moves(WRITE_SECONDS)
        found = self.saving.back_to(spike)
        if found is None:
            self.recorder.say(f"step {stamp.step}: no checkpoint is older than step {spike}: the run goes on")
            return False
        seconds["train"] += self.late.forget()
        self._stand_at(*found)
        # What the checkpoint does not know: that the run has been further, and must not read those rows again.
        self.progress.seconds, self.progress.sequences = seconds, stamp.sequences
        self.monitor.spikes = spikes
        self.monitor.went_back = [*went_back, (stamp.step, self.progress.step, self.progress.tokens)]
        self.recorder.went_to(self.progress)
        self._begin_path(stamp.step, stamp.tokens, spikes)
        self.recorder.say(f"went back from step {stamp.step} to step {self.progress.step}; its batches are skipped")
        return True

    def _take_up(self) -> None:
        """Go on along the path that the run was on, also where that began after the checkpoint it resumes from."""
        progress, monitor = self.progress, self.monitor
        later = self.recorder.rollbacks(after=monitor.path)
        for rollback in from_here(later, progress.step):
            progress.sequences, monitor.path = rollback.sequences, rollback.path
            if rollback.spikes is not None:
                monitor.spikes = rollback.spikes
                monitor.went_back.append((rollback.step, rollback.to_step, rollback.to_tokens))
        if later and later[-1].path != monitor.path:  # checkpoints between are gone: what followed is abandoned
            self._begin_path(progress.step, progress.tokens, None)
        self.recorder.follow(monitor.path)

    def _begin_path(self, step: int, tokens: int, spikes: int | None) -> None:
        """Record that after `step`, at `tokens`, the run went back to where it stands now."""
        progress = self.progress
        rollback = Rollback(0, step, progress.step, progress.tokens, progress.sequences, spikes)
        self.monitor.path = self.recorder.went_back(step, tokens, rollback)

    def _stand_at(self, progress: TrainState, notes: Notes) -> None:
        self.progress = progress
        self._check_data(notes)
        self.monitor.load(dict(notes.get("monitor", {})))
        precision.go_on(self.setup.scaler, self.setup.history, notes)

    def _save(self, keep: int | None = None, wait: bool = True) -> None:
        """Save a checkpoint of this step; every rank takes part."""
        with self._timed("checkpoint"):
            self._moves(WRITE_SECONDS)
            self._count_total()
            obstacle = None
            try:
                self.recorder.sync()
            except OSError as error:  # without its metrics there is no checkpoint; every rank hears of it there
                obstacle = error
            self.saving.save(self.progress, self._notes(), keep=keep, wait=wait, obstacle=obstacle)

    def _moves(self, allow: float = 0.0) -> None:
        """Tell whoever watches that this rank does not hang; `allow` is how long what follows may take [s]."""
        self.heartbeat.beat(self.progress.step, self._phase, allow)
        if self.watchdog is not None:
            self.watchdog.beat(self.progress.step, allow)

    def _notes(self) -> Notes:
        carried = precision.noted(self.setup.scaler, self.setup.history)
        told = {"monitor": self.monitor.state(), "recorded": self.recorder.recorded()}
        return {**told, **carried, "data": self._data_state()}

    def _data_state(self) -> dict[str, dict[str, int]]:
        """Return where each source of the training rows stands; empty for rows that have no sources."""
        data = self.setup.data
        return data.state(self.progress.sequences) if isinstance(data, TrainingData) else {}

    def _check_data(self, notes: Notes) -> None:
        """Raise ValueError where the rows would not go on from where the checkpoint stood."""
        was, now = notes.get("data") or {}, self._data_state()
        if was and now and was != now:
            raise ValueError(
                f"the checkpoint stood at {was} in its data, this code reads the same rows as {now}: "
                "go on with the code that wrote it, or train anew"
            )

    def _finish(self, state: str) -> End:
        self._moves(WRITE_SECONDS)
        self.saving.settle()
        self._count_total()
        if self.setup.world.writes:
            described = outcome.describe(
                self.setup.config,
                self.progress,
                state,
                health=self.monitor.counts(),
                bytes_per_token=self.setup.validation.bytes_per_token,
                device=self.setup.device,
                world_size=self.setup.world.size,
            )
            try:
                self.recorder.sync()
                outcome.write(self.setup.folder / "outcome.json", described)
            except OSError as error:
                raise SaveError(f"{self.setup.folder}: {error}") from error
        return End.REACHED if state == "completed" else End.DIVERGED

    def _profiled(self, number: int, values: dict[str, float]) -> None:
        self.recorder.event("profile", number, self.progress.tokens, values)

    def _count_total(self) -> None:
        self.progress.seconds["total"] = time.perf_counter() - self.started

    @contextmanager
    def _timed(self, kind: str) -> Iterator[None]:
        """Count what runs in this context to `kind`, and tell that it runs; a step's time comes later (`_judge`)."""
        self._phase, began = kind, time.perf_counter()
        yield
        if kind != "train":
            self.progress.seconds[kind] += time.perf_counter() - began
        self._moves()
