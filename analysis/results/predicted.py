"""The law's prediction beside every run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.values.study_result import Fit

if TYPE_CHECKING:
    import pandas as pd


def with_prediction(result: Fit, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with the column `predicted`: the law's loss, empty where there is none."""
    import numpy as np

    from analysis.laws.registry import FORMS

    out = frame.copy()
    out["predicted"] = np.nan
    form = next((f for f in FORMS.values() if f.text == result.form and set(f.names) <= set(result.params)), None)
    if form is None or form.target != "loss":
        return out
    with np.errstate(all="ignore"):
        x = np.log(np.stack([out[name].to_numpy(float) for name in form.inputs]))
    zeros = np.zeros(len(x))
    theta = form.internal(np.array([[result.params[name] for name in form.names]]), zeros)
    with np.errstate(all="ignore"):
        predicted = np.exp(form.log_value(theta, x)[0])
    out["predicted"] = np.where(out["used"], predicted, np.nan)
    return out
