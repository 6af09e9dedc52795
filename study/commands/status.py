"""`python -m study status STUDY`."""

from __future__ import annotations

import argparse
import dataclasses
import textwrap
import time
from collections.abc import Mapping, Sequence

from study import text as terminal
from study.commands import add_json, add_study, emit
from study.reconcile.observe import observe
from study.records import ledger, other_code
from study.records.point import Point
from study.records.settings import find_study, reference
from study.status import copies, cost, overview
from study.status.states import PointState, PointStatus
from study.storage.layout import StudyFolder
from study.text import recognised
from study.watch.progress import slow_lines

ERROR_LINES = 4
SHOWN_FAILURES = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_study(parser)
    add_json(parser)
    parser.add_argument(
        "--all", action="store_true", help=f"every point, also when there are more than {overview.FULL_ROWS}"
    )


def run(options: argparse.Namespace) -> int:
    """Show every point; 1 if one failed."""
    folder = find_study(options.study, options.runs)
    if folder.search.exists():
        return _search(folder, options.json)
    seen = observe(folder)
    statuses, points = seen.statuses, seen.points
    if options.json:
        emit("status", folder, as_json(folder, statuses, points), compact=True)
    else:
        terminal.show(as_text(folder, statuses, points, options.all, terminal.columns()), overview.painted)
    return 1 if any(status.state == PointState.FAILED for status in statuses) else 0


def _search(folder: StudyFolder, machine: bool) -> int:
    from study.search import view
    from study.search.outlook import nothing_finished
    from study.search.trial_queue import TrialQueue
    from study.workers import unit_jobs, waiting

    unit_jobs.advance_quietly(folder)
    search = TrialQueue.of(folder).note_silent().search
    if machine:
        said = {"search": True, **view.as_json(search, folder, time.time())}
        known = ledger.read(folder)
        emit("status", folder, said | {"refused": None if search.over else known.refusal, "copy_of": known.copy_of})
    else:
        stuck = [] if search.over else waiting.lines(folder) or waiting.idle(search, folder)
        terminal.show("\n".join([view.text(search, folder, time.time()), *stuck]))
    return 1 if any(trial.failed for trial in search.trials.values()) or nothing_finished(search) else 0


def as_json(folder: StudyFolder, statuses: Sequence[PointStatus], points: Mapping[str, Point]) -> dict[str, object]:
    """Return the statuses for machines. Losses are in nats per token, times in seconds."""
    counts, spent = overview.count(statuses), cost.measure_by_clocks(folder, points, statuses)
    return {
        "counts": dict(counts),
        "failures": [dataclasses.asdict(one) for one in overview.failures(statuses)],
        "cost": {name: getattr(spent, name) for name in ("unit", "asked", "used", "lost")},
        "seconds_left": overview.seconds_left(statuses, points),
        "next": overview.next_action(counts, reference(folder), overview.bad_ends(statuses)) or None,
        "points": [status.as_json() for status in statuses],
    }


def as_text(
    folder: StudyFolder,
    statuses: Sequence[PointStatus],
    points: Mapping[str, Point],
    everything: bool = False,
    width: int = terminal.WIDTH,
) -> str:
    """Return heading, bars, table, failures by class and one by one, cost, time left and what to do next.

    width [columns]: that of the table; the rest has 80 at most.
    """
    counts = overview.count(statuses)
    shown = list(statuses) if everything else overview.interesting(statuses)
    lines = [overview.heading(folder.name, counts, len(statuses)), *overview.bars(counts, len(statuses), width), ""]
    lines += overview.table(shown, points, width)
    if len(shown) < len(statuses):
        lines.append(f"… and {len(statuses) - len(shown):,} more (--all shows them)")
    found = overview.failures(statuses)
    lines += ["", *overview.failure_lines(found)] if found else []
    for status in overview.unlike(statuses, SHOWN_FAILURES):
        lines += _failure(status, min(width, terminal.WIDTH))
    spent = cost.measure_by_clocks(folder, points, statuses)
    after = [overview.cost_line(spent)] if spent.used else []
    after += slow_lines(statuses) + overview.queued_lines(statuses) + overview.waiting_lines(statuses)
    after += overview.refused_lines(statuses) + copies.lines(statuses)
    after += overview.code_lines(statuses) + _lost_lines(statuses, folder)
    after += [part for line in other_code.lines(points.values()) for part in _wrapped(line, "", "    ", terminal.WIDTH)]
    after += [line for line in [overview.left_line(overview.seconds_left(statuses, points), statuses)] if line]
    action = overview.next_action(counts, reference(folder), overview.bad_ends(statuses))
    action = "" if overview.stands_still(statuses) else action
    return "\n".join([*lines, *(["", *after] if after else []), *(["", action] if action else [])])


def _lost_lines(statuses: Sequence[PointStatus], folder: StudyFolder) -> list[str]:
    """Return that rows of metrics are lost for good, and where to see which; nothing where none is."""
    keys = [status.key for status in statuses if status.missing]
    if not keys:
        return []
    more = f" and {len(keys) - overview.SHOWN_KEYS:,} more" if len(keys) > overview.SHOWN_KEYS else ""
    said = f"metrics.jsonl has lost rows that are not written again: {' '.join(keys[: overview.SHOWN_KEYS])}{more}"
    return _wrapped(f"{said} (python -m study show {reference(folder)} {keys[0]})", "", "    ", terminal.WIDTH)


def _failure(status: PointStatus, width: int) -> list[str]:
    where = f"attempt {status.attempt}" if status.attempt else "no attempt"
    head = f"{status.key} {status.state}, {where}" + (f": {status.why}" if status.why else "")
    lines = ["", *_wrapped(head, "", "    ", width)]
    lines += _wrapped(recognised(status.overrides), "    ", "    ", width)
    for line in status.told(ERROR_LINES):
        lines += _wrapped(line, "    | ", "    |   ", width)
    return lines + _wrapped(status.next, "    ", "    ", width)


def _wrapped(text: str, first: str, rest: str, width: int) -> list[str]:
    """Return a text in lines of so many columns; nothing of it is left out."""
    indent = text[: len(text) - len(text.lstrip())]
    return textwrap.wrap(
        text, width, initial_indent=first + indent, subsequent_indent=rest + indent, break_on_hyphens=False
    )
