"""How many small changes of the pure parts do the tests notice? `python -m benchmarks.mutants [MODULE …]`.

Each mutant (`benchmarks._mutations`) is loaded in a process of its own instead of its module, and the tests of that
module (TESTS) are run until one fails: killed. One that no test notices survives, and is printed, unless
`benchmarks/mutants_equivalent.txt` says why it changes nothing that counts. MODULE: a file or folder (all of TESTS if
none). `--share 3/8` takes every eighth mutant from the third on, for several machines; `--out` keeps the answers, and
goes on where it stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks._mutations import Mutant, mutants

ROOT = Path(__file__).parents[1]
EQUIVALENT = Path(__file__).with_name("mutants_equivalent.txt")
LIMIT_SECONDS = 120
"""A mutant that takes longer than this never ends: it is killed."""
SPEC = ("tests/train/spec",)
HEALTH = tuple(f"tests/train/health/test_health_{name}.py" for name in ("decisions", "tokens", "inside"))
OPTIM = (
    "tests/train/optim/test_optim_rules.py",
    "tests/train/optim/test_optim_decay.py",
    "tests/train/spec/test_recipe.py",
)
TESTS: dict[str, tuple[str, ...]] = {
    **{f"train/spec/{name}.py": SPEC for name in (
        "counts", "decoder", "footprint", "former", "later", "lineage", "mesh", "mup", "peaks", "pipeline",
        "precision", "read", "recipe", "resolve", "rules", "yamlfile",
    )},
    "train/schedule.py": ("tests/train/test_trainer_schedule.py", "tests/train/test_trainer_branches.py"),
    "train/metrics.py": ("tests/train/test_trainer_metrics.py",),
    **{f"train/health/{name}.py": HEALTH for name in (
        "desync", "fingerprint", "guard", "monitor", "parts", "probe", "spikes", "statistics", "tokens",
    )},
    **{f"train/optim/{name}.py": OPTIM for name in ("adamw", "groups", "muon", "sgd")},
    "analysis/recorded.py": (
        "tests/train/test_trainer_metrics.py", "tests/study/tracking/test_tracking_spool.py",
        "tests/study/test_export_curves.py",
    ),
}  # fmt: skip
"""Files whose mutants are made, with the tests that should notice them: fast ones first, seconds together."""


class Instead(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module from another source."""

    def __init__(self, name: str, path: Path, source: str) -> None:
        self._name, self._path, self._source = name, path, source

    def find_spec(self, fullname: str, path: object = None, target: ModuleType | None = None) -> Any:
        """Return the spec of the module that is replaced; None for others."""
        del path, target
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Leave it to the import system."""
        del spec

    def exec_module(self, module: ModuleType) -> None:
        """Run the other source."""
        exec(compile(self._source, str(self._path), "exec"), vars(module))


def preload() -> None:
    """Import what the tests need of others, once: every mutant's process is a fork of this one."""
    import hypothesis
    import numpy
    import pytest
    import torch
    import torch.distributed.tensor
    import torch.optim
    import yaml

    torch.set_num_threads(1)
    del hypothesis, numpy, pytest, yaml


def judge(path: str, mutant: Mutant | None, tests: Sequence[str]) -> str:
    """Return what became of a mutant: killed, timeout, survived; of None (the module as it is) the same words."""
    child = os.fork()
    if child == 0:
        os._exit(_run(path, mutant, tests))
    until = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


