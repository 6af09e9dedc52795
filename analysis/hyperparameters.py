"""Optimal learning rate and batch size: the optimum of each (N, D) cell's sweep, then power laws through them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from analysis import human, observations
from analysis.law import fit_law
from analysis.results import Check

if TYPE_CHECKING:
    import pandas as pd

    from analysis.lawfit import LawFit

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Hyperparameters:
    """The cells' optima, and the laws lr* = c N^p D^q and batch* = c D^r through them, with the window used."""

    optima: pd.DataFrame
    learning_rate: LawFit
    batch: LawFit
    window: float
    checks: tuple[Check, ...]


def optima(
    runs: Any, window: float = 0.01, method: str = "quadratic", least: int = 6, params: str = "params"
) -> pd.DataFrame:
    """Return the best learning rate and batch of every (N, D) cell of a sweep.

    `runs` has `params` (or the column named), tokens, lr, batch_tokens, loss. "quadratic" fits loss over ln lr and ln
    batch through the runs within `window` of the cell's lowest loss, and needs `least` of them; "minimum" takes the
    grid's lowest. Columns: params, tokens, lr, batch_tokens, loss, points, status (minimum, edge, saddle, too_few),
    reason; values are NaN where the status is not minimum. A grid minimum on the sweep's edge has status edge.
    """
    import pandas as pd

    if method not in ("quadratic", "minimum"):
        raise ValueError(f"method={method!r} is not known; use quadratic or minimum")
    names = (params, "tokens", "lr", "batch_tokens", "loss")
    size, tokens, lr, batch, loss = (observations.column(runs, name) for name in names)
    keys = np.round(np.log(np.stack((size, tokens))), 6)
    _, cell = np.unique(keys, axis=1, return_inverse=True)
    rows = []
    for number in range(int(cell.max()) + 1):
        index = np.flatnonzero(cell.ravel() == number)
        logs = np.log(np.stack((lr[index], batch[index]), axis=1))
        at, value, points, status, reason = _best(logs, loss[index], window, method, least)
        cell_at = {"params": size[index[0]], "tokens": tokens[index[0]]}
        best = {"lr": np.exp(at[0]), "batch_tokens": np.exp(at[1]), "loss": value, "points": points}
        rows.append({**cell_at, **best, "status": status, "reason": reason})
    return pd.DataFrame(rows)


def laws(
    runs: Any, window: float = 0.01, method: str = "quadratic", *, params: str = "params", resamples: int = 1000,
    seed: int = 0, confidence: float = 0.95,
) -> Hyperparameters:  # fmt: skip
    """Return the laws of the learning rate and the batch through the cells' optima, by least squares of the logs.

    The window is a choice that moves the exponents by more than their standard errors: `checks` say so, with the
    exponents at half and at twice the window.
    """
    found = optima(runs, window, method, params=params)
    good = found[found["status"] == "minimum"]
    if len(good) < 4:
        raise ValueError(f"{human.counted(len(good), 'cell')} with an optimum inside its sweep; the laws need four")
    options: dict[str, Any] = {"loss": "squared", "resamples": resamples, "seed": seed, "confidence": confidence}
    rate, batch = fit_law(good, "learning_rate", **options), fit_law(good, "batch", **options)
    checks = []
    lost = found[found["status"] != "minimum"]
    if len(lost):
        counts = ", ".join(f"{n} {status}" for status, n in lost["status"].value_counts().items())
        advice = "widen the sweep of these cells: their optimum may lie beyond it"
        checks.append(Check("optimum_on_edge", f"{len(lost)} of {len(found)} cells have no optimum ({counts})", advice))
    if method == "quadratic":
        checks += _moves(runs, window, params, rate)
    return Hyperparameters(found, rate, batch, window, tuple(checks))


def _moves(runs: Any, window: float, params: str, rate: LawFit) -> list[Check]:
    """Return a finding where half or twice the window moves the exponent of N by more than its standard error."""
    spread = float(np.sqrt(rate.cov_params("delta")["p"]["p"]))
    texts = []
    for factor in (0.5, 2.0):
        other = optima(runs, window * factor, params=params)
        other = other[other["status"] == "minimum"]
        if len(other) >= 4:
            p = float(fit_law(other, "learning_rate", loss="squared", resamples=0).params["p"])
            if abs(p - rate.params["p"]) > spread:
                texts.append(f"{p:.3f} at {100 * window * factor:g} %")
    if not texts:
        return []
    here = f"{rate.params['p']:.3f} ({spread:.3f})"
    text = f"the exponent of N is {here} in a window of {100 * window:g} %, {', '.join(texts)}"
    return [Check("window_matters", text, "quote the window with the law, and its spread beside the interval")]


def _best(logs: Array, loss: Array, window: float, method: str, least: int) -> tuple[Array, float, int, str, str]:
    """Return ln lr and ln batch (2,) of the optimum, its loss, the points used, status and reason."""
    lost = np.full(2, np.nan)
    low, high = logs.min(axis=0), logs.max(axis=0)
    if method == "minimum":
        at = logs[np.argmin(loss)]
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
    if np.linalg.matrix_rank(design) < 6 or np.linalg.eigvalsh(curve)[0] <= 0:
        return lost, np.nan, points, "saddle", "the quadratic has no minimum: noise, or too narrow a sweep"
    step = -np.linalg.solve(curve, c[1:3])
    at = step + middle
    if (at < low).any() or (at > high).any():
        return lost, np.nan, points, "edge", "the minimum lies outside the sweep"
    return at, float(c[0] + 0.5 * c[1:3] @ step), points, "minimum", ""
