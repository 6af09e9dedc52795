"""`python -m study logs STUDY [POINT] [-f] [--rank R] [--attempt N]`."""

from __future__ import annotations

import argparse
import codecs
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from study import text
from study.commands import add_json, add_point, add_study, emit
from study.executors import load
from study.failures.words import Words
from study.records import ledger
from study.records.attempts import latest_attempt
from study.records.settings import find_study, reference
from study.records.shapes import ATTEMPT_END
from study.status.observer import observe
from study.status.selection import by_key, given_points, one_point
from study.status.states import PointState, PointStatus
from study.storage.jsonl import read_from
from study.storage.layout import AttemptFolder, StudyFolder
from study.storage.shapes import read_record
from study.text import recognised

POLL_SECONDS = 0.5
STATUS_SECONDS = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_study(parser)
    add_point(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="follow the log until the attempt ends")
    parser.add_argument(
        "--rank", type=int, help="rank of a distributed run; default: the one that a failure follows from, else 0"
    )
    parser.add_argument("--attempt", type=int, help="attempt, counted from 1; default: the latest")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the attempt's stdout, then its stderr."""
    folder = find_study(options.study, options.runs)
    if options.json and options.follow:
        raise ValueError("logs: -f follows a file and --json prints one object: give one of them")
    statuses = observe(folder)
    if not given_points(options):
        if options.json:
            emit("logs", folder, {"points": [_entry(folder, s) for s in statuses if s.attempt]})
        else:
            text.show(_listing(folder, statuses))
        return 0
    status = by_key(statuses, one_point(options))
    if status.state == PointState.FAILED and options.attempt is None and not _began(folder, status):
        _show_job(folder, status, as_json=options.json)
        return 0
    attempt = _attempt(folder, status, options.attempt)
    words = Words.of_end(read_record(attempt.outcome, ATTEMPT_END))
    rank = _blamed(attempt, words) if options.rank is None else options.rank
    files = (attempt.stdout(rank), attempt.stderr(rank))
    if not any(path.exists() for path in files):
        raise ValueError(f"{attempt.path} has no log of rank {rank}: {_ranks(attempt)}")
    if options.json:
        number = int(attempt.path.name)
        said = dict(zip(("stdout", "stderr"), map(_text, files), strict=True))
        emit("logs", folder, {"point": status.key, "attempt": number, "rank": rank, **said})
    elif options.follow:
        _follow(files, HasEnded(folder, status.key, attempt))
    else:
        for path in files:
            _copy(path)
    if rank and options.rank is None:
        sys.stdout.flush()
        print(f"{words.headline}    # the log is that rank's; --rank 0 shows the first one's", file=sys.stderr)
    return 0


def _show_job(folder: StudyFolder, status: PointStatus, *, as_json: bool) -> None:
    """Print the log of a job that ended before an attempt began."""
    batch = ledger.read(folder).batch(status.key)
    assert batch is not None, "what was never submitted cannot fail"
    log = load(batch.executor).log(folder, batch, status.key)
    if as_json:
        emit("logs", folder, {"point": status.key, "attempt": None, "rank": 0, "stdout": _text(log), "stderr": ""})
    else:
        _copy(log)


@dataclass
class HasEnded:
    """Whether an attempt has ended: it wrote so, or was killed outright, which the point's state tells now and then."""

    folder: StudyFolder
    key: str
    attempt: AttemptFolder
    checked_at: float = float("-inf")

    def __call__(self) -> bool:
        """Return it."""
        if self.attempt.outcome.exists():
            return True
        if time.monotonic() - self.checked_at < STATUS_SECONDS:
            return False
        self.checked_at = time.monotonic()
        status = by_key(observe(self.folder), self.key)
        return (
            status.state not in (PointState.RUNNING, PointState.UNKNOWN)
            or self.folder.run(self.key).attempt(status.attempt or 0) != self.attempt
        )


def _listing(folder: StudyFolder, statuses: Sequence[PointStatus]) -> str:
    rows = [f"{s.key}  {s.state:<11}  attempt {s.attempt}  {recognised(s.overrides)}" for s in statuses if s.attempt]
    if not rows:
        return f"{folder.name}: no point has begun, so there are no logs yet"
    return "\n".join([*rows, "", f"python -m study logs {reference(folder)} KEY    # the beginning of a key is enough"])


def _entry(folder: StudyFolder, status: PointStatus) -> dict[str, object]:
    assert status.attempt is not None
    attempt = folder.run(status.key).attempt(status.attempt)
    about = {"key": status.key, "state": status.state, "attempt": status.attempt}
    return {**about, "stdout": str(attempt.stdout(0)), "stderr": str(attempt.stderr(0))}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _began(folder: StudyFolder, status: PointStatus) -> bool:
    """Whether the job that the point's state is about made an attempt; the latest one may be an earlier job's."""
    attempt = latest_attempt(folder.run(status.key))
    return attempt is not None and attempt.batch == status.batch


def _attempt(folder: StudyFolder, status: PointStatus, number: int | None) -> AttemptFolder:
    run = folder.run(status.key)
    if status.attempt is None:
        raise ValueError(f"{status.key} is {status.state}: it has no attempt yet, so there is no log")
    if number is not None and not run.attempt(number).path.is_dir():
        raise ValueError(f"{status.key} has no attempt {number}: its attempts are 1 to {status.attempt}")
    return run.attempt(number or status.attempt)


def _blamed(attempt: AttemptFolder, words: Words) -> int:
    """Return the rank that an attempt's failure follows from, where it left a log; else the first."""
    return words.rank if attempt.stderr(words.rank).exists() or attempt.stdout(words.rank).exists() else 0


def _ranks(attempt: AttemptFolder) -> str:
    ranks = sorted(int(p.name.partition(".")[2] or 0) for p in attempt.path.glob("stdout*"))
    return f"its ranks are {', '.join(map(str, ranks))}" if ranks else "it has not printed anything"


def _copy(path: Path) -> None:
    if path.exists():
        with path.open(encoding="utf-8", errors="replace") as file:
            shutil.copyfileobj(file, sys.stdout)


def _follow(files: Sequence[Path], ended: Callable[[], bool]) -> None:
    """Print what the files hold and what is added, until the attempt has ended."""
    offsets = dict.fromkeys(files, 0)
    decoders = {path: codecs.getincrementaldecoder("utf-8")("replace") for path in files}
    while True:
        last = ended()
        for path in files:
            data = read_from(path, offsets[path])
            offsets[path] += len(data)
            sys.stdout.write(decoders[path].decode(data, final=last))
        if last:
            return
        sys.stdout.flush()
        time.sleep(POLL_SECONDS)
