"""An estimate with its verdicts, intervals and predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.inference.estimate import Estimate
from analysis.inference.identifiability import Verdicts
from analysis.inference.intervals import METHODS
from analysis.values.blocks import Identified, Interval
from train.spec import calls

if TYPE_CHECKING:
    import pandas as pd

    from analysis.inference.prediction import Prediction


@dataclass(frozen=True, eq=False)
class InferredLaw(Estimate):
    """A fitted law of which it is known what the data identify, and how well."""

    @cached_property
    def identified(self) -> Mapping[str, Identified]:
        """A verdict on every constant and derived quantity: see analysis.inference.identifiability."""
        return Verdicts(self)

    @property
    def interval_method(self) -> str:
        """How intervals are made, in words."""
        return METHODS[self.interval].text(self.plan)

    @calls.answered(method=calls.one_of(*METHODS))
    def cov_params(self, method: str | None = None) -> pd.DataFrame:
        """Return the covariance of the constants; of the resamples, "delta" or "sandwich" (profile: as delta)."""
        import pandas as pd

        names = list(self.form.names)
        return pd.DataFrame(METHODS[self._method(method)].covariance(self), names, names)

    @property
    def bse(self) -> pd.Series[float]:
        """Standard errors of the constants by the fit's own method; 0 where one is held, NaN where not identified."""
        import pandas as pd

        spread = dict(zip(self.form.names, np.sqrt(np.maximum(np.diag(self.cov_params()), 0.0)), strict=True))
        held = dict.fromkeys(self.held, 0.0)
        unknown = {n: np.nan for n in self.form.names if n not in held and not self.identified[n].identified}
        return pd.Series(spread | held | unknown, dtype=float)

    @calls.answered(alpha=calls.share, method=calls.one_of(*METHODS))
    def conf_int(self, alpha: float | None = None, method: str | None = None) -> pd.DataFrame:
        """Return intervals of constants and derived quantities, columns 0 (lower) and 1 (upper).

        `alpha` is 1 - coverage (default: that of the fit); `method` a name of analysis.inference.intervals.METHODS.
        What the data do not identify has a one-sided limit (the other side infinite, or 0 for a positive constant), or
        NaN.
        """
        import pandas as pd

        level = 1.0 - self.confidence if alpha is None else alpha
        chosen = self._method(method)
        self.follow_profiles()
        rows = {name: self._interval(name, level, chosen) for name in self.names}
        return pd.DataFrame.from_dict(rows, orient="index", columns=[0, 1])

    @calls.answered()
    def get_prediction(self, runs: Any = None, **columns: Any) -> Prediction:
        """Return the target at `runs`, or at inputs given by name, with intervals of mean and observation.

        Examples
        --------
        >>> import analysis as sa
        >>> fit = sa.fit("docs/example-runs.csv", resamples=40, sensitivity=False)
        >>> found = fit.law.get_prediction(params=1e9, tokens=2e10)
        >>> found.summary_frame()["mean"].round(2).tolist()
        [2.46]
        """
        return self.prediction(self.places(runs, columns))

    @calls.answered(how=calls.one_of("aic", "worst"))
    def prediction(self, runs: Any, forms: Sequence[Estimate] = (), how: str = "aic") -> Prediction:
        """Return the prediction at runs; with other fits of the same rows in `forms` it holds the form's uncertainty.

        `how` is "aic" (draws of each form in proportion to its AICc weight) or "worst" (the hull of all intervals).
        """
        from analysis.inference.prediction import predicted

        return predicted(self, runs, tuple(forms), how)

    def _method(self, method: str | None) -> str:
        chosen = self.interval if method is None else method
        if chosen == "bootstrap" and not len(self.thetas):
            raise ValueError("method='bootstrap': the fit was made with resamples=0; fit again with resamples=1000")
        return chosen

    def _interval(self, name: str, level: float, method: str) -> Interval:
        if name in self.held:
            value = float(self.params[name])
            return value, value
        verdict = self.identified[name]
        if not verdict.identified:
            lowest = 0.0 if self.positive(name) else -np.inf
            if verdict.side == "upper" and verdict.limit is not None:
                return lowest, verdict.limit
            if verdict.side == "lower" and verdict.limit is not None:
                return verdict.limit, np.inf
            return np.nan, np.nan
        return METHODS[method].interval(self, name, level)
