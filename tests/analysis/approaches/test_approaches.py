"""Approaches 1 and 2 by several interpolations, against public fits; and all three beside each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.approaches import comparison, envelope, isoflop
from analysis.inference.fit_law import fit_law
from analysis.laws.sum_of_powers import SURFACE
from tests.analysis import studies

KEYS = ["group", "dataset", "hparams", "warmup", "decay", "param_count", "split"]
LAW = (1.69, 406.4, 410.7, 0.34, 0.28)


def curves() -> pd.DataFrame:
    parts = []
    for size in np.geomspace(1e7, 3e9, 12):
        tokens = np.geomspace(size, 120 * size, 40)
        value = studies.loss(LAW, size, tokens)
        part = {"run": f"{size:.3g}", "params": size, "tokens": tokens, "flops": 6 * size * tokens, "loss": value}
        parts.append(pd.DataFrame(part))
    return pd.concat(parts, ignore_index=True)


def test_akima_reproduces_the_public_exponents() -> None:
    points = pd.read_csv(studies.public("porian2024/isoflop_points.csv"))
    fits = pd.read_csv(studies.public("porian2024/published_fits.csv"))
    assert len(fits) == 15
    for _, published in fits.iterrows():
        runs = points[(points[KEYS] == published[KEYS]).all(axis=1)]
        found = isoflop.exponents(isoflop.optima(runs, "akima"))
        assert found.exponent == pytest.approx(published["a_unweighted"], abs=0.005)


def test_exact_budgets_give_the_published_exponents_and_rounded_labels_do_not() -> None:
    table = pd.read_csv(studies.public("nanochat2026/isoflop_optima.csv"))
    exact = {
        "matmul_incl_lm_head": (0.536, 0.489),
        "all_params": (0.374, 0.501),
        "transformer_matrices_only": (0.696, 0.406),
    }
    for counting, values in exact.items():
        runs = table[table["counting"] == counting]
        for y, value in zip(("params_opt", "tokens_opt"), values, strict=True):
            law = isoflop.exponents(runs.assign(flops=runs["flops_budget"].astype(float)), y)
            assert law.exponent == pytest.approx(value, abs=1e-3)
            rounded = isoflop.exponents(runs.assign(flops=runs["flops_printed"].astype(float)), y)
            assert abs(rounded.exponent - value) > 4e-3


@pytest.mark.parametrize("method", isoflop.METHODS)
def test_every_interpolation_finds_the_exponent_of_a_clean_study(method: str) -> None:
    table = studies.isoflop(0, law=LAW, budgets=(1e17, 1e18, 1e19, 1e20), ratios=(5, 8, 13, 20, 32, 50, 80, 130, 200))
    found = isoflop.optima(table, method)
    assert (found["status"] == "minimum").all()
    assert isoflop.exponents(found).exponent == pytest.approx(0.28 / 0.62, abs=0.012)
    assert isoflop.exponents(found, "tokens_opt").exponent == pytest.approx(0.34 / 0.62, abs=0.012)


def test_minima_on_the_edge_and_inverted_ones_are_left_out_with_a_reason() -> None:
    edge = studies.isoflop(0, law=LAW, budgets=(1e18, 1e19, 1e20), ratios=(400, 600, 900, 1400, 2000))
    for method in ("parabola", "akima"):
        found = isoflop.optima(edge, method)
        assert set(found["status"]) == {"edge"}
        assert found["params_opt"].isna().all()
        assert found["reason"].str.len().gt(10).all()
        with pytest.raises(ValueError, match="0 budgets with a best size inside"):
            isoflop.exponents(found)
    middle = studies.isoflop(0, law=LAW, budgets=(1e18, 1e19), ratios=(5, 20, 60, 200, 600))
    bowl = middle.assign(loss=5.0 - middle["loss"])
    assert set(isoflop.optima(bowl, "parabola")["status"]) == {"inverted"}
    assert set(isoflop.optima(middle.groupby("flops").head(2), "akima")["status"]) == {"too_few"}
    with pytest.raises(ValueError, match="parabola, akima, surface"):
        isoflop.optima(middle, "spline")


def test_the_envelope_of_curves_follows_the_law() -> None:
    found = envelope.fit(curves(), resamples=60)
    for name, exponent in (("params", 0.28 / 0.62), ("tokens", 0.34 / 0.62)):
        law = found.exponents[name]
        assert law.exponent == pytest.approx(exponent, abs=0.03)
        assert law.exponent_interval is not None
        assert law.exponent_interval[0] < exponent < law.exponent_interval[1]
    largest = curves()["params"].max()
    assert (found.points["params"] < largest).all()
    assert [check.code for check in found.checks] == ["mid_schedule"]
    with pytest.raises(ValueError, match="the column 'run'"):
        envelope.fit(curves().drop(columns="run"))
    with pytest.raises(ValueError, match="2 runs have two or more checkpoints"):
        envelope.fit(curves().iloc[:80])


def test_approaches_stand_side_by_side_with_their_disagreement() -> None:
    table = studies.isoflop(0, law=LAW, budgets=(1e17, 1e18, 1e19, 1e20), ratios=(5, 8, 13, 20, 32, 50, 80, 130, 200))
    out = comparison.side_by_side(table, 1e21, checkpoints=curves(), resamples=40)
    assert list(out.index) == ["1 envelope", "1 hull", "2 parabola", "2 akima", "2 surface", "3 surface"]
    assert (out["reason"] == "").all()
    np.testing.assert_allclose(out["a"], 0.28 / 0.62, atol=0.03)
    assert 1.0 < out.attrs["disagreement"] < 1.5
    np.testing.assert_allclose(6 * out["params"] * out["tokens"], 1e21, rtol=0.02)
    few: Any = comparison.side_by_side(table[table["flops"] == 1e18], resamples=0)
    assert few.loc["2 parabola", "reason"].startswith("1 budget with a best size")
    assert np.isnan(few.loc["1 envelope", "params"])


def test_the_hull_of_curves_follows_the_law_with_fewer_points() -> None:
    """Its corners are the points where a curve touches the envelope from below; the pointwise one keeps them all."""
    # Resamples in which too few corners are left count as beyond either end: of 30 one alone would open the interval.
    pointwise, hull = (envelope.fit(curves(), resamples=200, hull=hull) for hull in (False, True))
    assert len(hull.points) < len(pointwise.points) / 2
    assert hull.exponents["params"].exponent == pytest.approx(0.28 / 0.62, abs=0.04)
    assert hull.exponents["params"].exponent_interval is not None
    x = np.linspace(0.0, 1.0, 11)
    assert envelope._on_hull(x, (x - 0.5) ** 2).all()
    bump = (x - 0.5) ** 2
    bump[4] += 0.2
    assert list(np.flatnonzero(~envelope._on_hull(x, bump))) == [4]


def test_laws_of_ones_own_stand_beside_the_others() -> None:
    """A form that has no name among FORMS, given with its fit or as an option."""
    table = studies.isoflop(0, noise=0.001)
    mine = replace(SURFACE, name="mine")
    named: Any = comparison.side_by_side(table, resamples=0, law=fit_law(table, mine, loss="squared", resamples=0))
    assert named.index[-1] == "3 mine"
    assert named["reason"].iloc[-1] == ""
    few: Any = comparison.side_by_side(table.head(5), resamples=0, form=mine)
    assert few["reason"].iloc[-1].startswith("5 runs")
    with pytest.raises(ValueError, match="form=theirs is not known"):
        comparison.side_by_side(table, resamples=0, form="theirs")
