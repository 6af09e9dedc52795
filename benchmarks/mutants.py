"""How many small changes of the pure parts do the tests notice? `python -m benchmarks.mutants [MODULE …]`.

Each mutant (`benchmarks._mutations`) is loaded in a process of its own instead of its module, and of the tests of that
module (TESTS) those that enter the changed function are run, the quickest first, until one fails: killed. One that no
test notices survives, and is printed, unless `benchmarks/mutants_equivalent.txt` says why it changes nothing that
counts. MODULE: a file or folder (all of TESTS if none). `--sample 30` takes that many mutants of each file, at random;
`--share 3/8` every eighth mutant from the third on, for several machines; `--seconds` ends it cleanly with what it has;
`--out` keeps the answers, and goes on where it stopped. `--tests` asks other tests than TESTS says; `--list` prints the
mutants and tries none.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.pool import Pool
from pathlib import Path

from benchmarks._mutations import Mutant, mutants
from benchmarks._reach import Reach, by_file, chosen, reach
from benchmarks._trial import ROOT, judge, preload

EQUIVALENT = Path(__file__).with_name("mutants_equivalent.txt")
GRACE_SECONDS = 60.0
"""A mutant that takes ten times as long as its tests do, and this long besides, never ends: it is killed."""
SPEC = ("tests/train/spec",)
HEALTH = tuple(f"tests/train/health/test_health_{name}.py" for name in ("decisions", "tokens", "inside", "monitor"))
OPTIM = (
    "tests/train/optim/test_optim_rules.py",
    "tests/train/optim/test_optim_decay.py",
    "tests/train/optim/test_optim_steps.py",
    "tests/train/spec/test_recipe.py",
)
ANALYSIS = ("tests/analysis/exact", *(f"tests/analysis/test_{name}.py" for name in (
    "approaches", "as_asked", "curves", "engine", "fit", "foreign", "forms",
    "formulas", "frame", "human", "intervals", "law", "newton",
    "next", "pitfalls", "plans", "precision", "sentences", "settings", "simulation", "surface", "suspects", "valleys",
)))  # fmt: skip
SWEEPS = tuple(f"tests/sweeps/test_{name}.py" for name in (
    "asha_auto", "branch_designs", "densities", "draws", "isoflop_design", "pb2_choice", "pbt", "pbt_bandit",
    "pbt_decisions", "replay", "rungs", "samplers", "schedulers", "space", "trials",
))  # fmt: skip
RUN = (
    "again",
    "blame",
    "classify",
    "commands",
    "disk",
    "job",
    "last",
    "limits",
    "policy",
    "ranks",
    "reconcile",
    "settling",
    "where",
)
STUDY = (
    *(f"tests/study/execution/test_run_{name}.py" for name in RUN),
    *(
        f"tests/study/test_{name}.py"
        for name in (
            "hostile",
            "lineage",
            "names",
            "outcomes",
            "point",
            "selection",
            "sweep_table",
            "terminal",
            "units",
        )
    ),
    *(f"tests/study/search/test_search_{name}.py" for name in ("retrying", "outlook", "shown")),
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
    **{f"analysis/{name}.py": ANALYSIS for name in (
        "approaches", "bfgs", "bootstrap", "candidates", "comparison", "constraints", "cost", "covariance", "curvelaws",
        "design", "engine", "envelope", "errors", "evidence", "forms/base", "forms/batch", "forms/broken",
        "forms/downstream", "forms/dual", "forms/experts", "forms/farseer", "forms/kaplan", "forms/multi_power",
        "forms/overtraining", "forms/powers", "forms/precision", "forms/repeats", "frontier", "identified", "isoflop",
        "law", "lawfit", "losses", "newton", "observations", "precision", "prediction", "priors", "profile", "schedule",
        "simulation", "valleys",
        "backtest", "checks", "frontierpath", "pitfalls", "planlaws", "plans", "recommend", "rows", "sensitivity",
    )},
    **{f"sweeps/{name}.py": SWEEPS for name in (
        "correlation", "designs/isoflop", "designs/ladder", "designs/random_nd", "designs/trunk_and_branch", "drifting",
        "events", "rungs", "samplers/density", "samplers/sampler", "samplers/spread", "schedulers/asha_auto",
        "schedulers/asha_guarded", "schedulers/asha_promotion", "schedulers/asha_stopping", "schedulers/full",
        "schedulers/hyperband", "schedulers/pb2", "schedulers/pbt", "schedulers/scheduler", "space",
    )},
    **{f"study/{name}.py": STUDY for name in (
        "again", "classify", "names", "outcomes", "point", "policy", "reconcile", "search/retrying", "selection",
        "settling", "units", "where",
    )},
}  # fmt: skip
"""Files whose mutants are made, with the tests that should notice them. Of tests that others' machines cannot run
(without Hydra, say) a word is printed, and they notice nothing."""


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


@dataclass(frozen=True)
class Trial:
    """A mutant with the tests that are to notice it, in groups; its limit in s, and when all trials end (monotonic)."""

    path: str
    mutant: Mutant
    groups: list[tuple[str, ...]]
    limit: float
    stop: float

    def answer(self) -> tuple[str, str, str | None]:
        """Return path, mutant and what became of it; None if the time for all was over first."""
        left = self.stop - time.monotonic()
        if left <= 0:
            return self.path, str(self.mutant), None
        said = judge(self.path, self.mutant.source, self.groups, min(self.limit, left)) if self.groups else "survived"
        return self.path, str(self.mutant), None if said == "timeout" and left < self.limit else said


def main() -> None:
    options = _arguments()
    os.chdir(ROOT)
    stop = time.monotonic() + options.seconds
    made = {path: mutants(Path(path).read_text(encoding="utf-8")) for path in wanted(options.modules)}
    if options.list:
        print("\n".join(f"{path}: {mutant}" for path, found in made.items() for mutant in found))
        return
    tests = {path: tuple(options.tests) or TESTS[path] for path in made}
    jobs = taken(made, options.sample, options.seed, options.share)
    answers = _kept(options.out)
    preload()
    with multiprocessing.get_context("fork").Pool(options.processes, maxtasksperchild=20) as pool:
        known = _known(tests, options.reach, pool)
        trials = [
            _trial(path, mutant, chosen(known, tests[path], path, mutant.line, options.each), stop)
            for path, mutant in jobs
            if (path, str(mutant)) not in answers
        ]
        print(f"{len(trials)} mutants to try, {len(known)} tests", flush=True)
        for path, name, said in pool.imap_unordered(Trial.answer, trials):
            if said is None:
                continue
            answers[path, name] = said
            if options.out is not None:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([path, name, said]) + "\n")
    _report({(path, str(mutant)): answers.get((path, str(mutant))) for path, mutant in jobs}, made)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--sample", type=int, help="that many mutants of each file, at random; without it all")
    parser.add_argument("--seed", default="0", help="of the sample")
    parser.add_argument("--share", default="1/1", help="which part of the mutants: 3/8")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="when to end with what there is")
    parser.add_argument("--each", type=float, default=20.0, help="seconds of tests that a mutant is worth at most")
    parser.add_argument("--reach", type=Path, help="file of what each test enters; written if it is not there")
    parser.add_argument("--tests", nargs="+", default=(), help="files or folders of tests that are asked instead")
    parser.add_argument("--list", action="store_true", help="print the mutants, and try none")
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


def _known(tests: Mapping[str, Iterable[str]], kept: Path | None, pool: Pool) -> list[Reach]:
    """Return what the files' tests reach, from a file if there is one; a word on those that are left out."""
    files = sorted({str(file) for own in tests.values() for named in own for file in _test_files(Path(named))})
    known = [Reach(**one) for one in json.loads(kept.read_text("utf-8"))] if kept is not None and kept.exists() else []
    have = {one.test.partition("::")[0] for one in known}
    missing = [file for file in files if file not in have]
    missing.sort(key=lambda file: -Path(file).stat().st_size)
    for file, (found, said) in zip(missing, pool.imap(reach, missing, chunksize=1), strict=True):
        known += found
        print(f"{file}: {len(found)} tests{'; ' * bool(said)}{said}", flush=True)
    if kept is not None and missing:
        kept.write_text(json.dumps([asdict(one) for one in known]), encoding="utf-8")
    return known


