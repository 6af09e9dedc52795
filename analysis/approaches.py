"""Approaches 1, 2 and 3 side by side, with their disagreement."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import envelope, isoflop, observations
from analysis.law import fit_law
from analysis.results import Interval, PowerLaw
from analysis.rows import Rows

if TYPE_CHECKING:
    import pandas as pd

    from analysis.lawfit import LawFit


def side_by_side(
    runs: Any, budget: float | None = None, *, checkpoints: Any = None, resamples: int = 200, seed: int = 0
) -> pd.DataFrame:
    """Return one row an approach: a, its interval, b, N*, D*, tokens per parameter at `budget` [FLOPs], points, reason.

    `runs` has params, tokens, flops, loss; `checkpoints`, with the column run, are for approach 1 (default: `runs`
    where it has that column). The default budget is the largest run's. An approach that is not possible has NaN and
    the reason. `attrs["disagreement"]` is the largest ratio of N* between approaches.

    Examples
    --------
    >>> from pathlib import Path
    >>> from analysis import frame
    >>> runs = frame.used(frame.from_csv(Path("docs/example-runs.csv")))
    >>> table = side_by_side(runs, 1e21, resamples=0)
    >>> [name for name, reason in table["reason"].items() if not reason]
    ['2 parabola', '2 akima', '2 surface', '3 surface']
    """
    import pandas as pd

    flops = observations.column(runs, "flops")
    at = float(flops.max()) if budget is None else float(budget)
    table = runs if isinstance(runs, Rows) else {name: observations.column(runs, name) for name in _columns(runs)}
    calls: dict[str, Callable[[], dict[str, Any]]] = {
        "1 envelope": lambda: _envelope(runs if checkpoints is None else checkpoints, at, resamples, seed),
        **{f"2 {name}": _isoflop_call(table, name, at) for name in isoflop.METHODS},
        "3 surface": lambda: _surface(table, at, resamples, seed),
    }
    rows = []
    for name, call in calls.items():
        try:
            rows.append({"approach": name, **call(), "reason": ""})
        except ValueError as error:
            rows.append({"approach": name, "reason": str(error)})
    columns = ["approach", "a", "a_low", "a_high", "b", "params", "tokens", "tokens_per_param", "points", "reason"]
    out = pd.DataFrame(rows).reindex(columns=columns).set_index("approach")
    sizes = out["params"].dropna()
    out.attrs["budget"] = at
    out.attrs["disagreement"] = float(sizes.max() / sizes.min()) if len(sizes) > 1 else None
    return out


def _columns(runs: Any) -> list[str]:
    return [n for n in ("params", "tokens", "flops", "loss", "flops_budget") if n in runs]


def _isoflop_call(table: Any, method: str, budget: float) -> Callable[[], dict[str, Any]]:
    def call() -> dict[str, Any]:
        found = isoflop.optima(table, method)
        size, tokens = (isoflop.exponents(found, name) for name in ("params_opt", "tokens_opt"))
        return _from_laws(size, tokens, budget)

    return call


def _envelope(runs: Any, budget: float, resamples: int, seed: int) -> dict[str, Any]:
    found = envelope.fit(runs, resamples=resamples, seed=seed)
    return _from_laws(found.exponents["params"], found.exponents["tokens"], budget)


def _from_laws(size: PowerLaw, tokens: PowerLaw, budget: float) -> dict[str, Any]:
    n, d = (law.coefficient * (budget / law.reference_flops) ** law.exponent for law in (size, tokens))
    return _row(size.exponent, size.exponent_interval, tokens.exponent, n=n, d=d, points=size.points)


def _surface(table: Any, budget: float, resamples: int, seed: int) -> dict[str, Any]:
    fit = fit_law(table, "chinchilla", resamples=resamples, seed=seed)
    size, tokens = optimum(fit, budget)
    ends = fit.conf_int() if resamples else None
    low, high = (np.nan, np.nan) if ends is None else (float(ends[0]["a"]), float(ends[1]["a"]))
    return _row(float(fit.derived["a"]), (low, high), float(fit.derived["b"]), n=size, d=tokens, points=fit.nobs)


def optimum(fit: LawFit, budget: float) -> tuple[float, float]:
    """Return N* and D* of E + A/N^alpha + B/D^beta for a budget, by the FLOPs per parameter and token of its rows.

    Raises ValueError where one term alone is left, or one rises: the law then has no best size.
    """
    A, B, alpha, beta = (float(fit.params[name]) for name in ("A", "B", "alpha", "beta"))
    flops = fit.data.extra.get("flops")
    per = 6.0 if flops is None else float(np.exp(np.log(flops / np.prod(fit.data.inputs, axis=0)).mean()))
    with np.errstate(all="ignore"):
        ratio = np.float64(alpha * A) / np.float64(beta * B)
        size = float((ratio * (budget / per) ** beta) ** (1.0 / np.float64(alpha + beta)))
    if not (min(alpha, beta) > 0 and np.isfinite(size) and size > 0):
        raise ValueError("the law has no best size: its loss does not fall with both parameters and tokens")
    return size, budget / per / size


def _row(a: float, interval: Interval | None, b: float, *, n: float, d: float, points: int) -> dict[str, Any]:
    low, high = interval or (np.nan, np.nan)
    return {
        "a": a, "a_low": low, "a_high": high, "b": b, "params": n, "tokens": d, "tokens_per_param": d / n,
        "points": points,
    }  # fmt: skip
