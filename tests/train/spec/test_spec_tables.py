"""Tables and small decisions of the specification, number by number."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product

import pytest

from train.spec import activations, shard_shapes
from train.spec.config import BatchConfig, BudgetConfig, DataConfig, ModelConfig, ParallelConfig, RunConfig
from train.spec.counts import Weight
from train.spec.device_peaks import ceilings, stated
from train.spec.footprint import footprint, of_a_token
from train.spec.mesh import Axes
from train.spec.micro_batch import Need, Seen, even, even_parts, failed, most, need, ran, read, smaller
from train.spec.resolve import resolve

TERA = 1e12
PEAKS = {
    # Dense bf16 and fp32 [TFLOP/s] and memory [TB/s] by the makers' data sheets.
    "NVIDIA H100 PCIe": (2.0, 51.0),
    "NVIDIA H100 NVL": (3.9, None),
    "NVIDIA H100 80GB HBM3": (3.35, 67.0),
    "NVIDIA GH200 480GB": (4.0, 67.0),
    "NVIDIA B200": (8.0, None),
    "NVIDIA A100-SXM4-80GB": (2.039, 19.5),
    "NVIDIA A10G": (0.6, 35.0),
    "NVIDIA L40S": (0.864, 91.6),
    "NVIDIA L4": (0.3, 30.3),
    "NVIDIA GeForce RTX 4090": (1.008, 82.6),
    "NVIDIA GeForce RTX 3090": (0.936, 35.6),
    "Tesla V100-SXM2-32GB": (0.9, 15.7),
}


@pytest.mark.parametrize("device", PEAKS)
def test_what_makers_say_of_a_device(device: str) -> None:
    bandwidth, fp32 = PEAKS[device]
    found = ceilings(device)
    assert found is not None and not found.measured
    assert found.bandwidth == pytest.approx(bandwidth * TERA, rel=1e-12)
    if fp32 is not None:
        assert found.flops("fp32") == pytest.approx(fp32 * TERA, rel=1e-12)
        assert stated(device, "fp32") == found.flops("fp32")
    assert found.balance("fp32") == found.flops("fp32") / found.bandwidth


def test_what_is_not_known_has_no_peak_and_what_was_measured_counts() -> None:
    assert ceilings("NVIDIA Tomorrow") is None and stated("NVIDIA Tomorrow", "bf16") is None
    h200 = ceilings("NVIDIA H200")
    assert h200 is not None and h200.measured and h200.bandwidth == pytest.approx(4.27e12)
    assert [h200.flops(form) for form in ("bf16", "fp8", "fp32", "int8")] == [798e12, 1304e12, 67e12, 67e12]
    assert stated("Tesla V100", "bf16") is None, "it has no bf16"
    volta = ceilings("Tesla V100")
    assert volta is not None and volta.flops("bf16") == volta.flops("fp8") == 15.7e12


@pytest.mark.parametrize(
    ("rows", "ranks", "more"), [(8, 4, 0.0), (7, 4, 1 / 7), (9, 4, 3 / 9), (1, 4, 3.0), (100, 99, 98 / 100)]
)
def test_how_much_more_than_its_share_the_first_rank_has(rows: int, ranks: int, more: float) -> None:
    assert shard_shapes.excess(rows, ranks) == pytest.approx(more)


@pytest.mark.parametrize(
    ("shape", "ranks", "stored"),
    [
        ((7, 12), 1, (7, 12)),
        ((5,), 4, (5,)),
        ((8, 12), 4, (8, 12)),
        ((7, 12), 4, (28, 3)),  # rows of a half would leave 2 of 16 empty, of a third 3 of 24
        ((100, 7), 51, (700, 1)),  # 2 of 102 are too many, and a seventh is all that is left
        ((1000, 7), 503, (1000, 7)),  # 6 of 1,006 are few enough
        ((3, 7), 4, (21, 1)),  # nothing shares it evenly: single numbers
        ((1, 6), 4, (6, 1)),
        ((2, 3, 5, 4), 8, (120, 1)),
    ],
)
def test_rows_in_which_a_weight_is_stored(shape: tuple[int, ...], ranks: int, stored: tuple[int, ...]) -> None:
    assert shard_shapes.stored_shape(shape, ranks) == stored


def test_a_weight_is_stored_in_the_longest_rows_that_share_it_within_a_hundredth() -> None:
    for rows, columns, ranks in product(range(1, 60, 7), (1, 4, 6, 12, 35), (2, 3, 4, 7, 8, 16)):
        found, length = shard_shapes.stored_shape((rows, columns), ranks)
        assert found * length == rows * columns
        lengths = [n for n in range(columns, 0, -1) if columns % n == 0]
        fair = [n for n in lengths if 100 * (-(-rows * (columns // n) // ranks) * ranks) < 101 * rows * (columns // n)]
        assert length == (fair[0] if fair else 1)


def numbers(region: tuple[slice, ...], shape: tuple[int, ...]) -> Iterator[int]:
    """Yield the places of a region's numbers, counted row by row."""
    for index in product(*(range(part.start, part.stop) for part in region)):
        place = 0
        for size, at in zip(shape, index, strict=True):
            place = place * size + at
        yield place


