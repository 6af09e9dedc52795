"""Optimal learning rate and batch size: the optimum of each (N, D) cell's sweep, then power laws through them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.estimation import observations, ties
from analysis.inference.fit_law import fit_law
from analysis.inputs.dataset import Array
from analysis.text import numbers
from analysis.values.blocks import Check
from analysis.values.findings import finding
from train.spec import calls

if TYPE_CHECKING:
    import pandas as pd

    from analysis.inference.law_result import LawFit

__all__ = ["Hyperparameters", "laws", "optima"]

LEVEL = 1e-9
"""Curvatures below this share (of the loss, or of the other curvature) have their sign from rounding."""
LEAST_SWEPT = 3
"""Levels of a setting that make a sweep, and that a parabola needs."""
SHOWN = 0.0005
"""Half of the last digit in which a finding gives exponents."""


def __dir__() -> list[str]:
    """Return the public names."""
    return [*__all__]


@dataclass(frozen=True, eq=False)
class Hyperparameters:
    """The cells' optima, and the laws lr* = c N^p D^q and batch* = c D^r through them, with the window used."""

    optima: pd.DataFrame
    learning_rate: LawFit
    batch: LawFit
    window: float
    checks: tuple[Check, ...]


@calls.answered(window=calls.positive, least=calls.whole(1), params=calls.text)
def optima(
    runs: Any, window: float = 0.01, method: str = "quadratic", least: int = 6, params: str = "params"
) -> pd.DataFrame:
    """Return the best learning rate and batch of every (N, D) cell of a sweep.

    `runs` has `params` (or the column named), tokens, lr, batch_tokens, loss. "quadratic" fits loss over ln lr and ln
    batch through the runs within `window` of the cell's lowest loss, and needs `least` of them; "envelope" takes the
    lowest loss at every rate whatever the batch, and the parabola over ln lr through those within the window, then
    likewise for the batch; "minimum" takes the grid's lowest. Columns: params, tokens, lr, batch_tokens, loss, points,
    status (minimum, edge, saddle, too_few), reason; values are NaN where the status is not minimum. Where all runs of
    a cell have one batch (or one rate) the envelope over the other is taken.

    Examples
    --------
    >>> import numpy as np
    >>> lr, batch = (a.ravel() for a in np.meshgrid([1e-3, 2e-3, 4e-3, 8e-3], [1e5, 2e5, 4e5, 8e5]))
    >>> loss = 3 + 0.01 * np.log(lr / 3e-3) ** 2 + 0.01 * np.log(batch / 3e5) ** 2
    >>> sweep = {"params": np.full(16, 1e8), "tokens": np.full(16, 2e9), "lr": lr, "batch_tokens": batch, "loss": loss}
    >>> best = optima(sweep)
    >>> f"{best['lr'][0]:.3g} {best['batch_tokens'][0]:.3g}"
    '0.003 3e+05'
    """
    import pandas as pd

    if method not in ("quadratic", "envelope", "minimum"):
        raise ValueError(f"method={method!r} is not known; use quadratic, envelope or minimum")
    runs = observations.table(runs)
    size, tokens, loss = (observations.column(runs, name) for name in (params, "tokens", "loss"))
    lr, batch = (_or_one(runs, name, len(loss)) for name in ("lr", "batch_tokens"))
    keys = np.round(np.log(np.stack((size, tokens))), 6)
    _, cell = np.unique(keys, axis=1, return_inverse=True)
    rows = []
    for number in range(int(cell.max()) + 1):
        index = np.flatnonzero(cell.ravel() == number)
        logs = np.log(np.stack((lr[index], batch[index]), axis=1))
        one = bool((np.ptp(logs, axis=0) < 1e-9).any()) and method == "quadratic"
        found = _envelope(logs, loss[index], window) if one or method == "envelope" else None
        at, value, points, status, reason = found or _best(logs, loss[index], window, method, least)
        cell_at = {"params": size[index[0]], "tokens": tokens[index[0]]}
        best = {"lr": np.exp(at[0]), "batch_tokens": np.exp(at[1]), "loss": value, "points": points}
        rows.append({**cell_at, **best, "status": status, "reason": reason})
    return pd.DataFrame(rows)


def _or_one(runs: Any, name: str, count: int) -> Array:
    """Return a column, or ones where the runs do not have it: all runs are then of one such setting."""
    return observations.column(runs, name) if name in runs else np.ones(count)


