"""Rollbacks as paths of a run: each begins one, on which a run that is stopped goes on (train.metrics.file)."""

from __future__ import annotations

from train.health.monitor import Monitor
from train.metrics.file import Rollback, from_here
from train.metrics.recorder import Recorder
from train.state import TrainState


def begin_path(
    state: TrainState, monitor: Monitor, recorder: Recorder, after: tuple[int, int], spikes: int | None
) -> None:
    """Record that after a step, at its tokens (`after`), the run went back to where it stands now."""
    step, tokens = after
    rollback = Rollback(0, step, state.step, state.tokens, state.sequences, spikes)
    monitor.path = recorder.went_back(step, tokens, rollback)


def resume_path(state: TrainState, monitor: Monitor, recorder: Recorder) -> None:
    """Continue the path that the run was on, even if that began after the checkpoint it resumes from."""
    later = recorder.rollbacks(after=monitor.path)
    for rollback in from_here(later, state.step):
        state.sequences, monitor.path = rollback.sequences, rollback.path
        if rollback.spikes is not None:
            monitor.spikes = rollback.spikes
            monitor.went_back.append((rollback.step, rollback.to_step, rollback.to_tokens))
    if later and later[-1].path != monitor.path:  # checkpoints between are gone: what followed is abandoned
        begin_path(state, monitor, recorder, (state.step, state.tokens), None)
    recorder.follow(monitor.path)