@pytest.mark.parametrize("shape", [(6,), (3, 4), (2, 3, 4), (1, 5)])
def test_regions_of_every_run_are_its_numbers_in_their_order(shape: tuple[int, ...]) -> None:
    whole = math.prod(shape)
    for start in range(whole + 1):
        for stop in range(start, whole + 1):
            regions = list(shard_shapes.regions_of_run(shape, start, stop))
            assert [place for one in regions for place in numbers(one, shape)] == list(range(start, stop))
    assert list(shard_shapes.regions_of_run((3, 4), 2, 12)) == [
        (slice(0, 1), slice(2, 4)),
        (slice(1, 3), slice(0, 4)),
    ], "as few regions as can be"


def test_shards_and_what_is_gathered_by_hand() -> None:
    plain, vector = Weight((7, 12)), Weight((5,))
    assert [shard_shapes.largest_shard(plain, ranks) for ranks in (1, 2, 4, 8)] == [84, 42, 21, 11]
    assert shard_shapes.largest_shard(vector, 4) == 2
    assert shard_shapes.largest_shards([plain, vector], 4) == 23
    assert shard_shapes.gathered([plain, vector], 4) == 4 * 23
    experts = Weight((8, 6, 10), experts=8)
    assert shard_shapes.largest_shard(experts, 4, ep=2) == 2 * 60, "two of the four that a pair shares"
    assert shard_shapes.gathered([experts, vector], 4, ep=2) == 2 * 120 + 4 * 2
    assert isinstance(shard_shapes.gathered([experts], 4, 1, 2), int)
    assert shard_shapes.gathered([experts, vector], 4) == 4 * (120 + 2)
    assert shard_shapes.largest_shards([experts, vector], 4, ep=2) == 122
    cut = Weight((6, 12), tp_dim=1, fsdp_dim=0)
    assert shard_shapes.largest_shard(cut, 4, tp=3) == 2 * 4, "two of six rows, a third of each"
    assert shard_shapes.largest_shards([cut], 4) == 18, "without, rows are cut"


SPARE = Need(fixed=100, sequence=10)


