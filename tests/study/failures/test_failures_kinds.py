"""Kinds of ends, by exit codes and last words that were seen of torch, gloo, the kernel and SLURM."""

from __future__ import annotations

import json
import signal
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import study
from study.config.schema import RetryConfig
from study.failures.kinds import (
    FAILURES,
    HELD,
    SLURM_WORDS,
    AttemptState,
    Ending,
    Evidence,
    Kind,
    by_slurm,
    by_words,
    classify,
    headline,
    root,
)
from train.spec.yamlfile import dump, read_mapping

TERM, KILL, USR2, SEGV, ABRT = signal.SIGTERM, signal.SIGKILL, signal.SIGUSR2, signal.SIGSEGV, signal.SIGABRT

TRACEBACK = 'Traceback (most recent call last):\n  File "train/run.py", line 118, in _train\n'
WORDS = [
    ("", "unknown"),
    ("Killed\n", "unknown"),
    (f"{TRACEBACK}RuntimeError: the sun was in my eyes\n", "code_error"),
    (f"{TRACEBACK}KeyError: 'width'\n", "code_error"),
    ("error: data.source=/x/y does not exist: name a folder with text\n", "bad_config"),
    ("run.py: error: unrecognized arguments: --untill\n", "bad_config"),
    (f"{TRACEBACK}OSError: [Errno 28] No space left on device\n", "disk_full"),
    (f"{TRACEBACK}OSError: [Errno 122] Disk quota exceeded: 'metrics.jsonl'\n", "disk_full"),
    ("error: the run's state could not be saved: [Errno 28] No space left on device\n", "disk_full"),
    (
        f"{TRACEBACK}RuntimeError: [enforce fail at inline_container.cc:858] . PytorchStreamWriter failed writing file "
        "data/3: file write failed\n",
        "disk_full",
    ),
    (
        f"{TRACEBACK}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total of "
        "139.81 GiB of which 7.62 GiB is free.\n",
        "gpu_memory",
    ),
    ("[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n", "gpu_memory"),
    (
        f"{TRACEBACK}RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`\n",
        "gpu_memory",
    ),
    (
        f"{TRACEBACK}RuntimeError: [enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate "
        "memory: you tried to allocate 4398046511104 bytes. Error code 12 (Cannot allocate memory)\n",
        "host_memory",
    ),
    (f"{TRACEBACK}MemoryError\n", "host_memory"),
    (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed.\n",
        "host_memory",
    ),
    ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=12.0 cgroup.\n", "host_memory"),
    ("terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n", "host_memory"),
    ("\nTIMEOUT: rank 1 has not moved for 600 s; rank 0 is at step 12: in all_reduce (distributed.py:81)\n", "hang"),
    (
        "\nTIMEOUT: rank 1 has not moved for 600 s; rank 0 is at step 12: in all_reduce (distributed.py:81)\n"
        '[rank0]:[W1121 ProcessGroupNCCL.cpp:1575] [PG ID 0 PG GUID 0 Rank 0] Failed to check the "should dump" flag '
        "on TCPStore\ntorch.distributed.DistNetworkError: Connection reset by peer\n",
        "hang",
    ),
    ("[rank0]:[E1] [PG 0 Rank 0] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE)\n", "hang"),
    (
        f"{TRACEBACK}RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
        "[127.0.0.1]:41935\n",
        "communication",
    ),
    (
        f"{TRACEBACK}torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, remote process exited "
        "or there was a network error\nncclRemoteError: A call failed possibly due to a network error\n",
        "communication",
    ),
    (
        f"{TRACEBACK}torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to "
        "connect to (n1, 20123).\n",
        "communication",
    ),
    (
        f"{TRACEBACK}torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /0//cpu//1/0\n",
        "communication",
    ),
    (
        "srun: error: Node failure on n2\nslurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-21 DUE TO "
        "NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n",
        "node_failure",
    ),
    (f"{TRACEBACK}RuntimeError: CUDA error: uncorrectable ECC error encountered\n", "node_failure"),
    (f"{TRACEBACK}OSError: [Errno 116] Stale file handle: '/runs/a/metrics.jsonl'\n", "node_failure"),
    # an early warning is not the cause
    (f"[W] Connection reset by peer while downloading, trying again\n{TRACEBACK}MemoryError\n", "host_memory"),
]


