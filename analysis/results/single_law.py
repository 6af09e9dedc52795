"""Fits in which one law is all there is: of other columns than N, D and C, of sweeps' optima, of learning curves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from analysis.approaches import parametric
from analysis.diagnostics import at_rows
from analysis.results.study_fit import criterion, dropped, kinds_of, once, record_of, study_name
from analysis.values.blocks import Block, Fits, Frontier, Valleys
from analysis.values.findings import FINDINGS
from analysis.values.json_values import to_json
from analysis.values.study_result import Fit, Runs

if TYPE_CHECKING:
    import pandas as pd

    from analysis.values.blocks import CurveScore


def _target(asked: Mapping[str, Any]) -> str:
    from analysis.laws.registry import CURVES, FORMS

    return "loss" if asked["form"] == CURVES else FORMS[asked["form"]].target


def law_only(frame: pd.DataFrame, asked: Mapping[str, Any]) -> Fit:
    """Return the fit of a law that does not read params, tokens and flops, or gives no loss: nothing is recommended."""
    from analysis.inputs.large import refuse_fitted

    refuse_fitted(frame, int(asked.get("thin") or 1))
    of_loss = _target(asked) == "loss"
    checks = at_rows.findings(frame, asked["form"]) if of_loss else tuple(at_rows.settings(frame, asked["form"]))
    block, extra = parametric.law(frame, None, asked)
    return _alone(frame, asked, dataclasses.replace(block, checks=(*checks, *block.checks)), extra)


def settings_only(frame: pd.DataFrame, asked: Mapping[str, Any]) -> Fit:
    """Return the fit of a law of the learning rate or the batch: through the optima where the runs are sweeps."""
    from analysis.approaches import settings
    from analysis.laws.registry import FORMS

    if asked["loss"] == "linear":
        raise ValueError(
            f"loss=linear is for laws of the loss: rates and batches of form={asked['form']} lie over orders of size, "
            "and the largest alone would decide; use loss=squared, on logs"
        )
    found = settings.of_sweeps(frame, FORMS[asked["form"]].target, asked["window"], asked["optimum"])
    if found is None:
        return law_only(frame, asked)
    cells, checks = found
    if int(cells["used"].sum()) < len(FORMS[asked["form"]].names) + 1:
        raise ValueError(
            f"{int(cells['used'].sum())} of {len(cells)} sweeps have an optimum inside: form={asked['form']} needs "
            f"{len(FORMS[asked['form']].names) + 1}; widen the sweeps, or window=0.02, or optimum=minimum"
        )
    squared = {**asked, "loss": "squared"} if asked["loss"] == "huber" else asked
    block, extra = parametric.law(cells, None, squared)
    block = dataclasses.replace(block, checks=(*checks, *(c for c in block.checks if not FINDINGS[c.code].of_sweep)))
    table = cells[["params", "tokens", "lr", "batch_tokens", "loss", "points", "status", "reason"]]
    swept = int(frame["used"].sum())
    runs = Runs(len(frame), swept, len(frame) - swept, int((frame["state"] == "completed").sum()), 0)
    optima = to_json(table.to_dict("records"))
    return _alone(cells, asked, block, {**extra, "optima": optima, "runs_swept": swept}, runs)


def curves_only(frame: pd.DataFrame, asked: Mapping[str, Any]) -> Fit:
    """Return the Multi-Power law of every size through its learning curves, and how it says the curves held out."""
    from analysis.approaches import curves

    kept = frame["used"] | (frame["drop_code"] == "mid_schedule")
    train = tuple(name for name in str(asked["train"]).split("|") if name)
    found = curves.fit(
        frame[kept].reset_index(drop=True), train, loss=criterion(asked), resamples=int(asked["resamples"]),
        seed=int(asked["seed"]),
    )  # fmt: skip
    few = any(check.code == "few_curves" for check in found.checks)
    scores = [dataclasses.asdict(score) for score in found.scores]
    extra = {"curves": to_json(scores), "interval": "none: too few curves" if few else "bootstrap over curves"}
    curve = frame.assign(used=kept, drop_code=frame["drop_code"].where(~kept, ""))
    return _alone(curve, asked, found.block(), extra, _runs(curve, found.scores))


def _runs(frame: pd.DataFrame, scores: Sequence[CurveScore]) -> Runs:
    """Return how many curves there are, are fitted, have no row to use, and were read to the end of their run."""
    from analysis.approaches import curves

    every = list(zip(*curves.labels(frame), strict=True))
    ended = {label for label, state in zip(every, frame["state"], strict=True) if state == "completed"}
    total, fitted = len(set(every)), sum(score.fitted for score in scores)
    return Runs(total, fitted, total - len(scores), len(ended), 0)


def _alone(
    frame: pd.DataFrame, asked: Mapping[str, Any], block: Block, extra: Mapping[str, Any], runs: Runs | None = None
) -> Fit:
    """Return what fit.json holds where one law is all there is; `runs` where a row of the frame is not a run."""
    from analysis.inference import resampling
    from analysis.inference.summary import versions

    left = dropped(frame)
    why = "the runs do not have all of params, tokens, flops and loss"
    if block.approach == "curves":
        why = "learning curves were fitted, not final losses"
    elif "optima" in extra:
        why = "a law of the settings was fitted, not of the loss"
    elif (target := _target(asked)) != "loss":
        why = f"a law of {target} was fitted, not of the loss; form=chinchilla fits that"
    none = {"loss_function": "", "status": "not possible", "reason": why}
    shared = {f.name: getattr(block, f.name) for f in dataclasses.fields(Block)}
    surface = Block(form="E + A/N^alpha + B/D^beta", approach="surface", **none)  # type: ignore[arg-type]
    valleys = Valleys(form="", approach="valleys", **none)  # type: ignore[arg-type]
    front = Frontier(form="", approach="frontier", **none)  # type: ignore[arg-type]
    used = int(frame["used"].sum())
    return Fit(
        **{**shared, "checks": once((*at_rows.settings(frame, asked["form"]), *block.checks)), "rows_dropped": left},
        study=study_name(asked, frame),
        source=str(asked.get("runs") or "a frame"),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        kinds=kinds_of(frame),
        interval_method=str(extra.get("interval", "")),
        confidence=resampling.CONFIDENCE,
        resamples=int(asked["resamples"]),
        seed=int(asked["seed"]),
        versions=versions(),
        runs=runs or Runs(len(frame), used, len(left), int((frame["state"] == "completed").sum()), 0),
        fits=Fits(valleys, surface, front, block, None),
        record=record_of(asked, extra, frame),
    )
