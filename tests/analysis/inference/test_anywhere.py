"""The same numbers in any order of rows, under any BLAS kernel, with any number of threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.estimation import fit_problem, multistart, objectives
from analysis.inference import flat
from analysis.inference.fit_law import fit_law
from analysis.inference.flat import Flat
from analysis.laws import sum_of_powers
from analysis.text import numbers
from tests.analysis import anywhere, studies
from tests.analysis.blas_kernels import others
from tests.once import once

ROOT = Path(__file__).parents[3]
FEATURES: Any = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
WIDEST = "SkylakeX" if {"X86_V4", "AVX512F"} & {*FEATURES} else "Haswell"
"""The kernel with the longest vectors that the processor has."""
SETTINGS = {
    "Haswell": ("Haswell", 1, "as_given", False),
    "longest vectors, two threads, shuffled": (WIDEST, 2, "shuffled", False),
    "Prescott, shuffled": ("Prescott", 1, "shuffled", False),
    "Zen, two threads": ("Zen", 2, "as_given", False),
    "Sandybridge, two threads, shuffled, numpy's plainest loops": ("Sandybridge", 2, "shuffled", True),
}
"""BLAS kernel, threads, order of rows, and whether numpy uses none of the processor's newer instructions."""


def started(kernel: str, threads: int, order: str, plain: bool) -> Any:
    """Return what the program prints, run as a process of its own."""
    variables = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    env = {**os.environ, "OPENBLAS_CORETYPE": kernel, **dict.fromkeys(variables, str(threads))}
    if plain:
        env["NPY_DISABLE_CPU_FEATURES"] = " ".join(FEATURES)
    command = [sys.executable, "-W", "ignore", "-m", "tests.analysis.anywhere", order]
    return json.loads(subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True).stdout)


@pytest.fixture(scope="session")
def here(session_folder: Path) -> Any:
    """Return the numbers of a test process, rows as they are given."""
    numbers = once(
        session_folder / "anywhere.json", lambda: json.dumps(anywhere.numbers(lambda table: table), default=float)
    )
    return json.loads(numbers)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS.keys())
def test_numbers_do_not_depend_on_the_machine(here: Any, setting: tuple[str, int, str, bool]) -> None:
    different = differences(here, started(*setting))
    assert not different, "\n".join(different[:20])


@pytest.mark.parametrize(
    ("own", "settings"),
    [
        ("Haswell", ("Prescott:2", "Zen:1")),
        ("Prescott", ("Haswell:1", "Zen:1")),
        ("SkylakeX", ("Prescott:2", "Haswell:1")),
    ],
)
def test_two_kernels_beside_the_machines_own_are_tested(own: str, settings: tuple[str, ...]) -> None:
    assert others(own) == settings


def differences(one: Any, two: Any, place: str = "") -> list[str]:
    """Return where numbers differ by more than 1e-6 of the largest of their list, or anything else differs at all."""
    if place.endswith("gradient_norm"):  # what is left of a gradient is rounding
        return []
    if isinstance(one, dict) and isinstance(two, dict):
        names = sorted({*one, *two})
        return [line for name in names for line in differences(one.get(name), two.get(name), f"{place}/{name}")]
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        if one and all(isinstance(v, float) for v in (*one, *two)):
            apart = [(a, b) for a, b in zip(one, two, strict=True) if not np.array_equal(a, b, equal_nan=True)]
            gap = max((abs(a - b) for a, b in apart), default=0.0)
            most = max(abs(v) for v in (*one, *two) if np.isfinite(v)) if gap else 0.0
            return [] if gap <= 1e-6 * most else [f"{place}: {one} {two}"]
        pairs = enumerate(zip(one, two, strict=True))
        return [line for i, pair in pairs for line in differences(*pair, f"{place}/{i}")]
    if isinstance(one, float) and isinstance(two, float):
        return [] if one == two or abs(one - two) <= 1e-6 * max(abs(one), abs(two)) else [f"{place}: {one} {two}"]
    return [] if one == two else [f"{place}: {one} {two}"]


@pytest.mark.parametrize("cluster", ["residuals", "rows", "runs", "sizes", "seeds"])
def test_resamples_do_not_depend_on_the_order_of_the_rows(cluster: str) -> None:
    one, two = (studies.isoflop(seed, noise=0.004, law=anywhere.LAW) for seed in (0, 1))
    table = pd.concat((one.assign(run="a"), two.assign(run="b")), ignore_index=True)
    table["run"] += np.arange(len(table)).astype(str)
    shuffled = table.sample(frac=1.0, random_state=3)
    given, other = (fit_law(t, loss="squared", cluster=cluster, resamples=40).draws for t in (table, shuffled))
    np.testing.assert_allclose(given["a"], other["a"], rtol=1e-6)


