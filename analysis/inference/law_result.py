"""What `fit_law` returns: frozen results with statsmodels' names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from analysis.estimation import multistart, observations
from analysis.inference import covariance, resampling
from analysis.inference.flat import Flat, flat
from analysis.inference.identifiability import verdicts
from analysis.inference.profile_likelihood import Profile, profile
from analysis.laws.base import Form
from analysis.values.blocks import Basin, Block, Check, Identified, Interval, Optimizer

if TYPE_CHECKING:
    import pandas as pd

    from analysis.inference.prediction import Prediction
    from analysis.inference.summary import Summary

Array = NDArray[np.float64]
METHODS = ("bootstrap", "delta", "sandwich", "profile")


@dataclass(frozen=True, eq=False)
class LawFit:
    """A fitted law. Constants and quantities that follow from them go by name; see `fit_law` for how it was made.

    `thetas` (R, p) are the resamples' internal constants. pandas objects are labelled by the constants' names.
    """

    form: Form
    data: observations.Observations
    problem: multistart.Problem
    point: multistart.PointFit
    plan: resampling.Plan
    thetas: Array
    interval: str
    confidence: float
    seed: int
    kinds: Mapping[str, str] = field(default_factory=dict)
    constraints: Mapping[str, Any] = field(default_factory=dict)

    @property
    def params(self) -> pd.Series[float]:
        """The constants, as people quote them."""
        return _series(dict(zip(self.form.names, self.point.constants, strict=True)))

    @property
    def derived(self) -> pd.Series[float]:
        """What follows from the constants: a and b of N* ~ C^a, D* ~ C^b where the form has them."""
        return _series({name: float(value) for name, value in self.form.derived(self.point.constants).items()})

    @cached_property
    def draws(self) -> pd.DataFrame:
        """Constants and derived quantities of every resample, one row each."""
        import pandas as pd

        natural = self.form.natural(self.thetas, self.problem.centres)
        return pd.DataFrame(dict(zip(self.form.names, natural.T, strict=True)) | self.form.derived(natural))

    @cached_property
    def undefined(self) -> Mapping[str, float]:
        """The share of resamples in which a constant or derived quantity has no finite value."""
        if not len(self.thetas):
            return dict.fromkeys(self.names, 0.0)
        return {str(name): float(1.0 - np.isfinite(values).mean()) for name, values in self.draws.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the constants, then of the derived quantities."""
        return (*self.form.names, *self.form.derived(self.point.constants))

    @property
    def free(self) -> int:
        """The number of constants that were fitted."""
        matrix = self.problem.constraint.matrix
        return len(self.form.names) if matrix is None else int(matrix.shape[1])

    @property
    def held(self) -> frozenset[str]:
        """Constants that a constraint holds at a value."""
        fixed = {name for name, value in self.constraints.items() if not isinstance(value, str)}
        return frozenset(fixed)

    @property
    def loss_function(self) -> str:
        """The loss function, with its constants."""
        text = self.problem.loss.text
        return text.replace("log residual", "residual") if self.problem.plain else text

    @property
    def objective(self) -> float:
        """The objective, summed over rows."""
        return self.point.objective

    @property
    def optimizer(self) -> Optimizer:
        """The evidence of convergence: starts, share that agrees, gradient, basins."""
        return self.point.evidence

    @property
    def minima(self) -> tuple[tuple[Array, float, Array], ...]:
        """The distinct minima, the best first: theta, objective, inverse Hessian of the objective by the free ones."""
        found = self.point.minima
        assert found is not None
        out: list[tuple[Array, float, Array]] = []
        for i in np.argsort(found.value, kind="stable"):
            if np.isfinite(found.value[i]) and all(found.value[i] > v + 1e-6 * abs(v) + 1e-15 for _, v, _ in out):
                out.append((found.theta[i], float(found.value[i]), found.metric[i]))
        return tuple(out)

    @property
    def interval_method(self) -> str:
        """How intervals are made, in words."""
        return self.plan.text if self.interval == "bootstrap" else f"{self.interval}{self._grouping}"

    @property
    def _grouping(self) -> str:
        return f", clustered by {self.plan.by}" if self.interval == "sandwich" else ""

    @property
    def nobs(self) -> int:
        """The number of rows."""
        return len(self.data)

    @property
    def df_model(self) -> int:
        """The number of fitted constants less one, as in statsmodels."""
        return self.free - 1

    @property
    def df_resid(self) -> int:
        """Residual degrees of freedom: rows less fitted constants."""
        return self.nobs - self.free

    @cached_property
    def llf(self) -> float:
        """The log likelihood of the residuals that the loss function stands for, its scale fitted."""
        return self.problem.loss.llf_of(self.objective, self.nobs)

    @property
    def _constants_of_likelihood(self) -> int:
        return self.free + self.problem.loss.extra

    @property
    def aic(self) -> float:
        """Akaike's criterion; the scale counts as a constant."""
        return -2.0 * self.llf + 2.0 * self._constants_of_likelihood

    @property
    def aicc(self) -> float:
        """Akaike's criterion with its term for small samples, 2 k (k+1)/(n-k-1); infinite where n <= k + 1.

        Hurvich and Tsai 1989, Biometrika 76(2), eq. 3; k counts the scale. AIC itself favours laws of many constants
        until there are some 40 rows for each.
        """
        k = self._constants_of_likelihood
        left = self.nobs - k - 1
        return self.aic + 2.0 * k * (k + 1) / left if left > 0 else float("inf")

    @property
    def bic(self) -> float:
        """Bayes' criterion (Schwarz); the scale counts as a constant."""
        return -2.0 * self.llf + float(np.log(self.nobs)) * self._constants_of_likelihood

    @property
    def fittedvalues(self) -> Array:
        """The target as the law has it at the rows (n,)."""
        return np.asarray(np.exp(self.problem.form.log_value(self.point.theta[None], self.problem.x)[0]))

    @property
    def resid(self) -> Array:
        """Observed less fitted (n,): of the logs, unless the fit is plain."""
        return np.asarray(multistart.residuals(self.problem, self.point.theta[None])[0])

    @property
    def noise(self) -> float:
        """A robust standard deviation of the residuals, widened for the degrees of freedom used."""
        spread = 1.4826 * float(np.median(np.abs(self.resid)))
        return spread * float(np.sqrt(self.nobs / self.df_resid))

    def cov_params(self, method: str | None = None) -> pd.DataFrame:
        """Return the covariance of the constants; of the resamples, "delta" or "sandwich" (profile: as delta)."""
        import pandas as pd

        names = list(self.form.names)
        if self._method(method) == "bootstrap":
            values = np.cov(self.draws[names].to_numpy(), rowvar=False)
            return pd.DataFrame(np.atleast_2d(values), names, names)
        slopes = self._slopes(tuple(names))
        return pd.DataFrame(slopes @ self._covariance(method) @ slopes.T, names, names)

    @property
    def bse(self) -> pd.Series[float]:
        """Standard errors of the constants by the fit's own method; NaN where one is not identified."""
        spread = np.sqrt(np.diag(self.cov_params().to_numpy()))
        known = [name in self.held or self.identified[name].identified for name in self.form.names]
        return _series(dict(zip(self.form.names, np.where(known, spread, np.nan), strict=True)))

    def conf_int(self, alpha: float | None = None, method: str | None = None) -> pd.DataFrame:
        """Return intervals of constants and derived quantities, columns 0 (lower) and 1 (upper).

        `alpha` is 1 - coverage (default: that of the fit); `method` one of bootstrap, delta, sandwich, profile. What
        the data do not identify has a one-sided limit (the other side infinite, or 0 for a positive constant), or NaN.
        """
        import pandas as pd

        level = 1.0 - self.confidence if alpha is None else alpha
        if not 0.0 < level < 1.0:
            raise ValueError(f"alpha={alpha}: a number between 0 and 1 is needed, such as 0.05")
        chosen = self._method(method)
        rows = {name: self._interval(name, level, chosen) for name in self.names}
        return pd.DataFrame.from_dict(rows, orient="index", columns=[0, 1])

    @cached_property
    def identified(self) -> Mapping[str, Identified]:
        """A verdict on every constant and derived quantity: see analysis.inference.identifiability."""
        return verdicts(self)

    @cached_property
    def flat(self) -> Flat | None:
        """The direction in which other laws fit the rows as well, and how far; None where there is one best law."""
        return flat(self.problem, self.point)

    def profile(self, name: str, alpha: float | None = None) -> Profile:
        """Return the profile likelihood of a constant or of a (or b): values, deviance, where it rejects."""
        if alpha is None and name in self.profiles:
            return self.profiles[name]
        level = 1.0 - self.confidence if alpha is None else alpha
        return profile(self.problem, self.point, name, level, self._spread(name))

    @cached_property
    def profiles(self) -> Mapping[str, Profile]:
        """The profiles of all constants that have one, at the fit's own confidence."""
        found = {}
        for name in self.form.names:
            try:
                spread = self._spread(name)
                found[name] = profile(self.problem, self.point, name, 1.0 - self.confidence, spread)
            except ValueError:  # held by a constraint, or not held by the law as it is
                continue
        return found

    def predict(self, runs: Any) -> Array:
        """Return the target (n,) at runs that have the form's input columns."""
        return np.asarray(self._predicted(self.point.theta[None], runs)[0])

    def get_prediction(self, runs: Any) -> Prediction:
        """Return the prediction at runs, with intervals of the mean and of an observation."""
        return self.prediction(runs)

    def prediction(self, runs: Any, forms: Sequence[LawFit] = (), how: str = "aic") -> Prediction:
        """Return the prediction at runs; with other fits of the same rows in `forms` it holds the form's uncertainty.

        `how` is "aic" (draws of each form in proportion to its AICc weight) or "worst" (the hull of all intervals).
        """
        from analysis.inference.prediction import predicted

        return predicted(self, runs, tuple(forms), how)

    def log_gradient(self, runs: Any, theta: Array | None = None) -> Array:
        """Return the gradient (n, q) of ln target by the free internal constants, at the fit or at `theta` (p,)."""
        x = np.log(observations.inputs(runs, self.form)) - self.problem.centres[:, None]
        at = self.point.theta if theta is None else theta
        return self.problem.constraint.pull(self.form.jacobian(at[None], x)[0])

    def check(self, runs: Any = None) -> tuple[Check, ...]:
        """Return findings about the fit, each with a code and advice; `runs` may hold columns beyond the form's."""
        from analysis.diagnostics.pitfalls import findings

        return findings(self, runs)

    def summary(self) -> Summary:
        """Return the summary: `str()`, `as_text()`, `as_html()`, `as_latex()`, `as_csv()`."""
        from analysis.inference.summary import summary

        return summary(self)

    def block(self) -> Block:
        """Return the fit as a block of fit.json."""
        table = self.conf_int()
        ends = {name: (float(table[0][name]), float(table[1][name])) for name in self.names}
        known: dict[str, Interval | None] = {
            name: pair if self.identified[name].identified and np.isfinite(pair).all() else None
            for name, pair in ends.items()
        }
        return Block(
            form=self.form.text,
            approach="surface"
            if self.form.target == "loss" and {"params", "tokens"} <= set(self.form.inputs)
            else self.form.name,
            loss_function=self.loss_function,
            objective=self.objective,
            params={str(name): float(value) for name, value in self.params.items()},
            derived={str(name): float(value) for name, value in self.derived.items()},
            intervals=known,
            identified=dict(self.identified),
            checks=self.check(),
            rows_used=self.nobs,
            optimizer=self.optimizer,
        )

    def record(self) -> dict[str, Any]:
        """Return everything that a report of this fit has to say, as plain JSON values."""
        from analysis.inference.summary import record

        return record(self)

    def plot_residuals(self, against: str = "params", ax: Any = None) -> Any:
        """Draw residuals against an input; return the axes."""
        return _figures().residuals(self, against, ax)

    def plot_profile(self, name: str, ax: Any = None) -> Any:
        """Draw the profile of a constant; return the axes."""
        return _figures().profile(self, name, ax)

    def plot_fit(self, ax: Any = None) -> Any:
        """Draw observed over fitted; return the axes."""
        return _figures().observed(self, ax)

    def plot_draws(self, x: str, y: str, ax: Any = None) -> Any:
        """Draw the resamples of two quantities; return the axes."""
        return _figures().draws(self, x, y, ax)

    @property
    def basins(self) -> tuple[Basin, ...]:
        """The distinct minima that the starts found."""
        return self.optimizer.basins

    def _method(self, method: str | None) -> str:
        chosen = self.interval if method is None else method
        if chosen not in METHODS:
            raise ValueError(f"method={chosen!r} is not known; use one of {', '.join(METHODS)}")
        if chosen == "bootstrap" and not len(self.thetas):
            raise ValueError("method='bootstrap': the fit was made with resamples=0; fit again with resamples=1000")
        return chosen

    def _covariance(self, method: str | None) -> Array:
        """Return the covariance (p, p) of theta."""
        if self._method(method) == "sandwich":
            by = self.plan if self.plan.by in ("sizes", "runs") else resampling.Plan("sizes", "")
            return covariance.sandwich(self.problem, self.point, resampling.groups(by, self.data.size, self.data.run))
        return covariance.delta(self.problem, self.point)

    def _slopes(self, names: tuple[str, ...], logs: bool = False) -> Array:
        """Return the derivatives (m, p) of quantities, or of the positive ones' logs, by theta: central differences."""
        theta = self.point.theta
        steps = 1e-6 * np.maximum(1.0, np.abs(theta))
        both = [self._quantities(theta + s * np.diag(steps), names, logs) for s in (1.0, -1.0)]
        return (both[0] - both[1]).T / (2.0 * steps)

    def _quantities(self, theta: Array, names: tuple[str, ...], logs: bool) -> Array:
        natural = self.form.natural(theta, self.problem.centres)
        found = dict(zip(self.form.names, natural.T, strict=True)) | self.form.derived(natural)
        return np.stack([np.log(found[n]) if logs and self._positive(n) else found[n] for n in names], axis=1)

    def _positive(self, name: str) -> bool:
        return name in self.form.names and self.form.logs[self.form.names.index(name)]

    def _spread(self, name: str) -> float:
        """Return a rough standard error, of the log where the constant is positive."""
        slope = self._slopes((name,), logs=True)[0]
        return float(np.sqrt(max(slope @ covariance.delta(self.problem, self.point) @ slope, 0.0)))

    def _interval(self, name: str, level: float, method: str) -> Interval:
        if name in self.held:
            value = float(self.params[name])
            return value, value
        verdict = self.identified[name]
        if not verdict.identified:
            lowest = 0.0 if self._positive(name) else -np.inf
            if verdict.side == "upper" and verdict.limit is not None:
                return lowest, verdict.limit
            if verdict.side == "lower" and verdict.limit is not None:
                return verdict.limit, np.inf
            return np.nan, np.nan
        return self._two_sided(name, level, method)

    def _two_sided(self, name: str, level: float, method: str) -> Interval:
        """Return the interval of an identified quantity; what has no profile gets the delta method's."""
        if method == "bootstrap":
            value = float({**self.params, **self.derived}[name])
            draws = self.draws[name].to_numpy()
            return resampling.interval(draws, value, 1.0 - level, logs=self._positive(name)) or (np.nan, np.nan)
        if method == "profile" and (name in self.form.names or self.form.equation(name, 0.5) is not None):
            found = self.profile(name, level)
            return found.low, found.high
        return self._normal(name, level, "delta" if method == "profile" else method)

    def _normal(self, name: str, level: float, method: str) -> Interval:
        """Return the interval of Student's t around the value, or around the log of a positive constant."""
        from scipy.stats import t

        slope = self._slopes((name,), logs=True)[0]
        df = self.df_resid
        if method == "sandwich":
            by = self.plan if self.plan.by in ("sizes", "runs") else resampling.Plan("sizes", "")
            df = len(np.unique(resampling.groups(by, self.data.size, self.data.run))) - 1
        reach = float(t.ppf(1.0 - level / 2.0, max(df, 1)))
        reach *= float(np.sqrt(max(slope @ self._covariance(method) @ slope, 0.0)))
        value = float(self._quantities(self.point.theta[None], (name,), True)[0, 0])
        low, high = value - reach, value + reach
        return (float(np.exp(low)), float(np.exp(high))) if self._positive(name) else (low, high)

    def _predicted(self, theta: Array, runs: Any) -> Array:
        """Return the target (R, n) of internal constants (R, p) at runs."""
        found = observations.inputs(runs, self.form)
        x = np.log(found) - self.problem.centres[:, None]
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(self.form.log_value(theta, x)))


def _series(values: Mapping[str, float]) -> pd.Series[float]:
    import pandas as pd

    return pd.Series(dict(values), dtype=float)


def _figures() -> Any:
    from importlib import import_module

    return import_module("analysis.report.figures.laws")
