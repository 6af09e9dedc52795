"""What a person sees of a run while it trains: one compact line, now and then."""

from __future__ import annotations

import contextlib
import os
import sys
import time

from train.spec.config import RunConfig

PRINT_SECONDS = 2.0


def say(text: str) -> None:
    """Print a line at once. A reader that went away, or a full disk under a log, does not end a training run."""
    with contextlib.suppress(OSError):
        print(text, flush=True)


def let_go() -> None:
    """Drop what nobody can be told any more: at exit Python would try again, and end with exit code 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def warn(text: str) -> None:
    """Print a line on standard error at once, if that can be."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


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
