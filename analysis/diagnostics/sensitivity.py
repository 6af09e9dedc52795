"""How much a quantity moves with choices that are seldom printed: the table that goes with every interval."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from analysis import forked
from analysis.estimation import objectives, observations
from analysis.inference.fit_law import fit_law
from analysis.inference.intervals import METHODS
from analysis.inputs.dataset import budget_levels
from analysis.laws.base import Array, Form
from analysis.laws.registry import named
from analysis.text import numbers
from train.spec import calls

if TYPE_CHECKING:
    import pandas as pd

    from analysis.inference.law_result import LawFit

DROPPED = (1, 5, 10, 20)
DELTAS = (1e-4, 1e-3, 1e-2, 1e-1)
CUTS = (0.25, 0.5, 0.75)
Choice = tuple[str, str, Mapping[str, Array], Mapping[str, Any]]
"""Choice, option, columns, changed arguments of fit_law."""
MOST_FORKED = 20_000
"""Rows up to which fits of several choices share the cores: a fit of more takes the memory of some of them."""
COUNTS = ("params_total", "params_matmul", "params_non_embedding", "params_no_embed")


@calls.answered(
    partial(calls.names_of, fit_law, "runs", "form"),
    resamples=calls.resamples, seed=calls.whole(), delta=calls.positive,
)  # fmt: skip
def sensitivity(
    runs: Any,
    form: str | Form = "chinchilla",
    quantity: str | Callable[[LawFit], float] = "a",
    *,
    loss: str | objectives.Loss = "huber",
    delta: float = 1e-3,
    resamples: int = 200,
    seed: int = 0,
    **options: Any,
) -> pd.DataFrame:
    """Return `quantity` under other choices, one row a choice, the first row the fit as it is.

    Choices: outlier rule (the k highest losses left out), loss function and Huber's delta, count of parameters
    (columns `params_total`, ... where they are there), selection of the learning rate (its best per setting, where
    `lr` is swept), range of compute (the smallest or largest budgets left out, each as a whole). `quantity` is the
    name of a constant or derived quantity, or a function of a fit. Columns: choice, option, value, low and high (by
    the method `interval`, an option of fit_law), shift (value less the first row's), nobs. `shift` beyond the first
    row's interval is what that interval does not hold.

    Examples
    --------
    >>> from pathlib import Path
    >>> from analysis import frame
    >>> runs = frame.used(frame.from_csv(Path("docs/example-runs.csv")))
    >>> table = sensitivity(runs, resamples=0)
    >>> str(table["option"].iloc[0]), bool(table["shift"].abs().max() > 0)
    ('as fitted', True)
    """
    import pandas as pd

    law = named(form)
    table = table_of(observations.table(runs), law)
    base = {"loss": loss, "delta": delta, "resamples": resamples, "seed": seed, **options}
    choices = list(_choices(table, law, base))
    few = len(table[law.target]) <= MOST_FORKED
    fitted = partial(_fitted, law, quantity, base)
    out = pd.DataFrame(forked.each(fitted, choices, forked.cores() if few else 1))
    out.insert(5, "shift", out["value"] - out["value"].iloc[0])
    return out


def _fitted(
    law: Form, quantity: str | Callable[[LawFit], float], base: Mapping[str, Any], made: Choice
) -> dict[str, Any]:
    """Return the table's line of one choice; too few rows for the law: the line has no value."""
    choice, option, chosen, changed = made
    line = {"choice": choice, "option": option, "value": np.nan, "low": np.nan, "high": np.nan}
    try:
        fit = fit_law(chosen, law, **{**base, **changed})
        line["value"] = quantity(fit) if callable(quantity) else float({**fit.params, **fit.derived}[quantity])
        if isinstance(quantity, str) and base["resamples"]:
            line["low"], line["high"] = METHODS[fit.interval].interval(fit, quantity, 1.0 - fit.confidence)
        return {**line, "nobs": fit.nobs}
    except ValueError:
        return {**line, "value": np.nan, "nobs": len(chosen[law.target])}
    except KeyError:
        held = (*law.names, *fit.derived.keys())
        raise ValueError(calls.none_such("quantity", str(quantity), law.name, held)) from None


def table_of(runs: Any, form: Form) -> dict[str, Array]:
    """Return the columns (n,) that a choice can act on, by name."""
    names = dict.fromkeys((*form.inputs, form.target, *observations.OTHERS, "flops_budget", *COUNTS))
    found = {}
    for name in names:
        values = observations.optional_column(runs, name)
        if values is not None:
            found[name] = values
    data = observations.read(runs, form)
    return {**found, "size_group": data.size.astype(float), "run": data.run_numbers.astype(float)}


def _choices(table: Mapping[str, Array], form: Form, base: Mapping[str, Any]) -> Iterator[Choice]:
    """Yield (choice, option, columns, changed arguments of fit_law)."""
    n = len(table[form.target])
    yield "none", "as fitted", table, {}
    highest = np.argsort(-table[form.target], kind="stable")
    for k in DROPPED:
        if k < 0.25 * n:
            option = "without the highest loss" if k == 1 else f"without the {k} highest losses"
            yield "outliers", option, _take(table, np.sort(highest[k:])), {}
    for delta in DELTAS:
        if base["loss"] != "huber" or delta != base["delta"]:
            yield "loss function", f"huber, delta {delta:g}", table, {"loss": "huber", "delta": delta}
    for name in ("squared", "l1", "student_t"):
        if base["loss"] != name:
            yield "loss function", name, table, {"loss": name}
    for name in COUNTS:
        if name in table and "params" in form.inputs and _another(table[name], table["params"]):
            yield "parameter count", name, {**table, "params": table[name]}, {}
    for option, rows in _selections(table, form):
        yield "learning rate", option, _take(table, rows), {}
    if "flops" in table:
        for option, rows in _ranges(table):
            yield "compute range", option, _take(table, rows), {}


def _another(count: Array, fitted: Array) -> bool:
    """Return whether a count of parameters is known of every row, and not the one of the fit itself."""
    return bool(np.isfinite(count).all() and (count > 0).all()) and not np.array_equal(count, fitted)


def _ranges(table: Mapping[str, Array]) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield ranges of compute with the rows that each keeps: whole budgets, however their exact FLOPs are rounded."""
    nominal = table.get("flops_budget", np.full(len(table["flops"]), np.nan))
    level = budget_levels(table["flops"], nominal)
    cuts = [float(np.quantile(level, share, method="lower")) for share in CUTS]
    cuts = [cut for cut in cuts if cut < level.max()]
    for cut in dict.fromkeys(cuts):
        yield f"up to {numbers.flops(cut)}", np.flatnonzero(level <= cut)
    for cut in dict.fromkeys(cuts[:2]):
        kept = level > cut
        yield f"from {numbers.flops(level[kept].min())}", np.flatnonzero(kept)


def _selections(table: Mapping[str, Array], form: Form) -> list[tuple[str, NDArray[np.int64]]]:
    """Return ways of choosing the learning rate, where it was swept, with the rows that each keeps."""
    if not {"lr", "params", "tokens"} <= set(table) or form.target != "loss":
        return []
    best = _best_rates(table)
    if best is None:
        return []
    fixed = [(f"{rate:.3g} everywhere", np.flatnonzero(table["lr"] == rate)) for rate in _common(table["lr"])]
    return [("best of each setting", best), *fixed]


def _take(table: Mapping[str, Array], index: NDArray[np.int64]) -> dict[str, Array]:
    return {name: values[index] for name, values in table.items()}


def _best_rates(table: Mapping[str, Array]) -> NDArray[np.int64] | None:
    """Return the rows of lowest loss in each setting of equal N and D; None where no rate was swept."""
    keys = np.round(np.log(np.stack((table["params"], table["tokens"]))), 6)
    _, cell = np.unique(keys, axis=1, return_inverse=True)
    cell = cell.ravel()
    if len(np.unique(cell)) == len(cell):
        return None
    order = np.lexsort((table["loss"], cell))
    first = np.concatenate(([True], np.diff(cell[order]) > 0))
    return np.sort(order[first])


def _common(rates: Array) -> list[float]:
    """Return the rates that most rows share, at most three."""
    values, counts = np.unique(rates, return_counts=True)
    return [float(v) for v in values[np.argsort(-counts, kind="stable")][:3]]
