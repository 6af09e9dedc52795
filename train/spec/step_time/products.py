"""How long a matrix product takes: the longer of its arithmetic and of the bytes that it has to move.

Arithmetic is slower than the best rate where a result has too few tiles for all multiprocessors, or just too many, so
that a last round of them leaves most idle (NVIDIA, "Matrix multiplication background user's guide", tile and wave
quantization), and where sums are short. Where there are few tiles, several work on parts of the sum of one (split K).
A CPU rank computes tile after tile, so that none of this is counted there.

Products of groups in one launch, as those of experts, have the tiles of all groups, and no split K.
"""

from __future__ import annotations

from functools import lru_cache

from train.spec.step_time.device import Device
from train.spec.step_time.result import GROUPED, MATMUL, NARROW

TILES = ((256, 128), (128, 256), (192, 192), (128, 128))
"""Rows and columns of a tile: 256 x 128 and 192 x 192 as in benchmarks/results/kernels_profile.txt, and the smaller one
of NVIDIA's guide, which is taken where it leaves fewer multiprocessors idle."""
PROCESSORS = 132
"""Multiprocessors of an H100 or H200 (SXM) by NVIDIA's H100 architecture white paper."""
SUM_STEP, UNDER_WAY = 64, 4
"""A tile's sum goes in steps of 64, four of which are under way at a time: `64x4` in the names of cuBLAS's kernels in
kernels_profile.txt. So a sum takes a step more than it has, and is not cut into parts of fewer than twice four."""


@lru_cache(maxsize=65536)
def busy(m: int, k: int, n: int, groups: int = 1) -> float:
    """Return the share of all multiprocessors' time that the useful work of m x k x n products takes, at most 1."""
    return max(_with_tile((m, k, n), groups, *tile) for tile in TILES)


def _whole(m: int, k: int, n: int, groups: int = 1) -> float:
    del m, k, n, groups
    return 1.0


def _with_tile(sides: tuple[int, int, int], groups: int, rows: int, columns: int) -> float:
    m, k, n = sides
    tiles = groups * -(-m // rows) * -(-n // columns)
    cut = groups == 1 and tiles < PROCESSORS
    parts = max(1, min(PROCESSORS // tiles, k // (2 * UNDER_WAY * SUM_STEP))) if cut else 1
    rounds = -(-tiles * parts // PROCESSORS)
    steps = k / parts / SUM_STEP
    return groups * m * n * parts / (rows * columns) / (rounds * PROCESSORS) * steps / (steps + 1)


@lru_cache(maxsize=65536)
def seconds(
    device: Device, format: str, sides: tuple[int, int, int], moved: float, groups: int = 1
) -> tuple[float, bool]:
    """Return how long m x k x n products take [s], and whether arithmetic is their limit; moved: bytes of all."""
    m, k, n = sides
    part = busy if device.type == "cuda" else _whole
    expected = tuple(part(one.m, one.k, one.n, one.groups) for one in dict(device.products).get(format, ()))
    share = part(m, k, n, groups) * device.correction(format, (groups, m, k, n), expected)
    arithmetic, memory = 2.0 * groups * m * k * n / (device.rate(format) * share), moved / device.memory
    return max(arithmetic, memory), arithmetic >= memory


def product(
    device: Device, format: str, sides: tuple[int, int, int], size: int, result: int, *, groups: int = 1
) -> dict[str, float]:
    """Return the time of products by part; size, result: bytes of a number that goes in, that comes out."""
    m, k, n = sides
    moved = groups * (float(size) * (m * k + k * n) + float(result) * m * n)
    taken, by_arithmetic = seconds(device, format, sides, moved, groups)
    return {(MATMUL if groups == 1 else GROUPED) if by_arithmetic else NARROW: taken}