def of_sweeps(
    frame: pd.DataFrame, target: str, window: float, method: str
) -> tuple[pd.DataFrame, tuple[Check, ...]] | None:
    """Return the optima of a tidy frame's sweeps as a frame of their own, with findings; None where there is no sweep.

    A row of it is a cell of equal N and D: those without an optimum are dropped with their status and reason. `target`
    is what the law is for, lr or batch_tokens: a cell has to sweep it.
    """
    good = frame[frame["used"]]
    if not {target, "loss", "tokens", "params"} <= set(good) or not good[[target, "loss"]].notna().all(axis=None):
        return None
    cells = good.groupby(["params", "tokens"])[target].nunique()
    if not len(cells) or float((cells >= LEAST_SWEPT).mean()) < 0.5:
        return None
    columns = ["params", "tokens", "loss", *(c for c in ("lr", "batch_tokens") if good[c].notna().all())]
    table = optima(good[columns], window, method)
    flops = good.groupby(["params", "tokens"])["flops"].mean().reset_index(drop=True)
    first = good.iloc[0]
    count = numbers.count
    out = table.assign(
        flops=flops.to_numpy() if len(flops) == len(table) else np.nan,
        key=[f"{count(n)} on {count(d)}" for n, d in zip(table["params"], table["tokens"], strict=True)],
        drop_code=table["status"].where(table["status"] != "minimum", ""), drop_reason=table["reason"],
    )  # fmt: skip
    same = ("study", "params_kind", "flop_rule", "loss_unit", "tokenizer", "fingerprint", "validation")
    out = out.assign(**{name: first[name] for name in same}, used=out["drop_code"] == "", state="completed")
    checks = []
    lost = out[~out["used"]]
    if len(lost):
        counts = ", ".join(f"{n} {status}" for status, n in lost["status"].value_counts().items())
        text = f"{len(lost)} of {len(out)} cells have no optimum inside their sweep ({counts})"
        checks.append(
            finding("optimum_on_edge", text, "widen the sweep of these cells: their optimum may lie beyond it")
        )
    if method != "minimum":
        checks += _moved(good[columns], window, method, target, out[out["used"]])
    return out, tuple(checks)


def _moved(runs: pd.DataFrame, window: float, method: str, target: str, here: pd.DataFrame) -> list[Check]:
    """Return a finding that says how the optima move with half and with twice the window."""
    keys = ["params", "tokens"]
    texts = []
    for factor in (0.5, 2.0):
        other = optima(runs, window * factor, method)
        both = here.merge(other[other["status"] == "minimum"], on=keys, suffixes=("", "_other"))
        if len(both):
            ratio = float(np.exp(np.median(np.abs(np.log(both[f"{target}_other"] / both[target])))))
            texts.append(f"by a factor of {ratio:.2f} at {100 * window * factor:g} % ({len(both)} cells)")
    if not texts:
        return []
    text = f"the window of {100 * window:g} % is a choice: {target} of the optima moves {', '.join(texts)}"
    return [finding("window_matters", text, "window= sets it: quote it with the law", "note")]


@calls.answered(
    window=calls.positive, params=calls.text, resamples=calls.resamples, seed=calls.whole(), confidence=calls.share
)
def laws(
    runs: Any, window: float = 0.01, method: str = "quadratic", *, params: str = "params", resamples: int = 1000,
    seed: int = 0, confidence: float = 0.95,
) -> Hyperparameters:  # fmt: skip
    """Return the laws of the learning rate and the batch through the cells' optima, by least squares of the logs.

    The window is a choice that moves the exponents by more than their standard errors: `checks` say so, with the
    exponents at half and at twice the window.

    Examples
    --------
    >>> import numpy as np
    >>> n, d, a, b = (x.ravel() for x in np.meshgrid([1e7, 1e8], [1e9, 4e9, 9e9], np.geomspace(.4, 2.5, 5), [1, 2, .5]))
    >>> loss = 3 + 0.002 * np.log(a) ** 2 + 0.002 * np.log(b) ** 2
    >>> sweeps = {"params": n, "tokens": d, "lr": a * n**-0.4, "batch_tokens": b * d**0.5, "loss": loss}
    >>> found = laws(sweeps, resamples=0)
    >>> round(float(found.learning_rate.params["p"]), 6), round(float(found.batch.params["r"]), 6)
    (-0.4, 0.5)
    """
    found = optima(runs, window, method, params=params)
    good = found[found["status"] == "minimum"]
    if len(good) < 4:
        raise ValueError(f"{numbers.counted(len(good), 'cell')} with an optimum inside its sweep; the laws need four")
    options: dict[str, Any] = {"loss": "squared", "resamples": resamples, "seed": seed, "confidence": confidence}
    rate, batch = fit_law(good, "learning_rate", **options), fit_law(good, "batch", **options)
    checks = []
    lost = found[found["status"] != "minimum"]
    if len(lost):
        counts = ", ".join(f"{n} {status}" for status, n in lost["status"].value_counts().items())
        advice = "widen the sweep of these cells: their optimum may lie beyond it"
        checks.append(
            finding("optimum_on_edge", f"{len(lost)} of {len(found)} cells have no optimum ({counts})", advice)
        )
    if method == "quadratic":
        checks += _moves(runs, window, params, rate)
    return Hyperparameters(found, rate, batch, window, tuple(checks))


