"""What stands beside a fit: options handed on, reasons in words, blocks by their parts."""

from __future__ import annotations

import dataclasses
import importlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.approaches import comparison, envelope, parametric
from analysis.approaches.surface import FEWEST, Surface
from analysis.estimation import observations
from analysis.inputs import frame, rows
from analysis.laws.sum_of_powers import SURFACE
from analysis.results import evidence
from analysis.values.blocks import Block, Check
from analysis.values.json_values import to_json
from tests.analysis import studies

PLAIN = dict(parametric.PLAIN)


def tidy(table: pd.DataFrame, tmp_path: Any, **options: Any) -> pd.DataFrame:
    table.to_csv(tmp_path / "t.csv", index=False)
    return rows.from_csv(tmp_path / "t.csv", **options)


def test_the_plain_options() -> None:
    assert parametric.options_of("chinchilla", PLAIN) == {
        "form": "chinchilla", "loss": "huber", "delta": 1e-3, "fix": {}, "tie": {}, "cluster": "auto",
        "interval": "bootstrap", "resamples": 1000, "seed": 0, "workers": 1,
    }  # fmt: skip
    assert PLAIN["workers"] == 1


@pytest.mark.parametrize(
    ("asked", "form", "want"),
    [
        ({"delta": "0.02"}, "chinchilla", {"delta": 0.02, "loss": "huber"}),
        ({"delta": "squared"}, "chinchilla", {"delta": 1e-3, "loss": "squared"}),
        ({"loss": "squared", "delta": "0.02"}, "chinchilla", {"delta": 0.02, "loss": "squared"}),
        ({"loss": "l1"}, "chinchilla", {"loss": "l1"}),
        ({"fix": {"E": 1.7}, "tie": {"beta": "alpha"}}, "chinchilla", {"fix": {"E": 1.7}, "tie": {"beta": "alpha"}}),
        ({"fix": {"E": 1.7}, "tie": {"beta": "alpha"}}, "kaplan", {"fix": None, "tie": None, "form": "kaplan"}),
        ({"workers": 0}, "chinchilla", {"workers": 1}),
        ({"workers": "3"}, "chinchilla", {"workers": 3}),
        ({"resamples": "7", "seed": "4", "cluster": "rows", "interval": "delta"}, "chinchilla",
         {"resamples": 7, "seed": 4, "cluster": "rows", "interval": "delta"}),
    ],
)  # fmt: skip
def test_options_of_the_command_are_those_of_the_fit(asked: Any, form: str, want: Any) -> None:
    found = parametric.options_of(form, {**PLAIN, **asked})
    assert {name: found[name] for name in want} == want


def test_a_law_that_the_rows_do_not_hold_is_not_possible(tmp_path: Any) -> None:
    few = tidy(studies.isoflop(0).iloc[:5], tmp_path)
    asked = {**PLAIN, "resamples": 0}
    block, record = parametric.law(few, frame.used(few), asked)
    assert (block.status, block.approach, record) == ("not possible", "law", {})
    assert "5 rows for 5 free constants" in block.reason
    assert (block.form, block.loss_function) == (SURFACE.text, "huber")
    assert parametric.law_and_fit(few, frame.used(few), asked)[2] is None
    with pytest.raises(ValueError, match="4 rows for 4 free constants"):
        parametric.law(few.iloc[:4], frame.used(few.iloc[:4]), {**asked, "fix": {"E": 1.7}})
    with pytest.raises(ValueError, match="4 rows for 4 free constants"):
        parametric.law(few.iloc[:4], frame.used(few.iloc[:4]), {**asked, "tie": {"beta": "alpha"}})
    with pytest.raises(ValueError, match="5 rows for 5 free constants"):
        parametric.law(few, None, asked)
    many = tidy(studies.isoflop(0).assign(loss=2.0), tmp_path)
    with pytest.raises(ValueError, match="every row has the same loss"):
        parametric.law(many, frame.used(many), asked)


CHECKED = (Check("code", "message", "advice"),)


