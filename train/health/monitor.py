"""Monitoring a run's steps: counts of bad ones, spikes and what follows; a checkpoint keeps its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from train.health import loss_spikes, nonfinite
from train.health.loss_spikes import Action, Seen, Verdict
from train.health.nonfinite import Skipped
from train.metrics.recorder import Recorder
from train.spec.config import RunConfig


@dataclass(frozen=True)
class Judged:
    """What a step's loss and gradient norm led to. diverged: the run is over."""

    verdict: Verdict
    action: Action
    diverged: bool


class Monitor:
    """Sees the loss and gradient norm of every step, in order; the same on every rank, as the values are."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._seen = Seen()
        self.skipped = Skipped()
        self.spikes = 0
        self.went_back: list[tuple[int, int, int]] = []
        """Rollbacks, oldest first: after which step, to which step, and how many tokens that one had seen."""
        self.path = 0
        """Number of the path that the run is on (train.metrics.file)."""

    def judge(self, step: int, loss: float, norm: float) -> Judged:
        """Record a step and return the action. loss in nats per token; norm before clipping."""
        optim, config = self._config.optim, self._config.spikes
        scaled = self._config.precision.name == "fp16"
        before, self.skipped = self.skipped, nonfinite.count(self.skipped, loss, norm, overflows_expected=scaled)
        known = None if nonfinite.forgiven(before, self.skipped) else norm
        self._seen, verdict = loss_spikes.observe(self._seen, step, loss, known, config)
        self.spikes += verdict.spike is not None
        action = loss_spikes.decide(config, verdict.spike, len(self.went_back))
        over = nonfinite.diverged(self.skipped, optim.nonfinite, optim.nonfinite_limit) or action is Action.STOP
        return Judged(verdict, action, over)

    def counts(self) -> dict[str, int]:
        """Return what a run's outcome says: skipped steps, spikes, rollbacks."""
        return {"skipped_steps": self.skipped.total, "spikes": self.spikes, "rollbacks": len(self.went_back)}

    def report(self, recorder: Recorder, step: int, tokens: int, judged: Judged) -> None:
        """Record and say a spike; say a skipped step."""
        verdict = judged.verdict
        if verdict.spike is not None:
            values = {"loss_z": verdict.loss_z, "grad_norm_z": verdict.norm_z, "spike_began": float(verdict.spike)}
            recorder.event("spike", step, tokens, values)
            recorder.say(
                f"step {step}: loss spike since step {verdict.spike} (loss {verdict.loss_z:.1f}, gradient norm "
                f"{verdict.norm_z:.1f} standard deviations up); docs/loss-spikes.md says what to look at"
            )
        if self.skipped.in_row:
            what = "skipped" if self._config.optim.nonfinite == "skip" else "the run ends"
            recorder.say(f"step {step}: loss or gradient norm is not finite: {what}")

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON takes it."""
        return {
            "seen": self._seen.plain(),
            "skipped": asdict(self.skipped),
            "spikes": self.spikes,
            "went_back": [list(one) for one in self.went_back],
            "path": self.path,
        }

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Go on from `state`; an empty one is a run that has seen nothing."""
        state = state or {}
        self._seen = Seen.of(state["seen"]) if state else Seen()
        self.skipped = Skipped(**state["skipped"]) if state else Skipped()
        self.spikes = state.get("spikes", 0)
        self.went_back = [(step, to, tokens) for step, to, tokens in state.get("went_back", [])]
        self.path = state.get("path", 0)


def remembered(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a run that takes another's steps again: its measure of spikes, but no counts of its own."""
    return {"seen": state["seen"], "skipped": {}} if state else {}
