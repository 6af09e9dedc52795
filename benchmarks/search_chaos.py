"""Searches under random kills: workers, their trainers and the processes that start them die at any moment.

An ASHA and a PBT study are run twice by a stand-in trainer whose losses follow from settings and tokens: undisturbed,
and under SIGKILL at random moments. With one worker at a time decisions must be the same to the last one: the same
trials, the same values in every rung, the same copies, the same winner. With several at once the order of their reports
is chance, with kills or without, and ASHA promotes by what has been reported: there it is the same trials, no rung
shorter than its share, the same winner; the share of chance is shown by undisturbed searches in other orders. In all of
them each unit in the log must be what the scheduler decides from the records before it, and stay that when all that was
lost is struck out: a search in which nobody is killed and reports come in this order is the same. What was trained, by
the trainers' own notes, must stay within what the log charged, and that within the budget.
"""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from study.config.schema import StudyConfig, plain
from study.search.event_log import EventLog
from study.search.settings import Settings, described, save
from study.search.state import Search
from study.search.trial_queue import TrialQueue
from study.storage.layout import StudyFolder
from study.workers import worker
from sweeps.history import Ended, Event, Reported, Started, Unit
from sweeps.replay.decisions import decisions, undisturbed
from sweeps.schedulers.asha_promotion import AshaPromotion
from sweeps.schedulers.base import Scheduler
from sweeps.schedulers.pbt import PopulationBased
from sweeps.space import Interval
from train.spec.command_line import Parser
from train.spec.config import BudgetConfig

REPOSITORY = Path(__file__).resolve().parents[1]
TRAINER = f"{sys.executable} -S {REPOSITORY / 'benchmarks/_chaos_trainer.py'}"
STAY = """
import sys
from pathlib import Path
from study.storage.layout import StudyFolder
from study.workers.pool import stay
sys.exit(stay(StudyFolder(Path(sys.argv[1])), int(sys.argv[2])))
"""
R, ETA, LEASE = 27_008, 3, 0.5


@dataclass
class Study:
    """A search under test: how many workers at once, and who was killed so far."""

    folder: StudyFolder
    lanes: int
    seconds: float
    kills: Counter[str]
    forked: set[int] = field(default_factory=set)

    def run(self, rng: random.Random | None = None, kills: int = 0) -> Search:
        """Run to the end, killing at random moments `kills` times first."""
        while sum(self.kills.values()) < kills:
            assert rng is not None
            if not self._round(rng):
                break
        while not self.search.over:
            workers = [self._fork() for _ in range(self.lanes)]
            while any(_lives(one) for one in workers):
                self._reap()
                time.sleep(0.02)
            self._alone()
        return self.search

    @property
    def search(self) -> Search:
        """The state that the log adds up to."""
        return TrialQueue.of(self.folder).search

    def _round(self, rng: random.Random) -> bool:
        """Start, kill somebody at a random moment, wait until nobody is left; False where the search is over."""
        if self.search.over:
            return False
        who = rng.choice(("submitter", "worker", "worker", "trainer and worker", "trainer"))
        submitter = self._stay() if who == "submitter" else None
        workers = [] if submitter else [self._fork() for _ in range(self.lanes)]
        alive = submitter.is_running if submitter else workers[0].is_running
        events = len(TrialQueue.of(self.folder).log.records) + rng.choice((0, 1, 2, 3, 4))
        while len(TrialQueue.of(self.folder).log.records) < events and alive():
            self._reap()
            time.sleep(0.02)
        time.sleep(rng.uniform(0.0, 1.5 * self.seconds))
        victim = submitter or rng.choice(workers)
        trainers = _children(victim)
        chosen = {"trainer": trainers, "trainer and worker": [victim, *trainers]}.get(who, [victim])
        if _lives(victim) and [one for one in chosen if _end(one, signal.SIGKILL)]:
            self.kills[who] += 1
        if self.lanes > 1:
            time.sleep(rng.uniform(0.0, 2 * self.seconds))
        self._alone()
        return True

    def _alone(self) -> None:
        """End what is left of a round, wait until it has, and until its leases have run out."""
        for process in self._mine():
            _end(process, signal.SIGTERM)
        while any(True for _ in self._mine()):
            self._reap()
            time.sleep(0.02)
        time.sleep(LEASE)

    def _mine(self) -> Iterator[psutil.Process]:
        """Yield the processes that live and work on this study: those started here, and those named by its folder."""
        for process in psutil.process_iter():
            try:
                mine = process.pid in self.forked or any(str(self.folder.path) in word for word in process.cmdline())
            except psutil.Error:
                continue
            if mine and _lives(process):
                yield process

    def _fork(self) -> psutil.Process:
        """Start a worker as a copy of this process, which has imported all it needs already."""
        pid = os.fork()
        if pid:
            self.forked.add(pid)
            return psutil.Process(pid)
        code = 1
        try:
            log = os.open(self.folder.path / "chaos.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            os.setsid()
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.environ.update(self._environment())
            code = worker.main([str(self.folder.path), "--name", "pool"])
        finally:
            os._exit(code)

    def _stay(self) -> psutil.Process:
        """Start what `python -m study.sweep` is once it has written the search: it starts workers and stays."""
        with (self.folder.path / "chaos.log").open("ab") as log:
            command = [sys.executable, "-c", STAY, str(self.folder.path), str(self.lanes)]
            started = subprocess.Popen(
                command, env={**os.environ, **self._environment()}, stdout=log, stderr=log, start_new_session=True
            )
        self.forked.add(started.pid)
        return psutil.Process(started.pid)

    def _environment(self) -> dict[str, str]:
        ours = {"STUDY_TRAINER": TRAINER, "STAND_IN_SECONDS": str(self.seconds)}
        return {**ours, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}

    def _reap(self) -> None:
        """Take notice of children that have ended."""
        for pid in list(self.forked):
            with suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == pid:
                    self.forked.discard(pid)


def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="with one worker at a time, over both studies")
    parser.add_argument("--more", type=int, default=40, help="with several workers at once, over both studies")
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=0.3, help="length of a unit [s]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", help="SCHEDULER:WORKERS only, in this process")
    options = parser.parse_args()
    if options.part is None:
        together(options.lanes)
        return
    scheduler, lanes = options.part.split(":")[0], int(options.part.split(":")[1])
    kills = (options.kills if lanes == 1 else options.more) // 2
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        study = make(Path(scratch) / f"{scheduler}-{lanes}-chaos", scheduler, lanes, options.seconds, kills)
        print(f"{compare(study, kills, options.seed)}, {time.monotonic() - began:.0f} s", flush=True)


