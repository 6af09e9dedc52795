"""Which fits identify the exponent a of N*, and why the others do not."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.diagnostics import backtest, exponent
from analysis.estimation import fit_problem, multistart, objectives
from analysis.inference import covariance
from analysis.inputs.dataset import Rows
from analysis.laws.registry import FORMS
from analysis.laws.sum_of_powers import SURFACE
from tests.analysis import studies

BUDGETS = (4e15, 1.2e16, 4e16)
RATIOS = (4, 9, 18, 33, 70)
LAW = (1.9, 60.0, 110.0, 0.33, 0.30)


def table(budgets: tuple[float, ...] = BUDGETS, noise: float = 0.002, repeats: int = 2) -> pd.DataFrame:
    """Return an isoFLOP grid of LAW with so many seeds a setting, whose noise (relative) is a sine of the row."""
    flops, ratio = (np.tile(a.ravel(), repeats) for a in np.meshgrid(budgets, RATIOS, indexing="ij"))
    params = np.sqrt(flops / 6 / ratio)
    tokens = flops / 6 / params
    losses = studies.loss(LAW, params, tokens) * np.exp(noise * np.sin(3.0 * np.arange(len(flops))))
    return pd.DataFrame({"params": params, "tokens": tokens, "flops": flops, "loss": losses})


def fitted(rows: Rows, loss: Any = None, form: str = "chinchilla", **held: Any) -> tuple[Any, Any]:
    law = FORMS[form]
    columns = [rows.column(name) for name in law.inputs]
    p = fit_problem.problem(law, columns, rows.loss, loss or objectives.Huber(), **held)
    return p, multistart.fit_point(p)


def why(frame: pd.DataFrame, loss: Any = None, form: str = "chinchilla", **held: Any) -> str:
    rows = studies.as_rows(frame)
    return exponent.unidentified(*fitted(rows, loss, form, **held), rows)


def test_an_isoflop_grid_identifies_it() -> None:
    assert why(table(noise=0.0)) == ""
    assert why(table(noise=1e-4)) == ""
    assert why(table(noise=1e-4), objectives.Squared()) == ""


def test_one_budget_does_not_though_its_fit_has_a_number() -> None:
    for noise in (0.0, 1e-4, 0.02):
        assert why(table(BUDGETS[:1], noise)) == "one budget"
    rolled = backtest.judged(studies.as_rows(table((4e15, 1.2e16, 4e16, 1.3e17), 1e-4)), objectives.Huber())
    assert [(cut.a is None, reason) for cut, reason in rolled] == [(True, "one budget"), (False, ""), (False, "")]
    assert backtest.rolling(studies.as_rows(table((4e15, 1.2e16, 4e16, 1.3e17), 1e-4)), objectives.Huber()) == tuple(
        cut for cut, _ in rolled
    )


def test_one_ratio_does_not() -> None:
    params = np.geomspace(1e7, 1e9, 12)
    ray = pd.DataFrame({"params": params, "tokens": 20 * params, "flops": 120 * params**2})
    assert why(ray.assign(loss=studies.loss(LAW, params, 20 * params))) == "one ratio of tokens to parameters"


def test_what_is_held_is_known_whatever_the_runs_are() -> None:
    single = table(BUDGETS[:1], 1e-4)
    assert why(single, tie={"beta": "alpha"}) == ""
    assert why(single, fix={"alpha": 0.33, "beta": 0.3}) == ""
    assert why(single, form="chinchilla_tied") == ""
    assert why(single, fix={"alpha": 0.33}) == "one budget"


def test_noise_that_hides_it_does_not() -> None:
    """With 2 % of noise the interval of a covers 0 to 1; with a fiftieth of that it does not."""
    assert why(table(BUDGETS, 0.02), objectives.Squared()) == "its interval covers most of 0 to 1"
    assert why(table(BUDGETS, 4e-4), objectives.Squared()) == ""


def at(frame: pd.DataFrame, law: tuple[float, ...], loss: Any = None) -> tuple[Any, Any]:
    """Return the problem of these runs and a law as if it were their best fit."""
    rows = studies.as_rows(frame)
    p = fit_problem.problem(SURFACE, (rows.params, rows.tokens), rows.loss, loss or objectives.Squared())
    theta = SURFACE.internal(np.array([law]), p.centres)[0]
    return p, SimpleNamespace(theta=theta, objective=0.0, minima=None, evidence=SimpleNamespace(converged=True))


@pytest.mark.parametrize(
    ("law", "reason"),
    [
        (LAW, ""),
        ((1.9, 1e-9, 110.0, 0.33, 0.30), "A is on its bound"),
        ((1.9, 60.0, 1e-9, 0.33, 0.30), "B is on its bound"),
        ((4e-4, 60.0, 110.0, 0.33, 0.30), "E is on its bound"),
        ((2e-3, 60.0, 110.0, 0.33, 0.30), ""),
    ],
)
def test_a_term_that_is_gone(law: tuple[float, ...], reason: str) -> None:
    assert exponent._bound(*at(table(), law)) == reason


def test_a_constant_that_is_fixed_is_on_no_bound() -> None:
    rows = studies.as_rows(table())
    p, point = fitted(rows, fix={"E": 1e-5})
    assert exponent._bound(p, point) == ""


def test_an_exponent_beyond_0_to_1_is_none_of_a_best_size() -> None:
    for alpha, beta in ((-0.1, 0.3), (0.3, -0.1), (0.1, -0.1)):
        assert exponent._wide(*at(table(), (1.9, 60.0, 110.0, alpha, beta))) == "it is outside of 0 to 1"


def test_a_fit_that_did_not_converge_tells_none() -> None:
    rows = studies.as_rows(table(noise=0.0))
    p, point = at(table(noise=0.0), LAW)
    assert exponent.unidentified(p, point, rows) == ""
    point.evidence.converged = False
    assert exponent.unidentified(p, point, rows) == "the fit did not converge"


def test_laws_that_fit_as_well_may_differ_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    p, point = at(table(), LAW)

    def ends(*exponents: tuple[float, float]) -> str:
        low, high = (dict(zip(SURFACE.names, (*LAW[:3], *both), strict=True)) for both in exponents)
        monkeypatch.setattr(exponent, "flat", lambda *_: SimpleNamespace(low=low, high=high))
        return exponent._equal(p, point)

    assert ends((0.3, 0.3), (0.3, 0.3)) == ""
    assert ends((0.3, 0.3), (0.31, 0.33)) == "", "0.500 and 0.516"
    assert ends((0.3, 0.3), (0.3, 0.33)) == "laws that fit equally well differ in it", "0.500 and 0.524"
    assert ends((0.3, 0.33), (0.3, 0.3)) == "laws that fit equally well differ in it"
    assert ends((0.3, 0.3), (0.3, -0.3)) == "laws that fit equally well differ in it"
    monkeypatch.setattr(exponent, "flat", lambda *_: None)
    assert exponent._equal(p, point) == ""


def test_the_interval_is_student_s_by_the_delta_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: a = 0.5, its slopes by alpha and beta -+ 0.25/0.3, so that its spread is that of beta - alpha / 1.2."""
    p, point = at(table(), (1.9, 60.0, 110.0, 0.3, 0.3))
    df = p.y.size - 5
    t95 = {25: 2.0595}[df]

    def with_spread(of_a: float) -> str:
        cov = np.zeros((5, 5))
        cov[4, 4] = (of_a * 1.2) ** 2
        monkeypatch.setattr(covariance, "delta", lambda *_: cov)
        return exponent._wide(p, point)

    assert with_spread(0.399 / t95) == ""
    assert with_spread(0.401 / t95) == "its interval covers most of 0 to 1"
    assert math.isclose(exponent.CONFIDENCE, 0.95)
