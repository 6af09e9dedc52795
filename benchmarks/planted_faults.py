"""Do the tests notice faults that a person might make? `python -m benchmarks.planted_faults [WORD …]`.

Each fault of `benchmarks/planted_faults.toml` is put into a copy of the tree, whose tests are run from there until one
fails, also those that start processes of their own, which forks with a mutant (`benchmarks.mutants`) do not reach. A
fault dies if a test fails and survives if none does; the test that fails has to pass without it.

WORD: take the faults that have one of these words in what they say, or in their file.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks._swap import ROOT
from train.spec.command_line import Parser

FAULTS = Path(__file__).with_suffix(".toml")
SECONDS = 900.0
"""Most that the tests of one fault may take."""


@dataclass(frozen=True)
class Fault:
    """One replacement of text in a file, and the tests of which one at least has to fail."""

    what: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    def planted(self, source: str) -> str:
        """Return the file's text with the fault; ValueError where what it replaces is not there exactly once."""
        if source.count(self.before) != 1:
            raise ValueError(f"{self.file} has {source.count(self.before)} of {self.before!r}, not one: {self.what}")
        return source.replace(self.before, self.after)


def faults(path: Path = FAULTS) -> list[Fault]:
    """Return the faults of a file."""
    return [Fault(**{**one, "tests": tuple(one["tests"])}) for one in tomllib.loads(path.read_text("utf-8"))["fault"]]


def copied(root: Path, to: Path) -> None:
    """Copy the tree without what git, editors and runs leave in it."""
    left_out = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "build", "runs", "*.egg-info")
    shutil.copytree(root, to, ignore=left_out, symlinks=True)


def failing(tree: Path, tests: Sequence[str]) -> str | None:
    """Return the first of these tests that fails in a tree, None if all pass. RuntimeError where they do not run."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-x", "-q", "--no-header", "--color=no", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{' '.join(tests)}: more than {SECONDS:g} s") from error
    if done.returncode == 0:
        return None
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{' '.join(tests)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return found[1]


def tried(fault: Fault, tree: Path) -> str | None:
    """Plant a fault in a tree, and take it out again; return the test that fails of it, None if none does."""
    place = tree / fault.file
    source = place.read_text("utf-8")
    place.write_text(fault.planted(source), "utf-8")
    try:
        return failing(tree, fault.tests)
    finally:
        place.write_text(source, "utf-8")


def main() -> int:
    parser = Parser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("words", nargs="*", metavar="WORD")
    words = parser.parse_args().words
    wanted = [one for one in faults() if not words or any(word in f"{one.what} {one.file}" for word in words)]
    died = 0
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        tree = Path(folder) / "tree"
        copied(ROOT, tree)
        for one in wanted:
            begun = time.perf_counter()
            by = tried(one, tree)
            if by is not None and failing(tree, [by]) is not None:
                print(f"{by} fails without any fault")
                return 1
            died += by is not None
            said = f"dies of {by}" if by else "SURVIVES"
            print(f"{one.what} ({one.file}): {said}, {time.perf_counter() - begun:.0f} s", flush=True)
    print(f"{died} of {len(wanted)} faults die")
    return int(died < len(wanted))


if __name__ == "__main__":
    sys.exit(main())
