"""Kill whoever submits, 1,000 times, between any two operations on files or processes: is a point lost or run twice?

`python -m benchmarks.submission_kills [--kills N] [--real N] [--seed N]`. A study is submitted to a pretended scheduler
with tight limits by processes that are killed with SIGKILL at a random operation: before or after any open, read, write
(also in its middle), sync, rename, lock, or call of a SLURM command. They are commands (the same one again, status,
reconcile) and jobs that end and submit what waits. Requests to the scheduler get lost, are answered with a timeout
though they were accepted, or arrive long after they were given up. Then everything is let run to its end, and each
point must have run exactly once. A share of the kills is done to whole commands on the throwaway SLURM.
"""

from __future__ import annotations

import builtins
import fcntl
import io
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks._pretend_slurm import PretendSlurm
from study.config.schema import ClusterConfig
from study.executors import query
from study.job.__main__ import unwanted
from study.process import code_version
from study.reconcile.services import Services
from study.reconcile.step import step
from study.reconcile.triggers import JobEnd, Look, Resolve, Submit
from study.records import ledger
from study.records.point import point
from study.records.points import append_points
from study.status.observer import Observer
from study.storage.layout import StudyFolder
from train.spec.command_line import Parser
from train.spec.config import BudgetConfig, RunConfig
from train.spec.resolve import resolve

POINTS, MOST_JOBS, ARRAY = 24, 9, 5
CLUSTER = ClusterConfig(executor="slurm")
OPERATIONS = 260
"""About how many operations a command makes; kills are drawn over this, so that some commands end by themselves."""
KILLS_A_STUDY = 25
NO_GIT = code_version.CodeVersion("none", "clean", "")


class Killer:
    """Counts the operations of this process and kills it at one of them."""

    def __init__(self, at: int, chance: random.Random) -> None:
        self.left = at
        self.chance = chance

    def passes(self) -> None:
        """Be at a place between two operations."""
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def wrapped(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        """Return the operation with a place before and one after it."""

        def call(*arguments: Any, **options: Any) -> Any:
            self.passes()
            result = operation(*arguments, **options)
            self.passes()
            return result

        return call

    def torn(self, write: Callable[..., int]) -> Callable[..., int]:
        """Return a write that may be killed with a part of its bytes written."""

        def call(descriptor: int, data: bytes, *rest: Any) -> int:
            self.passes()
            if self.left == 1:
                write(descriptor, data[: self.chance.randrange(len(data) + 1)], *rest)
            self.passes()
            done = write(descriptor, data, *rest)
            self.passes()
            return done

        return call

    def install(self) -> None:
        """Put a place around every operation on files in this process."""
        for module, names in (
            (os, ("open", "close", "ftruncate", "fsync", "replace", "rename", "mkdir", "unlink", "scandir", "stat")),
            (fcntl, ("flock",)),
        ):
            for name in names:
                setattr(module, name, self.wrapped(getattr(module, name)))
        os.pwrite = self.torn(os.pwrite)
        io.open = builtins.open = self.wrapped(builtins.open)


@dataclass
class World:
    """One study, its scheduler and the clock that all its processes share."""

    root: Path
    seed: int
    kills: int = 0
    ends: int = 0
    fenced: int = 0
    stuck: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.slurm = PretendSlurm(self.root / "slurm", MOST_JOBS, ARRAY)
        self.slurm.start()
        self.study = StudyFolder(self.root / "s")
        self.shift = multiprocessing.Value("d", 0.0)
        self.now = time.time
        base = RunConfig()
        made = [point(resolve(replace(base, seed=s, budget=BudgetConfig(tokens=12_800)))) for s in range(POINTS)]
        self.keys = [p.key for p in made]
        append_points(self.study, made)

    def live(self, kills: int) -> None:
        """Let random things happen until so many processes were killed; then let everything come to its end."""
        while self.kills < kills:
            self._step(self.chance.randrange(1, OPERATIONS))
        self.slurm = replace(self.slurm, calm=True)
        self.slurm.deliver(1.0, self.chance)
        self._sleep(90.0)
        self._act(self._give_command, None)
        for _ in range(100 * POINTS):
            begun = self.slurm.begin(self.chance)
            if begun is not None:
                self._job(begun, None)
            elif ledger.read(self.study).waiting:
                self.stuck += 1  # only a later command helps
                self._act(self._look, None)
            else:
                return
        raise AssertionError(f"seed {self.seed}: it does not come to an end")

    def ran(self) -> Counter[int]:
        """Return how many points ran how often."""
        notes = [self.study.run(key).path / "ran" for key in self.keys]
        return Counter(len(note.read_text().splitlines()) if note.exists() else 0 for note in notes)

    def _step(self, at: int) -> None:
        """Let one thing happen: a command, or a job that runs and then submits what waits."""
        self._sleep(self.chance.choice((0.5, 3.0, 30.0, 90.0)))
        self.slurm.deliver(0.3, self.chance)
        begun = self.slurm.begin(self.chance) if self.chance.random() < 0.6 else None
        if begun is not None:
            self._job(begun, at)
            return
        actions: list[Callable[[Services], object]] = [
            self._give_command,
            self._look,
            lambda services: step(self.study, services, Resolve()),
        ]
        self._act(self.chance.choice(actions), at)

    def _give_command(self, services: Services) -> None:
        step(self.study, services, Submit(self.keys, CLUSTER))

    def _look(self, services: Services) -> None:
        observer = Observer(self.study, lambda batches: query(batches, services.runner))
        observer.refresh()
        step(self.study, services, Look(observer, observer.statuses()))

    def _job(self, begun: tuple[str, str, int], at: int | None) -> None:
        """Do what study.job does: nothing with a point that is not wanted, else run it; then submit what waits."""
        job_id, name, index = begun
        state = ledger.read(self.study)
        batch = state.batches.get(name)
        key = batch.keys[index] if batch is not None else ""
        if batch is None or unwanted(state, batch, key):
            self.fenced += 1
        else:
            run = self.study.run(key)
            run.path.mkdir(exist_ok=True)
            with (run.path / "ran").open("a") as note:
                note.write(f"{job_id}_{index}\n")
            run.outcome.write_text('{"state": "completed"}')
        self._act(lambda services: step(self.study, services, JobEnd([key])), at)
        self.slurm.end(job_id, index, "COMPLETED")

    def _sleep(self, seconds: float) -> None:
        self.shift.value += seconds

    def _act(self, action: Callable[[Services], object], at: int | None) -> None:
        """Do something in a process that is killed at its operation number `at`."""
        seed = self.chance.randrange(2**32)
        child = os.fork()
        if child == 0:
            self._in_child(action, at, random.Random(seed))
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            self.kills += 1
            return
        assert os.WEXITSTATUS(status) == 0, f"seed {self.seed}: a command failed, see above"
        self.ends += 1

    def _in_child(self, action: Callable[[Services], object], at: int | None, chance: random.Random) -> None:
        time.time = lambda: self.now() + self.shift.value
        code_version.current = lambda root=None: NO_GIT
        code_version.save = lambda version, folder: folder.code
        killer = Killer(at or -1, chance)
        answer = killer.wrapped(lambda command: self.slurm.run(command, chance))
        try:
            killer.install()
            action(Services(runner=answer, clock=time.time, sleep=self._sleep, report=lambda text: None))
        except ValueError:
            pass  # a refusal or a silence, said to the user
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)