class Stub:
    """What a fit hands on, without one: it keeps the rows and the options that were asked."""

    def __init__(self, runs: Any, form: str, asked: Any) -> None:
        self.runs, self.form, self.asked, self.point = runs, form, asked, "point"
        self.interval_method = "by hand"
        self.draws = pd.DataFrame([[1.0, 2.0, 3.0, 4.0, 5.0, 0.5]], columns=["beta", "alpha", "B", "A", "E", "a"])

    def block(self) -> Block:
        params = {"beta": 0.3, "E": 1.7, "A": 400.0, "B": 900.0, "alpha": 0.34}
        return Block(form="x", approach="law", loss_function="", params=params)

    def check(self) -> Any:
        return CHECKED

    def record(self) -> Any:
        return {"k": np.float64(1.0)}


def test_a_law_comes_with_its_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(parametric, "fitted", Stub)
    table = tidy(studies.isoflop(0), tmp_path)
    for held in (None, frame.used(table)):
        block, record, found = parametric.law_and_fit(table, held, {**PLAIN, "form": "kaplan"})
        assert isinstance(found, Stub)
        assert found.form == "kaplan"
        assert (found.runs is held) == (held is not None)
        assert block.checks == CHECKED
        assert record == {"interval": "by hand", "law": {"k": 1.0}}
        assert parametric.law(table, held, {**PLAIN, "form": "kaplan"}) == (block, record)


def test_columns_that_say_nothing_are_left_out(tmp_path: Any) -> None:
    table = tidy(studies.isoflop(0).assign(lr=1e-3), tmp_path)
    table.loc[3, "used"] = False
    found = parametric.columns_of(table)
    assert len(found) == 19
    assert "lr" in found
    assert "unique_tokens" not in found, "no row has one"
    assert "tokenizer" not in found, "every row has an empty one"


def surface_of(table: pd.DataFrame, **asked: Any) -> Any:
    return parametric.surface(observations.rows_of(table), {**PLAIN, **asked})


def test_a_surface_needs_six_runs_of_three_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parametric, "fitted", Stub)
    assert FEWEST == 6
    table = studies.isoflop(0, noise=0.001)
    six = table.iloc[[0, 4, 7, 11, 15, 18]]
    found, fit = surface_of(six)
    assert isinstance(found, Surface)
    assert fit.form == "chinchilla"
    assert (found.block.approach, found.block.checks) == ("surface", CHECKED)
    assert found.point is fit.point
    assert found.constants.tolist() == [1.7, 400.0, 900.0, 0.34, 0.3]
    assert found.draws.tolist() == [[5.0, 4.0, 3.0, 2.0, 1.0]], "in the order E, A, B, alpha, beta"
    found, fit = surface_of(six.iloc[:5])
    assert isinstance(found, Block)
    assert fit is None
    assert found.reason == "5 runs of 5 sizes; 5 constants need at least 6 runs of 3 sizes"
    assert (found.status, found.approach, found.form) == ("not possible", "surface", SURFACE.text)
    assert found.loss_function == "huber"

    def sized(*sizes: float) -> pd.DataFrame:
        out = table.assign(params=np.resize(sizes, 20), tokens=np.repeat(np.geomspace(1e6, 1e8, 10), 2))
        return out.drop(columns="flops_budget")

    assert surface_of(sized(1e5, 2e5))[0].reason.startswith("20 runs of 2 sizes; ")
    assert isinstance(surface_of(sized(1e5, 2e5, 4e5))[0], Surface)
    with pytest.raises(ValueError, match="more tokens than are unique"):
        surface_of(table.assign(unique_tokens=table["tokens"] / 2))


def test_the_surface_beside_a_law_of_repeats_rests_on_new_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parametric, "fitted", Stub)
    table = studies.isoflop(0, noise=0.001)
    seen: Any = table["tokens"] / np.where(np.arange(20) % 2, 1.0, 1.0099)
    repeated: Any = seen.where(np.arange(20) < 12, table["tokens"] / 3)
    found, fit = surface_of(table.assign(unique_tokens=repeated), form="repeats")
    assert isinstance(found, Surface)
    assert len(fit.runs) == 12
    first, check = found.block.checks
    assert first is CHECKED[0]
    assert check.code == "single_epoch"
    assert check.message == "the surface beside the law rests on 12 of 20 runs: those of one epoch or less"
    assert check.level == "note"
    assert found.block.approach == "surface"
    whole, _ = surface_of(table, form="repeats")
    assert len(whole.block.checks) == 1
    few, _ = surface_of(table.assign(unique_tokens=table["tokens"] / 3), form="repeats")
    assert few.reason.startswith("0 runs of new tokens of 0 sizes; ")
    with pytest.raises(ValueError, match="more tokens than are unique"):
        surface_of(table.assign(unique_tokens=repeated))