def together(lanes: int) -> None:
    """Run all parts side by side: they mostly wait. Raises SystemExit where one fails."""
    parts = [f"{scheduler}:{count}" for scheduler in ("asha_promotion", "pbt") for count in (1, lanes)]
    command = [sys.executable, "-m", "benchmarks.search_chaos", *sys.argv[1:], "--part"]
    running = [subprocess.Popen([*command, part], stdout=subprocess.PIPE, text=True) for part in parts]
    for one in running:
        print((one.communicate()[0]).strip(), flush=True)
    if any(one.returncode for one in running):
        raise SystemExit(1)


def compare(study: Study, kills: int, seed: int) -> str:
    """Run a study undisturbed and disturbed; return what was found. AssertionError where they differ."""
    scheduler, lanes = TrialQueue.of(study.folder).settings.scheduler, study.lanes
    calm = make(study.folder.path.with_name(f"{study.folder.name}-calm"), scheduler, lanes, 0.0, kills).run()
    search = study.run(random.Random(seed), kills)
    exactly = lanes == 1
    check(calm, search, exactly)
    units, left = again(study.folder)
    charged = trained(study.folder, search)
    assert search.settings.budget is not None
    assert charged <= search.spent <= search.settings.budget, "more was trained than charged, or than allowed"
    who = ", ".join(f"{count} {name}" for name, count in sorted(study.kills.items()))
    best = search.incumbent
    assert best is not None
    same = "every decision the same" if exactly else "the same trials and the same winner"
    if not exactly and scheduler == "pbt":  # whom a member can copy depends on who has come how far
        same = "all members at the end, as many"
    chance = f"; {orders(calm, lanes)}" if not exactly and scheduler != "pbt" else ""
    return (
        f"{scheduler}, {lanes} worker(s): {sum(study.kills.values())} kills ({who}); {len(search.trials)} trials, "
        f"{counts(search)}; {same} as undisturbed ({counts(calm)}){chance}; all {units} units as decided from the log "
        f"before them, and the {left} without losses as well; winner {best.key} at {best.value:.4f}; "
        f"{search.lost_units} units given to others; trained {charged:.3g} <= charged {search.spent:.3g} <= budget "
        f"{search.settings.budget:.3g} FLOPs"
    )


def make(folder: Path, scheduler: str, lanes: int, seconds: float, kills: int) -> Study:
    """Write a search whose budget would bear every kill to cost a whole unit."""
    study = StudyFolder(folder)
    base = replace(StudyConfig().run(), budget=BudgetConfig(tokens=R))
    space = {"optim.lr": described(Interval(2e-3, 4e-1, log=True))}
    population = scheduler == "pbt"
    settings = Settings(
        scheduler=scheduler,
        sampler="random",
        r=R // 10 if population else 1_000,
        R=R,
        eta=ETA,
        trials=6 if population else 27,
        seed=3,
        budget=2_371_584.0 * R * (20 + kills),
        lease=LEASE,
        space=space,
        base=plain(asdict(base)),
    )
    save(study, settings)
    study.points.touch()
    study.study.write_text("cluster: {executor: local}\ntracking: {enabled: false}\n", encoding="utf-8")
    return Study(study, lanes, seconds, Counter())


