"""`python -m study gc STUDY [--keep last=1,best=1,every=N] [--yes]`."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from study import frozen, preparations, retention, terminal
from study.commands import add_json, add_selection, add_study, emit
from study.files import locked
from study.freeze import load_points
from study.frozen import Copy
from study.layout import StudyFolder
from study.observe import Observer
from study.preparations import Left
from study.retention import Needs, Pruning
from study.selection import selected
from study.submission import find_study, reference

KEEP = "last=1"
MAY_RUN = frozenset({"running", "unknown"})
SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_study(parser)
    parser.add_argument(
        "--keep",
        default=KEEP,
        metavar="RULES",
        help=f"checkpoints of each run that stay: last=N newest, best=N by validation loss, every=N steps; {KEEP}",
    )
    parser.add_argument("--yes", action="store_true", help="remove them; without it nothing is removed")
    parser.add_argument("--dry-run", action="store_true", help="only say which, the default")
    add_selection(parser, "all", "only of points in these states")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Remove what nothing needs, or say what that would be."""
    folder = find_study(options.study, options.runs)
    folder = StudyFolder(folder.path.resolve())  # its neighbours are those of the place where it lies
    policy = retention.parse(options.keep)
    if options.yes and options.dry_run:
        raise ValueError("gc --yes --dry-run: take one of them")
    busy: Mapping[str, str] = {}
    if folder.search.exists():
        busy = _search(folder)
    observer = Observer(folder)
    observer.refresh()
    statuses = observer.statuses()
    chosen = selected(options, statuses, observer.points, "all")
    copies = frozen.collect(folder.path.parent, time.time(), options.yes)  # first: it may be refused
    left = preparations.collect({point.config.runtime.data_root for point in observer.points.values()}, options.yes)
    fence = Fence(folder)
    done = []
    for status in chosen:
        if status.state in MAY_RUN or status.key in busy:
            why = busy.get(status.key) or f"it is {status.state}"
            done.append(Pruning(status.key, skipped=why))
        else:
            done.append(retention.prune(folder.run(status.key), policy, fence, options.yes))
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
    return [*lines, f"python -m study gc {reference(folder)} --keep {options.keep} --yes    # removes them"]


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


@dataclass
class Fence:
    """What others go on from, said under the locks that whoever adds to it holds.

    Those are the study's own, under which its points are appended, also where a point of another study names a
    checkpoint of this one; and in a search the log's, under which copies are decided.
    """

    folder: StudyFolder
    _seen: object = None
    _needs: Needs = field(default_factory=lambda: Needs({}, frozenset()))

    @contextmanager
    def __call__(self) -> Iterator[Needs]:
        """Hold the locks, and yield what is needed now. ValueError where a search has gone on meanwhile."""
        with ExitStack() as stack:
            if self.folder.search.exists():
                from study.search.claims import Office

                stack.enter_context(Office.of(self.folder).transaction())
                _search(self.folder)
            stack.enter_context(locked(self.folder.lock))
            seen = self._state()
            if seen != self._seen:
                self._needs = retention.needs(self.folder, load_points(self.folder), _copied(self.folder))
                self._seen = seen
            yield self._needs

    def _state(self) -> object:
        """Return what changes whenever anything is added."""
        logs = [*self.folder.path.parent.glob("*/points.jsonl"), self.folder.events]
        return {path: path.stat().st_size for path in logs if path.exists()}


def _copied(folder: StudyFolder) -> Iterable[tuple[str, int]]:
    """Return the checkpoints (key, tokens) that members of a population may still copy."""
    if not folder.search.exists():
        return ()
    from study.search.pins import needed

    return needed(folder)


def _search(folder: StudyFolder) -> dict[str, str]:
    """Return the trials of a search that must not be touched: while it goes on, any may be promoted or copied."""
    from study.search.claims import Office

    search = Office.of(folder).search
    if not search.over and (search.claims or not search.stopped):
        raise ValueError(
            f"{folder.name} is a search that goes on, and any of its checkpoints may be wanted: wait until it is "
            "over, or python -m study cancel it first"
        )
    return {trial.key: "the search may go on from it" for trial in search.trials.values() if not search.over}
