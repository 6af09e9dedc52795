"""How many small changes of the pure parts do the tests notice? `python -m benchmarks.mutants [MODULE …]`.

All tests are imported and collected once, and it is noted which functions each of them enters (kept in `--reach`). Each
mutant (`benchmarks._mutations`) is put into a fork of that process, its functions' code swapped, and meets those of its
module's tests (`benchmarks._pure_parts`) that enter the changed function, the quickest first, until one fails: killed.
What runs when its module is imported cannot be swapped: such a mutant is imported anew (all are with `--anew`, which is
slow). One that takes ten times the CPU seconds of its tests, and some besides, is a timeout, which counts neither as
killed nor as survived. One that no test notices survives, and is printed, unless `benchmarks/mutants_equivalent.txt`
says why it changes nothing that counts. `benchmarks/mutants_survived.txt` says of others why no test is to hold what
they change: these count as survived, and are printed with that reason; one that has none is printed as new.

MODULE: a file or folder (all if none). `--sample 30` takes that many mutants of each file, at random;
`--share 3/8` every eighth mutant from the third on, for several machines; `--seconds` ends it cleanly with what it has;
`--out` keeps the answers, and goes on where it stopped. `--tests` asks other tests than the module's; `--list` prints
the mutants and tries none.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import hashlib
import json
import os
import platform
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path

from benchmarks._collected import ANEW, FAILED, Collected, Task
from benchmarks._mutations import Mutant, mutants
from benchmarks._pure_parts import TESTS
from benchmarks._reach import Reach, by_file, chosen, importing
from benchmarks._swap import ROOT, pairs
from benchmarks._trial import Children, anew, preload
from train.spec.command_line import Parser

EQUIVALENT = Path(__file__).with_name("mutants_equivalent.txt")
SURVIVED = Path(__file__).with_name("mutants_survived.txt")
IMPORT_SECONDS = 60.0
"""CPU seconds besides those of the tests that a mutant may take that is imported anew."""


def wanted(modules: Iterable[str]) -> list[str]:
    """Return the files of TESTS that are named, or lie in a folder that is; ValueError for a name of none."""
    chosen = []
    for name in modules:
        found = [path for path in TESTS if path == name or path.startswith(name.rstrip("/") + "/")]
        if not found:
            raise ValueError(f"{name} has no tests in benchmarks/_pure_parts.py: there are {', '.join(TESTS)}")
        chosen += found
    return chosen or list(TESTS)


def reasons(file: Path) -> dict[str, str]:
    """Return the mutants of EQUIVALENT or SURVIVED, as `path: mutant without its line`, with the reason of each."""
    lines = file.read_text(encoding="utf-8").splitlines()
    pairs = (line.rpartition("  # ") for line in lines if line and not line.startswith("#"))
    return {what.strip(): why for what, _, why in pairs}


def unlined(path: str, mutant: str) -> str:
    """Return a mutant as it is listed: without its line, which moves as code above it grows."""
    where, _, change = mutant.split(":", 2)
    return f"{path}: {where}:{change}"


@dataclass(frozen=True)
class Trial:
    """A mutant with the tests that are to notice it, and whether it is to be imported anew."""

    path: str
    mutant: Mutant
    tests: list[Reach]
    anew: bool

    def task(self) -> Task:
        """Return what a fork with all tests is asked."""
        return Task(tuple((one.test, one.seconds) for one in self.tests), self.path, self.mutant.source)

    def start(self, number: int, children: Children) -> None:
        """Begin it in a process that has imported nothing of this repository."""
        groups, cpu = by_file(self.tests), IMPORT_SECONDS + 10.0 * sum(one.seconds for one in self.tests)
        children.start(number, lambda: anew(self.path, self.mutant.source, groups), cpu)


def judged(
    trials: Iterable[Trial], collected: Collected, processes: int, stop: float = float("inf")
) -> Iterator[tuple[Trial, str]]:
    """Yield each trial with what became of its mutant, as they end: killed, survived or timeout.

    So many run at a time; none begins after STOP (of the monotonic clock).
    """
    waiting: Iterator[Trial] = iter(trials)
    swapped, imported = dict[int, tuple[Trial, Reach | None]](), dict[int, Trial]()
    children, more = Children(), True
    while more or swapped or imported:
        while more and len(swapped) + len(imported) < processes:
            trial = next(waiting, None) if time.monotonic() < stop else None
            if trial is None:
                more = False
            elif not trial.tests:
                yield trial, "survived"
            elif trial.anew:
                imported[id(trial)] = trial
                trial.start(id(trial), children)
            else:
                swapped[collected.ask(trial.task())] = trial, None
        for number, code in collected.heard(0.02):
            trial, alone = swapped.pop(number)
            if code == ANEW:
                imported[id(trial)] = trial
                trial.start(id(trial), children)
            elif alone is not None and code == 0:  # it fails after others, which may not be the mutant's doing
                rest = [one for one in trial.tests if one != alone]
                waiting, more = chain([replace(trial, tests=rest)], waiting), True
            elif alone is None and code is not None and code > FAILED:
                failed = trial.tests[code - FAILED]
                swapped[collected.ask(replace(trial, tests=[failed]).task())] = trial, failed
            else:
                yield trial, _word(code)
        for number, code in children.ended():
            yield imported.pop(number), _word(code)


def _word(code: int | None) -> str:
    return "timeout" if code is None else "survived" if code == 0 else "killed"


def main() -> None:
    options = _arguments()
    os.chdir(ROOT)
    stop = time.monotonic() + options.seconds
    sources = {path: Path(path).read_text(encoding="utf-8") for path in wanted(options.modules)}
    made = {path: mutants(source) for path, source in sources.items()}
    if options.list:
        print("\n".join(f"{path}: {mutant}" for path, found in made.items() for mutant in found))
        return
    tests = {path: tuple(options.tests) or TESTS[path] for path in made}
    jobs = taken(made, options.sample, options.seed, options.share)
    answers = _kept(options.out)
    left = [(path, mutant) for path, mutant in jobs if (path, str(mutant)) not in answers]
    if left:
        preload()
        collected = Collected(sorted({str(file) for own in tests.values() for name in own for file in _files(name)}))
        known = _known(collected, options.reach, options.processes)
        own = {path: [one for one in known if one.within(named)] for path, named in tests.items()}
        print(f"{len(left)} mutants to try, {len(known)} tests", flush=True)
        whole = {path: Path(path).read_text(encoding="utf-8") for path in TESTS}
        users_of = functools.cache(lambda path: importing(path, whole))

        def trial(path: str, mutant: Mutant) -> Trial:
            runs = collected.found.on_import.get(path, frozenset())
            on_import = mutant.where in runs or pairs(sources[path], mutant.source) is None
            users = users_of(path) if on_import else ()
            asked = chosen(own[path], path, mutant, options.each, on_import=on_import, users=users)
            return Trial(path, mutant, asked, on_import or options.anew)

        trials = (trial(path, mutant) for path, mutant in left)
        for one, said in judged(trials, collected, options.processes, stop):
            answers[one.path, str(one.mutant)] = said
            if options.out is not None:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([one.path, str(one.mutant), said]) + "\n")
        collected.close()
    _report({(path, str(mutant)): answers.get((path, str(mutant))) for path, mutant in jobs}, made)


def _arguments() -> argparse.Namespace:
    parser = Parser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--sample", type=int, help="that many mutants of each file, at random; without it all")
    parser.add_argument("--seed", default="0", help="of the sample")
    parser.add_argument("--share", default="1/1", help="which part of the mutants: 3/8")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="when to end with what there is")
    parser.add_argument("--each", type=float, default=20.0, help="seconds of tests that a mutant is worth at most")
    parser.add_argument("--reach", type=Path, help="file of what each test enters (JSON lines), which is gone on with")
    parser.add_argument("--tests", nargs="+", default=(), help="files or folders of tests that are asked instead")
    parser.add_argument("--list", action="store_true", help="print the mutants, and try none")
    parser.add_argument("--anew", action="store_true", help="import every mutant's module anew, which is slow")
    parser.add_argument("--out", type=Path, help="file of answers (JSON lines), which is gone on with")
    return parser.parse_args()


def taken(made: dict[str, list[Mutant]], sample: int | None, seed: str, share: str) -> list[tuple[str, Mutant]]:
    """Return the mutants that are tried, in an order that takes all files alike: one that is cut short is fair."""
    first, of = (int(part) for part in share.split("/"))
    rounds = []
    for path, found in made.items():
        order = random.Random(f"{seed}:{path}").sample(found, len(found))[:sample]
        rounds += [(place, path, mutant) for place, mutant in enumerate(order)]
    rounds.sort(key=lambda one: one[:2])
    return [(path, mutant) for _, path, mutant in rounds][first - 1 :: of]


def _known(collected: Collected, kept: Path | None, processes: int) -> list[Reach]:
    """Return what the tests reach; from a file what it holds of tests whose own file has not changed since."""
    for file in collected.found.lost:
        print(f"{file} cannot be collected here", flush=True)
    now = {name: _stamp(name.partition("::")[0]) for name in collected.found.tests}
    lines = kept.read_text("utf-8").splitlines() if kept is not None and kept.exists() else []
    known = {one["test"]: Reach(**one) for stamp, one in map(json.loads, lines) if now.get(one["test"]) == stamp}
    missing = [name for name in now if name not in known]

    def tell(one: Reach) -> None:
        known[one.test] = one
        if kept is not None:
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps([now[one.test], asdict(one)]) + "\n")

    collected.reach(missing, processes, tell)
    left_out = sum(not one.entered for one in known.values())
    print(f"{left_out} of {len(known)} tests enter nothing, or fail or skip here by themselves", flush=True)
    return list(known.values())


@functools.cache
def _stamp(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]


def _files(named: str) -> list[Path]:
    path = Path(named)
    return sorted(path.glob("**/test_*.py")) if path.is_dir() else [path]


def _kept(out: Path | None) -> dict[tuple[str, str], str]:
    if out is None or not out.exists():
        return {}
    return {(path, mutant): answer for path, mutant, answer in map(json.loads, out.read_text("utf-8").splitlines())}


def _report(answers: dict[tuple[str, str], str | None], made: dict[str, list[Mutant]]) -> None:
    same, told, survivors = reasons(EQUIVALENT), reasons(SURVIVED), dict[str, str]()
    counts: dict[str, Counter[str]] = {path: Counter() for path in made}
    for (path, name), answer in answers.items():
        listed = unlined(path, name)
        said = "equivalent" if answer == "survived" and listed in same else answer or "left"
        counts[path][said] += 1
        if said == "survived":
            survivors[f"{path}: {name}"] = told.get(listed, "new")
    print(_machine())
    heads = f"{'mutants':>8} {'tried':>6} {'killed':>7} {'timeout':>8} {'equivalent':>11} {'survived':>9} {'share':>7}"
    print(f"{'module':36} {heads}")
    folders: dict[str, Counter[str]] = {}
    for path, count in counts.items():
        folder = str(Path(path).parent)
        folders[folder] = folders.get(folder, Counter()) + count
    for what, count in [*counts.items(), *folders.items(), ("all", sum(counts.values(), Counter[str]()))]:
        killed, late, alike, survived = (count[said] for said in ("killed", "timeout", "equivalent", "survived"))
        number = sum(len(found) for path, found in made.items() if what in (path, "all", str(Path(path).parent)))
        tried = count.total() - count["left"]
        share = f"{killed / (killed + survived):7.1%}" if killed + survived else f"{'-':>7}"
        print(f"{what:36} {number:8} {tried:6} {killed:7} {late:8} {alike:11} {survived:9} {share}")
    new = sum(why == "new" for why in survivors.values())
    print(f"\n{len(survivors)} survivors, {new} of them new:" if survivors else "\nno survivors")
    print("\n".join(f"{one}  # {why}" for one, why in sorted(survivors.items())))


def _machine() -> str:
    versions = []
    for name in ("numpy", "scipy", "torch", "pytest", "hypothesis"):
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            versions.append(f"no {name}")
    today = datetime.datetime.now(datetime.UTC).date()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}"
    return f"{today}, {machine}, Python {platform.python_version()}, {', '.join(versions)}"


if __name__ == "__main__":
    main()
