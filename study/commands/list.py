"""`python -m study list`."""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from study import text as terminal
from study.commands import DEFAULT_RUNS, add_json, add_runs, emit
from study.executors import query
from study.executors.base import Runner
from study.records.ledger import Batch
from study.status import overview
from study.status.observer import Observer
from study.storage.layout import StudyFolder
from study.text import duration


@dataclass(frozen=True)
class Entry:
    """One study: its points by state (of a search: its trials), `changed` [unix seconds]; what is wrong with it."""

    study: str
    folder: str
    kind: str
    points: int
    counts: dict[str, int]
    changed: float
    problem: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_runs(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Show every study, the latest first; 1 if one of them cannot be read."""
    if options.runs != DEFAULT_RUNS and not options.runs.is_dir():
        raise ValueError(f"--runs {options.runs}: there is no such folder")
    found = entries(options.runs)
    if options.json:
        emit("list", None, {"runs": str(options.runs.absolute()), "studies": [dataclasses.asdict(e) for e in found]})
    elif not found:
        print(f"there are no studies in {options.runs} (--runs DIR names another folder)")
    else:
        terminal.show("\n".join(lines(found, time.time())))
    return 1 if any(entry.problem for entry in found) else 0


def entries(runs: Path, runner: Runner | None = None) -> list[Entry]:
    """Return all studies in a folder, after one look at the scheduler for all of them together."""
    studies = [StudyFolder(path.parent.absolute()) for path in sorted(runs.glob("*/points.jsonl"))]
    searches = [study for study in studies if study.search.exists()]
    observers = [Observer(study) for study in studies if study not in searches]
    batches: list[Batch] = []
    found, good = [_search(study) for study in searches], []
    for observer in observers:
        try:
            batches += observer.known.batches.values()
            good.append(observer)
        except ValueError as error:
            found.append(_broken(observer.folder, error))
    view = query(batches, runner)
    for observer in good:
        observer.view = view
        try:
            statuses = observer.statuses()
        except ValueError as error:
            found.append(_broken(observer.folder, error))
            continue
        counts = dict(overview.count(statuses))
        where = observer.folder
        found.append(Entry(where.name, str(where.path), "points", len(statuses), counts, changed(where)))
    return sorted(found, key=lambda entry: -entry.changed)


def lines(found: Sequence[Entry], now: float) -> list[str]:
    """Return a line a study."""
    width = max(len(entry.study) for entry in found)
    shown = []
    for entry in found:
        states = ", ".join(f"{n:,} {state}" for state, n in sorted(entry.counts.items(), key=lambda c: -c[1]))
        text = f"{entry.study:<{width}}  {entry.points:>6,} {_noun(entry):<7} {_ago(now - entry.changed):>13}  "
        shown.append(text + (f"damaged: {entry.problem}" if entry.problem else states))
    return shown


def changed(folder: StudyFolder) -> float:
    """Return when a study was last written to [unix seconds]: something was submitted, or a run began or ended."""
    times = [0.0]
    for path in (folder.path, folder.ledger, folder.points, folder.outcomes, folder.events):
        try:
            times.append(path.stat().st_mtime)
        except OSError:
            continue
    return max(times)


def _search(folder: StudyFolder) -> Entry:
    from study.search import view
    from study.search.trial_queue import TrialQueue

    try:
        search = TrialQueue.of(folder).note_silent().search
    except ValueError as error:
        return _broken(folder, error)
    counts: dict[str, int] = {}
    for trial in search.trials.values():
        word = view.verdict(search, trial)
        counts[word] = counts.get(word, 0) + 1
    return Entry(folder.name, str(folder.path), "search", len(search.trials), counts, changed(folder))


def _broken(folder: StudyFolder, error: ValueError) -> Entry:
    return Entry(folder.name, str(folder.path), "points", 0, {}, changed(folder), str(error))


def _noun(entry: Entry) -> str:
    noun = "trial" if entry.kind == "search" else "point"
    return noun if entry.points == 1 else noun + "s"


def _ago(seconds: float) -> str:
    return f"{duration(seconds).split(' ')[0]} {duration(seconds).split(' ')[1]} ago"
