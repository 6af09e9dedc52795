"""What stands beside a fit: laws of other forms, profiles of the constants, approach 1, the table of other choices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from analysis.plain import to_json
from analysis.results import Block, Choice, ProfileCurve

if TYPE_CHECKING:
    import pandas as pd

    from analysis import engine
    from analysis.rows import Rows


def law(frame: pd.DataFrame, rows: Rows | None, asked: Mapping[str, Any]) -> tuple[Block, dict[str, Any]]:
    """Return the block of the law that was asked for, and its record; not possible, and why, where rows do not do."""
    from analysis import fit_law
    from analysis.forms import FORMS

    form = FORMS[asked["form"]]
    name = "delta" if asked["delta"] == "squared" else asked["delta"]
    loss = "squared" if name == "delta" else asked["loss"]
    good = frame[frame["used"]]
    try:
        found = fit_law(
            good if rows is None else rows,
            form=asked["form"],
            loss=loss,
            delta=1e-3 if name == "delta" else float(name),
            fix=dict(asked["fix"]),
            tie=dict(asked["tie"]),
            cluster=asked["cluster"],
            resamples=int(asked["resamples"]),
            seed=int(asked["seed"]),
            workers=max(1, int(asked["workers"])),
        )
    except ValueError as error:
        if asked["fix"] or asked["tie"]:
            raise
        reason = str(error)
        block = Block(form=form.text, approach="law", loss_function=loss, status="not possible", reason=reason)
        return block, {}
    block = found.block()
    intervals = dict(block.intervals)
    if asked["interval"] != "bootstrap":
        table = found.conf_int(method=asked["interval"])
        for name in table.index:
            low, high = float(table.loc[name].iloc[0]), float(table.loc[name].iloc[1])
            intervals[str(name)] = (low, high) if math.isfinite(low) and math.isfinite(high) else None
    import dataclasses

    known = {name: value if _known(block, name) else None for name, value in intervals.items()}
    return dataclasses.replace(block, intervals=known), {"law": to_json(found.record())}


def _known(block: Block, name: str) -> bool:
    return name not in block.identified or block.identified[name].identified


def profiles(rows: Rows, loss: engine.Loss) -> tuple[ProfileCurve, ...]:
    """Return the profile of every constant of the surface; none where the rows do not hold a fit."""
    try:
        from analysis import fit_law
    except ImportError:
        return ()

    name = "squared" if loss.text.startswith("squared") else "huber"
    try:
        found = fit_law(rows, loss=name, delta=getattr(loss, "delta", 1e-3), resamples=0)
    except ValueError:
        return ()
    made = []
    for constant in found.form.names:
        curve = found.profile(constant)
        made.append(ProfileCurve(
            constant, tuple(map(float, curve.values)), tuple(map(float, curve.deviance)), float(curve.cut),
            _finite(curve.low), _finite(curve.high),
        ))  # fmt: skip
    return tuple(made)


def envelope(frame: pd.DataFrame, *, alone: bool) -> Block | None:
    """Return approach 1, the envelope of the runs' learning curves; None where there are none, unless it is `alone`."""
    try:
        from analysis import envelope as approach
    except ImportError:
        return None
    from analysis.frame import checkpoints

    rows = checkpoints(frame)
    if rows.run is None or len(set(rows.run.tolist())) == len(rows):
        why = "no learning curves: give a column run and one row a checkpoint (columns=run:COLUMN)"
        empty = Block(form="", approach="envelope", loss_function="", status="not possible", reason=why)
        return empty if alone else None
    try:
        found: Block = approach.fit(rows).block()
    except ValueError as error:
        return Block(form="", approach="envelope", loss_function="", status="not possible", reason=str(error))
    return found


def sensitivity(frame: pd.DataFrame, rows: Rows) -> tuple[Choice, ...]:
    """Return what the exponent a becomes under other choices; empty where the rows do not hold a fit."""
    try:
        from analysis import sensitivity as table
    except ImportError:
        return ()

    del rows
    good = frame[frame["used"]]
    try:
        found = table(good, form="chinchilla", quantity="a")
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
