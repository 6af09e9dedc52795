"""Which constants the data identify. What they do not is given a one-sided limit, never an interval.

Two tests, and a constant has to pass both: its profile (all other constants fitted anew at each fixed value, squared
log residuals, F quantile) must rise above the confidence level before the limits of the search on both sides; and the
resampled interval must close.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from analysis import bootstrap, engine
from analysis.forms import SURFACE
from analysis.results import Identified, Interval
from analysis.rows import Array, Rows

EXPONENTS = np.concatenate(([0.01], np.geomspace(0.02, 3.0, 31)))
FLOOR_SHARE = 1e-3
WIDEST = 1e4


def surface(rows: Rows, point: engine.PointFit, draws: Mapping[str, Array]) -> dict[str, Identified]:
    """Return a verdict on E, A, B, alpha, beta, a and b of the surface."""
    problem = engine.problem(SURFACE, (rows.params, rows.tokens), rows.loss, engine.Squared())
    lowest = float(rows.loss.min())
    floors = np.log(np.concatenate(([FLOOR_SHARE], np.linspace(0.02, 0.999, 40))) * lowest)
    found = {
        "E": _profile(problem, point, 0, floors, "E"),
        "alpha": _profile(problem, point, 3, EXPONENTS, "alpha"),
        "beta": _profile(problem, point, 4, EXPONENTS, "beta"),
    }
    if found["E"].limit is not None:
        found["E"] = Identified(False, found["E"].reason, found["E"].side, float(np.exp(found["E"].limit)))
    found["E"] = _on_bound(found["E"], draws["E"], lowest)
    for name in ("alpha", "beta"):
        found[name] = _closes(found[name], draws[name], name)
    found["A"] = _follows(found["alpha"], "alpha", draws["A"], "A")
    found["B"] = _follows(found["beta"], "beta", draws["B"], "B")
    for name in ("a", "b"):
        found[name] = ratio(bootstrap.percentile(draws[name]), name) if len(draws[name]) else Identified(True)
    return {name: found[name] for name in (*SURFACE.names, "a", "b")}


def _profile(problem: engine.Problem, point: engine.PointFit, which: int, values: Array, name: str) -> Identified:
    """Return whether fixing constant `which` at the ends of `values` fits significantly worse."""
    from scipy.stats import f

    start = engine.solve(problem, point.theta[None])
    starts = np.repeat(start.theta, len(values), axis=0)
    starts[:, which] = values
    others = np.concatenate([starts, _grid(problem, which, values)])
    found = engine.solve(problem, others, fixed=(which,), tolerance=1e-6)
    best = np.minimum(found.value[: len(values)], found.value[len(values) :])
    lowest = min(float(start.value[0]), float(best.min()))
    df = problem.y.size - start.theta.shape[1]
    level = lowest * (1.0 + float(f.ppf(bootstrap.CONFIDENCE, 1, df)) / df)
    accepted = best <= level
    if accepted[0] and accepted[-1]:
        return Identified(False, f"the law fits as well with any {name}")
    if accepted[0]:
        limit = float(values[np.flatnonzero(accepted)[-1]])
        return Identified(False, f"the profile of {name} is flat down to the search's lower limit", "upper", limit)
    if accepted[-1]:
        limit = float(values[np.flatnonzero(accepted)[0]])
        return Identified(False, f"the profile of {name} is flat up to the search's upper limit", "lower", limit)
    return Identified(True)


def _grid(problem: engine.Problem, which: int, values: Array) -> Array:
    """Return a second start for each value, from the projected grid: a profile may cross into another basin."""
    start = np.repeat(engine.starts_of(problem, 1), len(values), axis=0)
    start[:, which] = values
    return start


def _on_bound(found: Identified, draws: Array, lowest: float) -> Identified:
    """Return E as not identified where resamples put it on its bound 0."""
    if not found.identified or not len(draws):
        return found
    share = float((draws < FLOOR_SHARE * lowest).mean())
    if share < (1 - bootstrap.CONFIDENCE) / 2:
        return found
    limit = float(np.quantile(draws, bootstrap.CONFIDENCE))
    return Identified(False, f"{share:.0%} of the resamples put E on its bound 0", "upper", limit)


def _follows(exponent: Identified, name: str, draws: Array, own: str) -> Identified:
    """Return a coefficient's verdict: its exponent's, and its own interval spans no more than a factor."""
    if not exponent.identified:
        return Identified(False, f"its exponent {name} is not identified")
    interval = bootstrap.percentile(draws)
    if len(draws) and (interval is None or interval[0] <= 0 or interval[1] / interval[0] > WIDEST):
        return Identified(False, f"the interval of {own} spans more than a factor {WIDEST:.0e}")
    return Identified(True)


def _closes(found: Identified, draws: Array, name: str) -> Identified:
    """Return an exponent's verdict: its interval stays within the search's limits."""
    if not found.identified or not len(draws):
        return found
    low, high = bootstrap.percentile(draws) or (-np.inf, np.inf)
    if low <= EXPONENTS[0] and high >= EXPONENTS[-1]:
        return Identified(False, f"the interval of {name} does not close")
    if low <= EXPONENTS[0]:
        return Identified(
            False, f"the interval of {name} reaches its lower limit", "upper", max(float(high), float(EXPONENTS[0]))
        )
    if high >= EXPONENTS[-1]:
        return Identified(False, f"the interval of {name} reaches its upper limit", "lower", float(low))
    return found


def ratio(interval: Interval | None, name: str) -> Identified:
    """Return the verdict on the exponents a or b of N* or D*: an interval within (0, 1) that says something."""
    low, high = interval or (-np.inf, np.inf)
    if low <= 0.0 or high >= 1.0 or high - low > 0.8:
        return Identified(False, f"the interval of {name} covers most of 0 to 1")
    return Identified(True)
