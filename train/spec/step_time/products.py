"""How long a matrix product takes: the longer of its arithmetic and of the bytes that it has to move.

Arithmetic is slower than the best rate where a result has too few tiles for all multiprocessors, or just too many, so
that a last round of them leaves most idle (NVIDIA, "Matrix multiplication background user's guide", tile and wave
quantization), and where sums are short. Where there are few tiles, several work on parts of the sum of one (split K).
A CPU rank computes tile after tile, so that none of this is counted there.
"""

from __future__ import annotations

from functools import lru_cache

from train.spec.step_time.device import Device
from train.spec.step_time.result import MATMUL, NARROW

TILES = ((256, 128), (128, 256), (192, 192), (128, 128))
"""Rows and columns of a tile: 256 x 128 and 192 x 192 as in benchmarks/results/kernels_profile.txt, and the smaller one
of NVIDIA's guide, which is taken where it leaves fewer multiprocessors idle."""
PROCESSORS = 132
"""Multiprocessors of an H100 or H200 (SXM) by NVIDIA's H100 architecture white paper."""
SUM_STEP, UNDER_WAY = 64, 4
"""A tile's sum goes in steps of 64, four of which are under way at a time: `64x4` in the names of cuBLAS's kernels in
kernels_profile.txt. So a sum takes a step more than it has, and is not cut into parts of fewer than twice four."""


@lru_cache(maxsize=65536)
def busy(m: int, k: int, n: int) -> float:
    """Return the share of all multiprocessors' time that an m x k x n product's useful work takes, at most 1."""
    return max(_with_tile(m, k, n, *tile) for tile in TILES)


def _whole(m: int, k: int, n: int) -> float:
    del m, k, n
    return 1.0


def _with_tile(m: int, k: int, n: int, rows: int, columns: int) -> float:
    tiles = -(-m // rows) * -(-n // columns)
    parts = max(1, min(PROCESSORS // tiles, k // (2 * UNDER_WAY * SUM_STEP))) if tiles < PROCESSORS else 1
    rounds = -(-tiles * parts // PROCESSORS)
    steps = k / parts / SUM_STEP
    return m * n * parts / (rows * columns) / (rounds * PROCESSORS) * steps / (steps + 1)


@lru_cache(maxsize=65536)
def seconds(device: Device, format: str, sides: tuple[int, int, int], moved: float) -> tuple[float, bool]:
    """Return how long an m x k x n product takes [s], and whether arithmetic is its limit; moved: its bytes."""
    m, k, n = sides
    part = busy if device.type == "cuda" else _whole
    expected = tuple(part(one.m, one.k, one.n) for one in dict(device.products).get(format, ()))
    share = part(m, k, n) * device.correction(format, sides, expected)
    arithmetic, memory = 2.0 * m * k * n / (device.rate(format) * share), moved / device.memory
    return max(arithmetic, memory), arithmetic >= memory


def product(device: Device, format: str, sides: tuple[int, int, int], size: int, result: int) -> dict[str, float]:
    """Return a product's time by part; size, result: bytes of a number that goes in, that comes out."""
    m, k, n = sides
    moved = float(size) * (m * k + k * n) + float(result) * m * n
    taken, by_arithmetic = seconds(device, format, sides, moved)
    return {MATMUL if by_arithmetic else NARROW: taken}
