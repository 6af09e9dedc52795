"""Approach 1: the lower envelope of the runs' loss curves over compute, and what trained at it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from analysis.approaches import isoflop
from analysis.approaches.drawn_envelope import Leaders
from analysis.estimation import observations, ties
from analysis.inference import resampling
from analysis.inputs.dataset import Array
from analysis.text import numbers
from analysis.values.blocks import Check, PowerLaw
from analysis.values.findings import finding
from train.spec import calls

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Envelope", "fit"]

GRID = 1500
SAME = 1e-9
"""Sizes whose logs differ by less are one: they differ by rounding."""


def __dir__() -> list[str]:
    """Return the public names."""
    return [*__all__]


@dataclass(frozen=True, eq=False)
class Envelope:
    """`points` of the envelope (flops, params, tokens, loss), and the power laws of params and tokens through them."""

    points: pd.DataFrame
    exponents: dict[str, PowerLaw]
    checks: tuple[Check, ...]


@calls.answered(grid=calls.whole(2), resamples=calls.resamples, seed=calls.whole(), confidence=calls.share)
def fit(
    runs: Any, *, grid: int = GRID, resamples: int = 1000, seed: int = 0, confidence: float = 0.95, hull: bool = False
) -> Envelope:
    """Return the envelope of curves: rows are checkpoints with run, params, tokens, flops, loss.

    With `hull` only the points of it are taken that lie on the lower convex hull of ln loss over ln FLOPs, as the
    envelope is drawn where few curves touch it: a point above the line between two others is a lack of models there.
    Every curve is interpolated in logs on a grid of FLOPs; where the lowest one is of the smallest or the largest
    model there, the optimum is on the edge and the point is left out. Intervals draw runs. Points read before a run's
    schedule has ended lie above what a run of that length would reach, and the bias grows with size: `checks` say so.

    Raises ValueError with fewer than three curves of at least two checkpoints, with no interior optimum, or where all
    interior optima are of one size.

    References
    ----------
    Hoffmann et al. 2022, arXiv 2203.15556, section 3.1 (1,500 points in FLOPs).

    Examples
    --------
    >>> import numpy as np
    >>> n, d = (x.ravel() for x in np.meshgrid(np.geomspace(1e7, 1e9, 9), np.geomspace(1e8, 1e11, 40), indexing="ij"))
    >>> runs = {"run": np.repeat(np.arange(9), 40), "params": n, "tokens": d, "flops": 6 * n * d,
    ...         "loss": 1.7 + 400 / n**0.34 + 900 / d**0.34}
    >>> abs(fit(runs, resamples=0).exponents["params"].exponent - 0.5) < 0.03
    True
    """
    import pandas as pd

    losses, sizes, tokens, log_flops = _curves(runs, grid)
    picked = _picked(losses, sizes, log_flops if hull else None)
    if (picked >= 0).sum() < 2:
        raise ValueError(
            "the envelope has no budget whose best model is neither the smallest nor the largest: add sizes"
        )
    rows = np.flatnonzero(picked >= 0)
    best = picked[rows]
    if not _several(sizes[best]):
        one = f"{numbers.count(float(np.exp(sizes[best[0]])))} parameters"
        raise ValueError(
            f"the envelope touches runs of one size only ({one}): what grows along it is that size's tokens alone, "
            "which is no exponent. Add runs of other sizes, or longer ones, whose curves cross it"
            if len(np.unique(best)) > 1
            else f"the envelope touches one run only ({one}): what grows along it is this run's tokens alone, which is "
            "no exponent. Add sizes between its neighbours, or longer runs, whose curves cross it"
        )
    points = pd.DataFrame(
        {
            "flops": np.exp(log_flops[rows]), "params": np.exp(sizes[best]), "tokens": np.exp(tokens[best, rows]),
            "loss": np.exp(losses[best, rows]),
        }
    )  # fmt: skip
    drawn = _slopes(losses, sizes, tokens, log_flops, resamples=resamples, seed=seed, hull=hull)
    laws = {}
    for name, slopes in drawn.items():
        law = isoflop.exponents(points, name, confidence)
        interval = resampling.interval(np.array(slopes), law.exponent, confidence) if slopes else None
        # The envelope's points are not independent: the regression's own interval would be far too short.
        laws[name] = replace(
            law, coefficient_interval=None, exponent_interval=interval, bse=None, df_resid=len(np.unique(best)) - 2
        )
    text = f"the envelope reads {len(rows)} budgets off {len(np.unique(best))} curves before their schedules ended"
    advice = "such losses are 1 to 2 % too high, more so for large models: prefer finished runs (approaches 2 and 3)"
    return Envelope(points, laws, (finding("mid_schedule", text, advice, "note"),))


def _slopes(
    losses: Array, sizes: Array, tokens: Array, log_flops: Array, *, resamples: int, seed: int, hull: bool
) -> dict[str, list[float]]:
    """Return the exponents of params and of tokens that drawn runs give; a draw without two best sizes gives NaN."""
    generator = np.random.default_rng(np.random.SeedSequence([seed, 6]))
    drawn: dict[str, list[float]] = {"params": [], "tokens": []}
    leaders = Leaders.of(losses, sizes)
    for _ in range(resamples):
        kept = np.zeros(len(sizes), dtype=bool)
        kept[generator.integers(len(sizes), size=len(sizes))] = True
        found = leaders.among(kept)
        # Without any curve all comparisons are with NaN.
        own = sizes[found.curve]
        inside = (own > found.smallest + SAME) & (own < found.largest - SAME)
        if hull:
            inside &= _on_hull(log_flops, found.loss)
        at = np.flatnonzero(inside)
        chosen = found.curve[at]
        if not _several(sizes[chosen]):
            for slopes in drawn.values():
                slopes.append(float("nan"))
            continue
        x = log_flops[at] - log_flops[at].mean()
        ends = {"params": sizes[chosen], "tokens": tokens[chosen, at]}
        for name, values in ends.items():
            drawn[name].append(float(x @ values / (x @ x)))
    return drawn


def _several(sizes: Array) -> bool:
    """Return whether ln sizes (m,) hold two; those that differ by rounding are one."""
    return len(sizes) > 0 and bool(np.ptp(sizes) > SAME)


def _curves(runs: Any, grid: int) -> tuple[Array, Array, Array, Array]:
    """Return ln loss (K, G), ln params (K,), ln tokens (K, G) and ln FLOPs (G,); infinity outside a curve's range.

    Checkpoints that lack one of these, or whose loss is no positive number, are no points of their curve.
    """
    runs = observations.table(runs)
    values = np.stack([observations.column(runs, name) for name in ("params", "tokens", "flops", "loss")])
    good = (np.isfinite(values) & (values > 0)).all(axis=0)
    columns = np.log(values[:, good])
    number = observations.group_column(runs, "run")
    if number is None:
        raise ValueError(
            "an envelope needs the column 'run': which rows are checkpoints of one run; map it with columns="
        )
    number = number[good]
    by_run = np.argsort(number, kind="stable")
    curves = np.split(by_run, np.flatnonzero(np.diff(number[by_run])) + 1)
    curves = [rows[np.argsort(columns[2][rows], kind="stable")] for rows in curves if len(rows) >= 2]
    if len(curves) < 3:
        raise ValueError(f"{len(curves)} runs have two or more checkpoints; an envelope needs three")
    flops = columns[2][np.concatenate(curves)]
    at = np.linspace(flops.min(), flops.max(), grid)
    losses = np.array([np.interp(at, columns[2][c], columns[3][c], left=np.inf, right=np.inf) for c in curves])
    tokens = np.array([np.interp(at, columns[2][c], columns[1][c]) for c in curves])
    return losses, np.array([columns[0][c[0]] for c in curves]), tokens, at


def _picked(losses: Array, sizes: Array, hull: Array | None = None) -> NDArray[np.int64]:
    """Return the number of the lowest curve at each budget (G,); -1 where it has the smallest or largest size.

    With `hull`, the ln FLOPs (G,), also where the lowest loss does not lie on the lower convex hull.
    """
    there = np.isfinite(losses)
    order = np.argsort(sizes, kind="stable")
    best = order[ties.lowest_rows(losses[order])]  # of equal losses that of the smaller model
    smallest = np.where(there, sizes[:, None], np.inf).min(axis=0)
    largest = np.where(there, sizes[:, None], -np.inf).max(axis=0)
    inside = (sizes[best] > smallest + SAME) & (sizes[best] < largest - SAME)
    if hull is not None:
        inside &= _on_hull(hull, losses.min(axis=0))
    return np.where(inside, best, -1)


def _on_hull(x: Array, y: Array) -> NDArray[np.bool_]:
    """Return which points (G,), of rising x, are corners of the lower convex hull; those that are not finite are none.

    Andrew 1979, "Another efficient algorithm for convex hulls in two dimensions".
    """
    corners: list[int] = []
    for i in np.flatnonzero(np.isfinite(y)):
        while len(corners) >= 2:
            a, b = corners[-2], corners[-1]
            chord = y[a] + (y[i] - y[a]) * (x[b] - x[a]) / (x[i] - x[a])
            if chord - y[b] > ties.EQUAL:  # on a straight stretch rounding would say which points are corners
                break
            corners.pop()
        corners.append(int(i))
    found = np.zeros(len(x), dtype=bool)
    found[corners] = True
    return found
