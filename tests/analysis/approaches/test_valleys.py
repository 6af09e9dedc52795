"""isoFLOP valleys: exact minima, what is left out and why, published biases and exponents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.approaches import power_laws, valley_options, valleys
from analysis.approaches.valley_options import Choices
from analysis.fit import fit as fit_frame
from analysis.fit import parse
from analysis.inputs.rows import from_csv
from analysis.values.blocks import Valleys
from tests.analysis import studies

CHINCHILLA = (1.69, 406.4, 410.7, 0.34, 0.28)


def quadratic(bottoms: list[float], curve: float, points: int = 5) -> pd.DataFrame:
    """Return budgets 1e12, 1e13, ... whose losses are parabolas of ln N with these minima, C = 6 N D."""
    out = []
    for number, bottom in enumerate(bottoms):
        flops = 10.0 ** (12 + number)
        size = np.geomspace(2.5e4, 4e5, points) * 10 ** (number / 2)
        value = 3.0 + curve * np.log(size / bottom) ** 2
        out.append(pd.DataFrame({"params": size, "tokens": flops / 6 / size, "flops": flops, "loss": value}))
    return pd.concat(out, ignore_index=True)


def optima(found: Valleys, name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([getattr(v, name) for v in found.valleys], dtype=np.float64)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=5), st.floats(0.01, 1.0))
def test_exact_parabolas_are_found_exactly(offsets: list[float], curve: float) -> None:
    bottoms = [1e5 * f * 10 ** (i / 2) for i, f in enumerate(offsets)]
    found = valleys.fit(studies.as_rows(quadratic(bottoms, curve)), resamples=0, seed=0).block
    assert [v.status for v in found.valleys] == ["minimum"] * len(bottoms)
    np.testing.assert_allclose(optima(found, "params_opt"), np.array(bottoms), rtol=1e-6)
    tokens = [v.flops / 6 / b for v, b in zip(found.valleys, bottoms, strict=True)]
    np.testing.assert_allclose(optima(found, "tokens_opt"), np.array(tokens), rtol=1e-6)
    np.testing.assert_allclose(optima(found, "loss_opt"), 3.0, rtol=1e-9)
    a, b = found.exponents["params"].exponent, found.exponents["tokens"].exponent
    slope = np.polyfit(np.log([v.flops for v in found.valleys]), np.log(bottoms), 1)[0]
    assert a == pytest.approx(slope, abs=1e-9)
    assert a + b == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(
    ("frame", "status", "code"),
    [
        (quadratic([1e3], 0.1), "edge", "edge_minimum"),
        (quadratic([1e8], 0.1), "edge", "edge_minimum"),
        (quadratic([1e5], -0.1), "inverted", "inverted_parabola"),
        (quadratic([1e5], 0.0), "flat", "flat_parabola"),
        (quadratic([1e5], 0.1, points=2), "too_few", "few_points"),
    ],
)
def test_what_has_no_minimum_is_left_out_with_a_reason(frame: pd.DataFrame, status: str, code: str) -> None:
    good = quadratic([1e5, 10**5.5, 1e6], 0.1).query("flops > 2e12")
    found = valleys.fit(studies.as_rows(pd.concat([frame, good], ignore_index=True)), resamples=0, seed=0)
    assert [v.status for v in found.block.valleys] == [status, "minimum", "minimum"]
    bad = found.block.valleys[0]
    assert bad.reason
    assert bad.params_opt is None
    assert code in [c.code for c in found.block.checks]
    assert found.flops.tolist() == pytest.approx([1e13, 1e14])
    assert found.block.rows_used == 10


def within_noise() -> pd.DataFrame:
    """Return three budgets, of which the valley of the first is less deep than the noise."""
    table = quadratic([1e5, 10**5.5, 1e6], 0.1, points=7)
    first = table["flops"] < 2e12
    noise = np.tile([0.02, -0.02, 0.02, -0.02, 0.02, -0.02, 0.02], 3)
    table["loss"] = np.where(first, 3.0 + 0.002 * np.log(table["params"] / 1e5) ** 2, table["loss"]) + noise
    return table


def test_a_valley_within_its_noise_is_flat() -> None:
    found = valleys.fit(studies.as_rows(within_noise()), resamples=0, seed=0).block
    assert [v.status for v in found.valleys] == ["flat", "minimum", "minimum"]


def test_an_exponent_that_two_noisy_valleys_leave_open_is_not_identified() -> None:
    found = valleys.fit(studies.as_rows(studies.isoflop(0, noise=0.004).iloc[:10]), resamples=200, seed=0)
    assert len(found.flops) == 2
    law = found.block.exponents["params"]
    assert law.exponent_interval is not None
    assert law.exponent_interval[0] < 0
    assert not found.block.identified["a"].identified
    assert found.block.intervals["a"] is None


def test_runs_outside_the_window_are_counted() -> None:
    found = valleys.fit(studies.as_rows(studies.isoflop(0, ratios=(0.02, 2.5, 5, 10, 20, 40))), resamples=0, seed=0)
    assert [c.message[:30] for c in found.block.checks if c.code == "outside_window"] == [
        "parabolas leave out 4 runs mor"
    ]
    assert {v.points for v in found.block.valleys} == {5}


def test_the_window_of_sizes_is_an_option() -> None:
    rows = studies.as_rows(studies.isoflop(0, ratios=(0.02, 2.5, 5, 10, 20, 40)))
    every = valleys.fit(rows, resamples=0, seed=0, choices=Choices(window=np.inf)).block
    assert {v.points for v in every.valleys} == {6}
    assert not [c for c in every.checks if c.code == "outside_window"]
    narrow = valleys.fit(rows, resamples=0, seed=0, choices=Choices(window=2.1)).block
    assert {v.points for v in narrow.valleys} == {4}


def test_flat_valleys_are_dropped_or_kept_with_a_finding() -> None:
    rows = studies.as_rows(within_noise())
    kept = valleys.fit(rows, resamples=0, seed=0, choices=Choices(flat="keep")).block
    assert [v.status for v in kept.valleys] == ["minimum"] * 3
    said = next(c for c in kept.checks if c.code == "flat_kept")
    assert said.message.startswith("1 valley within twice the noise of")
    assert said.level == "warning"
    assert "flat_valleys=drop" in said.advice
    level = valleys.fit(studies.as_rows(quadratic([1e5], 0.0)), resamples=0, seed=0, choices=Choices(flat="keep")).block
    assert [v.status for v in level.valleys] == ["flat"], "where the loss does not depend on the size there is nothing"


def test_the_command_takes_the_valleys_options(tmp_path: Path) -> None:
    assert valley_options.of(parse(["runs=a.csv"])) == Choices(8.0, "drop")
    assert valley_options.of(parse(["runs=a.csv", "valley_window=all"])).window == np.inf
    for text in ("valley_window=1.5", "valley_window=wide", "flat_valleys=maybe"):
        with pytest.raises(ValueError, match=text):
            parse(["runs=a.csv", text])
    studies.isoflop(0, ratios=(0.02, 2.5, 5, 10, 20, 40)).to_csv(tmp_path / "a.csv", index=False)
    asked = ["approach=2", "valley_window=all", "resamples=0", "sensitivity=no"]
    found = fit_frame(from_csv(tmp_path / "a.csv"), parse([f"runs={tmp_path / 'a.csv'}", *asked]))
    assert {v.points for v in found.fits.valleys.valleys} == {6}
    assert found.record["options"]["valley_window"] == "all"


def test_no_valley_at_all_says_so() -> None:
    found = valleys.fit(studies.as_rows(quadratic([1e2], 0.1)), resamples=50, seed=0).block
    assert found.status == "not possible"
    assert not found.exponents
    assert not found.params


@pytest.mark.parametrize(("law", "bias"), [(CHINCHILLA, -0.029029), ((1.69, 400.0, 400.0, 0.31, 0.31), 0.0)])
def test_parabolas_have_the_published_bias_on_exact_surfaces(law: tuple[float, ...], bias: float) -> None:
    assert off(law, 8.0, Choices()) == pytest.approx(bias, abs=2e-3)


@pytest.mark.parametrize(("window", "bias"), [(4.0, -0.0141), (8.0, -0.0296), (np.inf, -0.0759)])
def test_the_wider_the_window_the_larger_the_bias(window: float, bias: float) -> None:
    assert off(CHINCHILLA, 32.0, Choices(window=window)) == pytest.approx(bias, abs=1e-4)


def off(law: tuple[float, ...], wide: float, choices: Choices) -> float:
    """Return by how much D* at 1e24 FLOPs is off, by parabolas over exact losses of sizes to `wide` times the best."""
    _, A, B, alpha, beta = law
    a = beta / (alpha + beta)
    scale = (alpha * A / (beta * B)) ** (1 / (alpha + beta))
    frames = []
    for flops in (1e17, 1e18, 1e19, 1e20, 1e21):
        best = scale * (flops / 6) ** a
        size = best * np.geomspace(1 / wide, wide, 15 if wide < 10 else 21)
        value = studies.loss(law, size, flops / 6 / size)
        frames.append(pd.DataFrame({"params": size, "tokens": flops / 6 / size, "flops": flops, "loss": value}))
    rows = studies.as_rows(pd.concat(frames, ignore_index=True))
    found = valleys.fit(rows, resamples=0, seed=0, choices=choices)
    tokens = found.block.exponents["tokens"]
    predicted = tokens.coefficient * (1e24 / tokens.reference_flops) ** tokens.exponent
    return float(predicted / ((1e24 / 6) ** (1 - a) / scale) - 1)


@pytest.mark.parametrize(("column", "exact"), [("flops_budget", True), ("flops_printed", False)])
def test_nanochat_exponents_need_exact_budgets_and_do_not_sum_to_one(column: str, exact: bool) -> None:
    table = pd.read_csv(studies.public("nanochat2026/isoflop_optima.csv"))
    anchors = {"matmul_incl_lm_head": (0.536, 0.489), "all_params": (0.374, 0.501)}
    for counting, expected in anchors.items():
        part = table[table["counting"] == counting]
        flops = np.log(part[column].to_numpy(dtype=float))
        found = [
            power_laws.power_law(
                1e18, flops, np.log(part[name].to_numpy(dtype=float)), np.empty((0, len(part)))
            ).exponent
            for name in ("params_opt", "tokens_opt")
        ]
        assert (found == pytest.approx(expected, abs=6e-4)) is exact


def test_porian_tuned_exponent_within_the_method_spread() -> None:
    table = pd.read_csv(studies.public("porian2024/isoflop_points.csv"))
    part = table.query("dataset == 'rw' and hparams == 'tuned' and decay == 'const' and param_count == 'standard'")
    part = part[part["split"] == part["split"].iloc[0]]
    found = valleys.fit(studies.as_rows(part.reset_index(drop=True)), resamples=0, seed=0).block
    assert found.exponents["params"].exponent == pytest.approx(0.50, abs=0.03)


def test_intervals_of_the_exponent_cover_the_truth() -> None:
    hits, widths = [], []
    truth = 0.30 / 0.63
    for seed in range(120):
        rows = studies.as_rows(studies.isoflop(seed, noise=0.004))
        law = valleys.fit(rows, resamples=200, seed=seed).block.exponents.get("params")
        if law is None or law.exponent_interval is None:
            continue
        low, high = law.exponent_interval
        hits.append(low <= truth <= high)
        widths.append(high - low)
    assert len(hits) >= 110
    assert 0.88 <= np.mean(hits) <= 1.0
    assert np.median(widths) < 0.6
