"""What `status` says of a study in 80 columns: bars by state, failures by class, GPU-hours, time left, next action."""

from __future__ import annotations

import math
import re
import statistics
import textwrap
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from analysis.text import numbers
from study.executors import load
from study.executors.jobs import QueueReason, WaitKind
from study.failures.kinds import Kind
from study.records.point import Point
from study.status.copies import is_copied
from study.status.cost import Cost
from study.status.states import COPIED, REFUSED, RESUMABLE, PointState, PointStatus
from study.text import WIDTH, counted, cut, duration, human, percent, recognised, varying

BAR = 30
CONFIG = 12
"""Columns that a point's overrides get at least: rather than fewer, columns of less weight are left out."""
WEIGHT = ("job", "try", "D", "done", "C", "N")
SIZES = ("model.width=", "model.layers=", "budget.tokens=", "budget.flops=", "budget.tokens_per_param=")
"""Overrides that N, D and C tell."""
FULL_ROWS = 30
SHOWN_KEYS = 3
FAILING = frozenset({PointState.FAILED, PointState.UNKNOWN, PointState.DIVERGED})
LOOK_FIRST = (
    PointState.FAILED, PointState.UNKNOWN, PointState.INTERRUPTED, PointState.TIME_LIMIT, PointState.DIVERGED,
    PointState.RUNNING,
)  # fmt: skip


COLOURS = {
    PointState.COMPLETED: 32, PointState.RUNNING: 36, PointState.QUEUED: 34, PointState.WAITING: 34,
    PointState.PENDING: 33, PointState.INTERRUPTED: 33, PointState.TIME_LIMIT: 33, PointState.CANCELLED: 2,
    PointState.DIVERGED: 31, PointState.FAILED: 31, PointState.UNKNOWN: 35,
}  # fmt: skip
"""A state's colour on a terminal, as ECMA-48 numbers them; the word itself says the same."""
STATE = re.compile(rf"(  |[0-9a-f]{{12}}  )({'|'.join(PointState)})( *)(█*)")
"""How a bar and a row of the table begin."""


@dataclass(frozen=True)
class Failure:
    """The points whose attempts ended badly in one way: its class, their keys, the first line of an error."""

    kind: str
    keys: tuple[str, ...]
    line: str


def painted(line: str) -> str:
    """Return a line with the state that it begins with, and its bar, in the state's colour."""
    found = STATE.match(line)
    if found is None:
        return line
    lead, state, space, bar = found.groups()
    return f"{lead}\x1b[{COLOURS[PointState(state)]}m{state}{space}{bar}\x1b[0m{line[found.end() :]}"


def bars(counts: Mapping[str, int], total: int, width: int = WIDTH) -> list[str]:
    """Return one line a state: its name, a bar as long as its share of the points, count and share."""
    lines, longest = [], min(BAR, width - 31)
    for state in PointState:
        count = counts.get(state, 0)
        if count:
            filled = max(1, round(longest * count / total))
            lines.append(f"  {state:<12}{'█' * filled:<{longest}} {count:>9,}  {_percent(count / total):>5}")
    return lines


def failures(statuses: Sequence[PointStatus]) -> list[Failure]:
    """Return the failures by class, the most frequent first, each with the first error line that says something."""
    groups: dict[str, list[PointStatus]] = defaultdict(list)
    for status in statuses:
        if status.state in FAILING:
            groups[kind(status)].append(status)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return [Failure(name, tuple(s.key for s in group), _first_line(group)) for name, group in ordered]


def kind(status: PointStatus) -> str:
    """Return the class of a point's bad end in words (study.failures.kinds), its state where nothing finer is known."""
    return (status.kind if status.kind not in (Kind.NONE, Kind.UNKNOWN) else status.state).replace("_", " ")


def failure_lines(found: Sequence[Failure]) -> list[str]:
    """Return two lines a class: how many, which points; the error."""
    lines = []
    for one in found:
        more = f" and {len(one.keys) - SHOWN_KEYS:,} more" if len(one.keys) > SHOWN_KEYS else ""
        lines.append(cut(f"  {len(one.keys):,} {one.kind}: {' '.join(one.keys[:SHOWN_KEYS])}{more}"))
        if one.line:
            lines.append(cut(f"    | {one.line}"))
    return lines


def cost_line(cost: Cost) -> str:
    """Return the cost in one line."""
    text = f"{cost.unit}: {_amount(cost.used)} used"
    if cost.asked:
        text += f" of {_amount(cost.asked)} asked for"
    return text + (f", {_amount(cost.lost)} of them lost to failed attempts" if cost.lost else "")


