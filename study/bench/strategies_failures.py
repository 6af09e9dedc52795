"""Failures planted for real in a strategy's run, and what was seen: nothing here is concluded from the code."""

from __future__ import annotations

import contextlib
import math
import os
import re
import resource
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from study.bench.gpus import gpu_bytes
from study.bench.strategies_runs import NEVER, Records, last_words, memory_of, reason, untraced, write_config
from study.bench.strategies_settings import Asked, Strategy
from study.bench.trainer_ranks import Ended, Launch, run_ranks
from study.process.children import Started
from train.spec.accounting.step import sheet
from train.spec.gpu_share import BESIDE, VARIABLE

VICTIM = 1
"""The rank that is hit."""
PARTS = 6
"""A run saves a checkpoint after each of so many parts of its steps."""
LEAST_SECONDS = 1.0
"""No rank is started for less."""
STARTS = 5
"""How often a run is started for its failures."""
_RESUMED, _TORN = re.compile(r"resumed from step-(\d+)"), re.compile(r"(step-\d+ is incomplete.*)")
KILLED, MEMORY, DAMAGED = "a rank is killed (SIGKILL)", "out of memory on a rank", "the newest checkpoint is damaged"


@dataclass(frozen=True)
class Failure:
    """One failure of one strategy. planted: what was done; None: it was not, `happened` says why.

    seconds: until the last other rank had ended. codes: how the ranks ended. happened: what they said. afterwards: what
    the next start of the run did. lost: steps that were recorded, and had to be taken again. change: the largest
    relative difference of the losses since then from those of the undisturbed run; 0: bit for bit the same.
    """

    strategy: str
    failure: str
    planted: str | None
    happened: str
    seconds: float | None = None
    codes: tuple[str, ...] = ()
    afterwards: str = ""
    lost: int | None = None
    change: float | None = None


@dataclass
class Plant:
    """Watches a run and strikes once. when: whether the moment has come; strike: does it, and says what."""

    when: Callable[[Mapping[int, Started]], bool]
    strike: Callable[[Started], str | None]
    at: float = math.nan
    done: str | None = None

    def __call__(self, processes: Mapping[int, Started]) -> None:
        """Look at the run."""
        if self.done is None and self.when(processes):
            self.done = self.strike(processes[VICTIM])
            self.at = time.monotonic()


class Patient:
    """A run of a strategy that is disturbed and started again, one failure after the other.

    Each failure has `asked.limit` seconds, from `begin` on.
    """

    def __init__(self, asked: Asked, strategy: Strategy, root: Path, losses: Sequence[float]) -> None:
        """`losses`: of each step of the same run, undisturbed."""
        self.asked, self.strategy, self.losses = asked, strategy, losses
        self.folder, self.every = root / f"{strategy.name}-failures", asked.all_steps // PARTS
        self.begin()
        runtime = replace(asked.base.runtime, data_root=str(root), checkpoint_seconds=NEVER)
        runtime = replace(runtime, checkpoint_keep_steps=self.every)
        write_config(self.folder, replace(untraced(asked.config(strategy)), runtime=runtime))

    def begin(self) -> None:
        """Begin with the next failure."""
        self._end = time.monotonic() + self.asked.limit

    @property
    def left(self) -> float:
        """How many seconds of this failure are left."""
        return self._end - time.monotonic()

    def reach(self, part: int) -> None:
        """Train to the end of a part, where the run is not as far: it was begun by an earlier command."""
        if self.records().step < part * self.every:
            self.start(lambda _: None, part, {})

    def start(
        self, plant: Callable[[Mapping[int, Started]], None], part: int, environment: Mapping[int, Mapping[str, str]]
    ) -> Ended:
        """Start the run until the end of one of its parts; the last one: to its end."""
        until = None if part == PARTS else part * self.every * self.asked.batch
        launch = Launch(self.folder, self.asked.ranks, until, self.strategy.saves, environment)
        return run_ranks(launch, plant, grace=self.asked.hang, most_seconds=max(self.left, LEAST_SECONDS))

    def records(self) -> Records:
        """Return what is recorded of training so far."""
        found = Records(self.folder)
        found.look()
        return found

    def restart(self, part: int) -> tuple[str, int]:
        """Start the run once more; return what it did in words, and after which step it went on (0: it began anew)."""
        if self.left < LEAST_SECONDS:
            return f"not started again: the limit of {self.asked.limit:g} s was over", self.records().step
        done = self.start(lambda _: None, part, {})
        told = done.ranks[0].said
        resumed = next((found for line in told if (found := _RESUMED.search(line))), None)
        at = 0 if resumed is None else int(resumed[1])
        said = f"resumes from step {at}" if resumed is not None else "begins anew: there is no checkpoint"
        torn = next((found for line in told if (found := _TORN.search(line))), None)
        said = f"'{torn[1]}': {said}" if torn is not None else said
        if done.failed is not None:
            why = f"rank {done.failed.rank}: {done.failed.how}: {_short(last_words(done.failed.said))}"
            return f"{said}, then {why}", at
        return f"{said}, trains to step {self.records().step}", at

    def change(self, after: int) -> float | None:
        """Return how far the losses of the steps after `after` are from the undisturbed run's, None without any."""
        found = self.records().train
        pairs = [(found[step]["loss"], self.losses[step - 1]) for step in found if after < step <= len(self.losses)]
        return max((abs(here - there) / abs(there) for here, there in pairs), default=None)


def undisturbed(asked: Asked, strategy: Strategy, root: Path) -> tuple[tuple[float, ...], Ended]:
    """Train the run in which failures will be caused, without one; return its losses, and how it ended."""
    folder = root / f"{strategy.name}-undisturbed"
    runtime = replace(asked.base.runtime, data_root=str(root), checkpoint_seconds=NEVER)
    write_config(folder, replace(untraced(asked.config(strategy)), runtime=runtime))
    done = run_ranks(Launch(folder, asked.ranks, saves=False), grace=asked.hang, most_seconds=asked.limit)
    found = Records(folder)
    found.look()
    return tuple(found.train[step]["loss"] for step in sorted(found.train)), done


