"""A program that fits and prints its numbers as JSON: `python -m tests.analysis.anywhere [as_given|shuffled]`.

It is started under other BLAS kernels, numbers of threads and orders of rows; the numbers have to be the same.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.approaches import comparison, isoflop
from analysis.fit import fit as fit_frame
from analysis.inference.fit_law import fit_law
from analysis.inference.law_result import LawFit
from analysis.inputs import rows
from tests.analysis import studies

LAW = (1.7, 400.0, 900.0, 0.34, 0.3)
TUTORIAL = Path(__file__).parents[2] / "docs/tutorial/runs.csv"
LADDERS = (4, 6, 7)
"""Seeds of studies at about one ratio of N and D: the floor falls to 0 by slow valleys, or one term to the last run."""
Order = Callable[[pd.DataFrame], pd.DataFrame]


def numbers(order: Order) -> dict[str, Any]:
    """Return every fit's numbers by a name."""
    study = studies.isoflop(0, noise=0.002, budgets=(1e17, 1e18, 1e19, 1e20), law=LAW)
    found: dict[str, Any] = {}
    for loss in ("huber", "squared", "l1", "student_t"):
        found[f"study, {loss}"] = of_law(fit_law(order(study), loss=loss, resamples=60))
    found["intervals"] = intervals(fit_law(order(study), resamples=60))
    found["two rows a setting"] = of_law(fit_law(order(doubled()), resamples=20))
    found["two rows a setting, l1"] = of_law(fit_law(order(doubled()), loss="l1", resamples=0))
    found["held and tied"] = of_law(fit_law(order(study), fix={"E": 1.7}, tie={"beta": "alpha"}, resamples=30))
    for form in ("chinchilla_tied", "kaplan_floor", "farseer"):
        found[form] = of_law(fit_law(order(study), form, loss="squared", resamples=0), predictions=True)
    table = comparison.side_by_side(order(study), 1e21, resamples=20).drop(columns="reason")
    found["approaches"] = {str(name): row.dropna().to_dict() for name, row in table.iterrows()}
    found["akima"] = isoflop.optima(order(study), "akima").select_dtypes(float).to_dict("list")
    for seed in LADDERS:
        ladder = fit_law(order(studies.ladder(seed, 20 + 2 * seed, 0.003 + 0.001 * seed, 0.02)), resamples=0)
        found[f"ladder {seed}"] = of_law(ladder) | {"checks": [check.code for check in ladder.check()]}
    for loss in ("huber", "squared"):
        found[f"two numbers of tokens, {loss}"] = of_law(fit_law(order(at_two_tokens()), loss=loss, resamples=0))
    found["command"] = of_command(order)
    if studies.SHARED.exists():
        points = pd.read_csv(studies.SHARED / "chinchilla_epoch/runs.csv")
        points = points[points["in_reference_fit"]].reset_index(drop=True)
        found["240 points"] = of_law(fit_law(order(points), resamples=60))
        found["240 points, squared"] = of_law(fit_law(order(points), loss="squared", resamples=0))
    return found


def doubled() -> pd.DataFrame:
    """Return two rows at each size and number of tokens, of different losses: a near-L1 fit has no one minimum."""
    study = studies.isoflop(0, budgets=(1e17, 1e18, 1e19, 1e20), law=LAW)
    worse = study.assign(loss=study["loss"] * (1 + 0.01 * np.log(study["params"] / 1e7)))
    return pd.concat((worse, study), ignore_index=True)


def at_two_tokens() -> pd.DataFrame:
    """Return four sizes at two numbers of tokens: floor and tokens' term have a constant more than the rows tell."""
    few = studies.isoflop(ratios=(10.0,), noise=0.003)
    two = pd.concat([few.assign(tokens=1e8), few.assign(tokens=1e9)], ignore_index=True)
    exact = studies.loss(studies.LAW, two["params"], two["tokens"])
    return two.assign(loss=exact * (1 + 0.001 * np.sin(np.arange(len(two)))))


def of_law(fit: LawFit, predictions: bool = False) -> dict[str, Any]:
    """Return constants, intervals, a forecast; of laws whose constants trade off, what they say of runs alone."""
    far = {"params": [1e9, 1e10], "tokens": [2e10, 2e11]}
    out: dict[str, Any] = {"objective": fit.objective, "loss": fit.predict(far).tolist(), "aic": fit.aic}
    if predictions:
        return out
    out |= {"params": fit.params.to_dict(), "derived": fit.derived.to_dict()}
    if len(fit.thetas):
        out["quantiles"] = np.nanquantile(fit.draws, [0.025, 0.5, 0.975], axis=0).T.tolist()
        out["forecast"] = fit.get_prediction(far).summary_frame().to_dict("list")
    return out


def of_command(order: Order) -> Any:
    """Return what `python -m analysis.fit` finds, less what says when and by which versions."""
    from analysis.values.json_values import to_json

    table = order(rows.from_csv(TUTORIAL, params_kind="total", flop_rule="6ND"))
    result: Mapping[str, Any] = to_json(fit_frame(table, resamples=40, sensitivity=False))
    return {name: value for name, value in result.items() if name not in ("created", "versions", "record")}


def intervals(fit: LawFit) -> dict[str, Any]:
    """Return the intervals, one-sided ones too, and the codes of what was found."""
    ends = fit.conf_int()
    out = {str(name): [_said(ends[0][name]), _said(ends[1][name])] for name in ends.index}
    return {"ends": out, "checks": [check.code for check in fit.check()]}


def _said(value: float) -> float | str:
    return float(value) if np.isfinite(value) else str(value)


def main() -> None:
    """Print the numbers; `shuffled` gives the rows in another order."""
    shuffle = "shuffled" in sys.argv[1:]

    def order(table: pd.DataFrame) -> pd.DataFrame:
        out = table.sample(frac=1.0, random_state=7).reset_index(drop=True) if shuffle else table
        out.attrs = dict(table.attrs)
        return out

    json.dump(numbers(order), sys.stdout, default=float)


if __name__ == "__main__":
    main()