def seconds_left(statuses: Sequence[PointStatus], points: Mapping[str, Point]) -> float | None:
    """Return the estimated seconds until what is wanted has ended; 0.0: nothing is under way; None: cannot be told.

    By the speed [FLOP/s] of first attempts, for only these have done in their own time all that they have reached;
    the points that wait are shared out over as many as run now.
    """
    waiting = [s for s in statuses if not s.ended]
    if not waiting:
        return 0.0
    rates, left, longest = [], 0.0, 0.0
    for status in statuses:
        if status.attempt == 1 and status.tokens and status.seconds:
            rates.append(points[status.key].flops_per_token * status.tokens / status.seconds)
    running = sum(s.state == PointState.RUNNING for s in statuses)
    if not rates or not running:
        return None
    for status in waiting:
        rest = points[status.key].flops_per_token * max(0, status.budget_tokens - status.tokens)
        left += rest
        longest = max(longest, rest)
    rate = statistics.median(rates)
    return max(left / (rate * running), longest / rate)


def left_line(seconds: float | None, statuses: Sequence[PointStatus]) -> str:
    """Return when the study will have ended, in one line; nothing where nothing is under way."""
    running = sum(s.state == PointState.RUNNING for s in statuses)
    waiting = sum(s.state in (PointState.QUEUED, PointState.WAITING, PointState.PENDING) for s in statuses)
    if seconds == 0.0 or not running + waiting:
        return ""
    text = "time left: " + ("cannot be told yet" if seconds is None else f"about {duration(seconds)}")
    return text + f" ({running:,} running, {waiting:,} waiting)"


def waiting_lines(statuses: Sequence[PointStatus]) -> list[str]:
    """Return what points wait for that are wanted and not yet submitted, and what sends them."""
    whys = Counter(s.why for s in statuses if s.state == PointState.WAITING)
    said = [
        f"{count:,} {'waits' if count == 1 else 'wait'}: {why or 'for room'}"
        for why, count in whys.most_common(SHOWN_KEYS)
    ]
    lines = [line for text in said for line in textwrap.wrap(text, WIDTH, subsequent_indent="    ")]
    return [*lines, "jobs that end send them, and any status or watch"] if lines else []


def refused_lines(statuses: Sequence[PointStatus]) -> list[str]:
    """Return which points SLURM refused for good, and in which words: nothing submits them by itself."""
    whys = Counter(s.why for s in statuses if _is_refused(s))
    return [line for why, count in whys.most_common(SHOWN_KEYS) for line in _folded(f"{count:,} pending: {why}")]


def _is_refused(status: PointStatus) -> bool:
    return status.state == PointState.PENDING and status.why.startswith(REFUSED)


def queued_lines(statuses: Sequence[PointStatus]) -> list[str]:
    """Return why what is queued has not been started, and what helps where that does not pass as the queue moves on.

    Nothing where all of it is ordinary queueing.
    """
    lives = [s for s in statuses if s.state in (PointState.QUEUED, PointState.RUNNING)]
    groups: dict[tuple[str, str], list[PointStatus]] = {}
    for status in lives:
        if status.state == PointState.QUEUED:
            groups.setdefault((status.executor, status.reason), []).append(status)
    lines: list[str] = []
    for (name, reason), group in sorted(groups.items(), key=lambda item: -len(item[1])):
        means = _explained(group[0])
        if means.kind != WaitKind.ORDINARY:
            mine = [s.job_id for s in group if s.job_id]
            # No command that is shown may end what runs, or say of a whole array what is meant of a task.
            others = [s.job_id for s in statuses if s.job_id and (s.state, s.reason) != (PointState.QUEUED, reason)]
            helps = means.help.format(jobs=load(name).job_names(mine, others))
            lines += _folded(f"{len(group):,} queued: {means.words}") + _folded(f"    {helps}")
    if lines and stands_still(statuses):
        lines.append("the study is stalled: nothing of it runs, and nothing starts until this is fixed or passes")
    return lines


def stands_still(statuses: Sequence[PointStatus]) -> bool:
    """Whether points are queued, none of them for an ordinary reason, and none runs that could make room."""
    waits = [s for s in statuses if s.state == PointState.QUEUED]
    runs = any(s.state == PointState.RUNNING for s in statuses)
    return bool(waits) and not runs and all(_explained(s).kind != WaitKind.ORDINARY for s in waits)


def _explained(queued: PointStatus) -> QueueReason:
    return load(queued.executor).explain(queued.reason)


