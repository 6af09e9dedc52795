"""How an attempt ended, from what its processes left: exit code, signal, signals received, outcome, last words. Pure.

The tables are made of what torch, NCCL, gloo, the kernel and SLURM were seen to write.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

DIVERGED, INTERRUPTED = 3, 75
"""Exit codes of the trainer beside 0 and 1: the loss diverged; it saved because it was told to stop."""

HELD = 76
"""Exit code of a job that left its run to another attempt, which still had it."""

STATES: Mapping[str, str] = {
    "completed": "completed",
    "paused": "paused",
    "diverged": "diverged",
    "cancelled": "cancelled",
    "interrupted": "interrupted",
    "time_limit": "time_limit",
    "preempted": "preempted",
    "held": "interrupted",
    "no_outcome": "failed",
    "host_memory": "failed",
    "gpu_memory": "failed",
    "node_failure": "failed",
    "communication": "failed",
    "hang": "failed",
    "disk_full": "failed",
    "bad_config": "failed",
    "code_error": "failed",
    "killed": "failed",
    "unknown": "failed",
}
"""Every kind of end, and the state of an attempt that ended so.

interrupted: told to stop, nobody knows by whom. killed: by a signal from outside, and no sign of lost memory.
held: its job found that another attempt still had the run, and nobody has it any more. communication: NCCL, gloo or the
store at which ranks meet. unknown: none of the others.
"""

NOTICE_SECONDS = 90.0
MARGIN_SECONDS = 75.0
"""SLURM may send its warning up to a minute early [s]."""

_LAST_WORDS: Sequence[tuple[str, str]] = (
    (
        "disk_full",
        r"No space left on device|Disk quota exceeded|\[Errno (28|122)\]|file write failed|"
        r"unexpected pos \d+ vs \d+|database or disk is full",
    ),
    (
        "hang",
        r"Watchdog caught collective operation timeout|"
        r"^Timeout \(\d+:\d\d:\d\d\)!|DUE TO TIMEOUT of a collective|heartbeat monitor",
    ),
    (
        "gpu_memory",
        r"(CUDA|HIP) out of memory|(CUDA|HIP) error: out of memory|OutOfMemoryError|cudaErrorMemoryAllocation|"
        r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|Cuda failure 2 'out of memory'",
    ),
    (
        "host_memory",
        r"MemoryError|can't allocate memory|not enough memory: you tried to allocate|Cannot allocate memory|"
        r"\[Errno 12\]|oom[-_]kill|[Oo]ut [Oo]f [Mm]emory|std::bad_alloc|"
        r"DataLoader worker \(pid.*\) is killed by signal: Killed|Some of your processes may have been killed by the",
    ),
    (
        "node_failure",
        r"NODE FAILURE|DUE TO NODE FAIL|uncorrectable (NVLink|ECC) error|GPU has fallen off the bus|Xid|"
        r"no CUDA-capable device is detected|CUDA-capable device\(s\) is/are busy or unavailable|"
        r"Driver/library version mismatch|CUDA unknown error|unspecified launch failure|Stale file handle|"
        r"Transport endpoint is not connected|Input/output error|\[Errno (5|116|107)\]",
    ),
    (
        "communication",
        r"NCCL error|ncclSystemError|ncclRemoteError|ncclInternalError|ncclUnhandledCudaError|DistBackendError|"
        r"DistNetworkError|DistStoreError|RendezvousTimeoutError|Connection (closed by peer|reset by peer|refused)|"
        r"gloo/transport|Gloo connectFullMesh|client socket has (timed out|failed to connect)|Broken pipe|"
        r"Timed out waiting \d+ms for (recv|send)|address already in use|EADDRINUSE",
    ),
)
_HANG = re.compile(r"^TIMEOUT: rank \d+ has not moved", re.MULTILINE)
"""The trainer's own word. What its ranks and libraries say while they end, of lost peers mostly, follows from it."""
_HEADLINE = re.compile(r"^(\w+\.)*\w*(Error|Exception|Interrupt|Exit|Warning)\b.*|^error: .*|^\w[\w.]*: error: .*")
_LAST_SIGNALS = {signal.SIGSEGV, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGTRAP}


@dataclass(frozen=True)
class Ending:
    """How an attempt ended: its kind, the process's exit code or signal, and our own words on why.

    headline: what the rank that it follows from said of it, where that is another than the first.
    """

    kind: str
    exit_code: int | None = None
    signal: int | None = None
    why: str | None = None
    headline: str | None = None

    @property
    def state(self) -> str:
        """What the kind means for the attempt."""
        return STATES[self.kind]

    @property
    def code(self) -> int:
        """The exit code that agrees with the state: 0 only for completed, so that SLURM calls nothing else a success.

        A diverged run is a result, but not the one that was asked for: its job fails with 3, and jobs that depend on
        its success do not start.
        """
        if self.state in ("completed", "paused"):
            return 0
        if self.state == "diverged":
            return DIVERGED
        if self.state != "failed":
            return INTERRUPTED
        return 128 + self.signal if self.signal else self.exit_code or 1