def _moves(runs: Any, window: float, params: str, rate: LawFit) -> list[Check]:
    """Return a finding where half or twice the window moves the exponent of N by more than its standard error.

    A move that three digits do not show is none, be the error as small as rounding.
    """
    spread = float(np.sqrt(rate.cov_params("delta")["p"]["p"]))
    texts = []
    for factor in (0.5, 2.0):
        other = optima(runs, window * factor, params=params)
        other = other[other["status"] == "minimum"]
        if len(other) >= 4:
            p = float(fit_law(other, "learning_rate", loss="squared", resamples=0).params["p"])
            if abs(p - rate.params["p"]) > max(spread, SHOWN):
                texts.append(f"{p:.3f} at {100 * window * factor:g} %")
    if not texts:
        return []
    here = f"{rate.params['p']:.3f} ({spread:.3f})"
    text = f"the exponent of N is {here} in a window of {100 * window:g} %, {', '.join(texts)}"
    return [finding("window_matters", text, "quote the window with the law, and its spread beside the interval")]


def _envelope(logs: Array, loss: Array, window: float) -> tuple[Array, float, int, str, str]:
    """Return what `_best` does, from the lower envelope over each setting in turn."""
    at, value, points, lost = np.zeros(2), float(loss.min()), 0, np.full(2, np.nan)
    for axis in range(2):
        levels, which = np.unique(np.round(logs[:, axis], 9), return_inverse=True)
        if len(levels) == 1:
            at[axis] = levels[0]
            continue
        lowest = np.array([loss[which.ravel() == k].min() for k in range(len(levels))])
        near = lowest <= lowest.min() * (1.0 + window)
        points += int(near.sum())
        if int(near.sum()) < LEAST_SWEPT:
            text = f"{int(near.sum())} levels within {100 * window:g} % of the lowest; {LEAST_SWEPT} are needed"
            return lost, np.nan, points, "too_few", text
        if ties.lowest(lowest) in (0, len(levels) - 1):
            return lost, np.nan, points, "edge", "the lowest loss is on the edge of the sweep"
        middle = float(levels[near].mean())
        c2, c1, c0 = np.polyfit(levels[near] - middle, lowest[near], 2)
        if c2 * np.ptp(levels[near]) ** 2 <= LEVEL * lowest.min():
            return lost, np.nan, points, "saddle", "the parabola has no minimum: noise, or too narrow a sweep"
        at[axis] = middle - c1 / (2 * c2)
        if not levels[0] <= at[axis] <= levels[-1]:
            return lost, np.nan, points, "edge", "the minimum lies outside the sweep"
        value = float(c0 - c1**2 / (4 * c2))
    return at, value, points, "minimum", ""


def _best(logs: Array, loss: Array, window: float, method: str, least: int) -> tuple[Array, float, int, str, str]:
    """Return ln lr and ln batch (2,) of the optimum, its loss, the points used, status and reason."""
    lost = np.full(2, np.nan)
    low, high = logs.min(axis=0), logs.max(axis=0)
    if method == "minimum":
        at = logs[ties.lowest(loss, logs[:, 0], logs[:, 1])]
        return at, float(loss.min()), len(loss), "minimum", ""
    near = loss <= loss.min() * (1.0 + window)
    points = int(near.sum())
    if points < least:
        return (
            lost,
            np.nan,
            points,
            "too_few",
            f"{points} runs within {100 * window:g} % of the lowest; {least} are needed",
        )
    middle = logs[near].mean(axis=0)
    x, y = (logs[near] - middle).T
    design = np.stack((np.ones_like(x), x, y, x * x, x * y, y * y), axis=1)
    c = np.linalg.lstsq(design, loss[near], rcond=None)[0]
    curve = np.array([[2 * c[3], c[4]], [c[4], 2 * c[5]]])
    bend = np.linalg.eigvalsh(curve)
    if np.linalg.matrix_rank(design) < 6 or bend[0] <= LEVEL * abs(bend[1]):
        return lost, np.nan, points, "saddle", "the quadratic has no minimum: noise, or too narrow a sweep"
    step = -np.linalg.solve(curve, c[1:3])
    at = step + middle
    if (at < low).any() or (at > high).any():
        return lost, np.nan, points, "edge", "the minimum lies outside the sweep"
    return at, float(c[0] + 0.5 * c[1:3] @ step), points, "minimum", ""
