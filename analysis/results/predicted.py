"""The law's prediction beside every run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.values.study_result import Fit

if TYPE_CHECKING:
    import pandas as pd

    from analysis.approaches.optimum import Repeats

CLOSED = ("E", "A", "B", "alpha", "beta")
"""The constants of E + A/N^alpha + B/D^beta."""


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


def with_repeats(result: Fit, frame: pd.DataFrame, unique_tokens: float, repeats: Repeats) -> pd.DataFrame:
    """Return the frame with the column `predicted` for text of so many distinct tokens, read as often as it takes.

    The law was fitted as if all text were new; repeats wear out as in :mod:`analysis.approaches.optimum`. Raises
    ValueError where the law is not E + A/N^alpha + B/D^beta.
    """
    import numpy as np

    from analysis.approaches import optimum

    if set(result.params) != set(CLOSED):
        raise ValueError(
            f"unique_tokens= needs a law E + A/N^alpha + B/D^beta, and this fit has {result.form}: "
            "fit form=chinchilla, or leave unique_tokens= out"
        )
    law = np.array([[result.params[name] for name in CLOSED]])
    with np.errstate(all="ignore"):
        size, data = (np.log(frame[name].to_numpy(float))[None] for name in ("params", "tokens"))
        loss = optimum.repeated(law, size, data, log_unique=np.log(unique_tokens), repeats=repeats)[0]
    return frame.assign(predicted=np.where(frame["used"], loss, np.nan))
