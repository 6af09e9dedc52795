"""Optima of sweeps: paraboloids whose minimum is known, and every reason for which a cell has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.approaches import settings
from analysis.inputs.rows import from_csv

RATES, BATCHES = np.geomspace(1e-3, 1.6e-2, 5), np.geomspace(1e5, 8e5, 4)


def sweep(
    at: tuple[float, float] = (3e-3, 3e5), *, cross: float = 0.0, rates: Any = RATES, batches: Any = BATCHES,
    bend: tuple[float, float] = (0.01, 0.008), params: float = 1e8, tokens: float = 2e9, cubic: float = 0.0,
) -> dict[str, Any]:  # fmt: skip
    """Return a cell's sweep of a quadratic in ln rate and ln batch with its minimum of 3 there."""
    lr, batch = (a.ravel() for a in np.meshgrid(rates, batches))
    x, y = np.log(lr / at[0]), np.log(batch / at[1])
    loss = 3.0 + bend[0] * x**2 + bend[1] * y**2 + cross * x * y + cubic * x**3
    return {"params": np.full(len(lr), params), "tokens": np.full(len(lr), tokens), "lr": lr, "batch_tokens": batch,
            "loss": loss}  # fmt: skip


def line(loss: Any, **asked: Any) -> Any:
    """Return the optimum of losses at rates of 1, e, e^2, ... in one batch."""
    count = len(loss)
    one = np.ones(count)
    runs = {"params": one, "tokens": one, "lr": np.exp(np.arange(count)), "loss": np.asarray(loss, dtype=float)}
    return settings.optima(runs, **asked).iloc[0]


def test_a_tilted_quadratic_has_its_minimum() -> None:
    runs = sweep(cross=0.006)
    best = settings.optima(runs, window=0.1).iloc[0]
    assert (best["lr"], best["batch_tokens"], best["loss"]) == pytest.approx((3e-3, 3e5, 3.0))
    assert (best["status"], best["points"], best["reason"]) == ("minimum", 20, "")
    near = settings.optima(runs).iloc[0]
    assert (near["lr"], near["batch_tokens"], near["loss"]) == pytest.approx((3e-3, 3e5, 3.0))
    assert near["points"] == (runs["loss"] <= runs["loss"].min() * 1.01).sum()
    grid = settings.optima(runs, method="minimum").iloc[0]
    lowest = int(np.argmin(runs["loss"]))
    assert (grid["lr"], grid["loss"], grid["points"]) == (pytest.approx(runs["lr"][lowest]), runs["loss"][lowest], 20)
    steep = settings.optima(sweep(bend=(0.5, 0.5))).iloc[0]
    assert (steep["status"], steep["reason"]) == ("too_few", "1 runs within 1 % of the lowest; 6 are needed")
    assert np.isnan(steep[["lr", "batch_tokens", "loss"]].astype(float)).all()


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"at": (5e-4, 3e5)}, "edge"), ({"at": (3e-3, 1e6)}, "edge"), ({"at": (1.7e-2, 3e5)}, "edge"),
        ({"at": (3e-3, 9e4)}, "edge"), ({"bend": (-0.01, 0.01)}, "saddle"), ({"bend": (0.01, -0.01)}, "saddle"),
        ({"cross": 0.02}, "saddle"), ({"rates": RATES[1:3]}, "saddle"), ({"batches": BATCHES[1:3]}, "saddle"),
        ({}, "minimum"),
    ],
)  # fmt: skip
def test_quadratics_without_a_minimum_inside_the_sweep(changed: dict[str, Any], status: str) -> None:
    best = settings.optima(sweep(**changed), window=1.0).iloc[0]
    assert best["status"] == status
    words = {"edge": "the minimum lies outside the sweep", "minimum": "",
             "saddle": "the quadratic has no minimum: noise, or too narrow a sweep"}  # fmt: skip
    assert best["reason"] == words[status]