@pytest.mark.parametrize(("stderr", "kind"), WORDS)
def test_last_words(stderr: str, kind: str) -> None:
    assert by_words(stderr) == kind
    chatter = "".join(f"step {step} loss 3.1\n" for step in range(50))
    assert by_words(chatter + stderr) == kind


def test_the_headline_is_the_line_that_names_the_error() -> None:
    text = f"starting\n{TRACEBACK}RuntimeError: the sun was in my eyes\nsrun: leaving\n"
    assert headline(text) == "RuntimeError: the sun was in my eyes"
    assert headline("[rank3]: MemoryError\n") == "MemoryError"
    assert headline("only this\n\n") == "only this"
    assert headline("") == ""


@pytest.mark.parametrize(
    ("seen", "kind", "code"),
    [
        (Evidence(0, outcome="completed"), "completed", 0),
        (Evidence(0, [TERM], outcome="completed"), "completed", 0),
        (Evidence(0, outcome="diverged"), "diverged", 3),
        (Evidence(0), "no_outcome", 1),
        (Evidence(3, outcome="diverged"), "diverged", 3),
        (Evidence(3), "diverged", 3),
        (Evidence(1), "unknown", 1),
        (Evidence(2, stderr="usage: run.py"), "bad_config", 2),
        (Evidence(7, [TERM]), "unknown", 7),
        (Evidence(75, [TERM]), "interrupted", 75),
        (Evidence(75, [TERM], time_left=2000.0), "interrupted", 75),
        (Evidence(75, [TERM], time_left=-1.0), "time_limit", 75),
        (Evidence(75, [TERM], time_left=4.99), "time_limit", 75),
        (Evidence(75, [TERM], time_left=5.0), "interrupted", 75),
        (Evidence(75, [TERM], time_left=None), "interrupted", 75),
        (Evidence(75, [TERM], cancelled=True), "cancelled", 75),
        (Evidence(75), "interrupted", 75),
        (Evidence(75, [USR2], time_left=80.0), "time_limit", 75),
        (Evidence(75, [USR2, TERM]), "time_limit", 75),
        (Evidence(75, [USR2], time_left=3000.0), "preempted", 75),
        # a job of a minute, warned 15 s before: the first half of it is no time limit's
        (Evidence(75, [USR2], time_left=100.0, notice=15.0), "preempted", 75),
        (Evidence(75, [USR2], time_left=30.0, notice=15.0), "time_limit", 75),
        (Evidence(75, [USR2], time_left=89.9, notice=15.0), "time_limit", 75),
        (Evidence(75, [USR2], time_left=90.0, notice=15.0), "preempted", 75),
        (Evidence(75, [USR2], time_left=164.9), "time_limit", 75),
        (Evidence(75, [USR2], time_left=165.0), "preempted", 75),
        (Evidence(-TERM, [TERM]), "interrupted", 75),
        (Evidence(-TERM, [signal.SIGHUP]), "interrupted", 75),
        (Evidence(-USR2, [USR2], time_left=10.0), "time_limit", 75),
        (Evidence(-KILL), "killed", 137),
        # told to end, and too slow for it: whoever told it so killed it, and SLURM knows who that was
        (Evidence(-KILL, [TERM]), "interrupted", 75),
        (Evidence(-KILL, [USR2, TERM], time_left=-3.0), "time_limit", 75),
        (Evidence(-KILL, [TERM], memory_kills=1), "host_memory", 137),
        (Evidence(-KILL, memory_kills=1), "host_memory", 137),
        (Evidence(-KILL, stderr="slurmstepd: error: Detected 1 oom_kill event in StepId=1.0."), "host_memory", 137),
        (Evidence(-KILL, hang="rank 0 has not moved for 700 s"), "hang", 137),
        (Evidence(0, hang="rank 0 has not moved for 700 s", outcome="completed"), "completed", 0),
        (Evidence(-SEGV), "code_error", 139),
        (Evidence(-ABRT, stderr="what():  NCCL error: remote process exited"), "communication", 134),
        (Evidence(-TERM), "killed", 143),
    ],
)
def test_classify(seen: Evidence, kind: str, code: int) -> None:
    ending = classify(seen)
    assert (ending.kind, ending.code) == (kind, code)


def test_a_death_by_signal_is_named() -> None:
    assert "signal 9 (SIGKILL, often the kernel or SLURM when memory ran out)" in str(classify(Evidence(-9)).why)


def test_a_death_by_a_signal_that_has_no_name_says_its_number() -> None:
    assert "killed by signal 99 (unknown)" in str(classify(Evidence(-99)).why)


