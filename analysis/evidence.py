"""What stands beside a fit: laws of other forms, profiles of the constants, approach 1, the table of other choices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import human, valleychoices
from analysis.blocks import Block, Check, PowerLaw
from analysis.plain import to_json
from analysis.results import Choice, ProfileCurve

if TYPE_CHECKING:
    import pandas as pd

    from analysis.lawfit import LawFit
    from analysis.rows import Rows
    from analysis.surface import Surface


ENVELOPE = "N* = c C^a, D* = d C^b along the envelope of the runs' curves"
FAMILY = ("chinchilla",)
"""Forms whose fit is the surface; recommendations of any other form rest on that form."""


PLAIN: Mapping[str, Any] = {
    "form": "chinchilla", "loss": "huber", "delta": "0.001", "fix": {}, "tie": {}, "cluster": "auto",
    "interval": "bootstrap", "resamples": 1000, "seed": 0, "workers": 1,
}  # fmt: skip
"""The options of a plain surface."""


def fitted(runs: Any, form: str, asked: Mapping[str, Any]) -> LawFit:
    """Return the law of this form through the runs, as the options of the command say."""
    from analysis.law import fit_law

    return fit_law(runs, **options_of(form, asked))


def options_of(form: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of fit_law that the options of the command are; constraints are those of the form asked."""
    squared = asked["delta"] == "squared" or asked["loss"] == "squared"
    own = form == asked["form"]
    return {
        "form": form,
        "loss": "squared" if squared else asked["loss"],
        "delta": 1e-3 if asked["delta"] == "squared" else float(asked["delta"]),
        "fix": dict(asked["fix"]) if own else None,
        "tie": dict(asked["tie"]) if own else None,
        "cluster": asked["cluster"],
        "interval": asked["interval"],
        "resamples": int(asked["resamples"]),
        "seed": int(asked["seed"]),
        "workers": max(1, int(asked["workers"])),
    }


def law(frame: pd.DataFrame, rows: Rows | None, asked: Mapping[str, Any]) -> tuple[Block, dict[str, Any]]:
    """Return the block of the law that was asked for, and its record; not possible, and why, where rows do not do."""
    block, record, _ = law_and_fit(frame, rows, asked)
    return block, record


def law_and_fit(
    frame: pd.DataFrame, rows: Rows | None, asked: Mapping[str, Any]
) -> tuple[Block, dict[str, Any], LawFit | None]:
    """Return the block, the record and the fit of the law that was asked for; no fit where rows do not do."""
    from analysis.forms import FORMS

    form = FORMS[asked["form"]]
    try:
        found = fitted(_columns(frame) if rows is None else rows, asked["form"], asked)
    except ValueError as error:
        if asked["fix"] or asked["tie"] or rows is None or len(rows) > len(form.names):
            raise
        return (
            Block(
                form=form.text, approach="law", loss_function=asked["loss"], status="not possible", reason=str(error)
            ),
            {},
            None,
        )
    record: Mapping[str, Any] = to_json(found.record())
    block = dataclasses.replace(found.block(), checks=found.check())
    return block, {"interval": found.interval_method, "law": record}, found


