"""`python -m study status STUDY`."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections import Counter
from collections.abc import Sequence

from study.commands import add_study
from study.layout import StudyFolder
from study.observe import PointStatus, observe
from study.standing import RESUMABLE, STATES
from study.submission import find_study, reference

FULL_ROWS = 30
ERROR_LINES = 4
SHOWN_FAILURES = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_study(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--all", action="store_true", help=f"every point, also when there are more than {FULL_ROWS}")


def run(options: argparse.Namespace) -> int:
    """Show every point; 1 if one failed."""
    folder = find_study(options.study, options.runs)
    if folder.search.exists():
        return _search(folder, options.json)
    statuses = observe(folder)
    if options.json:
        print(json.dumps(as_json(folder, statuses)))
    else:
        print(as_text(folder, statuses, options.all))
    return 1 if any(status.state == "failed" for status in statuses) else 0


def _search(folder: StudyFolder, machine: bool) -> int:
    from study.search import view
    from study.search.claims import Office

    search = Office.of(folder).search
    print(json.dumps(view.as_json(search, folder)) if machine else view.text(search, folder))
    return 1 if any(trial.failed for trial in search.trials.values()) else 0


def as_json(folder: StudyFolder, statuses: Sequence[PointStatus]) -> dict[str, object]:
    """Return the statuses for machines. Losses are in nats per token, times in seconds."""
    return {
        "study": folder.name,
        "folder": str(folder.path),
        "counts": dict(Counter(status.state for status in statuses)),
        "points": [dataclasses.asdict(status) for status in statuses],
    }


def as_text(folder: StudyFolder, statuses: Sequence[PointStatus], everything: bool = False) -> str:
    """Return the counts, a table, the failures with their last lines, and what to do next."""
    counts = Counter(status.state for status in statuses)
    head = ", ".join(f"{counts[state]:,} {state}" for state in STATES if counts[state])
    lines = [f"{folder.name}: {len(statuses):,} points: {head or 'none'}"]
    shown = list(statuses) if everything else _interesting(statuses)
    lines += _table(shown)
    if len(shown) < len(statuses):
        lines.append(f"… and {len(statuses) - len(shown):,} more (--all shows them)")
    for status in [s for s in statuses if s.state in ("failed", "unknown")][:SHOWN_FAILURES]:
        lines += _failure(status)
    return "\n".join([*lines, *_next(folder, counts)])


def _interesting(statuses: Sequence[PointStatus]) -> list[PointStatus]:
    """Return the points that a short table shows: those that need a look, then those that run, then the rest."""
    if len(statuses) <= FULL_ROWS:
        return list(statuses)
    order = {s: i for i, s in enumerate(("failed", "unknown", "interrupted", "time_limit", "diverged", "running"))}
    chosen = sorted(statuses, key=lambda s: order.get(s.state, 9))[:FULL_ROWS]
    keys = {status.key for status in chosen}
    return [status for status in statuses if status.key in keys]


def _table(statuses: Sequence[PointStatus]) -> list[str]:
    rows = [("point", "state", "done", "loss", "attempt", "job", "config")]
    for s in statuses:
        share = f"{min(1.0, s.tokens / s.budget_tokens):.0%}" if s.budget_tokens and s.tokens else ""
        loss = "" if s.loss is None else f"{s.loss:.4f}"
        rows.append((s.key, s.state, share, loss, str(s.attempt or ""), s.job_id or "", " ".join(s.overrides)[:70]))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _failure(status: PointStatus) -> list[str]:
    where = f"attempt {status.attempt}" if status.attempt else "no attempt"
    head = f"{status.key} {status.state}, {where}" + (f": {status.why}" if status.why else "")
    named = f"    {' '.join(status.overrides)}" if status.overrides else None
    errors = [f"    | {line}" for line in status.error[-ERROR_LINES:]]
    return ["", head, *([named] if named else []), *errors]


def _next(folder: StudyFolder, counts: Counter[str]) -> list[str]:
    name = reference(folder)
    if counts["failed"] or any(counts[state] for state in RESUMABLE):
        return ["", f"python -m study retry {name}    # they go on from their checkpoints"]
    if counts["unknown"]:
        return ["", "unknown: nothing is done about these until the scheduler or a file says more"]
    return []
