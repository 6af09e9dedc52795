"""Other choices of the analysis: which rows and options each of them is, by literal tables and a stand-in fit."""

from __future__ import annotations

import importlib
import inspect
import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis import forked
from analysis.inference import resampling
from analysis.inference.fit_law import fit_law
from analysis.laws.registry import FORMS
from analysis.laws.sum_of_powers import SURFACE
from tests.analysis import studies

sensitivity: Any = importlib.import_module("analysis.diagnostics.sensitivity")
BASE = {"loss": "huber", "delta": 1e-3}


def columns(count: int = 12, **more: Any) -> dict[str, Any]:
    """Return a table whose highest losses are its first rows, and whose FLOPs rise."""
    steps = np.arange(1.0, count + 1)
    return {
        "params": 1e6 * steps, "tokens": 1e8 + 0 * steps, "flops": 1e15 * steps, "loss": 5.0 - 0.1 * steps, **more,
    }  # fmt: skip


def choices(table: Any, base: Any = None, form: Any = SURFACE) -> dict[tuple[str, str], tuple[Any, Any]]:
    return {(c, o): (t, changed) for c, o, t, changed in sensitivity._choices(table, form, base or BASE)}


@pytest.mark.parametrize(
    ("count", "dropped"), [(4, []), (5, [1]), (20, [1]), (21, [1, 5]), (41, [1, 5, 10]), (81, [1, 5, 10, 20])]
)
def test_the_highest_losses_are_left_out_up_to_a_quarter(count: int, dropped: list[int]) -> None:
    found = choices(columns(count))
    names = {k: "without the highest loss" if k == 1 else f"without the {k} highest losses" for k in dropped}
    assert [o for c, o in found if c == "outliers"] == list(names.values())
    for k in dropped:
        table, changed = found["outliers", names[k]]
        assert table["loss"].tolist() == columns(count)["loss"][k:].tolist()
        assert table["params"].tolist() == columns(count)["params"][k:].tolist()
        assert changed == {}
    assert next(iter(found)) == ("none", "as fitted")
    assert found["none", "as fitted"][1] == {}


def test_rows_that_are_left_keep_their_order() -> None:
    table = columns(8, loss=np.array([1.0, 9.0, 2.0, 3.0, 8.0, 4.0, 5.0, 6.0]))
    assert choices(table)["outliers", "without the highest loss"][0]["loss"].tolist() == [1, 2, 3, 8, 4, 5, 6]


def test_other_loss_functions() -> None:
    def losses(**base: Any) -> dict[str, Any]:
        found = choices(columns(), {**BASE, **base})
        return {option: changed for (choice, option), (_, changed) in found.items() if choice == "loss function"}

    every = losses(loss="own")
    assert every == {
        **{f"huber, delta {d:g}": {"loss": "huber", "delta": d} for d in (1e-4, 1e-3, 1e-2, 1e-1)},
        "squared": {"loss": "squared"}, "l1": {"loss": "l1"}, "student_t": {"loss": "student_t"},
    }  # fmt: skip
    assert set(every) - set(losses()) == {"huber, delta 0.001"}
    assert set(every) - set(losses(delta=0.1)) == {"huber, delta 0.1"}
    assert set(every) - set(losses(loss="squared")) == {"squared"}


def test_other_counts_of_parameters() -> None:
    def counts(form: Any = SURFACE, **more: Any) -> list[str]:
        return [o for c, o in choices(columns(**more), form=form) if c == "parameter count"]

    other = np.arange(2.0, 14.0)
    assert counts(params_total=other, params_no_embed=other) == ["params_total", "params_no_embed"]
    assert counts(params_matmul=other, params_non_embedding=other) == ["params_matmul", "params_non_embedding"]
    counted, _ = choices(columns(params_total=other))["parameter count", "params_total"]
    assert counted["params"].tolist() == other.tolist()
    assert counts(params_total=other - 2) == [], "a row has none"
    assert counts(params_total=np.where(other > 5, other, np.nan)) == []
    assert counts(FORMS["compute"], params_total=other) == []


