"""One strategy's run: the ordinary trainer on ranks of this machine, and what its records, traces and memory say."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from study.bench.strategies_settings import WARM, Asked, Strategy
from study.bench.traced_messages import communication
from study.bench.trainer_ranks import Ended, Launch, run_ranks
from study.diagnosis.of_traces import read_traces
from study.process.children import Started
from study.records.shapes import METRICS
from study.storage.shapes import record_in
from train.spec.accounting.step import sheet
from train.spec.communication.step import step_messages
from train.spec.config import ProfileConfig, RunConfig
from train.spec.yamlfile import dump

NEVER = 1e9
"""Seconds between checkpoints of runs that save by the number of steps, if at all."""
KIB, GIB = 1024, 1 << 30
_SOURCE = re.compile(r"\[/\S+\.(cc|cpp|h):\d+\] ")


@dataclass(frozen=True)
class Memory:
    """A process's memory as Linux counts it [bytes]: resident now, the most that was, and its address space."""

    resident: int
    peak: int
    space: int


@dataclass(frozen=True)
class Row:
    """What one strategy was seen to do; a figure is None where there is none, `error` says why nothing was measured.

    seconds_step: median of the timed steps. memory_predicted: tensors at the peak (train.spec.accounting), memory_gpu:
    torch's peak on the first GPU, resident, resident_before: of the fullest rank's process, its peak until the last
    timed step and what it had as training began [bytes]. exposed: seconds of a traced step in which messages were under
    way, or other ranks waited for, and nothing was calculated. overlap: share of communication under computation.
    messages, sent: of a rank and step by the formulas [bytes]; counted: messages of a traced step. losses: by step.
    """

    strategy: str
    error: str | None = None
    seconds_step: float | None = None
    spread: float | None = None
    tokens_per_second: float | None = None
    memory_predicted: int | None = None
    memory_gpu: float | None = None
    resident: int | None = None
    resident_before: int | None = None
    traced_step: float | None = None
    exposed: float | None = None
    overlap: float | None = None
    messages: int | None = None
    sent: float | None = None
    counted: float | None = None
    losses: tuple[float, ...] = ()
    traces: tuple[str, ...] = ()


def write_config(folder: Path, config: RunConfig) -> None:
    """Make a run's folder with its frozen config."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(dump(asdict(config)), encoding="utf-8")


def memory_of(pid: int) -> Memory | None:
    """Return a process's memory; None where it has ended, or Linux does not tell."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    sizes = [line.partition(":") for line in lines if line.endswith("kB")]
    found = {name: int(rest.split()[0]) * KIB for name, _, rest in sizes}
    try:
        return Memory(found["VmRSS"], found["VmHWM"], found["VmSize"])
    except KeyError:  # it has just ended
        return None


