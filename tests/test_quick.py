"""What counts as quick starts no process."""

from __future__ import annotations

import subprocess

from tests import quick
from tests.forked import trainers


def by_a_helper() -> object:
    return trainers()


def by_itself() -> object:
    def inside() -> object:
        return subprocess.run(["true"], check=False)

    return inside()


def test_helpers_and_what_they_call_are_looked_through() -> None:
    assert quick.starts_processes(by_itself) and quick.starts_processes(by_a_helper)
    assert not quick.starts_processes(test_what_was_measured_is_of_tests_that_there_are)


def test_what_was_measured_is_of_tests_that_there_are() -> None:
    gone = {name for name in quick.recorded() if not (quick.RECORD.parents[1] / name.partition("::")[0]).exists()}
    assert not gone, f"python -m tests.cpu FILE --record: {sorted(gone)}"
