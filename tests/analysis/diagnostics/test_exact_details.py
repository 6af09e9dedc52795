"""What diagnoses say in single cases, by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.diagnostics import at_rows, backtest, exponent, findings, suspects, two_units
from analysis.estimation import fit_problem, objectives
from analysis.inference import covariance
from analysis.inputs.dataset import rows
from analysis.laws.sum_of_powers import SURFACE
from tests.analysis import studies
from tests.analysis.diagnostics.test_exact_exponent import BUDGETS, LAW, at, fitted, table


def test_losses_of_one_row_are_judged() -> None:
    one = {"key": ["a"], "loss": [2.0], "flops": [math.nan], "loss_unit": ["nats per token"]}
    assert at_rows._of_losses(pd.DataFrame(one)) == []
    (found,) = at_rows._of_losses(pd.DataFrame({**one, "loss": [40.0]}))
    assert found.code == "perplexity"


@pytest.mark.parametrize(
    ("words", "command"),
    [("runs=a.csv", "python -m analysis.fit runs=a.csv form=compute"), (None, "form=compute"), ("", "form=compute")],
)
def test_what_is_typed_to_fit_compute_alone(words: str | None, command: str) -> None:
    frame = pd.DataFrame()
    frame.attrs = {} if words is None else {"words": words}
    assert at_rows.alone(frame) == command


@pytest.mark.parametrize(("of", "approach"), [(None, None), ("surface", ""), ("frontier", "")])
def test_where_nothing_can_be_tested_what_was_asked_for_says_why(of: str | None, approach: str | None) -> None:
    train: Any = SimpleNamespace(labels=np.array([1e18]), flops=np.array([1e18]))
    test = SimpleNamespace(labels=np.array([1e20]))
    held: Any = SimpleNamespace(test=test, flops=1e20, loss=2.0, by_frontier=lambda train, floor: None)
    law: Any = SimpleNamespace(form=SimpleNamespace(name="chinchilla"), foreseen=lambda train, test: None)
    found = backtest._tested(train, held, law, of)
    assert (None if found is None else found.approach) == approach
    assert found is None or (found.relative_error is None and found.reason and found.extrapolation_factor == 100.0)


def test_one_budget_identifies_none_unless_it_is_held() -> None:
    single = table(BUDGETS[:1])
    rows_of_one = studies.as_rows(single)
    assert exponent.unidentified(*at(single, LAW), rows_of_one) == "one budget"
    columns = (rows_of_one.params, rows_of_one.tokens)
    p = fit_problem.problem(SURFACE, columns, rows_of_one.loss, objectives.Squared(), fix={"alpha": 0.33, "beta": 0.3})
    point: Any = SimpleNamespace(theta=SURFACE.internal(np.array([LAW]), p.centres)[0])
    assert exponent._held(p, point) is True and exponent.unidentified(p, point, rows_of_one) == ""


def test_an_exponent_of_one_is_none_of_a_best_size() -> None:
    assert exponent._wide(*at(table(), (1.9, 60.0, 110.0, 0.0, 0.3))) == "it is outside of 0 to 1"
    assert exponent._wide(*at(table(), (1.9, 60.0, 110.0, 0.3, 0.0))) == "it is outside of 0 to 1"


def test_constants_that_are_held_leave_degrees_of_freedom(monkeypatch: pytest.MonkeyPatch) -> None:
    """With E held four are free: of six runs two degrees of freedom, whose t is 4.303."""
    few = studies.as_rows(table().iloc[[0, 4, 7, 10, 12, 14]])
    p, point = fitted(few, fix={"E": 1.9})
    slopes: Any = exponent._of(p, point.theta + 1e-6 * np.eye(5)) - exponent._of(p, point.theta[None])
    for of_a, wide in ((0.39 / 4.303, False), (0.41 / 4.303, True)):
        cov = np.zeros((5, 5))
        cov[4, 4] = (of_a / (slopes[4] / 1e-6)) ** 2
        monkeypatch.setattr(covariance, "delta", lambda *_, cov=cov: cov)
        assert bool(exponent._wide(p, point)) is wide


def test_as_many_constants_as_runs_leave_one_degree_of_freedom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(covariance, "delta", lambda *_: np.zeros((5, 5)))
    assert exponent._wide(*at(table().iloc[[0, 4, 7, 10, 14]], LAW)) == ""
    cov = np.zeros((5, 5))
    cov[4, 4] = 0.05**2
    monkeypatch.setattr(covariance, "delta", lambda *_: cov)
    assert exponent._wide(*at(table().iloc[[0, 4, 7, 10, 14]], LAW)) == "its interval covers most of 0 to 1"


def test_a_value_beyond_its_interval_has_six_decimals_at_most() -> None:
    assert findings._apart(4.04, -4.0, 4.0) == ("+4.04", "-4.00", "+4.00")
    assert findings._apart(4.00000004, -4.0, 4.0) == ("+4.000000", "-4.000000", "+4.000000")


def test_a_row_in_bits_lies_apart_from_its_neighbours_too() -> None:
    places = np.stack((np.arange(30.0), np.arange(30.0)), axis=1)
    left = np.zeros(30)
    left[15] = two_units.BITS
    found = suspects._in_bits(left, suspects._scored(left)[1], places, 1.0 + left)
    assert found is not None and np.flatnonzero(found).tolist() == [15]
    left[10:21] = 0.15
    left[15] = two_units.BITS
    assert suspects._in_bits(left, suspects._scored(left)[1], places, 1.0 + left) is None, (
        "those beside it are high too"
    )


@pytest.mark.parametrize(("bits", "said"), [([7], "1 loss is 1.44 times"), ([7, 20], "2 losses are 1.44 times")])
def test_losses_in_bits_are_counted(bits: list[int], said: str) -> None:
    runs = studies.isoflop(2, noise=1e-4, ratios=(2, 4, 8, 16, 32, 64), budgets=(1e17, 4e17, 1.6e18, 6.4e18, 2.5e19))
    loss = runs["loss"].to_numpy(copy=True)
    loss[bits] /= math.log(2)
    flops = runs["flops"].to_numpy()
    keys = tuple(f"r{n}" for n in range(len(runs)))
    there = rows(keys, params=runs["params"].to_numpy(), tokens=runs["tokens"].to_numpy(), flops=flops, loss=loss,
                 nominal=flops)  # fmt: skip
    found = suspects.findings(there, "nats per token")
    assert [check.code for check in found] == ["mixed_units"] and found[0].message.startswith(said)
