"""Live progress: a panel on a terminal, a line every ten seconds anywhere else."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from study import text as terminal
from study.records.point import Point
from study.status.overview import differing, in_room, queued_lines
from study.status.states import PointState, PointStatus
from study.text import duration, percent

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

LINE_SECONDS = 10.0
SHOWN_RUNS = 12
BARS = ((72, 20), (60, 10))
"""From so many columns on, a run has a bar of such a length in the panel."""
BESIDE, LEAST_ROOM = 38, 12
"""Columns of a run's key, share and loss with what is between, and the fewest for its overrides."""
SHOWN_SLOW = 3
FEWEST = 3
"""Sizes, and numbers of tokens, from which on a fit of a study's runs can say something."""
BAD = frozenset({PointState.FAILED, PointState.INTERRUPTED, PointState.TIME_LIMIT, PointState.UNKNOWN})


@dataclass(frozen=True)
class Summary:
    """A study in one line. `left`: estimated seconds until all runs ended; None while it cannot be told."""

    counts: Mapping[str, int]
    total: int
    elapsed: float
    share: float
    left: float | None
    loss: float | None
    loss_of: str
    loss_kind: str = "loss"
    """Of completed runs the validation's, "loss"; while none has one, "training loss" of those under way."""

    def line(self, stage: str) -> str:
        """Return the line: stage, runs done, running, failed, loss so far, time left."""
        others = [
            f"{n} {state}"
            for state, n in self.counts.items()
            if state not in (PointState.COMPLETED, PointState.PENDING) and n
        ]
        parts = [f"{self.counts.get(PointState.COMPLETED, 0)}/{self.total} done", *others]
        if self.loss is not None:
            parts.append(f"{self.loss_kind} {self.loss:.3f} ({self.loss_of})")
        if self.left:
            parts.append(f"about {duration(self.left)} left")
        return f"[{duration(self.elapsed)}] {stage}: " + ", ".join(parts)


class Pace:
    """Estimates the time left from the compute done since it first looked."""

    def __init__(self, flops: Mapping[str, float]) -> None:
        self._flops = flops
        self._first: tuple[float, float] | None = None

    def left(self, statuses: Sequence[PointStatus], now: float) -> tuple[float, float | None]:
        """Return the share of compute done, and the seconds left (None: too early to tell)."""
        total = sum(self._flops.get(s.key, 0.0) for s in statuses)
        done = sum(self._flops.get(s.key, 0.0) * _share(s) for s in statuses)
        if self._first is None:
            self._first = (now, done)
        begun, before = self._first
        share = done / total if total else 1.0
        if now - begun < 5.0 or done <= before:
            return share, None
        remaining = sum(self._flops.get(s.key, 0.0) * (1 - _share(s)) for s in statuses if not s.ended)
        return share, remaining * (now - begun) / (done - before)


def summarise(statuses: Sequence[PointStatus], pace: Pace, begun: float, now: float) -> Summary:
    """Return the study in one line."""
    counts = Counter(status.state for status in statuses)
    share, left = pace.left(statuses, now)
    known = [s for s in statuses if s.loss is not None]
    validated = [s for s in known if s.state == PointState.COMPLETED]
    shown = validated or [s for s in known if s.state == PointState.RUNNING]
    lowest = min(shown, key=lambda s: s.loss or 0.0, default=None)
    return Summary(
        counts=Counter[str](counts),
        total=len(statuses),
        elapsed=now - begun,
        share=share,
        left=left if any(not s.ended for s in statuses) else 0.0,
        loss=lowest.loss if lowest else None,
        loss_of=lowest.key if lowest else "",
        loss_kind="loss" if validated else "training loss",
    )