def check(calm: Search, search: Search, exactly: bool) -> None:
    """Compare two searches that have ended."""
    assert search.over
    assert not any(trial.failed for trial in search.trials.values() if not math.isfinite(trial.value))
    first, second = calm.incumbent, search.incumbent
    assert first is not None and second is not None
    if exactly:
        assert described_by(calm) == described_by(search), "decisions differ from those of the undisturbed search"
        assert first.key == second.key
        return
    assert calm.trials.keys() == search.trials.keys()
    if isinstance(search.scheduler, AshaPromotion):
        assert configs(calm) == configs(search)
        assert first.key == second.key, "another trial won"
        for lower, upper in zip(search.scheduler.rungs, search.scheduler.rungs[1:], strict=False):
            assert len(upper.entries) >= len(lower.entries) // ETA, f"trials of rung {lower.level} were not promoted"
    else:
        assert all(trial.at == R for trial in search.trials.values())


def described_by(search: Search) -> list[Any]:
    """Return all that a search decided: trials, settings, values by resource, copies."""
    trials = [(t.number, t.key, dict(t.config), dict(t.values)) for _, t in sorted(search.trials.items())]
    scheduler = search.scheduler
    return [trials, scheduler.lineage if isinstance(scheduler, PopulationBased) else counts(search)]


class Noted(Scheduler):
    """A scheduler, and what it was told: values of workers that had been given up are no part of it."""

    def __init__(self, inner: Scheduler) -> None:
        self.inner, self.events = inner, list[Event]()

    def apply(self, event: Event) -> None:
        """Write an event down."""
        self.events.append(event)
        self.inner.apply(event)

    def candidates(self) -> Iterator[Unit]:
        """Yield what the scheduler wants."""
        yield from self.inner.candidates()


def again(folder: StudyFolder) -> tuple[int, int]:
    """Go through a log again, also without losses; return how many units that makes. ValueError where one differs."""
    settings, log = TrialQueue.of(folder).settings, EventLog(folder.events)
    search = Search(settings)
    search.scheduler = noted = Noted(search.scheduler)
    for record in log.read():
        search.apply(record)
    kept = undisturbed(noted.events)
    return decisions(settings.make_scheduler(), noted.events), decisions(settings.make_scheduler(), kept)


def orders(calm: Search, lanes: int, count: int = 200) -> str:
    """Return how many trials came to each rung in undisturbed searches whose workers end in orders drawn at random."""
    found: list[list[int]] = []
    for seed in range(count):
        scheduler, rng, running = calm.settings.make_scheduler(), random.Random(seed), list[Unit]()
        assert isinstance(scheduler, AshaPromotion)
        while True:
            while len(running) < lanes and (unit := scheduler.decide()) is not None:
                scheduler.apply(Started(unit))
                running.append(unit)
            if not running:
                break
            unit = running.pop(rng.randrange(len(running)))
            value = calm.trials[unit.trial].values.get(unit.until)
            if value is None:  # the stand-in's loss falls alike for all
                first = calm.trials[unit.trial].values[calm.settings.r]
                value = first - 1000.0 / calm.settings.r + 1000.0 / unit.until
            scheduler.apply(Reported(unit.trial, unit.until, value))
            scheduler.apply(Ended(unit.trial, "reached"))
        found.append([len(rung.entries) for rung in scheduler.rungs])
    spread = "/".join(
        f"{min(rung)}-{max(rung)}" if min(rung) < max(rung) else f"{rung[0]}" for rung in zip(*found, strict=True)
    )
    return f"{count} undisturbed orders of {lanes} workers: {spread}"


def configs(search: Search) -> dict[int, dict[str, Any]]:
    """Return the settings of each trial."""
    return {number: dict(trial.config) for number, trial in search.trials.items()}


def counts(search: Search) -> str:
    """Return how many trials each rung holds, or how many copies a population made."""
    if isinstance(search.scheduler, PopulationBased):
        return f"{len(search.scheduler.lineage)} copies"
    assert isinstance(search.scheduler, AshaPromotion)
    return "rungs " + "/".join(str(len(rung.entries)) for rung in search.scheduler.rungs)


def trained(folder: StudyFolder, search: Search) -> float:
    """Return what the trainers noted to have done [FLOPs]: each one that ended its unit, and each that began one."""
    total = 0.0
    cost = search.trials[0].flops_per_token
    for key in search.keys:
        diary = folder.run(key).path / "diary"
        lines = diary.read_text(encoding="utf-8").splitlines() if diary.exists() else []
        total += sum((int(until) - int(begun)) * cost for begun, until in (line.split() for line in lines))
    return total


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children())
    except psutil.Error:
        return []


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _end(process: psutil.Process, number: int) -> bool:
    """Send a signal; False where nobody is left to get it."""
    try:
        process.send_signal(number)
    except psutil.Error:
        return False
    return True


if __name__ == "__main__":
    main()
