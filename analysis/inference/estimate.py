"""A fitted law as it was found: the point, the draws and what follows from them without a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.estimation import fit_problem, multistart, observations
from analysis.inference import covariance, resampling
from analysis.inference.flat import Flat, flat
from analysis.inference.profile_likelihood import Profile, has_profile, is_positive, profile, profiles
from analysis.inputs.dataset import Array, Index, Rows
from analysis.laws.base import Form
from analysis.values.blocks import Basin, Optimizer
from train.spec import calls

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Estimate:
    """A point estimate with its resamples. Constants and quantities that follow from them go by name.

    `thetas` (R, p) are the resamples' internal constants. pandas objects are labelled by the constants' names.
    """

    form: Form
    data: Rows
    problem: fit_problem.Problem
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
        return self.problem.free

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
    def basins(self) -> tuple[Basin, ...]:
        """The distinct minima that the starts found."""
        return self.optimizer.basins

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
    def observed(self) -> Array:
        """The target of each row (n,)."""
        return self.data.columns[self.form.target]

    @property
    def cells(self) -> Index:
        """The number of each row's setting (n,), equal for repeats with other seeds."""
        return observations.cells(self.data, self.form)

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
        return np.asarray(fit_problem.residuals(self.problem, self.point.theta[None])[0])

    @property
    def noise(self) -> float:
        """A robust standard deviation of the residuals, widened for the degrees of freedom used."""
        spread = 1.4826 * float(np.median(np.abs(self.resid)))
        return spread * float(np.sqrt(self.nobs / self.df_resid))

    @cached_property
    def flat(self) -> Flat | None:
        """The direction in which other laws fit the rows as well, and how far; None where there is one best law."""
        return flat(self.problem, self.point)

    @calls.answered(name=calls.text, alpha=calls.share)
    def profile(self, name: str, alpha: float | None = None) -> Profile:
        """Return the profile likelihood of a constant or of a (or b): values, deviance, where it rejects."""
        if name not in self.names:
            raise ValueError(calls.none_such("name", name, self.form.name, self.names))
        own = 1.0 - self.confidence
        level = own if alpha is None else alpha
        if level != own:
            return profile(self.problem, self.point, name, level, self.spread(name))
        if name not in self._profiles:
            self._profiles[name] = profile(self.problem, self.point, name, own, self.spread(name))
        return self._profiles[name]

    @cached_property
    def _profiles(self) -> dict[str, Profile]:
        """Those of the fit's own confidence that were asked for."""
        return {}

    @cached_property
    def profiles(self) -> Mapping[str, Profile]:
        """The profiles of all constants that have one, at the fit's own confidence."""
        self.follow_profiles()
        return {name: self._profiles[name] for name in self.form.names if name in self._profiles}

    def follow_profiles(self) -> None:
        """Find the profiles of all constants in one solve, which takes less time than one after another."""
        left = [name for name in self.form.names if name not in self._profiles and has_profile(self.problem, name)]
        spreads = {name: self.spread(name) for name in left}
        self._profiles.update(profiles(self.problem, self.point, spreads, 1.0 - self.confidence))

    @calls.answered()
    def predict(self, runs: Any = None, **columns: Any) -> Array:
        """Return the target (n,) at `runs`, a frame or a mapping of the form's inputs, or at inputs given by name.

        `predict(params=1e9, tokens=2e10)` is `predict({"params": 1e9, "tokens": 2e10})`. ValueError names what lacks.
        """
        return np.asarray(self.predicted(self.point.theta[None], self.places(runs, columns))[0])

    def places(self, runs: Any, columns: Mapping[str, Any]) -> Any:
        """Return the table of places that a prediction is asked for; ValueError where it is not one of the two."""
        if (runs is None) != bool(columns):
            wanted = ", ".join(f"{name}=..." for name in self.form.inputs)
            raise ValueError(f"give a table of places, or the law's inputs by name, one of the two: predict({wanted})")
        return observations.table(columns or runs)

    def predicted(self, theta: Array, runs: Any) -> Array:
        """Return the target (R, n) of internal constants (R, p) at runs."""
        found = observations.inputs(runs, self.form)
        x = np.log(found) - self.problem.centres[:, None]
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(self.form.log_value(theta, x)))

    def slopes(self, names: tuple[str, ...], logs: bool = False) -> Array:
        """Return the derivatives (m, p) of quantities, or of the positive ones' logs, by theta: central differences."""
        theta = self.point.theta
        steps = 1e-6 * np.maximum(1.0, np.abs(theta))
        upper, lower = (self.quantities(theta + s * np.diag(steps), names, logs) for s in (1.0, -1.0))
        with np.errstate(invalid="ignore"):  # of a number that is too large there is no slope
            return np.asarray((upper - lower).T / (2.0 * steps))

    def quantities(self, theta: Array, names: tuple[str, ...], logs: bool) -> Array:
        """Return quantities (R, m), or the logs of the positive ones, of internal constants (R, p)."""
        natural = self.form.natural(theta, self.problem.centres)
        found = dict(zip(self.form.names, natural.T, strict=True)) | self.form.derived(natural)
        matrix, offset = self.form.link(self.problem.centres)
        for i, name in enumerate(self.form.names):
            if logs and self.positive(name):  # not the log of the number, which may be too large for one
                found[name] = theta @ matrix[i] + offset[i]
        return np.stack([found[name] for name in names], axis=1)

    def positive(self, name: str) -> bool:
        """Whether a name is of a constant that is positive."""
        return is_positive(self.problem, name)

    def spread(self, name: str) -> float:
        """Return a rough standard error, of the log where the constant is positive."""
        slope = self.slopes((name,), logs=True)[0]
        return float(np.sqrt(max(slope @ covariance.delta(self.problem, self.point) @ slope, 0.0)))


def _series(values: Mapping[str, float]) -> pd.Series[float]:
    import pandas as pd

    return pd.Series(dict(values), dtype=float)
