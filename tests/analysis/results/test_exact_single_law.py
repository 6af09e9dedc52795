"""Fits in which one law is all there is: what they count, what they leave out, what they say of how they were made."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from analysis.approaches import curves, parametric, settings
from analysis.inference import resampling
from analysis.inputs import large
from analysis.inputs.columns import finish
from analysis.laws.registry import FORMS
from analysis.results.fit_keys import parse
from analysis.results.single_law import curves_only, law_only, settings_only
from analysis.values.blocks import Block, Check, CurveScore
from analysis.values.findings import FINDINGS
from analysis.values.study_result import Runs

BLOCK = Block(form="E", approach="parametric", loss_function="huber", checks=(Check("a", "b", "c"),), rows_used=3)


def asked(*words: str) -> dict[str, Any]:
    return parse(["runs=folder/table.csv", "resamples=100", "seed=7", *words])


def frame(*states: str, runs: str = "") -> pd.DataFrame:
    """Return rows of these states, those that are completed used; `runs`: a letter each, a curve's name."""
    whole = {"params": 1e6, "tokens": 2e7, "flops": 1.2e14, "loss": 3.0, "schedule_complete": True}
    names = runs or " " * len(states)
    return finish(
        [
            {**whole, "key": f"k{n}", "state": state, "run": name.strip(), "flops_budget": 1e14 + n}
            for n, (state, name) in enumerate(zip(states, names, strict=True))
        ],
        0,
    )


@pytest.fixture
def law(monkeypatch: pytest.MonkeyPatch) -> list[tuple[pd.DataFrame, Mapping[str, Any]]]:
    """What the law was to be fitted to, and how."""
    calls: list[tuple[pd.DataFrame, Mapping[str, Any]]] = []

    def fitted(rows: pd.DataFrame, problem: None, how: Mapping[str, Any]) -> tuple[Block, dict[str, Any]]:
        calls.append((rows, how))
        return BLOCK, {"interval": "bootstrap over runs", "more": 1}

    monkeypatch.setattr(parametric, "law", fitted)
    return calls


def test_a_law_of_other_columns(law: list[Any]) -> None:
    rows = frame("completed", "completed", "running", "completed", "failed")
    found = law_only(rows, asked())
    assert law[0][0] is rows
    assert found.runs == Runs(total=5, used=3, dropped=2, completed=3, budgets=0)
    assert [(one.key, one.code) for one in found.rows_dropped] == [("k2", "running"), ("k4", "failed")]
    assert (found.study, found.source, found.seed, found.resamples) == ("table", "folder/table.csv", 7, 100)
    assert found.interval_method == "bootstrap over runs" and found.confidence == resampling.CONFIDENCE
    assert [check.code for check in found.checks] == ["copies", "a"], "of the rows, then of the law"
    assert found.checks[1:] == BLOCK.checks and found.record["more"] == 1 and "interval" not in found.record
    why = "the runs do not have all of params, tokens, flops and loss"
    for block in (found.fits.valleys, found.fits.surface, found.fits.frontier):
        assert block is not None and (block.status, block.reason) == ("not possible", why)
    assert law_only(rows, {**asked(), "runs": None}).source == "a frame"


def test_more_rows_than_are_fitted_are_refused_by_what_thinned_them(
    law: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large, "MOST_FITTED", 4)
    rows = frame(*["completed"] * 5)
    for thin, every in ((None, 2), (1, 2), (3, 4), (4, 5)):
        with pytest.raises(ValueError, match=rf"5 rows are to be fitted, and at most 4 are: thin={every} "):
            law_only(rows, {**asked(), "thin": thin})


CELLS = {
    "params": 1e6, "tokens": 2e7, "lr": 1e-3, "batch_tokens": 1e5, "loss": 3.0, "points": 5, "state": "completed",
}  # fmt: skip


def swept(monkeypatch: pytest.MonkeyPatch, used: int, count: int, *checks: Check) -> None:
    """Have the sweeps of any frame be so many, of which some have an optimum inside."""
    cells = finish([{**CELLS, "key": f"s{n}", "flops": 1e14, "schedule_complete": True} for n in range(count)], 0)
    cells = cells.assign(used=[n < used for n in range(count)], status="minimum", reason="")
    monkeypatch.setattr(settings, "of_sweeps", lambda *given: (cells, checks))