def _columns(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows used, without columns that say nothing."""
    good = frame[frame["used"]]
    empty = [name for name in good.columns if good[name].isna().all() or (good[name] == "").all()]
    return good.drop(columns=empty)


def surface(rows: Rows, asked: Mapping[str, Any]) -> tuple[Surface | Block, LawFit | None]:
    """Return the surface E + A/N^alpha + B/D^beta and its results object; a block that says why where there is none.

    Raises ValueError where the runs repeat data and the form asked for knows of no repeats.
    """
    from analysis import observations, pitfalls
    from analysis.forms.powers import SURFACE
    from analysis.surface import FEWEST, Surface

    kept = rows
    if asked["form"] == "repeats" and "unique_tokens" in rows.extra:
        kept = rows.take(~(rows.tokens > 1.01 * rows.extra["unique_tokens"]))
    if len(kept) < FEWEST or len(np.unique(kept.size)) < 3:
        runs = human.counted(len(kept), "run") + (" of new tokens" if kept is not rows else "")
        reason = f"{runs} of {human.counted(len(np.unique(kept.size)), 'size')}; "
        reason += f"{len(SURFACE.names)} constants need at least {FEWEST} runs of 3 sizes"
        return Block(
            form=SURFACE.text, approach="surface", loss_function=asked["loss"], status="not possible", reason=reason
        ), None
    pitfalls.refuse(SURFACE, observations.read(kept, SURFACE))
    found = fitted(kept, "chinchilla", asked)
    block = dataclasses.replace(found.block(), approach="surface", checks=found.check())
    constants = np.array([block.params[name] for name in SURFACE.names])
    if kept is not rows:
        text = f"the surface beside the law rests on {len(kept)} of {len(rows)} runs: those of one epoch or less"
        advice = "the recommendation is for new tokens; analysis.plan unique_tokens= plans with few that repeat"
        block = dataclasses.replace(block, checks=(*block.checks, Check("single_epoch", text, advice, "note")))
    draws = found.draws[list(SURFACE.names)].to_numpy(dtype=np.float64)
    return Surface(block, constants, draws, found.point), found


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
    from analysis import envelope as approach
    from analysis.frame import checkpoints

    def empty(reason: str) -> Block:
        return Block(form=ENVELOPE, approach="envelope", loss_function="", status="not possible", reason=reason)

    rows = checkpoints(frame)
    if rows.run is None or len(set(rows.run.tolist())) == len(rows):
        return empty(no_curves(frame)), {}
    try:
        found = approach.fit(rows, resamples=int(asked["resamples"]), seed=int(asked["seed"]))
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
    return "no learning curves: give a column run and one row a checkpoint (columns=run:COLUMN)"


def approaches(
    frame: pd.DataFrame, rows: Rows, budget: float, asked: Mapping[str, Any], fits: Mapping[str, LawFit | None]
) -> list[dict[str, Any]]:
    """Return what each approach and way of interpolating says for a budget, a row each.

    `fits` are approach 3's by form, as they were fitted: their rows say what the rest of fit.json says. Other options
    of the command (loss, delta, fix, tie, cluster, interval) are theirs already.
    """
    import pandas as pd

    from analysis.approaches import side_by_side
    from analysis.frame import checkpoints

    curves = checkpoints(frame)
    one = curves.run is None or len(set(curves.run.tolist())) == len(curves)
    few = {"resamples": min(200, int(asked["resamples"]))}
    lines = [
        side_by_side(
            rows,
            budget,
            checkpoints=None if one else curves,
            law=law,
            choices=valleychoices.of(asked),
            **(options_of(form, asked) | few),
        )
        for form, law in fits.items()
    ]
    found = pd.concat([lines[0], *(table.iloc[-1:] for table in lines[1:])])
    if one:
        found.loc[["1 envelope", "1 hull"], "reason"] = no_curves(frame)
    # Approach 1 reads runs on their way: what it says is biased by that, and other approaches by other things.
    on_their_way = found.index.isin(("1 envelope", "1 hull")) & (found["reason"] == "")
    found["note"] = np.where(on_their_way, "losses before the schedules ended", "")
    records = found.reset_index().to_dict("records")
    return [{str(name): to_json(_plain(value)) for name, value in line.items()} for line in records]


def _plain(value: Any) -> Any:
    item = getattr(value, "item", None)
    return item() if callable(item) else value


def sensitivity(frame: pd.DataFrame, asked: Mapping[str, Any]) -> tuple[Choice, ...]:
    """Return what the exponent a becomes under other choices than those asked; empty where rows do not hold a fit."""
    from analysis.sensitivity import sensitivity as table

    try:
        few = {"resamples": min(200, int(asked["resamples"]))}
        found = table(_columns(frame), quantity="a", **(options_of("chinchilla", asked) | few))
    except ValueError:
        return ()
    return tuple(
        Choice(
            str(line["choice"]), str(line["option"]), "a", _finite(line["value"]), _finite(line.get("low")),
            _finite(line.get("high")), int(line["nobs"]),
        )
        for line in found.to_dict("records")
    )  # fmt: skip


def _finite(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