def test_the_envelope_takes_the_lowest_loss_at_each_rate_and_each_batch() -> None:
    wide = np.geomspace(1e-3, 1.6e-2, 9)
    runs = sweep((2e-3, 2e5), rates=wide, batches=np.geomspace(5e4, 8e5, 5), bend=(0.004, 0.003))
    best = settings.optima(runs, window=0.02, method="envelope").iloc[0]
    assert (best["lr"], best["batch_tokens"], best["loss"]) == pytest.approx((2e-3, 2e5, 3.0))
    x, y = np.log(np.unique(runs["lr"]) / 2e-3), np.log(np.unique(runs["batch_tokens"]) / 2e5)
    assert best["points"] == (0.004 * x**2 <= 0.06).sum() + (0.003 * y**2 <= 0.06).sum()


def test_a_sweep_of_the_rate_alone() -> None:
    x = np.arange(5.0)
    for vertex in (1.6, 2.4, 3.3, 0.8):
        best = line(2.0 + 0.001 * (x - vertex) ** 2, window=0.5)
        assert (np.log(best["lr"]), best["loss"]) == pytest.approx((vertex, 2.0))
        assert (best["status"], best["points"], best["batch_tokens"]) == ("minimum", 5, 1.0)
    tilted = 2.0 + 0.001 * (x[:4] - 1.4) ** 2 + 0.0002 * np.array([1.0, -3.0, 3.0, -1.0])  # no quadratic in there
    assert np.log(line(tilted, window=0.5)["lr"]) == pytest.approx(1.4)
    alone = line([2.5])
    assert (alone["status"], alone["lr"], alone["loss"], alone["points"]) == ("minimum", 1.0, 2.5, 0)


@pytest.mark.parametrize(
    ("loss", "window", "status", "points", "reason"),
    [
        ([2.0, 2.1, 2.2, 2.3], 0.5, "edge", 4, "the lowest loss is on the edge of the sweep"),
        ([2.3, 2.2, 2.1, 2.0], 0.5, "edge", 4, "the lowest loss is on the edge of the sweep"),
        ([2.3, 2.0, 2.1, 2.3], 0.06, "too_few", 2, "2 levels within 6 % of the lowest; 3 are needed"),
        ([3.0, 3.02, 2.999, 3.02, 3.0], 0.01, "saddle", 5,
         "the parabola has no minimum: noise, or too narrow a sweep"),
        ([2.01, 2.0, 2.01], 0.01, "minimum", 3, ""),
    ],
)  # fmt: skip
def test_sweeps_of_the_rate_without_an_optimum(
    *, loss: list[float], window: float, status: str, points: int, reason: str
) -> None:
    best = line(loss, window=window)
    assert (best["status"], best["points"], best["reason"]) == (status, points, reason)
    assert np.isfinite(best["lr"]) == (status == "minimum")


def test_cells_are_told_apart_to_a_millionth_in_logs() -> None:
    two = [pd.DataFrame(sweep(params=n)) for n in (1.0, 1.3)]
    assert len(settings.optima(pd.concat(two))) == 2
    two = [pd.DataFrame(sweep(params=n, tokens=1.0)) for n in (1.0, 1.0 + 3e-7)]
    (best,) = settings.optima(pd.concat(two), window=0.1)["points"]
    assert best == 40


def study(
    cubic: float = 0.0, scatter: float = 0.0, sizes: tuple[float, ...] = (1e7, 1e8), **changed: Any
) -> pd.DataFrame:
    """Return sweeps whose optima are lr = 4 N^-0.4, off by `scatter`, and batch = 5 D^0.5; `cubic` grows with N."""
    cells: list[pd.DataFrame] = []
    for n in sizes:
        for d in (1e9, 4e9):
            at = 4 * n**-0.4 * np.exp(scatter * (-1) ** len(cells)), 5 * d**0.5
            rates, batches = at[0] * np.geomspace(0.2, 5, 9), at[1] * np.geomspace(0.25, 4, 7)
            shape = {"params": n, "tokens": d, "rates": rates, "batches": batches, "bend": (0.02, 0.02), **changed}
            cells.append(pd.DataFrame(sweep(at, cubic=cubic * np.log(n / 1e7), **shape)))
    return pd.concat(cells, ignore_index=True)


