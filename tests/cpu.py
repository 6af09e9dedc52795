"""Seconds of a core that each test costs, whatever else the machine does: `pytest -p tests.cpu --cpu FILE`.

Those of the processes that a test starts count as well, as far as they are waited for or still run as descendants when
it ends. `python -m tests.cpu FILE …` lists what is in such files by test and by folder; with `--record` it notes the
files that cost most in tests/durations.json, which says in what order they begin, and in tests/not_quick.json the tests
that start a process or cost more than a tenth of a second.
"""

from __future__ import annotations

import argparse
import json
import resource
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import quick

RECORD = Path(__file__).with_name("durations.json")
LONG = 10.0
"""What a file costs that is noted [s]."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu", type=Path, metavar="FILE", help="append what each test costs to this file")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("cpu") is not None:
        config.pluginmanager.register(quick)
        quick.watch_processes()


def used() -> float:
    """Return the seconds of a core that this process has used."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime


def used_by_children() -> float:
    """Return the seconds of a core that its children have used; to look for them takes milliseconds."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    children = ended.ru_utime + ended.ru_stime
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            children += sum(child.cpu_times()[:4])  # itself, and those of its children that it has waited for
    return children


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    file = item.config.getoption("cpu")
    # Within the two moments of its own seconds lies the test alone, no looking for children.
    children, own = used_by_children(), used()
    result = yield
    own = round(used() - own, 3)
    if file is not None:
        children = round(used_by_children() - children, 3)
        with Path(file).open("a", encoding="utf-8") as lines:
            row = {"test": item.nodeid, "self": own, "children": children, "starts": bool(quick.Running.started)}
            lines.write(json.dumps(row) + "\n")
    return result


def totals(rows: Iterable[dict[str, Any]], key: Callable[[str], str]) -> dict[str, float]:
    """Return the seconds by what `key` makes of a test's name, the largest first."""
    found: dict[str, float] = defaultdict(float)
    for row in rows:
        found[key(row["test"])] += row["self"] + row["children"]
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def note_not_quick(rows: Iterable[dict[str, Any]]) -> None:
    """Bring tests/not_quick.json up to date for the tests that were measured."""
    measured = {quick.function_of(row["test"]) for row in rows}
    found = {
        quick.function_of(row["test"])
        for row in rows
        if row["starts"] or row["children"] > 0 or row["self"] > quick.MOST_SECONDS
    }
    quick.RECORD.write_text(json.dumps(sorted(quick.recorded() - measured | found), indent=1) + "\n", "utf-8")


def folder(test: str) -> str:
    return str(Path(*Path(test.partition("::")[0]).parts[:2]))


def main() -> None:
    """Print the twenty tests and the folders that cost most; note the files that do."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.name}")
    given = parser.parse_args()
    rows = [json.loads(line) for file in given.files for line in file.read_text("utf-8").splitlines()]
    for table in (dict(list(totals(rows, str).items())[:20]), totals(rows, folder)):
        print("\n".join(f"{seconds:8.1f} s  {name}" for name, seconds in table.items()), end="\n\n")
    print(f"{sum(totals(rows, folder).values()):8.1f} s  in all, {len(rows)} tests")
    if given.record:
        files = totals(rows, lambda test: test.partition("::")[0])
        long = {name: round(seconds) for name, seconds in files.items() if seconds >= LONG}
        RECORD.write_text(json.dumps(long, indent=1) + "\n", "utf-8")
        note_not_quick(rows)


if __name__ == "__main__":
    main()