def pretended(kills: int, seed: int) -> tuple[Counter[int], list[World]]:
    """Kill so many processes, over as many studies as it takes; return how many points ran how often."""
    ran, worlds = Counter[int](), list[World]()
    while (left := kills - sum(world.kills for world in worlds)) > 0:
        with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as scratch:
            world = World(Path(scratch), seed + len(worlds))
            world.live(min(left, KILLS_A_STUDY))
            ran += world.ran()
            worlds.append(world)
            print(f"  {sum(w.kills for w in worlds)} kills", file=sys.stderr, flush=True)
    return ran, worlds


def main() -> int:
    parser = Parser(description="Kill submitters at random operations; count lost and doubled points.")
    parser.add_argument("--kills", type=int, default=1000, help="in all")
    parser.add_argument("--real", type=int, default=40, help="of them on the throwaway SLURM")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    begun = time.monotonic()
    ran, worlds = pretended(given.kills - given.real, given.seed)
    total = sum(ran.values())
    print(
        f"pretended scheduler: {MOST_JOBS} jobs at most, arrays of {ARRAY}, {POINTS} points a study, 24 % of requests"
    )
    print("lost, late or accepted without an answer, 3 % of questions not answered")
    print(
        f"  killed             {sum(w.kills for w in worlds):,} processes; {sum(w.ends for w in worlds):,} others ended"
    )
    print(
        f"  points             {total:,} in {len(worlds)} studies; lost {ran[0]}, run twice {total - ran[0] - ran[1]}"
    )
    print(f"  given up, arrived  {sum(w.fenced for w in worlds):,} jobs that found that they were not wanted any more")
    print(f"  waited for a user  {sum(w.stuck for w in worlds)} times, though a job could have submitted")
    good = ran[1] == total
    if given.real:
        good &= real(given.real, given.seed)
    print(f"{given.kills:,} kills in {time.monotonic() - begun:.0f} s")
    print(f"goal (0 lost, 0 run twice): {'reached' if good else 'missed'}")
    return 0 if good else 1


def real(kills: int, seed: int) -> bool:
    """Kill whole commands on the throwaway SLURM at random moments; say what came of it."""
    from tests.slurm.install import unavailable

    reason = unavailable()
    if reason:
        print(f"no throwaway SLURM here: {reason}")
        return False
    from benchmarks._real_kills import run

    return run(kills, random.Random(seed))


if __name__ == "__main__":
    sys.exit(main())
