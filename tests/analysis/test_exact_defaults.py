"""What commands and functions of the analysis do unless they are told, and that a command says so itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from analysis.diagnostics import backtest
from analysis.planning import next_runs
from analysis.results import as_fitted

COMMANDS = {
    "plan": {"resamples": "1000", "seed": "0", "form": "chinchilla", "strict": "yes"},
    "next": {"count": "8", "simulate": "100", "seed": "0", "form": "chinchilla"},
    "backtest": {"cuts": "8", "loss": "huber", "delta": "0.001", "form": "chinchilla"},
    "score": {"show": "20"},
    "compare": {"resamples": "0", "seed": "0", "loss": "squared"},
}


@pytest.mark.parametrize("command", COMMANDS)
def test_defaults_of_a_command(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "118")  # a key is one line
    assert import_module(f"analysis.{command}").main(["help"]) == 0
    said = capsys.readouterr().out
    for name, default in COMMANDS[command].items():
        line = next(line for line in said.splitlines() if re.match(rf"  {name} ", line))
        assert re.search(rf"(?<![\d.]){re.escape(default)}(?![\d.])", line), line


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    return {
        name: one.default
        for name, one in inspect.signature(function).parameters.items()
        if one.default is not one.empty
    }


def test_defaults_of_functions(capsys: pytest.CaptureFixture[str]) -> None:
    of_plan = defaults(import_module("analysis.plan").plan)
    assert (of_plan["resamples"], of_plan["seed"]) == (1000, 0)
    of_next = defaults(import_module("analysis.next").next_runs)
    assert (of_next["count"], of_next["simulate"], of_next["seed"]) == (8, 0, 0)
    assert defaults(next_runs.next_runs)["seed"] == 0
    of_backtest = defaults(import_module("analysis.backtest").backtest)
    assert (of_backtest["cuts"], dict(as_fitted.USUAL)) == (
        8,
        {"form": "chinchilla", "loss": "huber", "delta": 1e-3, "fix": {}, "tie": {}},
    )
    assert set(defaults(backtest.backtest)) >= {"factor", "choices"}
    for command in ("plan", "next", "backtest"):  # their modules are run as well
        assert import_module(f"analysis.{command}").main(["help"]) == 0
    assert "usage: python -m analysis.backtest" in capsys.readouterr().out
