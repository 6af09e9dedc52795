"""What a study's fit says, as metrics of the study's own run: constants, optimum, backtest, with intervals. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from analysis.text import numbers

LAW_GROUPS = ("law/", "optimum/", "backtest/")
OPTIMUM = {"budget_flops": "flops", "params": "params", "tokens": "tokens", "tokens_per_param": "tokens_per_param"}
"""Keys of the recommendation that are N*, D* and what they are of, under the names that they have in MLflow."""


def _loss(value: object) -> str:
    return numbers.number(value, 4)


SHOWN: Mapping[str, tuple[str, Callable[[object], str]]] = {
    "law/a": ("a: N\\* grows as C^a", numbers.number),
    "law/b": ("b: D\\* grows as C^b", numbers.number),
    "law/runs_used": ("runs that the fit used", numbers.count),
    "law/runs_total": ("runs in all", numbers.count),
    "optimum/flops": ("next run: budget [FLOPs]", numbers.scientific),
    "optimum/params": ("next run: parameters N\\*", numbers.amount),
    "optimum/tokens": ("next run: tokens D\\*", numbers.amount),
    "optimum/tokens_per_param": ("next run: tokens per parameter", numbers.number),
    "optimum/loss": ("next run: expected loss", _loss),
    "backtest/predicted": ("backtest: predicted loss", _loss),
    "backtest/observed": ("backtest: observed loss", _loss),
    "backtest/relative_error": ("backtest: error", partial(numbers.signed, decimals=1)),
    "backtest/mean_abs_relative_error": ("backtest: mean error of runs without signs", numbers.percent),
    "backtest/extrapolation_factor": ("backtest: compute beyond its fit", numbers.factor),
}
"""What a metric is in words, and how a person reads its numbers; other constants go by their own names."""


def law_metrics(fit: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of `fit.json`: `law/E`, with `law/E_low` and `law/E_high`; what it does not know is left out.

    Five digits each: a column of MLflow's table has room for no more.
    `optimum/params` and `optimum/tokens` are N* and D* for `optimum/flops`, `optimum/loss` the loss there [its unit];
    `backtest/…` is how far the law, fitted to smaller budgets, was off at the largest, relative to the loss.
    """
    return {name: float(f"{value:.5g}") for name, value in _numbers(fit) if math.isfinite(value)}


def law_words(fit: Mapping[str, Any]) -> dict[str, str]:
    """Return what of `fit.json` is text, as tags."""
    found = {"law/form": fit.get("form"), "law/status": fit.get("status"), "law/reason": fit.get("reason")}
    found["law/intervals"] = fit.get("interval_method")
    return {name: str(value) for name, value in found.items() if value}


def formula(fit: Mapping[str, Any]) -> str:
    """Return the law with its numbers in it, `L = 2.25 + 265/N^0.884 + 15.0/D^0.334`; "" for another form.

    A constant that is not identified stays a letter.
    """
    known = {name: value for name, value in (fit.get("params") or {}).items() if value is not None}
    if fit.get("status") != "ok" or not {"E", "A", "B", "alpha", "beta"} <= set(known):
        return ""
    identified = fit.get("identified") or {}
    said = {
        name: numbers.number(float(known[name])) if (identified.get(name) or {}).get("identified", True) else name
        for name in ("E", "A", "B", "alpha", "beta")
    }
    return "L = {E} + {A}/N^{alpha} + {B}/D^{beta}".format(**said)


def table(fit: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the numbers for a person, as the report writes them: what, value, interval ("" where there is none)."""
    found = law_metrics(fit)
    rows = {}
    for name, value in found.items():
        if not name.endswith(("_low", "_high")):
            word, show = SHOWN.get(name, (name.partition("/")[2], numbers.number))
            interval = numbers.interval((found.get(f"{name}_low"), found.get(f"{name}_high")), show)
            rows[name] = (word, show(value), "" if interval == numbers.MISSING else interval)
    if not rows:
        return []
    rows |= _unknown(fit)
    order = [f"law/{name}" for name in {**(fit.get("params") or {}), **(fit.get("derived") or {})}]
    first = {name: rows[name] for name in order if name in rows}
    return list({**first, **rows}.values())


def backtest(fit: Mapping[str, Any]) -> str:
    """Return how far the law was off at a budget that it had not seen; "" where that was not tried.

    Where the recommendation's loss is the frontier's, so is the error, and that is said.
    """
    test = fit.get("backtest") or {}
    error, budget = numbers.finite(test.get("relative_error")), test.get("held_out_budget")
    if error is None:
        return ""
    where = f" at {numbers.flops(budget)}" if budget else ""
    whose = " of the frontier" if _of_frontier(test) else ""
    return f"backtest{whose} {numbers.percent(abs(error))} too {'high' if error > 0 else 'low'}{where}"


def backtest_error(fit: Mapping[str, Any]) -> float | None:
    """Return predicted over observed loss - 1 at a budget that the law had not seen; None where that was not tried.

    None too where the error is not this law's but the frontier's.
    """
    test = fit.get("backtest") or {}
    return None if _of_frontier(test) else numbers.finite(test.get("relative_error"))


def _of_frontier(test: Mapping[str, Any]) -> bool:
    """Return whether a backtest is of the law of the lowest losses, which fit.json has under the valleys' name."""
    return test.get("approach") == "valleys"


def _unknown(fit: Mapping[str, Any]) -> dict[str, tuple[str, str, str]]:
    """Return the rows of constants that the runs do not tell, with the bound that they do tell."""
    rows = {}
    for name, said in (fit.get("identified") or {}).items():
        unknown = said is not None and not said.get("identified", True)
        if unknown and name in {**(fit.get("params") or {}), **(fit.get("derived") or {})}:
            word, _ = SHOWN.get(f"law/{name}", (name, numbers.number))
            rows[f"law/{name}"] = (word, "not identified", numbers.one_sided(said.get("side"), said.get("limit")))
    return rows


def _numbers(fit: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    runs = fit.get("runs") or {}
    yield from _known("law/runs_used", runs.get("used"))
    yield from _known("law/runs_total", runs.get("total"))
    identified, intervals = fit.get("identified") or {}, fit.get("intervals") or {}
    for name, value in {**(fit.get("params") or {}), **(fit.get("derived") or {})}.items():
        if (identified.get(name) or {}).get("identified", True):
            yield from _with_interval(f"law/{name}", value, intervals.get(name))
    best = fit.get("recommendation") or {}
    for key, name in {**OPTIMUM, "loss": "loss"}.items():
        yield from _with_interval(f"optimum/{name}", best.get(key), (best.get("intervals") or {}).get(key))
    back = fit.get("backtest") or {}
    for name in ("predicted", "observed", "relative_error", "mean_abs_relative_error", "extrapolation_factor"):
        yield from _known(f"backtest/{name}", back.get(name))


def _with_interval(name: str, value: Any, interval: Any) -> Iterator[tuple[str, float]]:
    yield from _known(name, value)
    if value is not None and interval:
        yield from _known(f"{name}_low", interval[0])
        yield from _known(f"{name}_high", interval[1])


def _known(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield name, float(value)
