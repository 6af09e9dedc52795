"""The fitted law along a compute budget: its loss as a function of the model's size, with tokens as the budget pays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from analysis.report.figures.data import Row
from analysis.values.study_result import Fit

Along = Callable[[float, Sequence[float]], list[float]]
"""Of a budget [FLOPs] and sizes [parameters]: the loss of each size trained on the tokens that the budget pays for."""


def along(fit: Fit, rows: Sequence[Row]) -> Along | None:
    """Return the fitted law along budgets; None where no law of N and D was fitted.

    A token costs what the runs' exact FLOPs say (:mod:`analysis.approaches.cost`).
    """
    import numpy as np

    from analysis.approaches.cost import cost
    from analysis.inputs.dataset import rows as grouped
    from analysis.laws.registry import FORMS

    form = next((f for f in FORMS.values() if f.text == fit.form and set(f.names) <= set(fit.params)), None)
    if form is None or form.target != "loss" or set(form.inputs) - {"params", "tokens", "flops"}:
        return None
    good = [
        r for r in rows if r.used and all(math.isfinite(v) and v > 0 for v in (r.params, r.tokens, r.flops, r.loss))
    ]
    if not good:
        return None
    params, tokens, flops, loss = (
        np.array([getattr(r, name) for r in good]) for name in ("params", "tokens", "flops", "loss")
    )
    price = cost(grouped(tuple(r.key for r in good), params=params, tokens=tokens, flops=flops, loss=loss))
    theta = np.array([[fit.params[name] for name in form.names]])

    def of(budget: float, sizes: Sequence[float]) -> list[float]:
        log_params = np.log(np.asarray(sizes, dtype=np.float64))
        compute = np.full_like(log_params, math.log(budget))
        inputs = {"params": log_params, "tokens": compute - price.log_per_token(log_params)[0], "flops": compute}
        with np.errstate(all="ignore"):
            x = np.stack([inputs[name] for name in form.inputs])
            found = np.exp(form.log_value(form.internal(theta, np.zeros(len(x))), x)[0])
        return [float(value) for value in found]

    return of