def _run(path: str, mutant: Mutant | None, tests: Sequence[str]) -> int:
    """Run the tests in this process, which ends with it; return pytest's code."""
    import pytest

    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    if mutant is not None:
        sys.meta_path.insert(0, Instead(path.removesuffix(".py").replace("/", "."), ROOT / path, mutant.source))
    options = [
        "-x",
        "-q",
        "--no-header",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-m",
        "not slow",
        "-o",
        "addopts=",
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        for test in tests:  # one after the other: most mutants fall to the first, and need not wait for imports
            code = int(pytest.main([*options, test]))
            if code != 0:
                return code
    return 0


def _work(job: tuple[str, int]) -> tuple[str, str, str]:
    path, index = job
    mutant = mutants((ROOT / path).read_text(encoding="utf-8"))[index]
    return path, str(mutant), judge(path, mutant, TESTS[path])


def wanted(modules: Iterable[str]) -> list[str]:
    """Return the files of TESTS that are named, or lie in a folder that is; ValueError for a name of none."""
    chosen = []
    for name in modules:
        found = [path for path in TESTS if path == name or path.startswith(name.rstrip("/") + "/")]
        if not found:
            raise ValueError(f"{name} has no tests in benchmarks/mutants.py: there are {', '.join(TESTS)}")
        chosen += found
    return chosen or list(TESTS)


def equivalent() -> dict[str, str]:
    """Return the mutants that change nothing that counts, as `path: mutant without its line`, with the reason."""
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines() if EQUIVALENT.exists() else []
    pairs = (line.rpartition("  # ") for line in lines if line and not line.startswith("#"))
    return {what.strip(): why for what, _, why in pairs}


def _unlined(path: str, mutant: str) -> str:
    where, _, change = mutant.split(":", 2)
    return f"{path}: {where}:{change}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--share", default="1/1", help="which part of the mutants: 3/8")
    parser.add_argument("--out", type=Path, help="file of answers (JSON lines), which is gone on with")
    options = parser.parse_args()
    os.chdir(ROOT)
    first, of = (int(part) for part in options.share.split("/"))
    paths = wanted(options.modules)
    jobs = [(path, i) for path in paths for i in range(len(mutants(Path(path).read_text(encoding="utf-8"))))]
    jobs = jobs[first - 1 :: of]
    answers = _kept(options.out)
    preload()
    for path in paths:
        if judge(path, None, TESTS[path]) != "survived":
            sys.exit(f"{path}: its tests fail without any change: {' '.join(TESTS[path])}")
    left = [job for job in jobs if (job[0], _name(job)) not in answers]
    with multiprocessing.get_context("fork").Pool(options.processes, maxtasksperchild=20) as pool:
        for path, mutant, answer in pool.imap_unordered(_work, left):
            answers[path, mutant] = answer
            if options.out is not None:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([path, mutant, answer]) + "\n")
    _report({job: answers[job[0], _name(job)] for job in jobs})


def _name(job: tuple[str, int]) -> str:
    return str(mutants((ROOT / job[0]).read_text(encoding="utf-8"))[job[1]])


def _kept(out: Path | None) -> dict[tuple[str, str], str]:
    if out is None or not out.exists():
        return {}
    return {(path, mutant): answer for path, mutant, answer in map(json.loads, out.read_text("utf-8").splitlines())}


def _report(answers: dict[tuple[str, int], str]) -> None:
    reasons, survivors = equivalent(), list[str]()
    counts: dict[str, Counter[str]] = {}
    for job, answer in answers.items():
        name = _name(job)
        why = reasons.get(_unlined(job[0], name))
        said = "equivalent" if answer == "survived" and why else answer
        counts.setdefault(job[0], Counter())[said] += 1
        survivors += [f"{job[0]}: {name}"] if said == "survived" else []
    print(f"{'module':32} {'mutants':>8} {'killed':>7} {'equivalent':>11} {'survived':>9} {'share':>7}")
    for path, count in [*counts.items(), ("all", sum(counts.values(), Counter[str]()))]:
        killed, same = count["killed"] + count["timeout"], count["equivalent"]
        share = killed / max(1, count.total() - same)
        print(f"{path:32} {count.total():8} {killed:7} {same:11} {count['survived']:9} {share:7.1%}")
    print("\nsurvivors:" if survivors else "\nno survivors")
    print("\n".join(survivors))


if __name__ == "__main__":
    main()
