"""Approach 3: the loss surface, and any other law, fitted to all runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.inference import refusals
from analysis.text import numbers
from analysis.values.blocks import Block
from analysis.values.findings import finding
from analysis.values.json_values import to_json

if TYPE_CHECKING:
    import pandas as pd

    from analysis.approaches.surface import Surface
    from analysis.inference.law_result import LawFit
    from analysis.inputs.dataset import Rows


FAMILY = ("chinchilla",)
"""Forms whose fit is the surface; recommendations of any other form rest on that form."""


PLAIN: Mapping[str, Any] = {
    "form": "chinchilla", "loss": "huber", "delta": "0.001", "fix": {}, "tie": {}, "cluster": "auto",
    "interval": "bootstrap", "resamples": 1000, "seed": 0, "workers": 1,
}  # fmt: skip
"""The options of a plain surface."""


def fitted(runs: Any, form: str, asked: Mapping[str, Any]) -> LawFit:
    """Return the law of this form through the runs, as the options of the command say."""
    from analysis.inference.fit_law import fit_law

    return fit_law(runs, **options_of(form, asked))


def options_of(form: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of fit_law that the options of the command are; constraints are those of the form asked."""
    squared = asked["delta"] == "squared" or asked["loss"] == "squared"
    own = form == asked["form"]
    return {
        "form": form,
        "loss": "squared" if squared else asked["loss"],
        "delta": 1e-3 if asked["delta"] == "squared" else numbers.read(str(asked["delta"])),
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
    from analysis.laws.registry import FORMS

    form = FORMS[asked["form"]]
    try:
        found = fitted(columns_of(frame) if rows is None else rows, asked["form"], asked)
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


def columns_of(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows used, without columns that say nothing."""
    good = frame[frame["used"]]
    empty = [name for name in good.columns if good[name].isna().all() or (good[name] == "").all()]
    return good.drop(columns=empty)


def surface(rows: Rows, asked: Mapping[str, Any]) -> tuple[Surface | Block, LawFit | None]:
    """Return the surface E + A/N^alpha + B/D^beta and its results object; a block that says why where there is none.

    Raises ValueError where the runs repeat data and the form asked for knows of no repeats.
    """
    from analysis.approaches.surface import FEWEST, Surface
    from analysis.estimation import observations
    from analysis.laws.sum_of_powers import SURFACE

    kept = rows
    if asked["form"] == "repeats" and "unique_tokens" in rows.columns:
        kept = rows.take(~(rows.tokens > 1.01 * rows.columns["unique_tokens"]))
    if len(kept) < FEWEST or len(np.unique(kept.size)) < 3:
        runs = numbers.counted(len(kept), "run") + (" of new tokens" if kept is not rows else "")
        reason = f"{runs} of {numbers.counted(len(np.unique(kept.size)), 'size')}; "
        reason += f"{len(SURFACE.names)} constants need at least {FEWEST} runs of 3 sizes"
        return Block(
            form=SURFACE.text, approach="surface", loss_function=asked["loss"], status="not possible", reason=reason
        ), None
    refusals.refuse(SURFACE, observations.read(kept, SURFACE))
    found = fitted(kept, "chinchilla", asked)
    block = dataclasses.replace(found.block(), approach="surface", checks=found.check())
    constants = np.array([block.params[name] for name in SURFACE.names])
    if kept is not rows:
        text = f"the surface beside the law rests on {len(kept)} of {len(rows)} runs: those of one epoch or less"
        advice = "the recommendation is for new tokens; analysis.plan unique_tokens= plans with few that repeat"
        block = dataclasses.replace(block, checks=(*block.checks, finding("single_epoch", text, advice)))
    draws = found.draws[list(SURFACE.names)].to_numpy(dtype=np.float64)
    return Surface(block, constants, draws, found.point), found
