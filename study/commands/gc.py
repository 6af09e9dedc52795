"""`python -m study gc STUDY [--keep last=1,best=1,every=N] [--yes]`."""

from __future__ import annotations

import argparse
import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from study import text as terminal
from study.cleanup import checkpoints, code, preparations
from study.cleanup.checkpoints import Pruning, StudyFence, needed_by_search
from study.cleanup.code import Copy
from study.cleanup.preparations import Left
from study.commands import add_json, add_selection, add_study, emit, selection
from study.records.settings import find_study, reference
from study.status.observer import Observer
from study.status.selection import selected
from study.status.states import PointState
from study.storage.layout import StudyFolder

KEEP = "last=1"
MAY_RUN = frozenset({PointState.RUNNING, PointState.UNKNOWN})
SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_study(parser)
    parser.add_argument(
        "--keep",
        default=KEEP,
        metavar="RULES",
        help=f"checkpoints to keep of each run: last=N newest, best=N by validation loss, every=N steps; {KEEP}",
    )
    parser.add_argument("--yes", action="store_true", help="remove them; without --yes nothing is removed")
    parser.add_argument("--dry-run", action="store_true", help="only list them (default)")
    add_selection(parser, "all", "only of points in these states")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Remove what nothing needs, or say what that would be."""
    folder = find_study(options.study, options.runs)
    folder = StudyFolder(folder.path.resolve())  # its neighbours are those of the place where it lies
    policy = checkpoints.parse(options.keep)
    if options.yes and options.dry_run:
        raise ValueError("gc: --yes removes and --dry-run only lists: give one of them")
    busy: Mapping[str, str] = {}
    if folder.search.exists():
        busy = needed_by_search(folder)
    observer = Observer(folder)
    observer.refresh()
    statuses = observer.statuses()
    chosen = selected(options, statuses, observer.points, "all")
    copies = code.collect(folder.path.parent, time.time(), options.yes)  # first: it may be refused
    left = preparations.collect({point.data_root for point in observer.points.values()}, options.yes)
    fence = StudyFence(folder)
    done = []
    for status in chosen:
        if status.state in MAY_RUN or status.key in busy:
            why = busy.get(status.key) or f"it is {status.state}"
            done.append(Pruning(status.key, skipped=why))
        else:
            done.append(checkpoints.prune(folder.run(status.key), policy, fence, options.yes))
    if options.json:
        emit("gc", folder, as_json(done, copies, left, options))
    else:
        further = [*code_lines(copies, options.yes), *preparation_lines(left, options.yes)]
        terminal.show("\n".join([*as_text(folder, done, options), *further]))
    return 0


def as_json(
    done: Sequence[Pruning], copies: Sequence[Copy], left: Sequence[Left], options: argparse.Namespace
) -> dict[str, Any]:
    """Return what was (or would be) removed, for machines."""
    return {
        "code": [{"version": one.version, "bytes": one.bytes, "keep": one.kept or None} for one in copies],
        "preparations": [{"folder": str(one.folder), "bytes": one.bytes} for one in left],
        "removed": options.yes,
        "keep": options.keep,
        "bytes": sum(one.bytes for one in done),
        "runs": [
            {
                "key": one.key,
                "bytes": one.bytes,
                "skipped": one.skipped or None,
                "remove": [stored.folder.name for stored in one.removed],
                "keep": {stored.folder.name: why for stored, why in one.kept},
            }
            for one in done
            if one.skipped or one.removed or one.kept or one.leftovers
        ],
    }


def as_text(folder: StudyFolder, done: Sequence[Pruning], options: argparse.Namespace) -> list[str]:
    """Return what was (or would be) removed, run by run, and what is freed by that."""
    touched = [one for one in done if one.removed or one.leftovers]
    lines = []
    for one in touched[:SHOWN]:
        names = " ".join(stored.folder.name.removeprefix("step-").lstrip("0") or "0" for stored in one.removed)
        text = f"  {one.key}  {size(one.bytes):>9}  steps {names}" if names else f"  {one.key}  {size(one.bytes):>9}"
        left = " (leftovers of killed saves)" if one.leftovers else ""
        lines.append((text if len(text) <= 76 - len(left) else text[: 75 - len(left)] + "…") + left)
    if len(touched) > SHOWN:
        lines.append(f"  … and {len(touched) - SHOWN:,} more runs")
    kept = Counter(why for one in done for _, why in one.kept)
    if kept:
        lines.append("kept: " + ", ".join(f"{count:,} ({why})" for why, count in kept.most_common()))
    skipped = Counter(one.skipped for one in done if one.skipped)
    lines += [f"not touched: {count:,} runs: {why}" for why, count in skipped.most_common()]
    number, total = sum(len(one.removed) for one in done), sum(one.bytes for one in done)
    if not touched:
        return [*lines, f"{folder.name}: nothing to remove"]
    if options.yes:
        return [*lines, f"{folder.name}: {number:,} checkpoints removed, {size(total)} freed"]
    lines.append(f"{folder.name}: {number:,} checkpoints would be removed, which frees {size(total)}")
    words = shlex.join(["--keep", options.keep, *selection(options, options.state), "--yes"])
    return [*lines, f"python -m study gc {reference(folder)} {words}    # removes them"]


def code_lines(copies: Sequence[Copy], really: bool) -> list[str]:
    """Return what was (or would be) removed of the code that the studies of this folder have frozen."""
    gone = [one for one in copies if not one.kept]
    lines = [f"code {one.version}: kept: {one.kept}" for one in copies if one.kept]
    if gone:
        names = ", ".join(one.version for one in gone)
        freed = size(sum(one.bytes for one in gone))
        said = f"removed, {freed} freed" if really else f"would be removed (--yes), which frees {freed}"
        lines.append(f"code that no study here needs: {names}: {said}")
    return lines


def preparation_lines(left: Sequence[Left], really: bool) -> list[str]:
    """Return what was (or would be) removed of what killed preparations of data left."""
    if not left:
        return []
    freed = size(sum(one.bytes for one in left))
    said = f"removed, {freed} freed" if really else f"would be removed (--yes), which frees {freed}"
    return [*(f"  {one.folder}" for one in left), f"left by killed preparations of data: {said}"]


def size(count: float) -> str:
    """Return bytes as people say them, in powers of ten."""
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= limit:
            return f"{count / limit:.3g} {unit}"
    return f"{count:.0f} B"
