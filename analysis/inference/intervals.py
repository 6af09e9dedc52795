"""How intervals of a fitted law are made: METHODS by name. A new one is a function here, and its entry.

Numerical packages are imported where they are used: help texts read the names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.inference.schemes import GROUPS
from analysis.inputs.dataset import Array, Index

if TYPE_CHECKING:
    from analysis.inference.estimate import Estimate
    from analysis.inference.resampling import Plan
    from analysis.values.blocks import Interval


@dataclass(frozen=True)
class Method:
    """One way to make intervals.

    `interval` is that of an identified quantity by name at `alpha`, `covariance` (p, p) that of the constants as people
    quote them, `text` says in words what was done, `groups` whether errors that rows of a group share are allowed for.
    """

    interval: Callable[[Estimate, str, float], Interval]
    covariance: Callable[[Estimate], Array]
    text: Callable[[Plan], str]
    groups: Callable[[Plan], bool] = lambda _: False


def bootstrap(fit: Estimate, name: str, alpha: float) -> Interval:
    """Return the interval of the resamples."""
    import numpy as np

    from analysis.inference import resampling

    value = float({**fit.params, **fit.derived}[name])
    draws = fit.draws[name].to_numpy()
    return resampling.interval(draws, value, 1.0 - alpha, logs=fit.positive(name)) or (np.nan, np.nan)


def delta(fit: Estimate, name: str, alpha: float) -> Interval:
    """Return the interval of Student's t by the delta method."""
    return _student(fit, name, alpha, _independent(fit), fit.df_resid)


def sandwich(fit: Estimate, name: str, alpha: float) -> Interval:
    """Return the interval of Student's t by the cluster sandwich, of one degree of freedom less than groups."""
    import numpy as np

    return _student(fit, name, alpha, _clustered(fit), len(np.unique(_groups(fit))) - 1)


def profile(fit: Estimate, name: str, alpha: float) -> Interval:
    """Return where the profile likelihood rejects; what has no profile gets the delta method's."""
    try:
        found = fit.profile(name, alpha)
    except ValueError:  # nothing holds it at a value: the form does not, or constraints leave it no other
        return delta(fit, name, alpha)
    return found.low, found.high


def _student(fit: Estimate, name: str, alpha: float, spread: Array, df: int) -> Interval:
    """Return the interval around the value, or around the log of a positive constant; `spread` (p, p) is of theta."""
    import numpy as np

    from analysis.inference import distributions

    slope = fit.slopes((name,), logs=True)[0]
    reach = distributions.t_quantile(1.0 - alpha / 2.0, max(df, 1)) * float(np.sqrt(max(slope @ spread @ slope, 0.0)))
    value = float(fit.quantities(fit.point.theta[None], (name,), True)[0, 0])
    low, high = value - reach, value + reach
    with np.errstate(over="ignore"):
        return (float(np.exp(low)), float(np.exp(high))) if fit.positive(name) else (low, high)


def _independent(fit: Estimate) -> Array:
    from analysis.inference import covariance

    return covariance.delta(fit.problem, fit.point)


def _clustered(fit: Estimate) -> Array:
    from analysis.inference import covariance

    return covariance.sandwich(fit.problem, fit.point, _groups(fit))


def _groups(fit: Estimate) -> Index:
    """Return the groups (n,) of the sandwich: those of the plan, else model sizes."""
    from analysis.inference import resampling

    plan = resampling.Plan(_clusters(fit.plan), "")
    return resampling.groups(plan, fit.data.size, fit.data.run_numbers)


def _clusters(plan: Plan) -> str:
    """Return the name of the sandwich's groups."""
    return plan.by if plan.by in GROUPS else "sizes"


def _of_draws(fit: Estimate) -> Array:
    import numpy as np

    with np.errstate(invalid="ignore", over="ignore"):  # draws beyond any number, or nearly so, have no covariance
        return np.atleast_2d(np.cov(fit.draws[list(fit.form.names)].to_numpy(), rowvar=False))


def _of_constants(of_theta: Callable[[Estimate], Array]) -> Callable[[Estimate], Array]:
    """Return the covariance of the constants as people quote them, from that of theta."""

    def found(fit: Estimate) -> Array:
        import numpy as np

        slopes = fit.slopes(fit.form.names)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(slopes @ of_theta(fit) @ slopes.T)

    return found


METHODS = {
    "bootstrap": Method(
        bootstrap, _of_draws, lambda plan: plan.text, lambda plan: bool(plan.shared) or plan.by in GROUPS
    ),
    "delta": Method(delta, _of_constants(_independent), lambda _: "delta"),
    "sandwich": Method(
        sandwich, _of_constants(_clustered), lambda plan: f"sandwich, clustered by {_clusters(plan)}", lambda _: True
    ),
    "profile": Method(profile, _of_constants(_independent), lambda _: "profile"),
}
