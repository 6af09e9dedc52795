"""What a cause is called, from which share on, and what is said of it, word for word."""

from __future__ import annotations

from dataclasses import replace

import pytest

from study.diagnosis.causes import Evidence, Finding, findings, limit

PARTS = ("compute", "input", "host", "sync", "allocator", "communication", "pipeline", "waiting", "copy")


def evidence(**shares: float) -> Evidence:
    return Evidence({**dict.fromkeys(PARTS, 0.0), **shares}, on_gpu=True, ranks=2)


@pytest.mark.parametrize(("share", "named"), [(0.0999, 0), (0.1, 1), (0.1001, 1)])
def test_a_tenth_of_the_step_is_named(share: float, named: int) -> None:
    for part in PARTS[1:]:
        assert len(findings(evidence(**{part: share}))) == named


def test_the_dearest_comes_first_and_limits() -> None:
    found = findings(evidence(input=0.2, copy=0.3, waiting=0.25, host=0.05))
    assert [(one.cause, one.share) for one in found] == [("copy", 0.3), ("stragglers", 0.25), ("input", 0.2)]
    assert limit(evidence(), found) == found[0]


@pytest.mark.parametrize(("memory", "cause"), [(0.499, "compute"), (0.5, "memory")])
def test_where_nothing_holds_it_up_kernels_do(memory: float, cause: str) -> None:
    found = limit(replace(evidence(compute=0.93), memory=memory), [])
    assert (found.cause, found.share) == (cause, 0.93)


def said(cause: str, **facts: object) -> Finding:
    part = {"stragglers": "waiting"}.get(cause, cause)
    return findings(replace(evidence(**{part: 0.4}), **facts))[0]  # type: ignore[arg-type]


def test_who_waits_for_the_batch() -> None:
    assert said("input").why == "the GPU waits while the loop fetches its batch"
    assert said("input", on_gpu=False).why == "the step waits while the loop fetches its batch"
    assert said("input").first.startswith("Set runtime.prefetch_batches=4")


@pytest.mark.parametrize(
    ("seconds", "brief"),
    [
        (4.2e-6, "4 µs"),
        (999.4e-6, "999 µs"),
        (1e-3, "1 ms"),
        (1.234e-3, "1.23 ms"),
        (0.5, "500 ms"),
        (1.0, "1 s"),
        (12.34, "12.3 s"),
    ],
)
def test_durations_are_said_briefly(seconds: float, brief: str) -> None:
    launched = said("host", launches=1234.5, kernel_seconds=seconds)
    assert (
        launched.why == f"the host launches 1,234 kernels a step, slower than the GPU runs them: {brief} each (median)"
    )


def test_what_a_host_does_too_slowly() -> None:
    assert said("host", replayed=0.49).first.startswith("Set compile.step_graph=true")
    graph = said("host", replayed=0.5, launches=246.0, kernel_seconds=3e-6)
    assert graph.why.startswith("the step is a CUDA graph of 246 kernels of 3 µs each (median)")
    assert "cluster.pack=4" in graph.first
    python = said("host", on_gpu=False, launches=1500.0, kernel_seconds=2e-3)
    assert python.why == "between 1,500 operations of 2 ms each (median), Python runs alone"
    assert python.first == "Raise parallel.micro_batch_sequences, so that each operation has more to do."


def test_messages_that_nothing_hides() -> None:
    plain = said("communication")
    assert plain.why == "messages go while nothing is calculated"
    assert plain.first.endswith("with FSDP parallel.zero=2 gathers weights once a step.")
    full = said("communication", hidden=0.25, longest="nccl_gather", ranks=1)
    assert full.why == (
        "messages go while nothing is calculated, 25 % of their time is hidden under computation, most time is in "
        "nccl_gather"
    )
    assert full.first.endswith("once a step (profile.ranks=all tells slow links from slow ranks).")


def test_who_synchronises() -> None:
    assert said("sync").first.startswith("Take a synchronisation out of the step")
    alone = said("sync", sync=("cudaDeviceSynchronize", ""))
    assert alone.why.startswith("after cudaDeviceSynchronize the GPU has nothing queued")
    assert alone.first.startswith("Take cudaDeviceSynchronize out")
    owned = said("sync", sync=("cudaStreamSynchronize", "aten::item"))
    assert owned.why.startswith("after cudaStreamSynchronize of aten::item the GPU")
    assert owned.first.startswith("Take aten::item out")


def test_whom_the_others_wait_for() -> None:
    assert said("stragglers").why == "ranks wait for each other in turn, none more than others"
    assert said("stragglers", slowest=0).why == "the others wait for rank 0"
    late = said("stragglers", slowest=3, slow_part=("input", 0.25))
    assert late.why == (
        "the others wait for rank 3, which takes 250 ms a step longer than the others in fetching its batch"
    )
    assert late.first.startswith("Run without the node of rank 3 (cluster.exclude=NODE")


def test_what_limits_kernels_is_said_with_its_share_and_for_its_device() -> None:
    light = limit(replace(evidence(compute=1.0), memory=0.62), [])
    assert light.why == "62 % of the kernels' time is in those that move more than they calculate"
    assert "more GPUs" in limit(evidence(compute=1.0), []).first
    assert limit(replace(evidence(compute=1.0), on_gpu=False), []).first == (
        "Nothing is wrong; a GPU would make it faster."
    )
