"""The table of approaches, its rows and its reasons, by literal cases."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.approaches import comparison, isoflop, valleys
from analysis.approaches.comparison import side_by_side
from analysis.estimation import fit_problem, objectives, observations
from analysis.inference.fit_law import fit_law
from analysis.inference.law_result import LawFit
from analysis.inputs.dataset import Rows
from analysis.laws.sum_of_powers import SURFACE
from analysis.values.blocks import Identified, PowerLaw
from tests.analysis import studies

LAW = (1.7, 400.0, 900.0, 0.34, 0.3)
BUDGETS = (1e17, 1e18, 1e19, 1e20)
RATIOS = (10, 30, 90, 270, 810)
OPTIONS: dict[str, Any] = {"form": "chinchilla", "resamples": 0, "seed": 0}


def study(budgets: tuple[float, ...] = BUDGETS, ratios: tuple[float, ...] = RATIOS) -> pd.DataFrame:
    return studies.isoflop(0, law=LAW, budgets=budgets, ratios=ratios)


@pytest.fixture(autouse=True)
def identified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every constant as identified: its profile is not what is tested here."""
    names = (*SURFACE.names, "a", "b")
    monkeypatch.setattr(LawFit, "identified", dict.fromkeys(names, Identified(True)))


def power(a: float, at: float, coefficient: float, interval: Any = None) -> PowerLaw:
    return PowerLaw(coefficient, a, at, None, interval, None, 7, 5)


def test_power_laws_are_read_at_the_budget() -> None:
    found = comparison._from_laws(power(0.5, 1e18, 1e8, (0.4, 0.6)), power(0.25, 1e16, 1e9), 4e18)
    assert found == pytest.approx(
        {"a": 0.5, "a_low": 0.4, "a_high": 0.6, "b": 0.25, "params": 2e8, "tokens": 1e9 * 400**0.25,
         "tokens_per_param": 1e9 * 400**0.25 / 2e8, "points": 7}
    )  # fmt: skip
    bare = comparison._from_laws(power(0.5, 1e18, 1e8), power(0.25, 1e16, 1e9), 4e18)
    assert np.isnan(bare["a_low"])
    assert np.isnan(bare["a_high"])


def test_rows_of_a_table_are_the_finite_positive_ones() -> None:
    table = study().assign(name="x", lr=1e-3, flops_budget=1.0, vector=0.5)
    table.loc[3, "loss"], table.loc[5, "tokens"], table.loc[7, "params"] = np.nan, 0.0, -1.0
    table.loc[9, "flops"] = np.inf
    found = observations.rows_of(table.assign(run=[f"g{i % 3}" for i in range(20)]))
    kept = [i for i in range(20) if i not in (3, 5, 7, 9)]
    assert found.keys == tuple(f"row{i + 1}" for i in kept)
    np.testing.assert_array_equal(found.params, table["params"].to_numpy()[kept])
    np.testing.assert_array_equal(found.loss, table["loss"].to_numpy()[kept])
    assert set(found.columns) == {"params", "tokens", "flops", "loss", "lr", "vector"}
    assert len(found.columns["lr"]) == 16
    assert found.run is not None
    assert found.run.tolist() == [i % 3 for i in kept]
    assert found.labels.tolist() == [1.0], "the nominal budgets group the rows"
    plain = observations.rows_of({name: study()[name] for name in ("params", "tokens", "flops", "loss")})
    assert plain.run is None
    np.testing.assert_allclose(plain.labels, BUDGETS)
    sized = observations.rows_of(study().assign(size_group=np.arange(20) % 4))
    assert sized.size.tolist() == [i % 4 for i in range(20)]
    with pytest.raises(ValueError, match="'loss'"):
        observations.rows_of(study().drop(columns="loss"))


def held(table: pd.DataFrame) -> Rows:
    return observations.rows_of(table)


def with_minimum(rows: Rows) -> Rows:
    return comparison._with_minimum(rows, valleys.fit(rows, resamples=0, seed=0).block.valleys)


def interpolated(rows: Rows, method: str) -> dict[str, Any]:
    return comparison._isoflop(rows, method, 1e21, valleys.fit(rows, resamples=0, seed=0).block.valleys)