def test_laws_of_four_cells() -> None:
    found = settings.laws(study(), resamples=0)
    assert found.learning_rate.params["p"] == pytest.approx(-0.4, abs=1e-6)
    assert found.batch.params["r"] == pytest.approx(0.5, abs=1e-6)
    assert (found.window, len(found.optima)) == (0.01, 4)
    assert found.learning_rate.confidence == 0.95
    pd.testing.assert_frame_equal(found.optima, settings.optima(study(), 0.01))
    assert settings.laws(study(scatter=0.02, sizes=(1e7, 3e7, 1e8)), resamples=0).checks == ()
    with pytest.raises(ValueError, match="2 cells with an optimum inside its sweep; the laws need four"):
        settings.laws(study(sizes=(1e7,)), resamples=0)
    more = study(sizes=(1e7, 3e7, 1e8))
    off = more[(more["params"] < 9e7) | (more["tokens"] < 3e9) | (more["lr"] > 4 * 1e8**-0.4 * 2)]
    found = settings.laws(off, method="envelope", resamples=0)
    (lost,) = found.checks
    assert (lost.code, lost.message) == ("optimum_on_edge", "1 of 6 cells have no optimum (1 too_few)")


def test_a_window_that_moves_the_exponent_is_said() -> None:
    runs = study(cubic=0.0015, sizes=(1e7, 3e7, 1e8))
    found = settings.laws(runs, 0.012, resamples=0)
    (said,) = [check for check in found.checks if check.code == "window_matters"]
    spread = float(np.sqrt(found.learning_rate.cov_params("delta")["p"]["p"]))
    other = {w: float(settings.laws(runs, w, resamples=0).learning_rate.params["p"]) for w in (0.006, 0.024)}
    here = float(found.learning_rate.params["p"])
    texts = [f"{p:.3f} at {100 * w:g} %" for w, p in other.items() if abs(p - here) > spread]
    assert texts
    assert said.message == f"the exponent of N is {here:.3f} ({spread:.3f}) in a window of 1.2 %, {', '.join(texts)}"


def read(table: pd.DataFrame, folder: Path) -> pd.DataFrame:
    table.assign(flops=6 * table["params"] * table["tokens"], study="ours").to_csv(folder / "a.csv", index=False)
    return from_csv(folder / "a.csv")


def test_sweeps_of_a_frame_become_a_frame_of_optima(tmp_path: Path) -> None:
    frame = read(study(), tmp_path)
    found = settings.of_sweeps(frame, "lr", 0.01, "quadratic")
    assert found is not None
    table, checks = found
    assert table["used"].tolist() == [True] * 4
    assert table["key"].tolist() == ["10M on 1B", "10M on 4B", "100M on 1B", "100M on 4B"]
    np.testing.assert_allclose(table["flops"], 6 * table["params"] * table["tokens"])
    assert set(table["study"]) == {"ours"}
    (said,) = checks
    assert (said.code, said.level) == ("window_matters", "note")
    text = "lr of the optima moves by a factor of 1.00 at 0.5 % (4 cells), by a factor of 1.00 at 2 % (4 cells)"
    assert said.message == f"the window of 1 % is a choice: {text}"
    alone = settings.of_sweeps(frame, "lr", 0.01, "minimum")
    assert alone is not None
    assert alone[1] == ()
    assert settings.of_sweeps(frame.drop(columns="lr"), "lr", 0.01, "quadratic") is None


@pytest.mark.parametrize(("swept", "levels", "found"), [(4, 3, True), (2, 3, True), (1, 9, False), (4, 2, False)])
def test_half_of_the_cells_have_to_be_swept(swept: int, levels: int, found: bool, tmp_path: Path) -> None:
    whole = study()
    cell = whole.groupby(["params", "tokens"]).ngroup()
    level = whole.groupby(["params", "tokens"])["lr"].rank(method="dense")
    frame = read(whole[level <= np.where(cell < swept, levels, 1)], tmp_path)
    assert (settings.of_sweeps(frame, "lr", 0.01, "minimum") is not None) == found