class Records:
    """The training records of a run's metrics.jsonl, read as they come. begun: the file is there."""

    def __init__(self, folder: Path) -> None:
        self._path, self._at = folder / "metrics.jsonl", 0
        self.begun = False
        self.train: dict[int, Mapping[str, float]] = {}

    @property
    def step(self) -> int:
        """The last step that is recorded; 0: none."""
        return max(self.train, default=0)

    def look(self) -> None:
        """Read what was added."""
        self.begun = self._path.exists()
        if not self.begun:
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            added = file.read()
        whole = added[: added.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.splitlines():
            record = record_in(line, METRICS)
            if record is not None and record["kind"] == "train" and record.get("step") is not None:
                self.train[record["step"]] = {name: at for name, at in record["metrics"].items() if at is not None}


class Watched:
    """Follows a run: its steps, said now and then, and the memory of its ranks until the last timed step."""

    def __init__(self, asked: Asked, name: str, folder: Path, log: Callable[[str], None]) -> None:
        self._asked, self._name, self._log = asked, name, log
        self.records = Records(folder)
        self.before: dict[int, Memory] = {}
        self.peak: dict[int, Memory] = {}
        self._said = 0

    def __call__(self, processes: Mapping[int, Started]) -> None:
        """Look at it."""
        self.records.look()
        step, of = self.records.step, self._asked.all_steps
        for rank, process in processes.items():
            found = memory_of(process.pid)
            if found is not None and not self.records.begun:
                self.before[rank] = found
            if found is not None and step < WARM + self._asked.steps:
                self.peak[rank] = found
        if step >= self._said + max(1, of // 4):
            self._log_step(step, of)

    def ended(self) -> None:
        """Read what the run wrote after the last look at it, and say its last step."""
        self.records.look()
        if self.records.step > self._said:
            self._log_step(self.records.step, self._asked.all_steps)

    def _log_step(self, step: int, of: int) -> None:
        self._said = step
        self._log(f"{self._name}: step {step} of {of}")


def measure(asked: Asked, strategy: Strategy, root: Path, out: Path, log: Callable[[str], None]) -> Row:
    """Train with a strategy in a folder below `root`, which has the corpus; keep what it wrote below `out`.

    A run that fails is a row that says so.
    """
    folder = root / strategy.name
    config = asked.config(strategy)
    config = replace(config, runtime=replace(config.runtime, data_root=str(root), checkpoint_seconds=NEVER))
    write_config(folder, config)
    watched = Watched(asked, strategy.name, folder, log)
    done = run_ranks(Launch(folder, asked.ranks, saves=False), watched)
    watched.ended()
    kept = keep(folder, out / strategy.name)
    failed = done.failed is not None
    row = Row(strategy.name, error=reason(done)) if failed else row_of(asked, strategy, watched, kept)
    log(f"{strategy.name}: " + (row.error or f"{row.tokens_per_second:,.0f} tokens/s"))
    return row


def reason(done: Ended) -> str:
    """Return why the first rank that failed did, in its own words."""
    assert done.failed is not None
    return f"rank {done.failed.rank}: {done.failed.how}: {last_words(done.failed.said)}"


def last_words(said: Sequence[str]) -> str:
    """Return the last line in which a rank says what was wrong, else its last line, without places in C++ code."""
    told = [line for line in said if any(word in line.split(":")[0] for word in ("Error", "error", "Exception"))]
    return _SOURCE.sub("", (told or list(said) or ["it said nothing"])[-1]).strip()


def keep(folder: Path, kept: Path) -> list[Path]:
    """Copy a run's config, records, output and traces to a folder, over those of an earlier one; return the traces."""
    (kept / "profile").mkdir(parents=True, exist_ok=True)
    for pattern in ("config.yaml", "metrics.jsonl", "rank-*.log", "profile/step-*-rank-*.json.gz"):
        for old in kept.glob(pattern):
            old.unlink()
        for new in sorted(folder.glob(pattern)):
            shutil.copyfile(new, kept / new.relative_to(folder))
    return sorted((kept / "profile").glob("step-*-rank-*.json.gz"))


def row_of(asked: Asked, strategy: Strategy, watched: Watched, traces: Sequence[Path]) -> Row:
    """Return the row of a run that came to its end."""
    config, axes = asked.config(strategy), asked.axes(strategy)
    timed = [watched.records.train[step] for step in range(WARM + 1, WARM + asked.steps + 1)]
    seconds = sorted(one["seconds_step"] for one in timed)
    middle = median(seconds)
    quarter = len(seconds) // 4
    messages = step_messages(config, axes, 0, asked.device)
    found = communication(read_traces(traces))
    fullest = max(watched.peak, key=lambda rank: watched.peak[rank].peak, default=None)
    gpu = [one["peak_memory_gib"] for one in timed if "peak_memory_gib" in one]
    return Row(
        strategy=strategy.name,
        seconds_step=middle,
        spread=(seconds[-1 - quarter] - seconds[quarter]) / middle,
        tokens_per_second=asked.batch / middle,
        memory_predicted=sheet(config, axes, asked.device).peak.total,
        memory_gpu=max(gpu) * GIB if gpu else None,
        resident=None if fullest is None else watched.peak[fullest].peak,
        resident_before=None if fullest not in watched.before else watched.before[fullest].resident,
        traced_step=found.seconds_step,
        exposed=found.exposed,
        overlap=found.overlap,
        messages=sum(message.count for message in messages),
        sent=sum(message.sent for message in messages),
        counted=found.messages,
        losses=tuple(watched.records.train[step]["loss"] for step in sorted(watched.records.train)),
        traces=tuple(map(str, traces)),
    )


def untraced(config: RunConfig) -> RunConfig:
    """Return a run that records no traces."""
    return replace(config, profile=ProfileConfig())