def test_only_completed_is_success_to_slurm() -> None:
    assert sorted(kind for kind in FAILURES if Ending(kind).code == 0) == ["completed", "paused"]


@pytest.mark.parametrize(
    ("word", "reason", "kind"),
    [
        ("OUT_OF_MEMORY", "exit code 0:125", "host_memory"),
        ("TIMEOUT", "exit code 0:0", "time_limit"),
        ("NODE_FAIL", "", "node_failure"),
        ("BOOT_FAIL", "", "node_failure"),
        ("PREEMPTED", "", "preempted"),
        ("CANCELLED by 1000", "", "cancelled"),
        ("COMPLETED", "exit code 0:0", "no_outcome"),
        ("FAILED", "exit code 137:0", "killed"),
        ("FAILED", "exit code 0:9", "killed"),
        ("FAILED", "exit code 1:0", None),
        ("REVOKED", "", None),
        ("", "", None),
    ],
)
def test_words_of_slurm(word: str, reason: str, kind: str | None) -> None:
    assert by_slurm(word, reason) == kind


def test_a_rank_that_lost_its_peer_is_not_the_cause() -> None:
    lost, cause = Ending(Kind.COMMUNICATION, 1), Ending(Kind.HOST_MEMORY, None, 9)
    assert root([lost, cause, Ending(Kind.CODE_ERROR, 1)]) is cause
    assert root([lost, Ending(Kind.UNKNOWN, 1)]) is lost


@given(
    st.builds(
        Evidence,
        returncode=st.integers(-64, 255),
        received=st.lists(st.integers(1, 64)),
        outcome=st.sampled_from([None, "completed", "diverged", "nonsense"]),
        cancelled=st.booleans(),
        time_left=st.none() | st.floats(-1e6, 1e6),
        stderr=st.text(),
        hang=st.none() | st.text(),
        memory_kills=st.integers(0, 3),
    )
)
def test_whatever_was_left_has_a_kind_and_failure_is_never_success(seen: Evidence) -> None:
    ending = classify(seen)
    assert ending.kind in FAILURES
    if ending.code == 0:
        assert seen.returncode in (0, 3)
        assert seen.outcome is not None


def test_the_exit_code_of_a_job_that_found_its_run_held_is_what_accounting_is_asked_for() -> None:
    """Jobs of earlier versions ended with it: it stays."""
    assert HELD == 76


def test_the_table_has_every_kind_and_its_patterns_and_words_are_unambiguous() -> None:
    assert list(FAILURES) == [kind for kind in Kind if kind]
    assert all(bool(failure.rule) == bool(failure.help) == bool(failure.told_by) for failure in FAILURES.values())
    ranks = [failure.precedence for failure in FAILURES.values() if failure.patterns]
    assert sorted(ranks) == list(range(1, len(ranks) + 1)), "which pattern is looked for first is never left open"
    words = [word for failure in FAILURES.values() for word in failure.slurm]
    assert len(words) == len(set(words)) and all(by_slurm(word) == kind for word, kind in SLURM_WORDS.items())


def test_the_configuration_has_a_rule_for_each_kind_that_something_may_follow_from() -> None:
    default, ruled = RetryConfig(), {kind: failure for kind, failure in FAILURES.items() if failure.rule}
    names = [field.name for field in fields(RetryConfig)]
    assert names[: len(ruled)] == [str(kind) for kind in ruled], "help shows them first, in the table's order"
    for kind, failure in ruled.items():
        assert (getattr(default, kind), RetryConfig.__dataclass_fields__[kind].metadata["help"]) == (
            failure.rule,
            failure.help,
        )
    never = read_mapping(Path(study.__file__).parents[1] / "conf" / "retry" / "never.yaml")
    assert set(never) == {str(kind) for kind, failure in ruled.items() if failure.rule != "stop"}
    assert set(never.values()) == {"stop"}


def test_kinds_are_their_words_on_disk_and_a_word_of_a_later_version_is_unknown() -> None:
    assert (
        json.dumps({Kind.HANG: [Kind.HANG, AttemptState.FAILED]}, indent=1)
        == '{\n "hang": [\n  "hang",\n  "failed"\n ]\n}'
    )
    assert dump({"kind": str(Kind.HANG)}) == "kind: hang\n"
    assert (f"{Kind.HANG:<6}|", str(Kind.HANG)) == ("hang  |", "hang")
    assert (Kind("of a later version"), bool(Kind(""))) == (Kind.UNKNOWN, False)
