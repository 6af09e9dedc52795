"""The device time of a search: what units took, what the next one will take, what is left of the budget. Pure.

A unit starts only if its expected time fits into what is left. That time is then reserved, and the worker ends the
unit before it takes more: time used plus time reserved never exceeds the budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

FIRST_SHARE = 1 / 16
"""Share of the remaining time that a unit gets before any has been timed."""
SAFETY = 1.25
LEAST_SECONDS = 1.0
"""No unit gets less than this of its worker's time: a limit near zero could not be kept."""
LATEST = 32
ENOUGH = 3


class DeviceTime:
    """Times of units by the records of a log. Times in seconds of one worker, which holds `devices` GPUs."""

    def __init__(self, gpu_hours: float | None, devices: int, R: int) -> None:
        self.budget = None if gpu_hours is None else 3600.0 * gpu_hours
        self.devices = devices
        self.R = R
        self.used = 0.0
        self.reserved: dict[int, float] = {}
        self._patience: dict[int, float] = {}
        self._trained: dict[int, float] = {}
        """Training time that earlier attempts of a trial's present unit left in its checkpoint [s]."""
        self._starts: list[float] = []
        self._rates: list[float] = []
        self.longest = 0.0
        """The most that a unit has had which did not come to its end within what was set aside for it [s]."""

    @property
    def left(self) -> float | None:
        """Device time that may still be set aside [GPU-seconds]; None where that is not limited."""
        return None if self.budget is None else self.budget - self.used - sum(self.reserved.values())

    @property
    def least(self) -> float:
        """The least that is set aside for a unit [GPU-seconds]."""
        return LEAST_SECONDS * self.devices

    @property
    def start_up(self) -> float | None:
        """Time that starting or resuming a unit takes beside training [s], the median of the latest; None before."""
        return median(self._starts[-LATEST:]) if len(self._starts) >= ENOUGH else None

    @property
    def seconds_per_flop(self) -> float | None:
        """Training time of a FLOP of a trial [s], the median of the latest; None before any was timed."""
        return median(self._rates[-LATEST:]) if self._rates else None

    def start_share(self, flops_per_token: float) -> float | None:
        """Return the start-up time as a share of a full training to R; None before enough was timed."""
        start, rate = self.start_up, self.seconds_per_flop
        return None if start is None or not rate else start / (rate * self.R * flops_per_token)

    def expected(self, trial: int, flops: float) -> float | None:
        """Return the device time that a unit is expected to need at most [GPU-seconds]; None before any was timed."""
        if not self._rates:
            return None
        start = max(self._starts[-LATEST:], default=0.0)
        return SAFETY * (start + max(self._rates[-LATEST:]) * flops) * self.devices * self._patience.get(trial, 1.0)

    def affordable(self, trial: int, flops: float) -> bool:
        """Return whether a unit fits into what is left."""
        left, expected = self.left, self.expected(trial, flops)
        return left is None or max(self.least, expected or 0.0) <= left

    def reservation(self, trial: int, flops: float) -> float | None:
        """Return the device time to set aside for a unit [GPU-seconds]; None where that is not limited."""
        left, expected = self.left, self.expected(trial, flops)
        if left is None:
            return None
        wanted = left * FIRST_SHARE * self._patience.get(trial, 1.0) if expected is None else expected
        return min(left, max(self.least, wanted))

    def start(self, claim: int, reserved: float | None) -> None:
        """Set a unit's device time aside."""
        if reserved is not None:
            self.reserved[claim] = reserved

    def end(self, claim: int, trial: int, flops: float, record: Mapping[str, Any]) -> None:
        """Charge a unit's time and update the estimates; a trial that hit its limit gets 1.5 times as much next."""
        seconds = float(record["seconds"])
        self.used += seconds * self.devices
        self.reserved.pop(claim, None)
        if record.get("limited"):
            self.longest = max(self.longest, seconds)
            self._patience[trial] = 1.5 * self._patience.get(trial, 1.0)
        training, earlier = record.get("training"), self._trained.pop(trial, 0.0)
        if record["how"] == "lost":
            self._trained[trial] = earlier + (training or 0.0)
        if record["how"] == "reached" and flops > 0:
            if training is not None and not record.get("warm"):
                self._starts.append(max(0.0, seconds - training))
            self._rates.append((seconds if training is None else earlier + training) / flops)