def _folded(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False)


def code_lines(statuses: Sequence[PointStatus]) -> list[str]:
    """Return one line on points that ran other code than their submission recorded; none where none did."""
    keys = [s.key for s in statuses if s.source == "other"]
    if not keys:
        return []
    more = f" and {len(keys) - SHOWN_KEYS:,} more" if len(keys) > SHOWN_KEYS else ""
    said = f"other code than was recorded: {' '.join(keys[:SHOWN_KEYS])}{more} (cluster.code=frozen prevents it)"
    return textwrap.wrap(said, WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def table(statuses: Sequence[PointStatus], points: Mapping[str, Point], width: int = WIDTH) -> list[str]:
    """Return the points as a table of `width` columns: overrides are cut, and what weighs less is left out before.

    N: matmul parameters, D: tokens, C: training FLOPs; then the overrides by which these points differ.
    """
    rows = [("point", "state", "done", "loss", "N", "D", "C", "try", "job")]
    for s in statuses:
        share = percent(min(1.0, s.tokens / s.budget_tokens)) if s.budget_tokens and s.tokens else ""
        loss = "" if s.loss is None else f"{s.loss:.4f}"
        rows.append((s.key, s.state, share, loss, *_sizes(points.get(s.key)), str(s.attempt or ""), s.job_id or ""))
    words = _differing(statuses, [row[4:7] for row in rows[1:]])
    told = ["overrides", *map(recognised, words)]
    widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
    kept = [place for place, column in enumerate(zip(*rows[1:], strict=True)) if any(column)] or [0, 1]
    needed = _distinct([row[4:7] for row in rows[1:]], told[1:])
    for name in WEIGHT:
        place = rows[0].index(name)
        if place in kept and sum(widths[i] for i in kept) + needed > width:
            kept.remove(place)
    lead = ["".join(row[i].ljust(widths[i]) for i in kept) for row in rows]
    told = [told[0], *in_room(words, max(CONFIG, width - sum(widths[i] for i in kept)))]
    if not any(told[1:]):
        told = [""] * len(rows)
    return [cut(f"{text}{words}".rstrip(), width) for text, words in zip(lead, told, strict=True)]


def _distinct(sizes: Sequence[Sequence[str]], overrides: Sequence[str]) -> int:
    """Return the columns that overrides need, so that rows can be told apart: a few, or all of the longest's."""
    longest = max(map(len, overrides), default=0)
    for columns in range(CONFIG, longest):
        if len({(*size, words[: columns - 1]) for size, words in zip(sizes, overrides, strict=True)}) == len(overrides):
            return columns
    return longest


def _sizes(point: Point | None) -> tuple[str, str, str]:
    """Return N, D and C of a point as text."""
    if point is None:
        return "", "", ""
    return human(point.params), human(point.tokens), numbers.scientific(point.flops_per_token * point.tokens)


def in_room(overrides: Sequence[Sequence[str]], room: int) -> list[str]:
    """Return each point's overrides in a line of `room` columns, cut between two of them.

    Where a line is longer, those come first that take most values, and so tell most points apart.
    """
    lines = [recognised(each) for each in overrides]
    if all(len(line) <= room for line in lines):
        return lines
    values: dict[str, set[str]] = {}
    for override in (override for each in overrides for override in each):
        values.setdefault(override.partition("=")[0], set()).add(override)
    return [
        _cut(recognised(sorted(each, key=lambda override: -len(values[override.partition("=")[0]]))), room)
        for each in overrides
    ]


def _cut(line: str, room: int) -> str:
    """Return a line of overrides cut between two; of one that is longer itself the end of its value is left."""
    if len(line) <= room:
        return line
    if whole := line[: room - 1].rpartition(" ")[0]:
        return f"{whole} …"
    name, equals, value = line.partition(" ")[0].partition("=")
    left = room - len(name) - 2
    return f"{name}=…{value[-left:]}" if equals and 0 < left < len(value) else cut(line, room)


def differing(statuses: Sequence[PointStatus]) -> list[list[str]]:
    """Return the overrides by which these points differ, without the sections of names that are one of a kind."""
    return _differing(statuses, [()] * len(statuses), sized=False)


def _differing(statuses: Sequence[PointStatus], sizes: Sequence[Sequence[str]], sized: bool = True) -> list[list[str]]:
    """Return the overrides by which these points differ, without those of their sizes where N, D and C tell them."""
    own = varying([s.overrides for s in statuses]) if len(statuses) > 1 else {o for s in statuses for o in s.overrides}
    whole = [[override for override in s.overrides if override in own] for s in statuses]
    rest = [[override for override in each if not override.startswith(SIZES)] for each in whole]
    rows = [(*size, *each) for size, each in zip(sizes, rest, strict=True)]
    told = rest if sized and len(set(rows)) == len(rows) else whole
    keys = {override.partition("=")[0] for each in told for override in each}
    short = Counter(key.rpartition(".")[2] for key in keys)

    def brief(override: str) -> str:
        name = override.partition("=")[0].rpartition(".")[2]
        return name + override[override.index("=") :] if short[name] == 1 and "=" in override else override

    return [[brief(override) for override in each] for each in told]


def interesting(statuses: Sequence[PointStatus]) -> list[PointStatus]:
    """Return the points that a short table shows: those that need a look, then those that run, then the rest."""
    if len(statuses) <= FULL_ROWS:
        return list(statuses)
    order = {state: place for place, state in enumerate(LOOK_FIRST)}
    chosen = sorted(statuses, key=lambda s: order.get(s.state, 9))[:FULL_ROWS]
    keys = {status.key for status in chosen}
    return [status for status in statuses if status.key in keys]


def unlike(statuses: Sequence[PointStatus], most: int) -> list[PointStatus]:
    """Return at most so many points that need a look, one of each class and error: others say the same again."""
    found: dict[tuple[str, str], PointStatus] = {}
    for status in statuses:
        if status.state in (PointState.FAILED, PointState.UNKNOWN):
            found.setdefault((kind(status), _first_line([status])), status)
    return list(found.values())[:most]


def next_action(counts: Mapping[str, int], called: str, ended: Collection[str] = ()) -> str:
    """Return the command to give next, with what it does; nothing where there is nothing to do.

    `called` names the study in a command. ended: kinds of the bad ends (study.failures.kinds) of what could be tried
    again, REFUSED where SLURM took no job for a point, and COPIED where another study's jobs have one.
    """
    if set(ended) - {REFUSED, COPIED} == {Kind.BAD_CONFIG}:
        return (
            f"python -m study logs {called} KEY    # says what cannot be: it fails again until that is changed;\n"
            "change it and run the study's command again, under another study.name if only runtime.* changes"
        )
    if counts.get(PointState.FAILED) or any(counts.get(state) for state in RESUMABLE):
        first = "make room first; " if Kind.DISK_FULL in ended else ""
        return f"python -m study retry {called}    # {first}they go on from their checkpoints"
    if counts.get(PointState.UNKNOWN):
        return "unknown: nothing is done about these until the scheduler or a file says more"
    if counts.get(PointState.RUNNING) or counts.get(PointState.QUEUED) or counts.get(PointState.WAITING):
        return f"python -m study watch {called}    # live, until all have ended"
    if counts.get(PointState.PENDING):
        change = "change what SLURM refused, " if REFUSED in ended else ""
        again = f"pending: {change}run the study's command again, and they are submitted"
        return f"python -m study resume {called}    # trains them here, too" if COPIED in ended else again
    again = f"python -m study retry {called} --state cancelled    # continues those that were cancelled"
    return again if counts.get(PointState.CANCELLED) else ""


def bad_ends(statuses: Sequence[PointStatus]) -> set[str]:
    """Return the kinds of end of the points that could be tried again, REFUSED and COPIED where one is pending so."""
    kinds = {status.kind for status in statuses if status.state == PointState.FAILED or status.state in RESUMABLE}
    whys = ((REFUSED, _is_refused), (COPIED, is_copied))
    return kinds | {why for why, holds in whys if any(map(holds, statuses))}


def heading(name: str, counts: Mapping[str, int], total: int) -> str:
    """Return the study in one line."""
    head = ", ".join(f"{counts[state]:,} {state}" for state in PointState if counts.get(state))
    return f"{name}: {counted(total, 'point')}: {head or 'none'}"


def count(statuses: Sequence[PointStatus]) -> Counter[str]:
    """Return how many points are in each state."""
    return Counter(status.state for status in statuses)


def _first_line(group: Sequence[PointStatus]) -> str:
    """Return what says most of the first error that says anything, else why a point is in its state."""
    for status in group:
        if said := status.told(1):
            return said[0].strip()
    return next((status.why for status in group if status.why), "")


def _percent(share: float) -> str:
    return percent(share) if share >= 0.005 else "<1 %"


def _amount(hours: float) -> str:
    if hours and hours < 0.005:
        return "<0.01"
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.{max(0, 2 - int(math.log10(max(hours, 1))))}f}"