def test_profiles_of_what_was_fitted() -> None:
    def curve(name: str) -> Any:
        if name == "E":
            raise ValueError("held")
        return SimpleNamespace(
            values=np.array([1.0, 2.0]), deviance=np.array([3.0, 0.0]), cut=3.84, low=0.5, high=np.inf,
            closed_low=name != "B", closed_high=name != "alpha",
        )  # fmt: skip

    fit: Any = SimpleNamespace(form=SURFACE, profile=curve)
    found = evidence.profiles(fit)
    assert [(c.name, c.low, c.high) for c in found] == [
        ("A", 0.5, None), ("B", None, None), ("alpha", 0.5, None), ("beta", 0.5, None),
    ]  # fmt: skip
    assert (found[0].values, found[0].objective, found[0].cut) == ((1.0, 2.0), (3.0, 0.0), 3.84)
    fit.profile = lambda name: SimpleNamespace(**{**vars(curve("A")), "high": 4.0, "closed_high": name == "A"})
    assert [c.high for c in evidence.profiles(fit)] == [None, 4.0, None, None, None]


@pytest.mark.parametrize(
    ("attrs", "said"),
    [
        ({"folder": "x"}, "no learning curves: the runs were validated once only (eval.count)"),
        ({"folder": "x", "experiment": "y"}, "no learning curves: the runs were validated once only (eval.count)"),
        ({"experiment": "y"}, "no learning curves: they are in the study's folder (runs=runs/STUDY)"),
        ({}, "no learning curves: give a column run and one row per checkpoint (columns=run:COLUMN)"),
    ],
)
def test_why_there_are_no_curves(attrs: Any, said: str) -> None:
    table = pd.DataFrame()
    table.attrs = attrs
    assert evidence.no_curves(table) == said


def curves() -> pd.DataFrame:
    size = np.repeat(np.geomspace(1e5, 1e7, 7), 14)
    tokens = size * np.tile(np.geomspace(1, 300, 14), 7)
    names = np.repeat([f"r{i}" for i in range(7)], 14)
    loss = studies.loss(studies.LAW, size, tokens)
    return pd.DataFrame({"run": names, "params": size, "tokens": tokens, "flops": 6 * size * tokens, "loss": loss})


def test_the_envelope_as_a_block(tmp_path: Any) -> None:
    table = tidy(curves(), tmp_path)
    asked = {**PLAIN, "resamples": 20, "seed": 3}
    block, laws = evidence.envelope(table, asked)
    found = envelope.fit(frame.checkpoints(table), resamples=20, seed=3)
    assert laws == found.exponents
    assert block.params == {"a": found.exponents["params"].exponent, "b": found.exponents["tokens"].exponent}
    assert block.intervals == {
        "a": found.exponents["params"].exponent_interval, "b": found.exponents["tokens"].exponent_interval
    }  # fmt: skip
    assert (block.approach, block.status, block.rows_used) == ("envelope", "ok", 98)
    assert block.checks == found.checks
    bare = tidy(curves().drop(columns="run"), tmp_path)
    block, laws = evidence.envelope(bare, asked)
    assert (block.status, laws) == ("not possible", {})
    assert block.reason.startswith("no learning curves: give a column run")
    single = tidy(curves().assign(run=np.arange(98)), tmp_path)
    assert evidence.envelope(single, asked)[0].reason.startswith("no learning curves: give a column run")
    two = tidy(curves().iloc[:28], tmp_path)
    block, laws = evidence.envelope(two, asked)
    assert block.reason == "2 runs have two or more checkpoints; an envelope needs three"
    assert (block.status, laws) == ("not possible", {})