@dataclass(frozen=True)
class Seen:
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


def classify(seen: Seen) -> Ending:
    """Return how an attempt ended."""
    code = seen.returncode
    killed = -code if code < 0 else None
    if code == 0 and seen.outcome is None:
        return Ending("no_outcome", 0, why="the trainer ended with exit code 0 but wrote no outcome.json")
    if code in (0, DIVERGED):
        return Ending("diverged" if seen.outcome in (None, "diverged") else "completed", code)
    if seen.hang is not None:
        return Ending("hang", None if killed else code, killed, why=seen.hang)
    if code == INTERRUPTED or (killed is not None and _asked(killed, seen)):
        return Ending(_interruption(seen), None if killed else code, killed)
    if killed is not None:
        return _by_signal(killed, seen)
    return Ending(by_words(seen.stderr, code), code)


def by_words(stderr: str, code: int | None = 1) -> str:
    """Return the kind of a failure by its last words: by the last error's own line first, then by any line."""
    if _HANG.search(stderr):
        return "hang"
    text = stderr[-20_000:]
    said = headline(text)
    for where in (said, text):
        for kind, pattern in _LAST_WORDS:
            if re.search(pattern, where, re.MULTILINE):
                return kind
    if code == 2 or said.startswith("error: ") or ": error: " in said:
        return "bad_config"
    if re.match(r"ValueError: (unknown key|.*is not allowed)", said):
        return "bad_config"
    return "code_error" if "Traceback (most recent call last)" in text else "unknown"


def headline(stderr: str) -> str:
    """Return the line of standard error that says most: the last one that names an error, else the last one."""
    lines = [line.rstrip() for line in stderr.splitlines() if line.strip()]
    named = [line for line in lines if _HEADLINE.match(re.sub(r"^\[?rank\d+\]?:\s?", "", line))]
    return re.sub(r"^\[?rank\d+\]?:\s?", "", (named or lines or [""])[-1])


def root(endings: Sequence[Ending]) -> Ending:
    """Return the ending, of several ranks' in the order of time, that the others follow from.

    A rank that loses its peer says so: that is a cause only where nobody has a better one.
    """
    return next((ending for ending in endings if ending.kind not in ("communication", "unknown")), endings[0])


def by_slurm(word: str, reason: str = "") -> str | None:
    """Return the kind of an end by SLURM's word for it; None where that says nothing of the cause."""
    first = re.match(r"[A-Z_]*", word)
    kinds = {
        "OUT_OF_MEMORY": "host_memory",
        "TIMEOUT": "time_limit",
        "DEADLINE": "time_limit",
        "NODE_FAIL": "node_failure",
        "BOOT_FAIL": "node_failure",
        "PREEMPTED": "preempted",
        "CANCELLED": "cancelled",
        "COMPLETED": "no_outcome",
    }
    kind = kinds.get(first[0] if first else "")
    if kind is None and re.search(r"exit code (0:9|9:0|137:\d+|\d+:9)$", reason):
        return "killed"
    return kind


def _by_signal(killed: int, seen: Seen) -> Ending:
    name = _name(killed)
    if killed == signal.SIGKILL and (seen.memory_kills > 0 or by_words(seen.stderr) == "host_memory"):
        return Ending("host_memory", None, killed, why=f"killed by signal {killed} ({name}) as memory ran out")
    kind, hint = "killed", ", often the kernel or SLURM when memory ran out" if killed == signal.SIGKILL else ""
    if killed in _LAST_SIGNALS:
        found = by_words(seen.stderr)
        kind = "code_error" if found == "unknown" else found
    return Ending(kind, None, killed, why=f"killed by signal {killed} ({name}{hint})")


def _asked(killed: int, seen: Seen) -> bool:
    """Whether it died of a signal that we passed on before its handlers were in place, or of being too slow to end."""
    too_slow = killed == signal.SIGKILL and bool(seen.received) and not seen.memory_kills
    return too_slow or killed in seen.received or (killed == signal.SIGTERM and signal.SIGHUP in seen.received)


def _interruption(seen: Seen) -> str:
    if seen.cancelled:
        return "cancelled"
    left = seen.time_left
    if signal.SIGUSR1 in seen.received or signal.SIGUSR2 in seen.received:
        # The same signal announces a time limit and, on some sites, a preemption: the clock tells them apart.
        return "time_limit" if left is None or left < seen.notice + MARGIN_SECONDS else "preempted"
    # Nothing warns of a limit where no warning was asked for: SLURM's first word is SIGTERM, at the limit itself.
    return "time_limit" if seen.received and left is not None and left < 5 else "interrupted"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