class Display(Protocol):
    """Shows a study as it goes."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def update(self, statuses: Sequence[PointStatus], stage: str = "train") -> None:
        """Show this."""

    def report(self, text: str) -> None:
        """Say something that stays on the screen."""


class Lines:
    """Progress as plain lines: the first at once, then one `every` seconds and one when something ended."""

    def __init__(self, pace: Pace, every: float = LINE_SECONDS) -> None:
        self._pace = pace
        self._every = every
        self._begun = time.monotonic()
        self._shown = float("-inf")
        self._ended = -1
        self._noted: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def update(self, statuses: Sequence[PointStatus], stage: str = "train") -> None:
        """Print a line if it is time for one."""
        now = time.monotonic()
        ended = sum(status.ended for status in statuses)
        if now - self._shown >= self._every or (ended != self._ended and now - self._shown >= 1.0):
            self._shown, self._ended = now, ended
            self.report(summarise(statuses, self._pace, self._begun, now).line(stage))
            # Once, not every ten seconds: the factor in the words changes all the time.
            noted = [status.key for status in statuses if status.slow]
            noted += sorted({s.reason for s in statuses if s.state == PointState.QUEUED and queued_lines([s])})
            if noted != self._noted:
                self._noted = noted
                for text in notes_on(statuses):
                    self.report(text)

    def report(self, text: str) -> None:
        """Print a line."""
        terminal.show(text)


class JsonLines:
    """Progress for machines: one JSON object a line whenever a state changed, and every ten seconds."""

    def __init__(self, pace: Pace, name: str) -> None:
        self._pace = pace
        self._name = name
        self._begun = time.monotonic()
        self._shown = float("-inf")
        self._states: Mapping[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def update(self, statuses: Sequence[PointStatus], stage: str = "train") -> None:
        """Print a line if something changed: the counts, and the state of each point that changed."""
        now = time.monotonic()
        states = {status.key: status.state for status in statuses}
        changed = {key: state for key, state in states.items() if self._states.get(key) != state}
        if not changed and now - self._shown < LINE_SECONDS:
            return
        self._shown, self._states = now, states
        summary = summarise(statuses, self._pace, self._begun, now)
        record = {"format": 1, "command": "watch", "study": self._name, "time": round(time.time(), 3)}
        more = {"counts": summary.counts, "share": summary.share, "seconds_left": summary.left, "changed": changed}
        slow = {"slow": {status.key: status.slow for status in statuses if status.slow}}
        print(json.dumps(record | more | slow, separators=(",", ":")), flush=True)

    def report(self, text: str) -> None:
        """Say it on standard error: standard output holds nothing but objects."""
        print(text, file=sys.stderr, flush=True)


class Panel:
    """Progress as a live panel of a terminal."""

    def __init__(self, pace: Pace, name: str, console: Console | None = None) -> None:
        from rich.live import Live

        self._pace = pace
        self._name = name
        self._begun = time.monotonic()
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._drawn: object = None

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.__exit__(None, None, None)

    def update(self, statuses: Sequence[PointStatus], stage: str = "train") -> None:
        """Draw the panel again, unless it would look the same."""
        summary = summarise(statuses, self._pace, self._begun, time.monotonic())
        width = self._live.console.width
        running = [(s.key, round(_share(s), 2), s.loss, s.slow) for s in statuses if s.state == PointState.RUNNING]
        new = (width, summary.line(stage), running)
        if new != self._drawn:
            self._drawn = new
            self._live.update(self._draw(summary, statuses, stage, width), refresh=True)

    def report(self, text: str) -> None:
        """Print a line above the panel."""
        self._live.console.print(text, markup=False, highlight=False)

    def _draw(self, summary: Summary, statuses: Sequence[PointStatus], stage: str, width: int) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        rows, notes = Table(box=None, padding=(0, 1), show_header=False), Table.grid()
        for gives_way in (False, True, False, False, False):  # one line a run: overrides are cut where it is narrow
            rows.add_column(no_wrap=not gives_way)
        running = [s for s in statuses if s.state == PointState.RUNNING]
        bar = next((length for columns, length in BARS if width >= columns), 0)
        told = dict(zip((s.key for s in statuses), differing(statuses), strict=True))
        shown = running[:SHOWN_RUNS]
        overrides = in_room([told[s.key] for s in shown], max(LEAST_ROOM, width - bar - BESIDE))
        for status, said in zip(shown, overrides, strict=True):
            rows.add_row(
                Text(status.key, style="cyan"),
                Text(said, style="dim", no_wrap=True, overflow="ellipsis"),
                Text(_bar(_share(status), bar), style="magenta"),
                Text(f"{percent(_share(status)):>5}"),
                Text("" if status.loss is None else f"loss {status.loss:.3f}"),
            )
        more = len(running) - SHOWN_RUNS
        if more > 0:
            rows.add_row(Text(f"and {more} more", style="dim"))
        for text in notes_on(statuses):
            notes.add_row(Text(text, style="yellow"))
        bad = summary.counts.get(PointState.FAILED, 0)
        head = Text(f"{self._name}  ", style="bold") + Text(summary.line(stage), style="red" if bad else "")
        whole = Text(_bar(summary.share, min(72, width)), style="magenta")
        return Group(head, whole, rows, notes)


def display(pace: Pace, name: str) -> Display:
    """Return the display that suits where the output goes."""
    return Panel(pace, name) if terminal.redraws() else Lines(pace)


def slow_lines(statuses: Sequence[PointStatus]) -> list[str]:
    """Return which running points wait for a slow rank, its node named; nothing where all ranks keep up."""
    slow = [status for status in statuses if status.slow]
    lines = [f"slow: {status.key}: {status.slow}" for status in slow[:SHOWN_SLOW]]
    return lines + ([f"slow: {len(slow) - SHOWN_SLOW:,} more"] if len(slow) > SHOWN_SLOW else [])


def notes_on(statuses: Sequence[PointStatus]) -> list[str]:
    """Return what somebody who watches may want to act on: slow ranks, and why SLURM starts nothing."""
    return [*slow_lines(statuses), *queued_lines(statuses)]


def closing(statuses: Sequence[PointStatus], name: str, called: str, law: str = "") -> list[str]:
    """Return the lines that close a study (`called` so in commands): the counts, and each point that needs a look.

    law: the command that fits a law to its runs, said where all of them are good; "" where that would say little.
    """
    counts = Counter(status.state for status in statuses)
    lines = [f"{name}: " + (", ".join(f"{n} {state}" for state, n in counts.most_common()) or "no points")]
    for status in [s for s in statuses if s.state in BAD][:SHOWN_RUNS]:
        lines.append(f"  {status.key} {status.state}" + (f" ({status.why})" if status.why else ""))
        lines += [f"      {line}" for line in status.told(3)]
    if any(s.state in BAD for s in statuses):
        lines += [f"look:   python -m study logs {called} KEY", f"again:  python -m study retry {called}"]
    elif law and statuses and all(s.state == PointState.COMPLETED for s in statuses):
        lines.append(f"next:   {law}")
    return lines


def law_command(points: Sequence[Point], folder: Path) -> str:
    """Return the command that fits a law to a study's runs; "" where they have too few sizes or budgets for one."""
    models = [point.section("model") for point in points]
    sizes = {(model.get("width"), model.get("layers")) for model in models}
    tokens = {point.section("budget").get("tokens") for point in points}
    if len(sizes) < FEWEST or len(tokens) < FEWEST:
        return ""
    here, there = Path.cwd(), folder.absolute()
    return f"python -m analysis.fit runs={there.relative_to(here) if there.is_relative_to(here) else there}"


def _bar(share: float, width: int) -> str:
    """Return a bar as text: it tells as much without colours."""
    filled = round(width * share)
    return "█" * filled + "░" * (width - filled)


def _share(status: PointStatus) -> float:
    if status.state == PointState.COMPLETED:
        return 1.0
    return min(1.0, status.tokens / status.budget_tokens) if status.budget_tokens else 0.0