@pytest.mark.parametrize(
    ("share", "free", "seen", "found"),
    [
        (64, 200, None, 8),  # (0.9 * 200 - 100) / 10
        (5, 200, None, 5),
        (64, 100, None, 1),
        (64, 200, Seen(2, 4, None, 0), 20),  # 4 measured, asked for as 4.2, of which 4 are whole
        (64, 200, Seen(2, 50, None, 0), 8),  # no more than the estimate
        (64, 200, Seen(2, 4, 12, 200), 11),
        (64, 211, Seen(2, 4, 12, 200), 22),  # a twentieth more is more memory
        (64, 210, Seen(2, 4, 12, 200), 11),
        (64, 200, Seen(0, None, 1, 200), 1),
        (64, 200, Seen(0, None, 5, 0), 8),
    ],
)
def test_the_largest_micro_batch_to_try(share: int, free: int, seen: Seen | None, found: int) -> None:
    assert most(share, SPARE, free, seen) == found


def test_parts_are_as_few_and_as_equal_as_can_be() -> None:
    for count, limit in product(range(1, 40), range(1, 40)):
        parts = even_parts(count, limit)
        assert sum(parts) == count and max(parts) <= limit and max(parts) - min(parts) <= 1
        assert len(parts) == -(-count // limit) and even(count, limit) == max(parts)
    assert [smaller(64, size) for size in (64, 3, 2, 1)] == [32, 1, 1, None]
    assert smaller(10, 8) == 4


def test_what_a_run_that_trained_or_failed_teaches() -> None:
    assert ran(None, 4, 100) == Seen(4, 100, None, 0)
    assert ran(Seen(4, 100, 8, 50), 4, 90) == Seen(4, 90, 8, 50), "as large a one measures anew"
    assert ran(Seen(4, 100, 8, 50), 3, 90) == Seen(4, 100, 8, 50), "a smaller one measures nothing"
    assert ran(Seen(0, None, 8, 50), 3, 90) == Seen(3, 90, 8, 50)
    assert ran(Seen(4, None, None, 0), 3, 90) == Seen(4, 90, None, 0)
    assert ran(Seen(4, 100, 8, 50), 8, 90) == Seen(8, 90, None, 0), "it does fit"
    assert ran(Seen(4, 100, 8, 50), 7, 90) == Seen(7, 90, 8, 50)
    assert failed(None, 8, 50) == Seen(0, None, 8, 50)
    assert failed(Seen(4, 100, None, 0), 8, 50) == Seen(4, 100, 8, 50)
    assert failed(Seen(8, 100, None, 0), 8, 50) == Seen(7, 100, 8, 50)
    assert failed(Seen(8, 100, None, 0), 1, 50) == Seen(0, None, 1, 50)


def test_what_was_written_is_read() -> None:
    assert read({}) == Seen(0, None, None, 0)
    assert read({"fits": 0, "free": 0}) == Seen(0, None, None, 0)
    assert read({"fits": "4", "per_sequence": 1.9, "fails": None, "free": 7, "else": 1}) == Seen(4, 1, None, 7)
    with pytest.raises(ValueError):
        read({"fits": "many"})


def test_what_a_rank_needs_for_any_micro_batch_and_for_each_sequence() -> None:
    model = ModelConfig(width=256, layers=4, head_dim=64, mlp_width=512)
    data = DataConfig(vocab_size=4096, sequence_length=128)
    run = resolve(RunConfig(model, data, BatchConfig(tokens=8192), budget=BudgetConfig(tokens=10**6)))
    cut = replace(run, parallel=replace(ParallelConfig(), tp=2, dp_shard=2))
    for config, axes in ((run, Axes()), (cut, Axes(tp=2, dp_shard=2))):
        plan, (kept, once) = footprint(config, axes, "cuda"), of_a_token(config, axes, "cuda")
        head = 4 * 4096 * 256 // axes.tp
        chunk = 2 * activations.CHUNK_BYTES["cuda"] // axes.tp
        assert need(config, axes) == Need(plan.states + plan.gathered + chunk + head, int((kept + 2 * once) * 128))
        assert isinstance(need(config, axes).fixed, int)
    assert need(cut, Axes(tp=2, dp_shard=2)).sequence > 0
    assert all(a != b for a, b in pairwise([need(run, Axes()), need(cut, Axes(tp=2, dp_shard=2))]))