def _test_files(named: Path) -> list[Path]:
    return sorted(named.glob("**/test_*.py")) if named.is_dir() else [named]


def _trial(path: str, mutant: Mutant, tests: Sequence[Reach], stop: float) -> Trial:
    return Trial(path, mutant, by_file(tests), GRACE_SECONDS + 10.0 * sum(one.seconds for one in tests), stop)


def _kept(out: Path | None) -> dict[tuple[str, str], str]:
    if out is None or not out.exists():
        return {}
    return {(path, mutant): answer for path, mutant, answer in map(json.loads, out.read_text("utf-8").splitlines())}


def _report(answers: dict[tuple[str, str], str | None], made: dict[str, list[Mutant]]) -> None:
    reasons, survivors = equivalent(), list[str]()
    counts: dict[str, Counter[str]] = {path: Counter() for path in made}
    for (path, name), answer in answers.items():
        said = "equivalent" if answer == "survived" and _unlined(path, name) in reasons else answer or "left"
        counts[path][said] += 1
        survivors += [f"{path}: {name}"] if said == "survived" else []
    print(_machine())
    heads = f"{'mutants':>8} {'tried':>6} {'killed':>7} {'equivalent':>11} {'survived':>9} {'share':>7}"
    print(f"{'module':36} {heads}")
    folders: dict[str, Counter[str]] = {}
    for path, count in counts.items():
        folder = str(Path(path).parent)
        folders[folder] = folders.get(folder, Counter()) + count
    for what, count in [*counts.items(), *folders.items(), ("all", sum(counts.values(), Counter[str]()))]:
        killed, same = count["killed"] + count["timeout"], count["equivalent"]
        number = sum(len(found) for path, found in made.items() if what in (path, "all", str(Path(path).parent)))
        tried = count.total() - count["left"]
        share = f"{killed / (tried - same):7.1%}" if tried > same else f"{'-':>7}"
        print(f"{what:36} {number:8} {tried:6} {killed:7} {same:11} {count['survived']:9} {share}")
    print("\nsurvivors:" if survivors else "\nno survivors")
    print("\n".join(sorted(survivors)))


def _machine() -> str:
    versions = []
    for name in ("numpy", "scipy", "torch", "pytest", "hypothesis"):
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            versions.append(f"no {name}")
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {', '.join(versions)}"


if __name__ == "__main__":
    main()