def of_rate() -> dict[str, Any]:
    """Return what is asked of a law of the learning rate."""
    return {**asked("loss=huber"), "form": next(name for name, form in FORMS.items() if form.target == "lr")}


def test_a_law_of_sweeps_needs_one_optimum_more_than_constants(law: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    how = of_rate()
    need = len(FORMS[how["form"]].names) + 1
    swept(monkeypatch, need - 1, need + 2)
    with pytest.raises(ValueError) as refused:
        settings_only(frame("completed"), how)
    assert str(refused.value) == (
        f"{need - 1} of {need + 2} sweeps have an optimum inside: form={how['form']} needs {need}; widen the sweeps, "
        "or window=0.02, or optimum=minimum"
    )
    swept(monkeypatch, need, need + 2, Check("mine", "of the sweeps", "x"))
    of_sweep = next(code for code, one in FINDINGS.items() if one.of_sweep)
    other = next(code for code, one in FINDINGS.items() if not one.of_sweep)
    said = tuple(Check(code, "said of the optima", "") for code in (of_sweep, other))

    def fitted(rows: pd.DataFrame, problem: None, given: Mapping[str, Any]) -> tuple[Block, dict[str, Any]]:
        law.append((rows, given))
        return Block(form="E", approach="parametric", loss_function="", checks=said), {}

    monkeypatch.setattr(parametric, "law", fitted)
    found = settings_only(frame("completed", "completed", "running"), how)
    assert [check.code for check in found.checks] == ["mine", other], "what sweeps always show is not said of them"
    assert law[-1][1]["loss"] == "squared", "optima have no outliers"
    assert found.runs == Runs(total=3, used=2, dropped=1, completed=2, budgets=0)
    assert found.record["runs_swept"] == 2 and len(found.record["optima"]) == need + 2
    assert found.fits.surface is not None
    assert found.fits.surface.reason == "a law of the settings was fitted, not of the loss"
    settings_only(frame("completed"), {**how, "loss": "squared"})
    assert law[-1][1]["loss"] == "squared"
    with pytest.raises(ValueError, match="loss=linear is for laws of the loss"):
        settings_only(frame("completed"), {**how, "loss": "linear"})


def score(run: str, fitted: bool) -> CurveScore:
    return CurveScore(run, "1e6", fitted, 3, 0.99, 0.01, 0.02, 0.03, 0.04)


@pytest.mark.parametrize("few", [True, False])
def test_learning_curves_count_as_runs(few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = frame("completed", "completed", "completed", "running", "failed", runs="aabcd")
    rows = rows.assign(used=rows["used"] & (rows.index != 1), drop_code=["", "mid_schedule", *rows["drop_code"][2:]])
    seen: dict[str, Any] = {}
    checks = (Check("few_curves" if few else "other", "x", "y"),)

    def fitted(kept: pd.DataFrame, train: tuple[str, ...], **given: Any) -> Any:
        seen.update(given, kept=kept, train=train)
        block = Block(form="L", approach="curves", loss_function="huber")
        return SimpleNamespace(checks=checks, scores=[score("a", True), score("b", False)], block=lambda: block)

    monkeypatch.setattr(curves, "fit", fitted)
    found = curves_only(rows, asked("form=multi_power", "train=a|b|"))
    assert list(seen["kept"]["key"]) == ["k0", "k1", "k2"] and list(seen["kept"].index) == [0, 1, 2]
    assert "index" not in seen["kept"]
    assert (seen["train"], seen["resamples"], seen["seed"]) == (("a", "b"), 100, 7)
    assert found.runs == Runs(total=4, used=1, dropped=2, completed=2, budgets=0)
    assert found.interval_method == ("none: too few curves" if few else "bootstrap over curves")
    assert [one["run"] for one in found.record["curves"]] == ["a", "b"]
    assert [one.code for one in found.rows_dropped] == ["running", "failed"], "checkpoints on the way are fitted"
    assert found.fits.surface is not None
    assert found.fits.surface.reason == "learning curves were fitted, not final losses"