def test_parabolas_rest_on_three_budgets_with_a_minimum() -> None:
    flat = study(ratios=(0.1, 0.2, 0.4, 0.8, 1.6))
    good = study()
    mixed = pd.concat([good[good["flops"] != 1e18], flat[flat["flops"] == 1e18]], ignore_index=True)
    kept = with_minimum(held(mixed))
    assert sorted(set(np.round(np.log10(kept.flops)).tolist())) == [17, 19, 20]
    assert len(kept) == 15
    two = pd.concat([good[good["flops"] > 5e18], flat[flat["flops"] < 5e18]], ignore_index=True)
    with pytest.raises(
        ValueError,
        match=r"2 budgets with a best size inside the sizes swept \(the others: 2 no minimum inside\)",
    ):
        with_minimum(held(two))
    many = studies.isoflop(0, law=LAW, budgets=(1e15, 1e16, 1e17, 1e18, 1e19), ratios=(0.1, 0.2, 0.4, 0.8, 1.6))
    with pytest.raises(ValueError, match=r"0 budgets .*\(the others: 5 no minimum inside\)"):
        with_minimum(held(many))
    four = many[many["flops"] < 1e19]
    with pytest.raises(ValueError, match=r"4 no minimum inside\): three are needed"):
        with_minimum(held(four))
    with pytest.raises(ValueError, match="1 budget with a best size inside the sizes swept: three"):
        with_minimum(held(good[good["flops"] == 1e18]))


def test_interpolations_are_those_of_isoflop() -> None:
    found = interpolated(held(study()), "akima")
    optima = isoflop.optima(held(study()), "akima")
    size, tokens = isoflop.exponents(optima), isoflop.exponents(optima, "tokens_opt")
    assert (found["a"], found["b"], found["points"]) == (size.exponent, tokens.exponent, 4)
    assert (found["a_low"], found["a_high"]) == size.exponent_interval
    three = interpolated(held(study(BUDGETS[1:])), "parabola")
    assert three["points"] == 3


def test_an_interpolation_that_finds_fewer_minima_than_parabolas_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    real = isoflop.optima

    def fewer(runs: Any, method: str) -> pd.DataFrame:
        return real(runs, method).assign(params_opt=lambda t: [np.nan, np.nan, *t["params_opt"][2:]])

    monkeypatch.setattr(isoflop, "optima", fewer)
    with pytest.raises(ValueError, match="2 budgets with a best size inside the sizes swept: two fix any power law"):
        interpolated(held(study()), "akima")
    with_five = held(study((1e16, *BUDGETS)))
    assert interpolated(with_five, "akima")["points"] == 3


def test_the_law_is_read_at_the_budget_and_needs_runs_and_sizes() -> None:
    table = held(study())
    law = fit_law(table, resamples=0)
    found = comparison._law(table, 1e21, law, OPTIONS)
    _, A, B, alpha, beta = law.params
    assert found["a"] == pytest.approx(beta / (alpha + beta))
    assert found["b"] == pytest.approx(alpha / (alpha + beta))
    scale = (alpha * A / (beta * B)) ** (1 / (alpha + beta))
    size = scale * (1e21 / 6) ** (beta / (alpha + beta))
    assert found["params"] == pytest.approx(size, rel=1e-5)
    assert found["tokens_per_param"] == pytest.approx(1e21 / 6 / size**2, rel=1e-5)
    assert found["points"] == 20
    assert np.isnan(found["a_low"])
    six = study().iloc[[0, 2, 4, 7, 12, 17]]
    assert comparison._law(held(six), 1e20, None, OPTIONS)["points"] == 6
    with pytest.raises(ValueError, match="5 runs of 5 sizes; 5 constants need at least 6 runs of 3 sizes"):
        comparison._law(held(six.iloc[:5]), 1e20, None, OPTIONS)
    two = study().assign(params=lambda t: np.where(np.arange(20) % 2, 1e8, 2e8))
    with pytest.raises(ValueError, match="20 runs of 2 sizes"):
        comparison._law(held(two), 1e20, None, OPTIONS)
    three = study().assign(params=np.resize([1e8, 2e8, 4e8], 20))
    three = three.assign(
        flops=6 * three["params"] * three["tokens"], loss=studies.loss(LAW, three["params"], three["tokens"]),
    ).drop(columns="flops_budget")  # fmt: skip
    assert comparison._law(held(three), 1e20, None, OPTIONS)["points"] == 20


def test_an_interval_comes_with_resamples_alone() -> None:
    table = held(studies.isoflop(1, noise=0.003, law=LAW, budgets=BUDGETS, ratios=RATIOS))
    law = fit_law(table, resamples=30)
    found = comparison._law(table, 1e21, law, OPTIONS)
    assert (found["a_low"], found["a_high"]) == law.block().intervals["a"]