@pytest.mark.parametrize("loss", ["huber", "l1"])
def test_of_equal_laws_the_one_of_least_squares_is_taken_and_the_others_are_told(loss: str) -> None:
    table = anywhere.doubled()
    fit = fit_law(table, loss=loss, resamples=0)
    least = fit_law(table, loss="squared", resamples=0)
    np.testing.assert_allclose(fit.params, least.params, rtol=1e-3)
    found = fit.flat
    assert found is not None
    assert np.linalg.norm(list(found.direction.values())) == pytest.approx(1.0)
    assert found.direction["ln B"] > 0.5
    for name in ("A", "B", "E", "alpha"):
        ends = sorted((found.low[name], found.high[name]))
        assert ends[0] < fit.params[name] < ends[1]
    for end in (found.low, found.high):
        assert objective_at(fit, end) == pytest.approx(fit.objective, rel=1e-7)
    assert found.moved > 0.05
    told = next(check for check in fit.check() if check.code == "flat_optimum")
    assert "ln B +0." in told.message
    assert f"B {numbers.number(found.low['B'], 4)} to" in told.message


def objective_at(fit: Any, constants: dict[str, float]) -> float:
    p = fit.problem
    theta = p.form.internal(np.array([[constants[name] for name in p.form.names]]), p.centres)
    return float(fit_problem.evaluate(p, theta)[0][0])


def test_a_design_that_tells_laws_apart_has_no_flat_optimum() -> None:
    for loss in ("huber", "squared", "l1", "student_t"):
        fit = fit_law(studies.isoflop(1, noise=0.004), loss=loss, resamples=0)
        assert fit.flat is None
    exact = fit_law(studies.isoflop(), resamples=0)
    assert exact.flat is None


@pytest.mark.parametrize("loss", ["huber", "squared"])
def test_constants_that_a_design_cannot_tell_apart_are_named_with_their_width(loss: str) -> None:
    """Which law of the curve was given, and so the direction, was up to the processor."""
    fit = fit_law(anywhere.at_two_tokens(), loss=loss, resamples=0)
    found = fit.flat
    assert isinstance(found, Flat)
    assert found.direction["ln E"] == pytest.approx(0.973, abs=0.002)
    assert found.direction["ln B"] == pytest.approx(0.222, abs=0.002)
    assert abs(found.direction["ln A"]) < 1e-3
    assert max(found.high["B"], found.low["B"]) > 2 * min(found.high["B"], found.low["B"])
    told = next(check for check in fit.check() if check.code == "flat_optimum")
    assert told.message.endswith("of these the one of the constants nearest to zero, as they are searched, is given")


def test_equal_laws_with_a_coefficient_beyond_any_number_are_told_by_its_exponent() -> None:
    p = fit_law(studies.isoflop(1, noise=0.004), resamples=0).problem
    steep, steeper = (np.array([0.6, -0.5, -0.3, alpha, 0.35]) for alpha in (90.0, 140.0))
    found = flat._between(p, steep, steeper, 0.1)
    assert np.isinf(found.high["A"])
    assert found.text.startswith("along (alpha +1.00), from alpha 90")


def test_what_decides_among_equals_moves_nothing_else() -> None:
    rows = studies.isoflop(2, noise=0.004)
    for loss in (objectives.Huber(), objectives.Absolute()):
        fit = fit_law(rows, loss=loss, resamples=0)
        p = fit.problem
        assert fit_problem.decided(p).tie > 0
        assert p.tie == 0.0
        others = multistart.solve(p, multistart.starts_of(p), tolerance=1e-11)
        assert fit.objective <= others.value.min() * (1 + 1e-7)


@pytest.mark.parametrize(
    "loss", [objectives.Huber(), objectives.Squared(), objectives.Absolute(), objectives.StudentT()]
)
@pytest.mark.parametrize("plain", [False, True])
def test_second_derivatives_are_those_of_the_gradient(loss: objectives.Loss, plain: bool) -> None:
    rows = studies.isoflop(2, noise=0.02)
    columns = [rows["params"].to_numpy(), rows["tokens"].to_numpy()]
    p = fit_problem.decided(
        fit_problem.problem(sum_of_powers.SURFACE, columns, rows["loss"].to_numpy(), loss, plain=plain)
    )
    z = np.array([[0.6, -0.5, -0.3, 0.4, 0.25]])
    found = fit_problem.hessian(p, z)[0]
    for k in range(5):
        step = 1e-6 * np.eye(5)[k]
        ends = [fit_problem.evaluate(p, z + side * step)[1][0] for side in (1.0, -1.0)]
        np.testing.assert_allclose(found[k], (ends[0] - ends[1]) / 2e-6, rtol=2e-4, atol=1e-5 * np.abs(found).max())


def test_where_pulls_balance_over_a_stretch_its_middle_is_the_centre() -> None:
    residual = np.array([-0.04, -0.03, 0.01, 0.06])
    assert objectives.location(objectives.Huber(1e-3), residual) == pytest.approx(-0.01, abs=1e-9)
