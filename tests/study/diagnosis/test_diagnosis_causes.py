"""Planted causes are named, and nothing is named where nothing was planted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from study.diagnosis.of_traces import Diagnosis, diagnose, read_traces
from tests.study.support import traces
from tests.study.support.traces import Machine


def told(machines: Machine | Sequence[Machine], folder: Path) -> Diagnosis:
    """Return the diagnosis of these ranks, by way of files."""
    every = [machines] if isinstance(machines, Machine) else machines
    return diagnose(read_traces([machine.write(folder) for machine in every]))


@pytest.mark.parametrize(
    ("cause", "make"),
    [
        ("input", traces.slow_loader),
        ("host", traces.tiny_kernels),
        ("communication", traces.bare_gather),
        ("sync", traces.sync_per_step),
        ("pipeline", traces.pipeline),
        ("stragglers", traces.straggler),
        ("memory", traces.memory_bound),
        ("allocator", traces.crowded),
        ("compute", traces.healthy),
    ],
)
def test_planted_causes_are_named(cause: str, make: Callable[[], Machine | Sequence[Machine]], tmp_path: Path) -> None:
    found = told(make(), tmp_path)
    assert found.limit.cause == cause
    assert [one.cause for one in found.findings] == ([] if cause in ("memory", "compute") else [cause])
    for rank in found.ranks:
        assert sum(rank.shares.values()) == pytest.approx(1.0)


def test_nothing_holds_up_four_healthy_ranks(tmp_path: Path) -> None:
    found = told([traces.healthy(rank) for rank in range(4)], tmp_path)
    assert (found.limit.cause, found.findings, found.slowest_rank) == ("compute", [], None)
    assert found.overlap == pytest.approx(1.0)
    assert found.steps == 3


@pytest.mark.parametrize(("slow", "ranks"), [(2, 4), (0, 4), (1, 2)])
def test_the_rank_that_others_wait_for_is_named(slow: int, ranks: int, tmp_path: Path) -> None:
    found = told(traces.straggler(slow, ranks), tmp_path)
    assert found.slowest_rank == slow
    assert f"wait for rank {slow}" in found.limit.why
    assert "3 ms a step longer than the others in computation" in found.limit.why
    waited = {one.rank: one.shares["waiting"] for one in found.ranks}
    assert waited.pop(slow) == 0.0
    assert all(share == pytest.approx(3000 / 9208, rel=0.01) for share in waited.values())


def test_shares_are_those_that_were_planted(tmp_path: Path) -> None:
    found = told(traces.bare_gather(), tmp_path)
    # Ten gathers of 200 µs and ten products of 400 µs, which the host is far ahead of.
    assert found.seconds_step == pytest.approx(6e-3, rel=0.01)
    assert found.shares["communication"] == pytest.approx(1 / 3, abs=0.01)
    assert found.shares["compute"] == pytest.approx(2 / 3, abs=0.01)
    assert found.overlap == pytest.approx(0.0)
    assert traces.GATHER in found.limit.why


def test_an_operation_that_reads_a_value_is_named_as_the_owner_of_its_synchronisation(tmp_path: Path) -> None:
    found = told(traces.sync_per_step(), tmp_path)
    assert [(one.call, one.owner, one.calls) for one in found.syncs] == [("cudaStreamSynchronize", "aten::item", 1.0)]
    assert found.copies_to_host == 1.0
    assert "Take aten::item out of the step" in found.limit.first


def test_rates_are_compared_with_what_the_device_was_measured_to_do(tmp_path: Path) -> None:
    machine = Machine()
    size = {"Input Dims": [[8192, 8192], [8192, 8192]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
    seconds = 2 * 8192**3 / 399e12
    for _ in range(3):
        machine.step(lambda m: m.launch(traces.GEMM, seconds * 1e6, op="aten::mm", **size))
    found = told(machine, tmp_path)
    [kernel] = found.kernels
    assert kernel.flops == pytest.approx(399e12)
    assert kernel.of_ceiling == pytest.approx(0.5)  # of 798 TFLOP/s
    assert found.ceilings_measured is True
    [added] = [one for one in told(traces.memory_bound(), tmp_path).kernels if one.name == traces.ADD]
    assert added.bytes == pytest.approx(3 * 4 * 2**28 / 900e-6)
    assert added.flops is None


def test_products_of_few_rows_are_bound_by_memory(tmp_path: Path) -> None:
    machine = Machine()
    thin = {"Input Dims": [[1, 8192], [8192, 8192]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
    for _ in range(3):
        machine.step(lambda m: m.launch(traces.GEMM, 500.0, op="aten::mm", **thin))
    assert told(machine, tmp_path).limit.cause == "memory"


def test_the_peak_of_memory_has_owners(tmp_path: Path) -> None:
    machine = traces.healthy()
    machine.host += 1.0
    machine.allocate(100, 7, 1100)
    begin = machine.host
    machine.host += 1.0
    machine.allocate(900, 8, 2000)
    machine.host += 1.0
    machine.add("cpu_op", "aten::mm", begin + 0.5, machine.host)
    machine.add("user_annotation", "forward", begin + 0.5, machine.host)
    machine.allocate(-900, 8, 1100)
    machine.allocate(500, 9, 1600)
    memory = told(machine, tmp_path).memory
    assert memory is not None
    assert memory.peak_bytes == 2000
    assert memory.owners == [("allocated before the recording", 1000), ("forward / aten::mm", 900), ("elsewhere", 100)]
    assert [size for _, size in memory.timeline] == [1100, 2000, 1100, 1600]


def test_a_recorded_step_graph_of_a_small_model_is_not_told_to_become_one() -> None:
    """Two steps of 128 x 3 on an H200, torch 2.11: the host launches one graph, the GPU waits between its kernels."""
    found = diagnose(read_traces([Path(__file__).parent / "data" / "h200-step-graph.json.gz"]))
    assert found.device == "NVIDIA H200"
    assert found.limit.cause == "host"
    assert found.limit.share == pytest.approx(0.49, abs=0.02)
    assert "a CUDA graph of 246 kernels" in found.limit.why
    assert "cluster.pack" in found.limit.first and "step_graph" not in found.limit.first