def test_ranges_of_compute() -> None:
    found = choices(columns(9))
    ranges = {o: t["flops"].tolist() for (c, o), (t, _) in found.items() if c == "compute range"}
    assert list(ranges) == [
        "up to 3e15 FLOPs", "up to 5e15 FLOPs", "up to 7e15 FLOPs", "from 4e15 FLOPs", "from 6e15 FLOPs",
    ]  # fmt: skip
    assert [len(v) for v in ranges.values()] == [3, 5, 7, 6, 4]
    assert ranges["from 4e15 FLOPs"] == [4e15, 5e15, 6e15, 7e15, 8e15, 9e15], "a range is named by what it keeps"
    bare = columns(9)
    del bare["flops"]
    assert not [1 for c, _ in choices(bare) if c == "compute range"]


@pytest.mark.parametrize("named", [True, False])
def test_ranges_of_compute_never_split_a_budget(named: bool) -> None:
    """Exact FLOPs of one budget differ by rounding: a cut at their quantile would keep half of its runs."""
    budgets = np.repeat([1e15, 3e15, 1e16, 3e16], [6, 10, 6, 6])
    exact = budgets * (1 + 1e-6 * (np.arange(28) % 5 - 2))
    more = {"flops_budget": budgets} if named else {}
    found = choices(columns(28, flops=exact, **more))
    kept = {o: len(t["flops"]) for (c, o), (t, _) in found.items() if c == "compute range"}
    assert kept == {"up to 3e15 FLOPs": 16, "up to 1e16 FLOPs": 22, "from 1e16 FLOPs": 12}


def test_the_count_that_the_fit_has_is_no_other_choice() -> None:
    table = columns(params_matmul=columns()["params"], params_total=np.arange(2.0, 14.0))
    assert [o for c, o in choices(table) if c == "parameter count"] == ["params_total"]


def test_ways_of_choosing_the_rate() -> None:
    table = {
        "params": np.repeat([1e6, 2e6], 3), "tokens": np.full(6, 1e8), "lr": np.array([1.0, 2.0, 4.0, 1.0, 2.0, 8.0]),
        "loss": np.array([3.0, 2.5, 2.7, 2.2, 2.4, 2.1]), "flops": np.ones(6),
    }  # fmt: skip
    found = {o: t["loss"].tolist() for (c, o), (t, _) in choices(table).items() if c == "learning rate"}
    assert found == {
        "best of each setting": [2.5, 2.1], "1 everywhere": [3.0, 2.2], "2 everywhere": [2.5, 2.4],
        "4 everywhere": [2.7],
    }  # fmt: skip
    assert sensitivity._common(np.array([3.0, 1.0, 3.0, 2.0, 2.0, 2.0, 5.0])) == [2.0, 3.0, 1.0]
    apart = {**table, "tokens": np.arange(1.0, 7.0)}
    assert not [1 for c, _ in choices(apart) if c == "learning rate"], "no setting has two"
    for name in ("lr", "params", "tokens"):
        assert sensitivity._selections({k: v for k, v in table.items() if k != name}, SURFACE) == []
    assert sensitivity._selections(table, FORMS["learning_rate"]) == []
    near = {**table, "params": np.array([1e6, 1e6 * (1 + 3e-7), 1e6 * (1 + 3e-6), 2e6, 2e6, 2e6])}
    assert sensitivity._best_rates(near).tolist() == [1, 2, 5]


