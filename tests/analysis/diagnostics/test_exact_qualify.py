"""Whether a plan may rest on a law, from verdicts that are given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from analysis.diagnostics import backtest, qualify

KNOWN = SimpleNamespace(identified=True, reason="")
OPEN = SimpleNamespace(identified=False, reason="its term is not there")


def fit(*, converged: bool = True, **verdicts: Any) -> Any:
    form = SimpleNamespace(name="chinchilla", names=("E", "A"))
    optimizer = SimpleNamespace(converged=converged)
    problem = SimpleNamespace(loss="huber")
    held = {"E": 1.7, "beta": "alpha"}
    return SimpleNamespace(form=form, optimizer=optimizer, identified=verdicts, problem=problem, constraints=held)


def reaching(monkeypatch: pytest.MonkeyPatch, *factors: float) -> None:
    """Let backtests hold runs up to so many times the compute of their cuts."""

    def rolling(rows: object, loss: object, *, form: str, fix: object, tie: object) -> list[Any]:
        assert (rows, loss, form) == ("rows", "huber", "chinchilla")
        assert (fix, tie) == ({"E": 1.7}, {"beta": "alpha"}), "a law is tested as it was fitted"
        runs = [np.array([[2e18, 3.0], [4e18 * factor, 2.0], [3e18, 9e30]]) for factor in factors]
        return [SimpleNamespace(runs=one, flops=4e18) for one in runs]

    monkeypatch.setattr(backtest, "rolling", rolling)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (fit(), ""),
        (fit(E=KNOWN, A=KNOWN, a=KNOWN), ""),
        (fit(G=OPEN), ""),  # what is not a constant of the law, nor the rule of its optimum
        (fit(converged=False), "its fit did not converge"),
        (fit(E=KNOWN, A=OPEN), "A is not identified: its term is not there"),
        (fit(E=KNOWN, a=OPEN), "a is not identified: its term is not there"),
        (fit(b=OPEN), "b is not identified: its term is not there"),
    ],
)
def test_a_law_that_is_not_settled_holds_no_plan(monkeypatch: pytest.MonkeyPatch, found: Any, reason: str) -> None:
    reaching(monkeypatch, 2.5, 5.0)
    rows: Any = "rows"
    assert qualify.lacking(found, rows) == reason


@pytest.mark.parametrize(
    ("factors", "reason"),
    [
        ((2.0,), ""),
        ((1.5, 1.99), "no backtest shows how it extrapolates: cuts of compute reach 1.99×"),
        ((), "no backtest shows how it extrapolates: cuts of compute are none"),
    ],
)
def test_a_law_that_was_tested_to_twice_its_compute_holds_one(
    monkeypatch: pytest.MonkeyPatch, factors: tuple[float, ...], reason: str
) -> None:
    reaching(monkeypatch, *factors)
    rows: Any = "rows"
    assert qualify.reach(qualify.backtests(fit(), rows)) == pytest.approx(max(factors, default=0.0))
    assert qualify.lacking(fit(), rows) == reason


def test_backtests_that_are_made_already_are_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backtest, "rolling", lambda *_, **__: pytest.fail("made again"))
    rows: Any = "rows"
    cut: Any = SimpleNamespace(runs=((3e18, 0.1), (9e18, 0.2)), flops=3e18)
    assert qualify.reach([cut]) == pytest.approx(3.0)
    assert qualify.lacking(fit(), rows, [cut]) == ""
    assert qualify.lacking(fit(), rows, []).endswith("cuts of compute are none")
