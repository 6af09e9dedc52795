"""Predictions with intervals: of the mean, of an observation, and over several forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.estimation import objectives, observations
from analysis.inference import covariance, error_draws, resampling
from analysis.inference.akaike import behind, weights
from analysis.inference.refusals import refuse_far
from analysis.inputs.dataset import Array
from analysis.text import numbers
from train.spec import calls

if TYPE_CHECKING:
    import pandas as pd

    from analysis.inference.estimate import Estimate

ACCEPTED = 10.0
"""A form whose AICc is worse than the best one's by more than this takes no part in the worst case."""
SHOWN = 3
"""Rows of a prediction that its line shows."""


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """The target at n rows: `mean` (n,), draws of the mean and of an observation (R, n), and the forms' shares.

    `summary_frame()` has the intervals.
    """

    mean: Array
    mean_draws: tuple[Array, ...]
    obs_draws: tuple[Array, ...]
    weights: dict[str, float]
    confidence: float

    def __repr__(self) -> str:
        """Return the first rows with the intervals of their means in a line."""
        frame = self.summary_frame().head(SHOWN)
        rows = [
            f"{numbers.number(mean, 4)} ({numbers.interval((low, high), lambda end: numbers.number(end, 4))})"
            for mean, low, high in zip(frame["mean"], frame["mean_ci_lower"], frame["mean_ci_upper"], strict=True)
        ]
        more = ", ..." if len(self.mean) > SHOWN else ""
        return f"Prediction({', '.join(rows)}{more}; {numbers.percent(self.confidence)} intervals of the mean)"

    def _repr_html_(self) -> str:
        """Return `summary_frame()` for a notebook."""
        return str(self.summary_frame().to_html())

    @calls.answered(alpha=calls.share)
    def summary_frame(self, alpha: float | None = None) -> pd.DataFrame:
        """Return mean, mean_se, mean_ci_lower, mean_ci_upper, obs_ci_lower, obs_ci_upper, a row a prediction.

        An observation scatters around a mean that is itself uncertain: its interval holds the mean's, also where draws
        of little noise, or of one-sided noise, end short of it.
        """
        import pandas as pd

        level = 1.0 - self.confidence if alpha is None else alpha
        mean, obs = (self._ends(draws, 1.0 - level) for draws in (self.mean_draws, self.obs_draws))
        spread = np.max([d.std(axis=0) for d in self.mean_draws], axis=0)
        low, high = mean[:, 0].min(axis=0), mean[:, 1].max(axis=0)
        return pd.DataFrame(
            {
                "mean": self.mean, "mean_se": spread, "mean_ci_lower": low, "mean_ci_upper": high,
                "obs_ci_lower": np.minimum(obs[:, 0].min(axis=0), low),
                "obs_ci_upper": np.maximum(obs[:, 1].max(axis=0), high),
            }
        )  # fmt: skip

    def _ends(self, drawn: tuple[Array, ...], confidence: float) -> Array:
        """Return the ends (forms, 2, n) of each form's draws (R, n) around the mean; NaN where there are none."""
        none = (np.nan, np.nan)
        found = [
            [resampling.interval(draws[:, i], value, confidence) or none for i, value in enumerate(self.mean)]
            for draws in drawn
        ]
        return np.array(found).transpose(0, 2, 1)


def predicted(fit: Estimate, runs: Any, others: tuple[Estimate, ...] = (), how: str = "aic") -> Prediction:
    """Return the prediction of a fit; with `others`, fits of other forms to the same rows, of all of them.

    "aic" pools the draws of all forms by their AICc weights (the mean stays the fit's own); "worst" keeps each accepted
    form's draws apart, so that an interval is the hull of theirs. Raises ValueError where the fits cannot be compared.
    """
    if how not in ("aic", "worst"):
        raise ValueError(f"how={how!r} is not known; use aic or worst")
    fits = (fit, *others)
    for other in others:
        if other.nobs != fit.nobs or not np.array_equal(other.observed, fit.observed):
            raise ValueError(
                f"{other.form.name} was fitted to other rows than {fit.form.name}: their AICc do not compare"
            )
        if other.problem.plain != fit.problem.plain:
            raise ValueError(
                f"{other.form.name} and {fit.form.name} differ in whether residuals are logs: their likelihoods are of "
                "different numbers; fit both with plain=True, or both without"
            )
    for each in fits:
        refuse_far(each.form, each.data, observations.inputs(runs, each.form))
    gap = behind([f.aicc for f in fits])
    shares = weights([f.aicc for f in fits])
    drawn = [_drawn(f, runs) for f in fits]
    by_name = {f.form.name: float(w) for f, w in zip(fits, shares, strict=True)}
    if how == "worst":
        kept = [d for d, a in zip(drawn, gap, strict=True) if a <= ACCEPTED]
        return Prediction(
            fit.predict(runs), tuple(m for m, _ in kept), tuple(o for _, o in kept), by_name, fit.confidence
        )
    counts = np.maximum(np.round(shares * max(len(m) for m, _ in drawn)).astype(int), 0)
    # A fit with fewer draws than its weight asks for gives each of them several times.
    picks = [np.linspace(0, len(m) - 1, c).astype(int) for (m, _), c in zip(drawn, counts, strict=True)]
    mean = np.concatenate([m[i] for (m, _), i in zip(drawn, picks, strict=True)])
    obs = np.concatenate([o[i] for (_, o), i in zip(drawn, picks, strict=True)])
    return Prediction(fit.predict(runs), (mean,), (obs,), by_name, fit.confidence)


def _drawn(fit: Estimate, runs: Any) -> tuple[Array, Array]:
    """Return draws (R, n) of the mean and of an observation: a residual of the fit, widened, goes on top."""
    generator = np.random.default_rng(np.random.SeedSequence([fit.seed, 4]))
    theta = fit.thetas
    if not len(theta):
        root = np.linalg.cholesky(covariance.delta(fit.problem, fit.point) + 1e-18 * np.eye(len(fit.point.theta)))
        theta = fit.point.theta + generator.normal(size=(1000, len(fit.point.theta))) @ root.T
    mean = fit.predicted(theta, runs)
    centre = objectives.location(fit.problem.loss, fit.resid)
    residual = np.sort(fit.resid - centre) * np.sqrt(fit.nobs / fit.df_resid)
    noise = generator.choice(residual, size=mean.shape)
    noise /= np.sqrt(error_draws.scales(fit.df_resid, len(mean), generator))[:, None]
    return mean, mean + noise if fit.problem.plain else mean * np.exp(noise)
