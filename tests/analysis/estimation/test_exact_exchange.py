"""Rows at one ratio of N and D: their terms may exchange their constants. Which law is given, and what is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis import fit_law
from analysis.estimation import exchange, fit_problem, multistart
from analysis.estimation.objectives import Huber, Squared
from analysis.estimation.optimizer import Minimum
from analysis.inference import flat
from analysis.laws.registry import FORMS
from tests.analysis import studies
from tests.analysis.rounded_logs import rounded_logs


def problem(frame: pd.DataFrame, form: str = "chinchilla", loss: Any = None, **held: Any) -> fit_problem.Problem:
    rows = studies.as_rows(frame)
    columns = [rows.column(name) for name in FORMS[form].inputs]
    return fit_problem.problem(FORMS[form], columns, rows.loss, loss or Huber(), **held)


@pytest.mark.parametrize(
    ("held", "order"),
    [
        ({}, [0, 2, 1, 4, 3]),
        ({"fix": {"E": 1.7}}, [0, 2, 1, 4, 3]),
        ({"fix": {"alpha": 0.3, "beta": 0.3}}, [0, 2, 1, 4, 3]),
        ({"fix": {"alpha": 0.3}}, None),
        ({"fix": {"alpha": 0.3, "beta": 0.2}}, None),
        ({"tie": {"beta": "alpha"}}, None),
        ({"form": "chinchilla_no_floor"}, [1, 0, 3, 2]),
        ({"form": "chinchilla_tied"}, [0, 2, 1, 3]),
        ({"form": "kaplan"}, None),
    ],
)
def test_which_laws_have_terms_to_exchange(held: dict[str, Any], order: list[int] | None) -> None:
    found = exchange.exchange_of(problem(studies.ray(), **held))
    assert (None if found is None else found.tolist()) == order


def test_rows_at_two_ratios_tell_the_terms_apart() -> None:
    assert exchange.exchange_of(problem(studies.isoflop(3, noise=0.0))) is None
    near = studies.ray()
    tokens = near["tokens"].to_numpy() * np.where(np.arange(12) == 3, 1.00001, 1.0)
    assert exchange.exchange_of(problem(near.assign(tokens=tokens))) is None


def minima(thetas: list[list[float]]) -> Minimum:
    """Return minima whose metric is of each its own, not symmetric under an exchange."""
    count, size = len(thetas), len(thetas[0])
    metric = np.arange(float(count * size * size)).reshape(count, size, size)
    return Minimum(np.array(thetas), np.zeros(count), np.zeros(count), metric, 3)


def test_the_larger_term_is_put_first() -> None:
    given = minima([[0.5, 1.0, 0.2, 0.3, -1.0], [0.5, 0.2, 1.0, -1.0, 0.3], [0.5, 0.2, 0.2, 0.1, 0.2]])
    found = exchange.oriented(problem(studies.ray()), given)
    assert found.theta.tolist() == [[0.5, 1.0, 0.2, 0.3, -1.0], [0.5, 1.0, 0.2, 0.3, -1.0], [0.5, 0.2, 0.2, 0.1, 0.2]]
    order = [0, 2, 1, 4, 3]
    np.testing.assert_array_equal(found.metric[[0, 2]], given.metric[[0, 2]])
    np.testing.assert_array_equal(found.metric[1], given.metric[1][np.ix_(order, order)])
    assert given.theta[1].tolist() == [0.5, 0.2, 1.0, -1.0, 0.3], "what is given stays"
    grid = problem(studies.isoflop(3, noise=0.0))
    assert exchange.oriented(grid, given) is given


def test_what_is_searched_is_exchanged_with_it() -> None:
    """With E held, the metric is of the four others."""
    given = minima([[0.2, 1.0, -1.0, 0.3]])
    theta = np.array([[0.5, *given.theta[0]]])
    found = exchange.oriented(
        problem(studies.ray(), fix={"E": 1.7}), Minimum(theta, given.value, given.gradient, given.metric, 3)
    )
    assert found.theta.tolist() == [[0.5, 1.0, 0.2, 0.3, -1.0]]
    np.testing.assert_array_equal(found.metric[0], given.metric[0][np.ix_([1, 0, 3, 2], [1, 0, 3, 2])])


@pytest.mark.parametrize("held", [{}, {"fix": {"E": 1.5}}], ids=["free", "E"])
def test_neither_the_order_of_the_rows_nor_of_the_starts_chooses_the_law(
    held: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = studies.ray()
    first = multistart.fit_point(problem(frame, **held))
    assert first.theta[1] > first.theta[2], "the term of N is the larger one"
    turned = multistart.fit_point(problem(frame.iloc[::-1].reset_index(drop=True), **held))
    np.testing.assert_allclose(turned.constants, first.constants, rtol=1e-6)
    own = multistart.starts_of
    monkeypatch.setattr(multistart, "starts_of", lambda p, count: own(p, count)[::-1][:, [0, 2, 1, 4, 3]])
    exchanged = multistart.fit_point(problem(frame, **held))
    np.testing.assert_allclose(exchanged.constants, first.constants, rtol=1e-6)


@pytest.mark.parametrize("seed", [10, 24, 31, 42])
def test_a_processor_of_another_kind_finds_the_same_law(seed: int) -> None:
    """These draws of rounding once moved B by 1e-4."""
    p = problem(studies.ray())
    exact = multistart.fit_point(p)
    with rounded_logs(p.form, 9, seed):
        found = multistart.fit_point(p)
    np.testing.assert_allclose(found.constants, exact.constants, rtol=1e-8)


def test_the_exchange_is_a_flat_optimum_in_words() -> None:
    fit = fit_law(studies.ray(), resamples=0)
    assert fit.flat is not None and fit.flat.exchanged == ("params", "tokens")
    low, high = fit.flat.low, fit.flat.high
    both = [low, high] if low["A"] == pytest.approx(fit.params["A"]) else [high, low]
    assert [both[1][name] for name in ("alpha", "beta")] == [both[0][name] for name in ("beta", "alpha")]
    predicted = [studies.loss(tuple(end.values()), studies.ray()["params"], studies.ray()["tokens"]) for end in both]
    np.testing.assert_allclose(predicted[0], predicted[1], rtol=1e-9)
    (told,) = (check for check in fit.check() if check.code == "flat_optimum")
    assert told.message.startswith("N and D have one ratio in all rows: the law fits them equally well where the terms")
    assert told.message.endswith("; the one with the larger term of N is given")
    assert "alpha" in told.message and "E " not in told.message
    assert told.advice.startswith("the constants of N and D cannot be told apart")


def test_terms_with_the_same_constants_have_nothing_to_exchange() -> None:
    p = problem(studies.ray(), loss=Squared())
    point: Any = type("Point", (), {"theta": np.array([0.5, 0.2, 0.2, 0.3, 0.3])})()
    assert flat._exchanged(p, point) is None
    point.theta = np.array([0.5, 0.2, 0.25, 0.3, 0.3])
    found = flat._exchanged(p, point)
    assert found is not None and found.moved > flat.MOVED
    grid = problem(studies.isoflop(3, noise=0.0))
    assert flat._exchanged(grid, point) is None
