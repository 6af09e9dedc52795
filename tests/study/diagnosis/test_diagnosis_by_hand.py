"""The parts of a diagnosis by hand, on traces of a few events: work, shares, windows, waiting, memory, kernels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from study.diagnosis import kernels, memory, shares, stragglers, windows
from study.diagnosis.intervals import NOTHING, Intervals, difference, overlap, union
from study.diagnosis.kernels import Kernel, Sync
from study.diagnosis.operations import Work, work
from study.diagnosis.shares import RankTime, Split
from study.diagnosis.stragglers import Waiting
from study.diagnosis.trace import Allocations, Spans, Trace
from study.diagnosis.windows import Window

Event = tuple[Any, ...]
"""start, end [µs], name, then thread, correlation, operation where they matter."""


def about(value: Any) -> Any:
    return pytest.approx(value)


def trace(**given: Any) -> Trace:
    """Return a trace of events by room (kernels, calls, operations, marks), and of allocations."""
    names: dict[str, int] = {}

    def spans(events: Sequence[Event]) -> Spans:
        rows = [(start, end, names.setdefault(name, len(names)), *rest) for start, end, name, *rest in events]
        filled = [(*row, *(0, -1, -1)[len(row) - 3 :]) for row in sorted(rows, key=lambda row: row[0])]
        columns = [[row[place] for row in filled] for place in range(6)]
        times: list[Any] = [np.array(column, dtype=np.float64) for column in columns[:2]]
        return Spans(*times, *(np.array(column, dtype=np.int64) for column in columns[2:]))

    rooms: dict[str, Any] = {room: spans(given.get(room, ())) for room in ("kernels", "calls", "operations", "marks")}
    taken = given.get("allocations", ())
    columns = [list(column) for column in zip(*taken, strict=True)] or [[]] * 6
    kinds = (np.float64, np.int64, np.int64, np.int64, np.bool_, np.int64)
    found = Allocations(*(np.array(column, dtype=kind) for column, kind in zip(columns, kinds, strict=True)))
    return Trace(
        Path("a.json"), given.get("rank", 0), given.get("devices", ()), tuple(names), rooms["kernels"], rooms["calls"],
        rooms["operations"], rooms["marks"], found, given.get("shapes", {}), 0,
    )  # fmt: skip


def steps(*edges: float) -> list[Event]:
    return [(start, end, f"ProfilerStep#{n}") for n, (start, end) in enumerate(pairwise(edges))]


BF16, HALF, FP8 = "c10::BFloat16", "c10::Half", "c10::Float8_e4m3fn"


@pytest.mark.parametrize(
    ("name", "dims", "types", "expected"),
    [
        ("aten::mm", [[2, 3], [3, 5]], ["float", "float"], (60, 4 * (6 + 15 + 10), "fp32")),
        ("aten::mm", [[2, 3], [3, 5]], [BF16, BF16], (60, 2 * (6 + 15 + 10), "bf16")),
        ("aten::mm", [[2, 3], [3, 5]], [HALF, HALF], (60, 2 * (6 + 15 + 10), "bf16")),
        ("aten::_scaled_mm", [[2, 3], [3, 5], [1], [1]], [FP8, FP8, "float", "float"], (60, 6 + 15 + 8 + 20, "fp8")),
        ("aten::addmm", [[5], [2, 3], [3, 5]], ["float", BF16, BF16], (60, 20 + 2 * (6 + 15 + 10), "bf16")),
        ("aten::bmm", [[7, 2, 3], [7, 3, 5]], ["double", "double"], (420, 8 * (42 + 105 + 70), "double")),
        ("aten::baddbmm", [[7, 2, 5], [7, 2, 3], [7, 3, 5]], [HALF, "float", "float"],
         (420, 2 * 70 + 4 * (42 + 105 + 70), "fp32")),
        ("aten::add", [[4, 4], [4]], ["long int", "int"], (0, 128 + 16 + 128, "long int")),
        ("aten::add", [[4, 4], [40]], ["long", "bool"], (0, 128 + 40 + 128, "long")),
        ("aten::exp", [[3], [], "x", [2.5]], ["unsigned char"], (0, 12 + 12, "unsigned char")),
        ("aten::mm", [[2, 3]], ["float"], (0, 24 + 24, "fp32")),
    ],
)  # fmt: skip
def test_the_work_of_an_operation(
    name: str, dims: list[Any], types: list[str], expected: tuple[float, float, str]
) -> None:
    assert work(name, dims, types) == Work(*expected)


def test_operations_that_say_no_shape_have_no_work() -> None:
    assert work("aten::mm", [], []) is None and work("aten::add", [[], "", [1.0]], ["Scalar", "", "double"]) is None


WHOLE = Window(0.0, 100.0, 2, np.empty(0, dtype=np.int64))


def test_a_step_on_a_cpu_part_by_part() -> None:
    """Thread 1 waits for a message within what it calculates; of two sends the second waits for 5 µs."""
    operations = [
        (5, 8, "aten::add", 0),  # while the batch is fetched
        (10, 48, "aten::mm", 0),
        (30, 60, "aten::add", 1),
        (45, 70, "gloo:all_reduce", 1),
        (80, 85, "gloo:send", 0),
        (90, 100, "gloo:send", 0),
        (100, 140, "aten::mm", 0),
    ]
    marks = [(-5, 10, "data"), (10, 20, "Forward 0")]
    found = shares.spent(trace(operations=operations, marks=marks), WHOLE)
    assert found.split == Split(38, 37 - 5, 5, 0, 10, 0, 0, 100 - 38 - 37 - 10)
    assert (found.communicating, found.hidden) == (25 + 5 + 10, 3 / 40)
    assert (found.computing.start.tolist(), found.computing.end.tolist()) == ([10.0], [48.0])
    assert sum(found.split.shares(WHOLE.length).values()) == about(1.0)
    without = shares.spent(trace(operations=operations, marks=marks[:1]), WHOLE).split
    assert (without.communication, without.pipeline) == (37, 0), "without a pipeline nobody waits for a stage"
    (alone,) = shares.spent(trace(operations=operations[1:2]), WHOLE).computing.end.tolist()
    assert alone == 48.0
    fetching = shares.spent(trace(marks=marks), WHOLE)
    assert fetching.split == Split(0, 0, 0, 0, 10, 0, 0, 90) and fetching.hidden is None


def test_a_gpu_that_runs_dry_a_microsecond_after_a_wait_ran_dry_by_it() -> None:
    def idle(start: float) -> tuple[float, float, float, float]:
        calls = [(0, 10, "cudaStreamSynchronize", 0, -1), (11, 12, "cudaLaunchKernel", 0, 7)]
        one = trace(kernels=[(30, 40, "k", 5, 7)], calls=calls)
        return shares.idle_by_cause(one, Intervals(np.array([start]), np.array([30.0])))

    assert idle(9.0) == (0, 21, 0, 0) and idle(10.9) == (0, about(19.1), 0, 0)
    assert idle(11.1) == (0, 0, 0, about(18.9))


def test_intervals_that_touch_are_one_and_empty_ones_are_none() -> None:
    made = union(np.array([3.0, 0.0, 1.0, 9.0, 7.0]), np.array([5.0, 1.0, 2.0, 9.0, 8.0]))
    assert (made.start.tolist(), made.end.tolist()) == ([0, 3, 7], [2, 5, 8])
    assert made.holds(np.array([-1, 0, 1.9, 2, 4, 5, 7, 8])).tolist() == [False, True, True, False, True, False, True,
                                                                          False]  # fmt: skip
    assert NOTHING.holds(np.array([0.0, 1.0])).tolist() == [False, False]
    left = difference(made, union(np.array([1.0, 4.0]), np.array([3.5, 20.0])))
    assert (left.start.tolist(), left.end.tolist()) == ([0, 3.5], [1, 4])
    assert overlap(made, union(np.array([1.0]), np.array([4.0]))) == 2 / 5 and overlap(NOTHING, made) is None


def test_moments_are_in_the_span_that_begins_with_them() -> None:
    marked = trace(marks=[(0, 10, "a"), (10, 20, "b"), (25, 30, "c")]).marks
    assert windows.inside(np.array([-1.0, 0, 9, 10, 20, 24, 25, 30]), marked).tolist() == [-1, 0, 0, 1, -1, -1, 2, -1]


def test_a_cpus_window_is_the_steps_that_have_work() -> None:
    one = trace(marks=steps(5, 10, 20, 30, 40), operations=[(1, 2, "a"), (12, 13, "a"), (21, 22, "a"), (45, 46, "a")])
    found = windows.window_of(one)
    assert (found.start, found.end, found.steps, found.length) == (10, 30, 2, 20)
    assert found.of_work.tolist() == [-1, 1, 2, -1]


def launched(*each: tuple[float, float, float]) -> dict[str, list[Event]]:
    """Return kernels (start, end) and the calls (moment) that launched them."""
    kinds = [(start, end, "k", 9, n) for n, (_, start, end) in enumerate(each)]
    return {"kernels": kinds, "calls": [(at, at + 1, "cudaLaunchKernel", 0, n) for n, (at, _, _) in enumerate(each)]}


def test_a_gpus_window_goes_from_the_end_of_one_steps_work_to_the_end_of_anothers() -> None:
    found = windows.window_of(trace(marks=steps(0, 10, 20, 30), **launched((1, 2, 14), (11, 15, 33), (21, 34, 52))))
    assert (found.start, found.end, found.steps, found.of_work.tolist()) == (14, 52, 2, [-1, 1, 2])


@pytest.mark.parametrize(("first", "begin"), [(3.0, 1.0), (0.5, 0.5)])
def test_one_step_of_a_gpu_begins_with_its_mark_or_its_first_kernel(first: float, begin: float) -> None:
    one = windows.window_of(trace(marks=steps(1, 10), **launched((2, first, 14), (4, 14, 18))))
    assert (one.start, one.end, one.steps, one.of_work.tolist()) == (begin, 18, 1, [0, 0])


def test_a_first_step_that_outlasts_the_second_is_looked_at_with_it() -> None:
    for second_end in (17.0, 18.0):
        two = windows.window_of(trace(marks=steps(1, 10, 20), **launched((2, 5, 18), (12, 15, second_end))))
        assert (two.start, two.end, two.steps, two.of_work.tolist()) == (1, 18, 2, [0, 1])


def test_kernels_without_a_known_call_belong_to_the_step_in_which_they_run() -> None:
    marks, own = steps(0, 10, 20), [(2, 4, "k", 9, 5), (12, 14, "k", 9, 6)]
    for calls in ([], [(0, 1, "cudaLaunchKernel", 0, 99)]):
        assert windows.window_of(trace(marks=marks, kernels=own, calls=calls)).of_work.tolist() == [-1, 1]
    known = [(0, 1, "cudaLaunchKernel", 0, 5)]
    assert windows.window_of(trace(marks=marks, kernels=own, calls=known)).of_work.tolist() == [0, -1]


def idle_time() -> RankTime:
    return RankTime(Split(0, 0, 0, 0, 0, 0, 0, 0), NOTHING, 0.0, None)


def waited(*ranks: Sequence[tuple[float, float]], computing: Intervals = NOTHING) -> Waiting:
    """Return how ranks wait in collectives (start, end) of two steps of 100 µs each."""
    made = [
        trace(rank=4 + n, operations=[(*each, "gloo:all_reduce") for each in own] + [(150, 151, "aten::add")])
        for n, own in enumerate(ranks)
    ]
    there = [
        Window(0.0, 200.0, 2, np.where(one.operations.start < 0, -1, one.operations.start // 100).astype(np.int64))
        for one in made
    ]
    times = [RankTime(idle_time().split, computing, 0.0, None) for _ in made]
    return stragglers.waiting(made, there, times)


def test_who_comes_last_to_a_collective_is_waited_for() -> None:
    found = waited([(10, 30), (40, 46), (110, 115)], [(25, 30), (42, 46), (108, 115)])
    # By 15 and 2 µs for rank 5, by 2 µs for rank 4.
    assert found.blame == about(17 / 19) and found.slowest == 5
    assert found.shares == {4: about(17 / 200), 5: about(2 / 200)}
    assert found.mean == about(9.5 / 200)
    busy = waited([(10, 30)], [(25, 30)], computing=Intervals(np.array([12.0]), np.array([20.0])))
    assert busy.shares == {4: about(7 / 200), 5: 0.0}, "who calculates meanwhile does not wait"


def test_collectives_outside_of_steps_and_without_a_partner_count_nowhere() -> None:
    found = waited([(-50, -10), (10, 20), (60, 90)], [(-20, -10), (15, 20)])
    assert found.shares == {4: about(5 / 200), 5: 0.0} and (found.slowest, found.blame) == (5, 1.0)


def test_of_two_ranks_one_must_be_to_blame_for_three_quarters_of_three_for_half() -> None:
    assert waited([(0, 10), (110, 113)], [(4, 10), (105, 113)]).slowest is None, "5 of 9"
    assert waited([(0, 10), (110, 113)], [(4, 10), (111, 113)]).slowest == 5
    assert waited([(0, 12), (110, 116)], [(6, 12), (108, 116)]).slowest == 5, "6 of 8"
    three = waited([(0, 12), (110, 113)], [(6, 12), (106, 113)], [(0, 12), (106, 113)])
    assert (three.slowest, three.blame) == (5, about(12 / 20)), "12 of 20"
    even = waited([(0, 10), (110, 113)], [(5, 10), (105, 113)], [(0, 10), (108, 113)])
    assert even.slowest == 5 and even.blame == about(10 / 17)
    assert waited([(0, 10), (110, 113)]) == Waiting({4: 0.0}, None, 0.0)
    assert waited([(0, 10)], [(0, 10)]) == Waiting({4: 0.0, 5: 0.0}, None, 0.0), "nobody waits, nobody is to blame"


def test_the_mean_of_no_ranks_is_nothing() -> None:
    assert Waiting({}, None, 0.0).mean == 0.0 and Waiting({3: 0.2, 5: 0.4}, 3, 1.0).mean == about(0.3)


def test_where_a_rank_takes_longer_than_the_median_of_the_others() -> None:
    seconds = {0: {"compute": 5.0, "copy": 1.0}, 1: {"compute": 2.0, "copy": 0.5}, 2: {"compute": 4.0, "copy": 0.1}}
    assert stragglers.excess(seconds, 0) == ("compute", 2.0)
    assert stragglers.excess(seconds, 1) == ("copy", about(-0.05))


Taken = tuple[float, int, int, int, bool, int]
"""moment, bytes, address, total afterwards, on a GPU, thread."""


def test_memory_of_a_cpu_is_counted_from_the_beginning_of_the_recording() -> None:
    taken: list[Taken] = [
        (1e6, 100, 7, 0, False, 0),
        (2e6, 50, 8, 0, False, 0),
        (3e6, -100, 7, 0, False, 0),
        (4e6, 300, 9, 0, False, 0),
        (5e6, 1, 11, 0, False, 1),
        (6e6, -300, 9, 0, False, 0),
    ]
    operations = [(0.5e6, 1.5e6, "aten::empty"), (3.9e6, 4.0e6, "aten::mm"), (4.9e6, 5.1e6, "aten::add", 1)]
    marks = [(0.1e6, 9e6, "ProfilerStep#0"), (0.2e6, 2e6, "forward"), (3e6, 6e6, "backward"), (3.5e6, 5e6, "inner")]
    found = memory.memory_of(trace(allocations=taken, operations=operations, marks=marks), 5)
    assert found is not None
    assert (found.device, found.peak_bytes, found.peak_moment) == ("CPU", 351, 5.0)
    assert found.timeline == [(1.0, 100), (2.0, 150), (3.0, 50), (4.0, 350), (5.0, 351), (6.0, 51)]
    assert found.owners == [("backward / aten::mm", 300), ("forward", 50), ("backward / aten::add", 1)]
    fewer = memory.memory_of(trace(allocations=taken, operations=operations, marks=marks), 1)
    assert fewer is not None and fewer.owners == [("backward / aten::mm", 300)]
    assert memory.memory_of(trace(operations=operations), 5) is None


def test_memory_of_a_gpu_leaves_the_hosts_out_and_owns_what_came_before() -> None:
    taken: list[Taken] = [
        (1e6, 10**9, 3, 0, False, 0),
        (2e6, 40, 7, 41, True, 0),
        (3e6, 10, 8, 51, True, 0),
        (4e6, -40, 7, 11, True, 0),
    ]
    marks = [(0, 1.5e6, "first"), (2e6, 2.5e6, "second"), (2.5e6, 3.5e6, "third")]
    found = memory.memory_of(trace(allocations=taken, marks=marks), 5)
    assert found is not None and (found.device, found.peak_bytes, found.peak_moment) == ("GPU", 51, 3.0)
    assert found.owners == [("second", 40), ("third", 10), (memory.BEFORE, 1)]
    assert found.timeline == [(2.0, 41), (3.0, 51), (4.0, 11)]


@pytest.mark.parametrize(("count", "kept"), [(199, 199), (200, 200), (201, 101), (400, 200), (401, 135)])
def test_a_timeline_has_at_most_two_hundred_moments_and_the_peak(count: int, kept: int) -> None:
    taken: list[Taken] = [(n * 1e6, 1, n, n + 1, True, 0) for n in range(count)]
    found = memory.memory_of(trace(allocations=taken), 1)
    assert found is not None
    assert len(found.timeline) in (kept, kept + 1) and found.timeline[0] == (0.0, 1)
    assert max(size for _, size in found.timeline) == count
    every = found.timeline[1][0]
    assert every == -(-count // 200)


def own(*operations: Event, window: Window = WHOLE) -> list[Kernel]:
    return kernels.top_kernels(trace(operations=operations), window, 5)


def test_an_operations_own_time_is_less_that_of_what_it_calls() -> None:
    found = own(
        (0, 40, "outer"), (5, 15, "aten::mm"), (7, 10, "inner"), (15, 20, "aten::add"), (40, 60, "next"),
        (0, 30, "other", 1), (90, 130, "late"),
    )  # fmt: skip
    seconds = {one.name: one.seconds * 1e6 * 2 for one in found}
    assert seconds == about({"other": 30, "outer": 25, "next": 20, "late": 10, "aten::mm": 7})
    assert found[0].share == about(30 / 100) and found[0].calls == 0.5
    assert [(one.kind, one.flops, one.of_ceiling) for one in found][4] == ("matmul", None, None)
    assert kernels.launches(trace(operations=[(0, 4, "a"), (5, 15, "b"), (20, 26, "a"), (200, 300, "c")]), WHOLE) == (
        1.5,
        about(6e-6),
    )


def test_calls_that_take_any_time_are_counted() -> None:
    (only,) = own((10, 10.5, "aten::add"), (20, 20.25, "aten::add"))
    assert (only.calls, only.seconds) == (2 / WHOLE.steps, about(0.75e-6 / WHOLE.steps))


def test_the_share_of_what_memory_limits() -> None:
    operations: list[Event] = [(0, 60, "aten::add"), (10, 40, "aten::mm"), (60, 70, "gloo:all_reduce")]
    assert kernels.memory_share(trace(operations=operations), WHOLE) == about(0.5)
    assert kernels.memory_share(trace(operations=operations[2:]), WHOLE) == 0.0
    # An H200's balance in bf16 is 798e12 / 4.27e12 = 186.9 FLOPs a byte.
    launches = [(0, 10, "gemm", 9, 1, 1), (10, 30, "gemm", 9, 2, 2), (30, 70, "gemm", 9, 3, 3)]
    known = {1: Work(186.0, 1.0, "bf16"), 2: Work(188.0, 1.0, "bf16"), 3: Work(0.0, 1.0, "bf16")}
    for devices, share in ((("NVIDIA H200",), 10 / 70), (("A toaster",), 0.0), ((), 0.0)):
        one = trace(kernels=launches, devices=devices, shapes=known)
        assert kernels.memory_share(one, WHOLE) == about(share)
    assert kernels.memory_share(trace(kernels=launches, devices=("NVIDIA H200",)), WHOLE) == 0.0


def test_rates_count_an_operations_work_to_its_longest_kernel() -> None:
    launches = [
        (0, 10, "gemm", 9, 1, 1), (10, 12, "split", 9, 2, 1), (90, 110, "gemm", 9, 3, 2), (20, 30, "add", 9, 4, 3),
    ]  # fmt: skip
    known = {1: Work(3e9, 2e6, "bf16"), 2: Work(1.5e9, 4e6, "bf16"), 3: Work(0.0, 8e6, "fp32")}
    found = {
        one.name: one
        for one in kernels.top_kernels(trace(kernels=launches, shapes=known, devices=("NVIDIA H200",)), WHOLE, 5)
    }
    assert found["gemm"].flops == about(4.5e9 / 30e-6) and found["gemm"].bytes == about(6e6 / 30e-6)
    assert found["gemm"].of_ceiling == about(150e12 / 798e12)
    assert (found["add"].flops, found["add"].bytes) == (None, about(8e11))
    assert found["add"].of_ceiling == about(0.8 / 4.27)
    assert (found["split"].flops, found["split"].bytes, found["split"].of_ceiling) == (None, None, None)
    assert (found["gemm"].calls, found["gemm"].seconds) == (1.0, about(10e-6)), "in the window, a step of two"


def test_who_makes_the_host_wait() -> None:
    calls = [
        (-5, 0, "cudaDeviceSynchronize", 0, -1, 1),
        (-3, 7, "cudaDeviceSynchronize", 0, -1, 1),
        (10, 30, "cudaStreamSynchronize", 0, -1, 2),
        (50, 52, "cudaStreamSynchronize", 0, -1, 3),
        (60, 61, "cudaStreamSynchronize", 0),
        (100, 120, "cudaStreamSynchronize", 0, -1, 2),
        (20, 90, "cudaLaunchKernel", 0),
    ]
    operations = [
        (-6, 8, "aten::to", 0, -1, 1), (10, 30, "aten::item", 0, -1, 9), (9, 31, "aten::any", 0, -1, 2),
        (49, 53, "aten::nonzero", 0, -1, 3),
    ]  # fmt: skip
    found = kernels.syncs(trace(calls=calls, operations=operations), WHOLE, 9)
    assert found == [
        Sync("cudaStreamSynchronize", "aten::item", 0.5, about(10e-6)),
        Sync("cudaDeviceSynchronize", "aten::to", 0.5, about(5e-6)),
        Sync("cudaStreamSynchronize", "aten::nonzero", 0.5, about(1e-6)),
        Sync("cudaStreamSynchronize", "", 0.5, about(0.5e-6)),
    ]
    assert kernels.syncs(trace(calls=calls, operations=operations), WHOLE, 1) == found[:1]


def test_kernels_of_a_graph_are_told_from_those_that_the_host_launched() -> None:
    calls = [(0, 1, "cudaGraphLaunch", 0, 5), (2, 3, "cudaLaunchKernel", 0, 6), (3, 4, "cudaGraphLaunch", 0)]
    work = [(5, 8, "k", 9, 5), (8, 9, "k", 9, 5), (9, 12, "k", 9, 6), (12, 13, "k", 9), (200, 201, "k", 9, 5)]
    assert kernels.replayed(trace(calls=calls, kernels=work), WHOLE) == 0.5
    assert kernels.replayed(trace(calls=calls, kernels=work[4:]), WHOLE) == 0.0
    copies = [(0, 5, "Memcpy DtoH (Device -> Pinned)"), (6, 7, "Memcpy HtoD"), (101, 102, "Memcpy DtoH")]
    assert kernels.copies_to_host(trace(kernels=copies), WHOLE) == 0.5