def test_an_exponent_that_is_not_identified_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    table = held(study())
    law = fit_law(table, resamples=0)
    monkeypatch.setattr(LawFit, "identified", {"a": Identified(False, "why not"), "b": Identified(True)})
    with pytest.raises(ValueError, match="a is not identified: why not"):
        comparison._law(table, 1e20, law, OPTIONS)
    monkeypatch.setattr(LawFit, "identified", {"b": Identified(False, "why not")})
    assert comparison._law(table, 1e20, law, OPTIONS)["points"] == 20


def test_repeated_tokens_are_refused_before_the_fit() -> None:
    table = study().assign(unique_tokens=lambda t: t["tokens"] / 3)
    out = side_by_side(table, 1e21, resamples=0)
    assert "trained on more tokens than are unique" in str(out.loc["3 surface", "reason"])


def curves() -> pd.DataFrame:
    size = np.repeat(np.geomspace(1e7, 3e9, 12), 20)
    tokens = size * np.tile(np.geomspace(1, 300, 20), 12)
    names = np.repeat([f"r{i}" for i in range(12)], 20)
    loss = studies.loss(LAW, size, tokens)
    return pd.DataFrame({"run": names, "params": size, "tokens": tokens, "flops": 6 * size * tokens, "loss": loss})


def test_the_table_by_its_parts() -> None:
    out = side_by_side(study(), 1e21, checkpoints=curves(), resamples=0)
    assert list(out.index) == ["1 envelope", "1 hull", "2 parabola", "2 akima", "2 surface", "3 surface"]
    assert list(out.columns) == [
        "a",
        "a_low",
        "a_high",
        "b",
        "params",
        "tokens",
        "tokens_per_param",
        "points",
        "reason",
    ]
    assert (out["reason"] == "").all()
    assert out.attrs["budget"] == 1e21
    assert out.attrs["disagreement"] == pytest.approx(out["params"].max() / out["params"].min())
    wide, hull = (comparison._envelope(curves(), 1e21, 0, 0, flag) for flag in (False, True))
    assert out.loc["1 envelope", "points"] == wide["points"]
    assert out.loc["1 hull", "points"] == hull["points"] < wide["points"]
    np.testing.assert_allclose(out["tokens_per_param"].astype(float), (out["tokens"] / out["params"]).astype(float))
    own = side_by_side(curves(), resamples=0)
    assert own.attrs["budget"] == curves()["flops"].max()
    assert own.loc["1 envelope", "reason"] == ""
    given = held(study())
    same = side_by_side(given, resamples=0)
    assert same.attrs["budget"] == pytest.approx(1e20)
    assert "'run'" in str(same.loc["1 envelope", "reason"])
    one = side_by_side(study().iloc[:5], 1e18, resamples=0)
    assert one.attrs["disagreement"] is None
    assert np.isnan(one["params"].astype(float)).all()
    tied = side_by_side(study(), 1e21, resamples=0, form="chinchilla_tied")
    assert list(tied.index)[-1] == "3 chinchilla_tied"
    law = fit_law(study(), "kaplan", resamples=0)
    assert list(side_by_side(study(), 1e21, law=law, resamples=0).index)[-1] == "3 kaplan"
    defaults = {name: one.default for name, one in inspect.signature(side_by_side).parameters.items()}
    assert (defaults["resamples"], defaults["seed"]) == (200, 0)


def test_options_reach_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def fit(table: Rows, **options: Any) -> Any:
        asked.update(options)
        raise ValueError("seen")

    monkeypatch.setattr(comparison, "fit_law", fit)
    out = side_by_side(study(), 1e21, resamples=20, seed=3, loss="squared")
    assert out.loc["3 surface", "reason"] == "seen"
    assert asked == {"form": "chinchilla", "resamples": 20, "seed": 3, "loss": "squared"}


def test_a_budget_without_a_best_size_is_said() -> None:
    table = held(study())
    constants = np.array([[1.7, 400.0, 1e-9, 0.34, 0.3]])
    p = fit_problem.problem(SURFACE, (table.params, table.tokens), table.loss, objectives.Squared())
    law = fit_law(table, resamples=0)
    import dataclasses

    theta = SURFACE.internal(constants, p.centres)[0]
    off = dataclasses.replace(law, point=dataclasses.replace(law.point, theta=theta))
    with pytest.raises(ValueError, match="the law has no best size at this budget near the sizes swept"):
        comparison._law(table, 1e21, off, OPTIONS)
