"""How an attempt ended, from what its processes left: exit code, signal, signals received, outcome, last words. Pure.

The table is made of what torch, NCCL, gloo, the kernel and SLURM were seen to write.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class AttemptState(StrEnum):
    """How an attempt ended, as its outcome.json says it."""

    COMPLETED = "completed"
    PAUSED = "paused"
    DIVERGED = "diverged"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    TIME_LIMIT = "time_limit"
    PREEMPTED = "preempted"
    FAILED = "failed"


class Kind(StrEnum):
    """Every kind of end. FAILURES says what each means.

    A word that is none, of a later version perhaps, is read as UNKNOWN.
    """

    NONE = ""
    """Not ended, or of an end of which nothing finer is said than its state."""
    COMPLETED = "completed"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time_limit"
    NODE_FAILURE = "node_failure"
    HELD = "held"
    HANG = "hang"
    COMMUNICATION = "communication"
    KILLED = "killed"
    HOST_MEMORY = "host_memory"
    GPU_MEMORY = "gpu_memory"
    NO_OUTCOME = "no_outcome"
    DISK_FULL = "disk_full"
    BAD_CONFIG = "bad_config"
    CODE_ERROR = "code_error"
    DIVERGED = "diverged"
    INTERRUPTED = "interrupted"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> Kind:
        return cls.UNKNOWN


class Counts(StrEnum):
    """What an end counts as."""

    FAILURE = "failure"
    ITSELF = "itself"
    """Nobody's failure, with a cap of its own."""
    NOTHING = "nothing"
    """As ITSELF, and a search counts it not at all: its worker was told to stop, or found the run taken."""


@dataclass(frozen=True)
class Failure:
    """What a kind of end means.

    state: of an attempt that ended so. help, rule: of its key `retry.KIND`; no rule: nothing ever follows. told_by:
    what tells it, for people; patterns: last words of a trainer that do, of which those with the lowest `precedence`
    are looked for first; slurm: SLURM's words that do. blames_node: it may be a node's fault. unsure: SLURM may know
    better than the job itself. every_run: every other run would meet it next.
    """

    state: AttemptState = AttemptState.FAILED
    help: str = ""
    rule: str = ""
    told_by: str = ""
    patterns: str = ""
    precedence: int = 0
    slurm: tuple[str, ...] = ()
    counts: Counts = Counts.FAILURE
    blames_node: bool = False
    unsure: bool = False
    every_run: bool = False


LAST_ERROR = "the last line of the error, or the exit code"