def test_approaches_of_several_forms_stand_once(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def beside(held: Any, budget: float, *, checkpoints: Any, law: Any, form: str, **options: Any) -> pd.DataFrame:
        asked.append((len(held), budget, checkpoints, law, form, options["loss"]))
        names = ["1 envelope", "1 hull", "2 parabola", f"3 {form}"]
        reasons = ["", "none", "", ""]
        return pd.DataFrame({"a": np.float64(len(asked)), "reason": reasons}, pd.Index(names, name="approach"))

    def alone(held: Any, budget: float, law: Any, options: Any) -> dict[str, Any]:
        asked.append((len(held), budget, None, law, options["form"], options["loss"]))
        return {"approach": f"3 {options['form']}", "a": float(len(asked)), "reason": ""}

    monkeypatch.setattr(comparison, "side_by_side", beside)
    monkeypatch.setattr(comparison, "law_line", alone)
    table = tidy(studies.isoflop(0), tmp_path)
    fits: Any = {"chinchilla": "first", "kaplan": "second", "farseer": None}
    found = evidence.approaches(table, frame.used(table), 1e21, PLAIN, fits)
    assert [(line["approach"], line["a"]) for line in found] == [
        ("1 envelope", 1.0), ("1 hull", 1.0), ("2 parabola", 1.0), ("3 chinchilla", 1.0), ("3 kaplan", 2.0),
        ("3 farseer", 3.0),
    ]  # fmt: skip
    assert [line["reason"][:18] for line in found] == ["no learning curves"] * 2 + [""] * 4
    assert {line["note"] for line in found} == {""}
    assert asked == [(20, 1e21, None, law, form, "huber") for form, law in fits.items()]
    run = tidy(curves(), tmp_path)
    lines = evidence.approaches(run, frame.used(run), 1e15, PLAIN, {"chinchilla": None})
    assert [line["note"] for line in lines] == ["losses before the schedules ended", "", "", ""]
    assert [line["reason"] for line in lines] == ["", "none", "", ""]
    assert len(asked[-1][2]) == 98
    single = tidy(curves().assign(run=np.arange(98)), tmp_path)
    evidence.approaches(single, frame.used(single), 1e15, PLAIN, {"chinchilla": None})
    assert asked[-1][2] is None


def test_few_resamples_are_enough_beside_a_fit(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def seen(*_: Any, **options: Any) -> Any:
        asked.append(options["resamples"])
        raise ValueError("seen")

    monkeypatch.setattr(comparison, "side_by_side", seen)
    monkeypatch.setattr(importlib.import_module("analysis.diagnostics.sensitivity"), "sensitivity", seen)
    table = tidy(studies.isoflop(0), tmp_path)
    for given in (1000, 200, 60):
        with pytest.raises(ValueError, match="seen"):
            evidence.approaches(table, frame.used(table), 1e15, {**PLAIN, "resamples": given}, {"chinchilla": None})
        assert evidence.sensitivity(table, {**PLAIN, "resamples": given}, (0.4, 0.6)) == ()
    assert asked == [200, 200, 200, 200, 60, 60]


def test_other_choices_are_lines(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = pd.DataFrame({
        "choice": ["none", "loss", "loss"], "option": ["as fitted", "delta", "l1"], "value": [0.5, 0.6, np.nan],
        "low": [0.45, 0.4, np.inf], "high": [0.55, "x", None], "nobs": [20, 20, 19],
    })  # fmt: skip
    module = importlib.import_module("analysis.diagnostics.sensitivity")
    monkeypatch.setattr(module, "sensitivity", lambda *_, **options: lines)
    for interval, ends in (((0.3, 0.7), (0.3, 0.7)), ((0.3, np.inf), (0.3, None)), (None, (None, None))):
        found = evidence.sensitivity(tidy(studies.isoflop(0), tmp_path), PLAIN, interval)
        assert [dataclasses.astuple(line) for line in found] == [
            ("none", "as fitted", "a", 0.5, *ends, 20), ("loss", "delta", "a", 0.6, 0.4, None, 20),
            ("loss", "l1", "a", None, None, None, 19),
        ]  # fmt: skip


def test_numpys_numbers_are_plain_ones_in_json() -> None:
    found = to_json([{"a": np.float64(2.0), "b": np.int64(3), "c": np.bool_(True), "d": np.nan, "e": "text"}])
    assert found == [{"a": 2.0, "b": 3, "c": True, "d": None, "e": "text"}]
    assert [type(value) for value in found[0].values()] == [float, int, bool, type(None), str]
