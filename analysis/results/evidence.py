"""What stands beside a fit: laws of other forms, profiles of the constants, approach 1, the table of other choices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.approaches.parametric import columns_of, options_of
from analysis.values.blocks import Block, Interval, PowerLaw, Valley
from analysis.values.json_values import to_json
from analysis.values.study_result import Choice, ProfileCurve

if TYPE_CHECKING:
    import pandas as pd

    from analysis.inference.law_result import LawFit
    from analysis.inputs.dataset import Rows


ENVELOPE = "N* = c C^a, D* = d C^b along the envelope of the runs' curves"


def profiles(found: LawFit) -> tuple[ProfileCurve, ...]:
    """Return the profile of every constant that was fitted."""
    made = []
    for name in found.form.names:
        try:
            curve = found.profile(name)
        except ValueError:  # held by a constraint
            continue
        ends = (curve.low if curve.closed_low else None, curve.high if curve.closed_high else None)
        values, deviance = (tuple(map(float, column)) for column in (curve.values, curve.deviance))
        made.append(ProfileCurve(name, values, deviance, float(curve.cut), _finite(ends[0]), _finite(ends[1])))
    return tuple(made)


def envelope(frame: pd.DataFrame, asked: Mapping[str, Any]) -> tuple[Block, Mapping[str, PowerLaw]]:
    """Return approach 1, the envelope of the runs' learning curves, and its laws; not possible where there are none."""
    from analysis.approaches.envelope import fit
    from analysis.inputs.frame import checkpoints

    def empty(reason: str) -> Block:
        return Block(form=ENVELOPE, approach="envelope", loss_function="", status="not possible", reason=reason)

    rows = checkpoints(frame)
    if rows.run is None or len(set(rows.run.tolist())) == len(rows):
        return empty(no_curves(frame)), {}
    try:
        found = fit(rows, resamples=int(asked["resamples"]), seed=int(asked["seed"]))
    except ValueError as error:
        return empty(str(error)), {}
    laws = {"a": found.exponents["params"], "b": found.exponents["tokens"]}
    block = Block(
        form=ENVELOPE,
        approach="envelope",
        loss_function="squared(log residual)",
        params={name: law.exponent for name, law in laws.items()},
        intervals={name: law.exponent_interval for name, law in laws.items()},
        checks=found.checks,
        rows_used=len(rows),
    )
    return block, found.exponents


def no_curves(frame: pd.DataFrame) -> str:
    """Return why approach 1 is not possible where no run has two checkpoints, and what to do where one can."""
    if frame.attrs.get("folder") is not None:
        return "no learning curves: the runs were validated once only (eval.count)"
    if frame.attrs.get("experiment") is not None:
        return "no learning curves: they are in the study's folder (runs=runs/STUDY)"
    return "no learning curves: give a column run and one row per checkpoint (columns=run:COLUMN)"


def approaches(
    frame: pd.DataFrame,
    rows: Rows,
    budget: float,
    asked: Mapping[str, Any],
    fits: Mapping[str, LawFit | None],
    *,
    judged: Sequence[Valley] | None = None,
) -> list[dict[str, Any]]:
    """Return what each approach and way of interpolating says for a budget, a row each.

    `fits` are approach 3's by form, as they were fitted: their rows say what the rest of fit.json says. Other options
    of the command (loss, delta, fix, tie, cluster, interval) are theirs already. `judged` are the
    study's valleys, where they are fitted already.
    """
    import pandas as pd

    from analysis.approaches.comparison import COLUMNS, law_line, side_by_side
    from analysis.inputs import large
    from analysis.inputs.frame import checkpoints

    curves = checkpoints(frame)
    one = curves.run is None or len(set(curves.run.tolist())) == len(curves)
    few = {"resamples": large.resamples(int(asked["resamples"]), len(rows))}
    (form, law), *others = fits.items()
    found = side_by_side(
        rows, budget, checkpoints=None if one else curves, law=law, judged=judged, **(options_of(form, asked) | few)
    )
    more = [law_line(rows, budget, law, options_of(form, asked) | few) for form, law in others]
    found = pd.concat([found, *(pd.DataFrame([line]).reindex(columns=COLUMNS).set_index("approach") for line in more)])
    if one:
        found.loc[["1 envelope", "1 hull"], "reason"] = no_curves(frame)
    # Approach 1 reads runs on their way: what it says is biased by that, and other approaches by other things.
    on_their_way = found.index.isin(("1 envelope", "1 hull")) & (found["reason"] == "")
    found["note"] = np.where(on_their_way, "losses before the schedules ended", "")
    return [to_json(line) for line in found.reset_index().to_dict("records")]


def sensitivity(frame: pd.DataFrame, asked: Mapping[str, Any], interval: Interval | None) -> tuple[Choice, ...]:
    """Return what the exponent a becomes under other choices than those asked; empty where rows do not hold a fit.

    `interval` is the fit's own, None where it has none: the first line says what the rest of fit.json says, while the
    other lines' intervals are of fewer resamples.
    """
    from analysis.diagnostics.sensitivity import sensitivity as table
    from analysis.inputs import large

    try:
        few = {"resamples": large.resamples(int(asked["resamples"]), int(frame["used"].sum()))}
        found = table(columns_of(frame), quantity="a", **(options_of("chinchilla", asked) | few))
    except ValueError:
        return ()
    first, *others = (
        Choice(
            str(line["choice"]), str(line["option"]), "a", _finite(line["value"]), _finite(line.get("low")),
            _finite(line.get("high")), int(line["nobs"]),
        )
        for line in found.to_dict("records")
    )  # fmt: skip
    low, high = interval or (None, None)
    return (replace(first, low=_finite(low), high=_finite(high)), *others)


def _finite(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