FAILURES: Mapping[Kind, Failure] = {
    Kind.COMPLETED: Failure(AttemptState.COMPLETED, counts=Counts.NOTHING),
    Kind.PAUSED: Failure(AttemptState.PAUSED, counts=Counts.NOTHING),
    Kind.CANCELLED: Failure(AttemptState.CANCELLED, slurm=("CANCELLED",), counts=Counts.NOTHING),
    Kind.PREEMPTED: Failure(
        AttemptState.PREEMPTED,
        help="preempted by other jobs",
        rule="again 100",
        told_by="a signal long before the time limit; SLURM's PreemptTime or PREEMPTED",
        slurm=("PREEMPTED",),
        counts=Counts.ITSELF,
    ),
    Kind.TIME_LIMIT: Failure(
        AttemptState.TIME_LIMIT,
        help="the job's time limit",
        rule="again 100",
        told_by="a signal shortly before the time limit; SLURM's TIMEOUT",
        slurm=("TIMEOUT", "DEADLINE"),
        counts=Counts.ITSELF,
    ),
    Kind.NODE_FAILURE: Failure(
        help="the node failed",
        rule="elsewhere 5",
        told_by="NODE_FAIL, ECC and driver errors, stale file handles",
        patterns=r"NODE FAILURE|DUE TO NODE FAIL|uncorrectable (NVLink|ECC) error|GPU has fallen off the bus|Xid|"
        r"no CUDA-capable device is detected|CUDA-capable device\(s\) is/are busy or unavailable|"
        r"Driver/library version mismatch|CUDA unknown error|unspecified launch failure|Stale file handle|"
        r"Transport endpoint is not connected|Input/output error|\[Errno (5|116|107)\]",
        precedence=5,
        slurm=("NODE_FAIL", "BOOT_FAIL"),
        blames_node=True,
    ),
    Kind.HELD: Failure(
        AttemptState.INTERRUPTED,
        help="another attempt had locked the run, and has released it since",
        rule="again 5",
        told_by="its job found the run locked (exit code 76), and it is no longer locked",
        counts=Counts.NOTHING,
    ),
    Kind.HANG: Failure(
        help="no progress",
        rule="elsewhere 3",
        told_by="the [heartbeat](#hangs), torch's watchdog, the ranks' own watchdog",
        patterns=r"Watchdog caught collective operation timeout|^Timeout \(\d+:\d\d:\d\d\)!|"
        r"DUE TO TIMEOUT of a collective|heartbeat monitor",
        precedence=2,
        blames_node=True,
    ),
    Kind.COMMUNICATION: Failure(
        help="NCCL, gloo or the rendezvous failed",
        rule="elsewhere 3",
        told_by="errors of NCCL, gloo or the rendezvous store, if no rank reports a more specific one",
        patterns=r"NCCL error|ncclSystemError|ncclRemoteError|ncclInternalError|ncclUnhandledCudaError|"
        r"DistBackendError|DistNetworkError|DistStoreError|RendezvousTimeoutError|"
        r"Connection (closed by peer|reset by peer|refused)|gloo/transport|Gloo connectFullMesh|"
        r"client socket has (timed out|failed to connect)|Broken pipe|Timed out waiting \d+ms for (recv|send)|"
        r"address already in use|EADDRINUSE",
        precedence=6,
        blames_node=True,
    ),
    Kind.KILLED: Failure(
        help="a signal from outside, with no sign of memory exhaustion",
        rule="again 2",
        told_by="the signal",
        unsure=True,
    ),
    Kind.HOST_MEMORY: Failure(
        help="out of the node's memory",
        rule="more 2",
        told_by="an out-of-memory kill in the job's control group, OUT_OF_MEMORY, MemoryError",
        patterns=r"MemoryError|can't allocate memory|not enough memory: you tried to allocate|Cannot allocate memory|"
        r"\[Errno 12\]|oom[-_]kill|[Oo]ut [Oo]f [Mm]emory|std::bad_alloc|"
        r"DataLoader worker \(pid.*\) is killed by signal: Killed|Some of your processes may have been killed by the",
        precedence=4,
        slurm=("OUT_OF_MEMORY",),
    ),
    Kind.GPU_MEMORY: Failure(
        help="out of the GPU's memory",
        rule="again 1",  # with a smaller micro-batch, which the run has written down (train.memory.micro_batch)
        told_by=LAST_ERROR,
        patterns=r"(CUDA|HIP) out of memory|(CUDA|HIP) error: out of memory|OutOfMemoryError|"
        r"cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|"
        r"Cuda failure 2 'out of memory'",
        precedence=3,
    ),
    Kind.NO_OUTCOME: Failure(
        help="exited with 0, but without an outcome",
        rule="again 1",
        told_by="exit code 0 without an outcome",
        slurm=("COMPLETED",),
    ),
    Kind.DISK_FULL: Failure(
        help="no space left",
        rule="stop",
        told_by=LAST_ERROR,
        patterns=r"No space left on device|Disk quota exceeded|\[Errno (28|122)\]|file write failed|"
        r"unexpected pos \d+ vs \d+|database or disk is full",
        precedence=1,
        every_run=True,
    ),
    Kind.BAD_CONFIG: Failure(help="the config cannot be run", rule="stop", told_by=LAST_ERROR),
    Kind.CODE_ERROR: Failure(help="an exception in the code", rule="stop", told_by=LAST_ERROR),
    Kind.DIVERGED: Failure(AttemptState.DIVERGED, "the loss diverged", "stop", "the trainer's exit code 3"),
    Kind.INTERRUPTED: Failure(
        AttemptState.INTERRUPTED,
        help="stopped by a signal of unknown origin",
        rule="stop",
        told_by="a signal that nothing else explains",
        counts=Counts.NOTHING,
        unsure=True,
    ),
    Kind.UNKNOWN: Failure(help="the cause is not known", rule="stop", told_by="none of the others", unsure=True),
}
"""What is known of each kind of end, in the order in which help and docs show them.

Configuration, classification, retry policy, searches and docs read it. To add a kind: its name above, its entry here,
then `python docs/make_tables.py`; where its rule is not `stop`, also a line in conf/retry/never.yaml.
"""

