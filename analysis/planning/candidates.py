"""Runs that could be next: sizes of models that can be built, crossed with compute, near the compute-optimal path."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from analysis.approaches.cost import Cost
from analysis.inputs.dataset import Array
from analysis.planning import shapes

if TYPE_CHECKING:
    import pandas as pd

LEVELS = 9
FACTOR = 4.0
"""Candidates lie within this factor of the compute-optimal size of their budget, as the sizes of a sweep do."""
RATIOS = (1.0, 3000.0)
"""Tokens per parameter of candidates: outside these no law was ever tested. Runs beyond them widen the range."""


@dataclass(frozen=True)
class Size:
    """A size that can be trained: parameters, and width and layers where they are known."""

    params: float
    width: int | None = None
    layers: int | None = None


@dataclass(frozen=True)
class Candidates:
    """m runs: parameters, tokens and FLOPs (m,), and the size of each."""

    params: Array
    tokens: Array
    flops: Array
    sizes: tuple[Size, ...]

    def __len__(self) -> int:
        return len(self.sizes)


def family(frame: pd.DataFrame, kind: str, reach: float) -> tuple[Size, ...]:
    """Return the sizes from half the smallest to `reach` parameters.

    Where the runs say their widths and layers, the count that these imply is checked against their parameters: if it
    holds, shapes in between and beyond are made the same way; else only the shapes run are offered. Runs without shapes
    get proposed ones (see :mod:`analysis.planning.shapes`).
    """
    good = frame[frame["used"]]
    low = float(good["params"].min())
    known = good[["width", "layers", "params"]].dropna().drop_duplicates().sort_values("params")
    if len(known) < 2:
        wanted = np.geomspace(low / 2, max(reach, 2 * low), 24)
        offers = [next(shapes.offers(float(n), kind), None) for n in wanted]
        return tuple(
            Size(float(n), offer.width, offer.layers) if offer else Size(float(n))
            for n, offer in zip(wanted, offers, strict=True)
        )
    width, layers, params = (known[name].to_numpy(dtype=np.float64) for name in ("width", "layers", "params"))
    table = float(np.median((params - layers * _block(width)) / width))
    ran = tuple(Size(float(n), int(w), int(d)) for n, w, d in zip(params, width, layers, strict=True))
    if np.abs((layers * _block(width) + table * width) / params - 1).max() > 0.01:
        return ran
    step = int(np.gcd.reduce(width.astype(np.int64)))
    limit = max(reach, float(params.max()))
    most = int(np.sqrt(limit / 12))  # a block has 12 w^2 parameters or more
    made = {(size.width, size.layers): size for size in ran}
    order = np.argsort(width)
    aspect = float(width[order][-1] / layers[order][-1])
    for w in range(step * max(1, int(width.min() * 0.7) // step), most + 1, step):
        d = round(float(np.interp(w, width[order], layers[order]) if w < width.max() else w / aspect))
        n = float(d * _block(np.array([w]))[0] + table * w)
        if n <= limit:
            made.setdefault((w, d), Size(n, w, d))
    return tuple(sorted(made.values(), key=lambda size: size.params))


def cross(
    sizes: tuple[Size, ...], price: Cost, levels: Array, best: Array, ratios: tuple[float, float] = RATIOS
) -> Candidates:
    """Return the sizes at each budget of `levels` [FLOPs] within FACTOR of its best size `best`; thinned where many.

    Those whose tokens per parameter lie outside `ratios` are left out.
    """
    params, tokens, flops, kept = [], [], [], []
    for level, middle in zip(levels, best, strict=True):
        near = [size for size in sizes if abs(np.log(size.params / middle)) <= np.log(FACTOR)]
        near = near or [min(sizes, key=lambda size: abs(np.log(size.params / middle)))]
        per_token = {size: float(np.exp(price.log_per_token(np.array([np.log(size.params)]))[0][0])) for size in near}
        near = [size for size in near if ratios[0] <= level / per_token[size] / size.params <= ratios[1]]
        picks = np.unique(np.linspace(0, len(near) - 1, min(len(near), 15)).round().astype(int))
        for size in (near[i] for i in picks):
            params.append(size.params)
            tokens.append(level / per_token[size])
            flops.append(level)
            kept.append(size)
    return Candidates(np.array(params), np.array(tokens), np.array(flops), tuple(kept))


def grid(offered: tuple[Size, ...], price: Cost, levels: Array, best: Array, limits: tuple[float, float]) -> Candidates:
    """Return the isoFLOP grid that a study would run instead: seven sizes over a factor of 16 at each budget."""
    parts = []
    for level, middle in zip(levels, best, strict=True):
        wanted = middle * np.geomspace(0.25, 4.0, 7)
        picked = dict.fromkeys(_nearest(offered, float(n)) for n in wanted)
        parts.append(cross(tuple(picked), price, np.array([level]), np.array([middle]), limits))
    params, tokens, flops = (
        np.concatenate([getattr(p, name) for p in parts]) for name in ("params", "tokens", "flops")
    )
    return Candidates(params, tokens, flops, tuple(size for p in parts for size in p.sizes))


def _nearest(offered: Sequence[Size], params: float) -> Size:
    return min(offered, key=lambda size: abs(math.log(size.params / params)))


def ratios(frame: pd.DataFrame) -> tuple[float, float]:
    """Return the tokens per parameter that candidates may have: RATIOS, and those that the runs have."""
    good = frame[frame["used"]]
    ran = good["tokens"] / good["params"]
    return min(RATIOS[0], float(ran.min())), max(RATIOS[1], float(ran.max()))


def _block(width: Array) -> Array:
    """Return parameters of a block: attention 4 w^2, SwiGLU 3 w m with m 8/3 w rounded up to 16."""
    return np.asarray(4 * width**2 + 3 * width * (np.ceil(8 * width / 48) * 16))