def test_columns_that_choices_act_on() -> None:
    runs = studies.isoflop(0).assign(params_total=1.0, lr=0.1, name="x", run=np.arange(20) // 2)
    found = sensitivity.table_of(runs, SURFACE)
    assert {"params", "tokens", "loss", "flops", "params_total", "lr", "size_group", "run"} <= set(found)
    assert "name" not in found
    assert found["run"].tolist() == [float(i // 2) for i in range(20)]
    assert len(np.unique(found["size_group"])) == len(np.unique(np.round(np.log(runs["params"]), 2)))


def stand_in(asked: list[Any]) -> Any:
    def fit_law(table: Any, law: Any, **options: Any) -> Any:
        asked.append((len(table["loss"]), options))
        if options["loss"] == "l1":
            raise ValueError("too few")
        value = float(np.mean(table["loss"]))
        draws = pd.DataFrame({"a": value + np.linspace(-1, 1, 41), "E": 0.0})
        return SimpleNamespace(
            params={"E": 1.0}, derived={"a": value}, draws=draws, nobs=len(table["loss"]), interval="bootstrap",
            confidence=0.95, positive=lambda name: False,
        )  # fmt: skip

    return fit_law


def test_a_line_for_every_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(sensitivity, "fit_law", stand_in(asked))
    monkeypatch.setattr(forked, "cores", lambda: 1)
    runs = studies.isoflop(0)
    out = sensitivity.sensitivity(runs, resamples=20, seed=3, fix={"E": 1.0})
    assert list(out.columns) == ["choice", "option", "value", "low", "high", "shift", "nobs"]
    first = out.iloc[0]
    mean = float(runs["loss"].mean())
    assert first[["choice", "option", "value", "shift", "nobs"]].tolist() == ["none", "as fitted", mean, 0.0, 20]
    ends = resampling.interval(mean + np.linspace(-1, 1, 41), mean)
    assert (first["low"], first["high"]) == ends
    np.testing.assert_allclose(out["shift"], out["value"] - mean)
    lost = out[out["option"] == "l1"].iloc[0]
    assert np.isnan([lost["value"], lost["low"], lost["high"], lost["shift"]]).all()
    assert lost["nobs"] == 20
    assert out["nobs"].tolist() == [count for count, _ in asked]
    assert asked[0][1] == {"loss": "huber", "delta": 1e-3, "resamples": 20, "seed": 3, "fix": {"E": 1.0}}
    bare = sensitivity.sensitivity(runs, resamples=0)
    assert np.isnan(bare["low"]).all()
    own = sensitivity.sensitivity(runs, quantity=lambda fit: 7.0, resamples=20)
    assert own["value"].dropna().unique().tolist() == [7.0]
    assert np.isnan(own["high"]).all()
    assert sensitivity.sensitivity(runs, quantity="E", resamples=0)["value"].iloc[0] == 1.0
    with pytest.raises(
        ValueError, match="quantity='c': chinchilla has no such constant; it has E, A, B, alpha, beta, a"
    ):
        sensitivity.sensitivity(runs, quantity="c", resamples=0)
    defaults = {name: one.default for name, one in inspect.signature(sensitivity.sensitivity).parameters.items()}
    assert {name: defaults[name] for name in ("form", "quantity", "loss", "delta", "resamples", "seed")} == {
        "form": "chinchilla", "quantity": "a", "loss": "huber", "delta": 1e-3, "resamples": 200, "seed": 0,
    }  # fmt: skip


def test_intervals_are_made_as_asked() -> None:
    runs = studies.isoflop(0, noise=0.004)
    found = sensitivity.sensitivity(runs, resamples=20, interval="delta").set_index("option")
    for option, loss in (("as fitted", "huber"), ("squared", "squared")):
        alone = fit_law(runs, loss=loss, resamples=0, interval="delta").conf_int()
        ends = [float(alone[side]["a"]) for side in (0, 1)]
        assert [float(found[side][option]) for side in ("low", "high")] == pytest.approx(ends, rel=1e-6)


def test_the_table_is_the_same_however_many_processes_make_it(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = studies.isoflop().assign(flops=lambda table: 6.0 * table["params"] * table["tokens"])
    tables, forks, fork = [], list[int](), os.fork

    def counted() -> int:
        forks.append(fork())
        return forks[-1]

    monkeypatch.setattr(os, "fork", counted)
    for processes in (1, 3):
        monkeypatch.setattr(forked, "cores", lambda found=processes: found)
        tables.append(sensitivity.sensitivity(runs, resamples=20))
    assert len(forks) == 3
    alone, shared = tables
    pd.testing.assert_frame_equal(alone, shared, check_exact=True)


def test_many_rows_are_fitted_one_choice_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "cores", lambda: 2)
    monkeypatch.setattr(sensitivity, "MOST_FORKED", 5)
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("memory for each of them"))
    monkeypatch.setattr(sensitivity, "fit_law", lambda *_, **__: SimpleNamespace(params={"a": 0.5}, derived={}, nobs=6))
    assert len(sensitivity.sensitivity(columns(6), resamples=0)) > 4