PATTERNS = tuple(
    (kind, failure.patterns)
    for kind, failure in sorted(FAILURES.items(), key=lambda item: item[1].precedence)
    if failure.patterns
)
SLURM_WORDS: Mapping[str, Kind] = {word: kind for kind, failure in FAILURES.items() for word in failure.slurm}

DIVERGED, INTERRUPTED = 3, 75
"""Exit codes of the trainer beside 0 and 1: the loss diverged; it saved because it was told to stop."""

HELD = 76
"""Exit code of a job that left its run to another attempt, which still had it."""

NOTICE_SECONDS = 90.0
MARGIN_SECONDS = 75.0
"""SLURM may send its warning up to a minute early [s]."""

_HANG = re.compile(r"^TIMEOUT: rank \d+ has not moved", re.MULTILINE)
"""The trainer's own word. What its ranks and libraries say while they end, of lost peers mostly, follows from it."""
_HEADLINE = re.compile(r"^(\w+\.)*\w*(Error|Exception|Interrupt|Exit|Warning)\b.*|^error: .*|^\w[\w.]*: error: .*")
_LAST_SIGNALS = {signal.SIGSEGV, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGTRAP}


@dataclass(frozen=True)
class Ending:
    """How an attempt ended: its kind, the process's exit code or signal, and our own words on why.

    headline, rank: what the rank that it follows from said of it, and its number, where that is another than the first.
    """

    kind: Kind
    exit_code: int | None = None
    signal: int | None = None
    why: str | None = None
    headline: str | None = None
    rank: int | None = None

    @property
    def state(self) -> AttemptState:
        """What the kind means for the attempt."""
        return FAILURES[self.kind].state

    @property
    def code(self) -> int:
        """The exit code that agrees with the state: 0 only for completed, so that SLURM calls nothing else a success.

        A diverged run is a result, but not the one that was asked for: its job fails with 3, and jobs that depend on
        its success do not start.
        """
        if self.state in (AttemptState.COMPLETED, AttemptState.PAUSED):
            return 0
        if self.state == AttemptState.DIVERGED:
            return DIVERGED
        if self.state != AttemptState.FAILED:
            return INTERRUPTED
        return 128 + self.signal if self.signal else self.exit_code or 1


@dataclass(frozen=True)
class Evidence:
    """What is known of a trainer's end.

    returncode: Popen's. received: signals passed on to it. outcome: the state in the run's outcome.json. cancelled:
    whether the ledger says so. time_left: seconds to the time limit when it ended (None: not known), notice: how long
    before it SLURM warns. stderr: its last words. hang: why it was taken to hang and killed, if it was. memory_kills:
    processes that the kernel killed in its control group for want of memory.
    """

    returncode: int
    received: Sequence[int] = ()
    outcome: str | None = None
    cancelled: bool = False
    time_left: float | None = None
    notice: float = NOTICE_SECONDS
    stderr: str = ""
    hang: str | None = None
    memory_kills: int = 0


def classify(seen: Evidence) -> Ending:
    """Return how an attempt ended."""
    code = seen.returncode
    killed = -code if code < 0 else None
    if code == 0 and seen.outcome is None:
        return Ending(Kind.NO_OUTCOME, 0, why="the trainer ended with exit code 0 but wrote no outcome.json")
    if code in (0, DIVERGED):
        return Ending(Kind.DIVERGED if seen.outcome in (None, AttemptState.DIVERGED) else Kind.COMPLETED, code)
    if seen.hang is not None:
        return Ending(Kind.HANG, None if killed else code, killed, why=seen.hang)
    if code == INTERRUPTED or (killed is not None and _asked(killed, seen)):
        return Ending(_interruption(seen), None if killed else code, killed)
    if killed is not None:
        return _by_signal(killed, seen)
    return Ending(by_words(seen.stderr, code), code)