def failures(patient: Patient, known: Collection[str] = (), say: Callable[[str], None] = print) -> Iterator[Failure]:
    """Plant each failure in turn that is not known yet, say so before, and yield what happened."""
    for failure, (part, plant) in PLANTED.items():
        if failure not in known:
            say(f"{patient.strategy.name}: {failure}, at most {patient.asked.limit:g} s")
            patient.begin()
            patient.reach(part)
            yield plant(patient)


def sick(strategy: Strategy, done: Ended) -> Iterator[Failure]:
    """Yield the failures of a strategy whose undisturbed run failed: none was planted."""
    for failure in PLANTED:
        why = f"not planted: the undisturbed run failed: {reason(done)}"
        yield Failure(strategy.name, failure, None, why, done.seconds, tuple(rank.how for rank in done.ranks))


def killed(patient: Patient) -> Failure:
    """Kill a rank in the middle, without warning."""
    records, least = Records(patient.folder), 2 * patient.every + 1

    def far_enough(processes: Mapping[int, Started]) -> bool:
        del processes
        records.look()
        return records.step >= least

    def strike(victim: Started) -> str:
        os.kill(victim.pid, signal.SIGKILL)
        return f"SIGKILL to rank {VICTIM} after step {records.step}"

    return _planted(patient, KILLED, Plant(far_enough, strike), (PARTS, 4), {})


def out_of_memory(patient: Patient) -> Failure:
    """Leave a rank too little memory: on a GPU torch's cap for it, on a CPU no more address space than it has."""
    if patient.asked.device == "cpu":
        plant = Plant(lambda processes: _opened(processes[0], patient.folder / "metrics.jsonl"), _suspend)
        return _planted(patient, MEMORY, plant, (5, 5), {})
    peak = sheet(patient.asked.config(patient.strategy), patient.asked.axes(patient.strategy), "cuda").peak.total
    total = gpu_bytes()
    if total is None:
        return Failure(patient.strategy.name, MEMORY, None, "not planted: nvidia-smi does not tell the GPU's memory")
    share = (peak // 2 + BESIDE) / total
    told = f"rank {VICTIM} may have half of its predicted peak ({VARIABLE}={share:.3f})"
    plant = Plant(lambda _: True, lambda _: told)
    return _planted(patient, MEMORY, plant, (5, 5), {VICTIM: {VARIABLE: str(share)}})


def damaged(patient: Patient) -> Failure:
    """Change a byte in the newest checkpoint and start the run."""
    name = patient.strategy.name
    shards = sorted((patient.folder / "checkpoints").glob("step-*/__*.distcp"))
    if not shards:
        none = "there is no checkpoint" if patient.strategy.saves else "this strategy saves no checkpoints"
        return Failure(name, DAMAGED, None, f"not planted: {none}")
    newest = shards[-1]
    with newest.open("r+b") as file:
        file.seek(newest.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0xFF]))
    step, recorded = int(newest.parent.name.partition("-")[2]), patient.records().step
    said, at = patient.restart(PARTS)
    planted = f"a byte of {newest.parent.name}/{newest.name} changed"
    return Failure(name, DAMAGED, planted, "", afterwards=said, lost=step - at, change=patient.change(recorded))


PLANTED: Mapping[str, tuple[int, Callable[[Patient], Failure]]] = {
    KILLED: (0, killed),
    MEMORY: (4, out_of_memory),
    DAMAGED: (5, damaged),
}
"""What does each failure, and to the end of which part the run has come before it."""


def _planted(
    patient: Patient, failure: str, plant: Plant, parts: tuple[int, int], environment: Mapping[int, Mapping[str, str]]
) -> Failure:
    """Start the run with a plant, then without; parts: how far each is to go."""
    name, before = patient.strategy.name, patient.records().step
    done = patient.start(plant, parts[0], environment)
    if plant.done is None or done.failed is None:
        why = "the run ended before it" if done.failed is None else reason(done)
        why = why if plant.done is None else f"{plant.done}, and the run went on to its end"
        return Failure(name, failure, None, f"not planted: {why}", done.seconds, tuple(r.how for r in done.ranks))
    victim, others = done.ranks[VICTIM], [rank for rank in done.ranks if rank.rank != VICTIM]
    since = plant.at if victim.code == -signal.SIGKILL else victim.at
    words = "; ".join(
        f"rank {rank.rank}: {_short(last_words(rank.said))}" for rank in (others if victim.code < 0 else done.ranks)
    )
    step = max(patient.records().step, before)
    said, at = patient.restart(parts[1])
    return Failure(
        strategy=name,
        failure=failure,
        planted=plant.done,
        happened=words,
        seconds=max(rank.at for rank in others) - since,
        codes=tuple(rank.how for rank in done.ranks),
        afterwards=said,
        lost=step - at,
        change=patient.change(step),
    )


def _suspend(victim: Started) -> str | None:
    found = memory_of(victim.pid)
    if found is None:
        return None
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(victim.pid, resource.RLIMIT_AS, (found.space, found.space))
    return f"RLIMIT_AS of rank {VICTIM} set to what it has as training begins, {found.space / (1 << 30):.2f} GiB"


def _opened(process: Started, path: Path) -> bool:
    """Say whether a process has a file open."""
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if link.readlink() == path.absolute():
                    return True
    return False


def _short(line: str, most: int = 160) -> str:
    line = " ".join(line.split())
    return line if len(line) <= most else line[: most - 1] + "…"