def by_words(stderr: str, code: int | None = 1) -> Kind:
    """Return the kind of a failure by its last words: by the last error's own line first, then by any line."""
    if _HANG.search(stderr):
        return Kind.HANG
    text = stderr[-20_000:]
    said = headline(text)
    for where in (said, text):
        for kind, pattern in PATTERNS:
            if re.search(pattern, where, re.MULTILINE):
                return kind
    if code == 2 or said.startswith("error: ") or ": error: " in said:
        return Kind.BAD_CONFIG
    if re.match(r"ValueError: (unknown key|.*is not allowed)", said):
        return Kind.BAD_CONFIG
    return Kind.CODE_ERROR if "Traceback (most recent call last)" in text else Kind.UNKNOWN


def headline(stderr: str) -> str:
    """Return the line of standard error that says most: the last one that names an error, else the last one."""
    lines = [line.rstrip() for line in stderr.splitlines() if line.strip()]
    named = [line for line in lines if _HEADLINE.match(re.sub(r"^\[?rank\d+\]?:\s?", "", line))]
    return re.sub(r"^\[?rank\d+\]?:\s?", "", (named or lines or [""])[-1])


def root(endings: Sequence[Ending]) -> Ending:
    """Return the ending, of several ranks' in the order of time, that the others follow from.

    A rank that loses its peer says so: that is a cause only where nobody has a better one.
    """
    return next((ending for ending in endings if ending.kind not in (Kind.COMMUNICATION, Kind.UNKNOWN)), endings[0])


def by_slurm(word: str, reason: str = "") -> Kind | None:
    """Return the kind of an end by SLURM's word for it; None where that says nothing of the cause."""
    first = re.match(r"[A-Z_]*", word)
    kind = SLURM_WORDS.get(first[0] if first else "")
    if kind is None and re.search(r"exit code (0:9|9:0|137:\d+|\d+:9)$", reason):
        return Kind.KILLED
    return kind


def _by_signal(killed: int, seen: Evidence) -> Ending:
    name = _name(killed)
    if killed == signal.SIGKILL and (seen.memory_kills > 0 or by_words(seen.stderr) == Kind.HOST_MEMORY):
        return Ending(Kind.HOST_MEMORY, None, killed, why=f"killed by signal {killed} ({name}) as memory ran out")
    kind, hint = Kind.KILLED, ", often the kernel or SLURM when memory ran out" if killed == signal.SIGKILL else ""
    if killed in _LAST_SIGNALS:
        found = by_words(seen.stderr)
        kind = Kind.CODE_ERROR if found == Kind.UNKNOWN else found
    return Ending(kind, None, killed, why=f"killed by signal {killed} ({name}{hint})")


def _asked(killed: int, seen: Evidence) -> bool:
    """Whether it died of a signal that we passed on before its handlers were in place, or of being too slow to end."""
    too_slow = killed == signal.SIGKILL and bool(seen.received) and not seen.memory_kills
    return too_slow or killed in seen.received or (killed == signal.SIGTERM and signal.SIGHUP in seen.received)


def _interruption(seen: Evidence) -> Kind:
    if seen.cancelled:
        return Kind.CANCELLED
    left = seen.time_left
    if signal.SIGUSR1 in seen.received or signal.SIGUSR2 in seen.received:
        # The same signal announces a time limit and, on some sites, a preemption: the clock tells them apart.
        return Kind.TIME_LIMIT if left is None or left < seen.notice + MARGIN_SECONDS else Kind.PREEMPTED
    # Nothing warns of a limit where no warning was asked for: SLURM's first word is SIGTERM, at the limit itself.
    return Kind.TIME_LIMIT if seen.received and left is not None and left < 5 else Kind.INTERRUPTED


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
