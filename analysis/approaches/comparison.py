"""Approaches 1, 2 and 3 side by side, with their disagreement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.approaches import compute_optimal, envelope, isoflop, valleys
from analysis.approaches.valley_options import Choices
from analysis.estimation import observations
from analysis.inference import refusals
from analysis.inference.fit_law import fit_law
from analysis.inputs.dataset import Rows
from analysis.laws import registry
from analysis.text import numbers
from analysis.values.blocks import STATUS, Interval, PowerLaw, Valley
from train.spec import calls

if TYPE_CHECKING:
    import pandas as pd

    from analysis.inference.law_result import LawFit

SURFACE = "3 surface"
FEWEST_SIZES, FEWEST_MINIMA = 3, 3
COLUMNS = ["approach", "a", "a_low", "a_high", "b", "params", "tokens", "tokens_per_param", "points", "reason"]


@calls.answered(budget=calls.flops, resamples=calls.resamples, seed=calls.whole())
def side_by_side(
    runs: Any,
    budget: float | None = None,
    *,
    checkpoints: Any = None,
    resamples: int = 200,
    seed: int = 0,
    law: LawFit | None = None,
    choices: Choices = valleys.DEFAULT,
    judged: Sequence[Valley] | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Return one row an approach: a, its interval, b, N*, D*, tokens per parameter at `budget` [FLOPs], points, reason.

    `runs` has params, tokens, flops, loss; `checkpoints`, with the column run, are for approach 1 (default: `runs`
    where it has that column). The default budget is the largest run's. `options` are those of
    :func:`analysis.inference.fit_law.fit_law` for approach 3 (form, loss, delta, fix, tie, ...); `law` is its fit
    where there is one already, whose figures then stand in the table as they stand elsewhere. An approach that is not
    possible, or whose exponent the runs do not identify, has NaN and the reason: approach 2 rests on the budgets whose
    valley has a minimum (see :mod:`analysis.approaches.valleys`; `choices` are theirs, and `judged` the valleys
    where they are fitted already), three of them at least.
    `attrs["disagreement"]` is the largest ratio of N* between approaches.

    Examples
    --------
    >>> from pathlib import Path
    >>> from analysis import frame
    >>> runs = frame.used(frame.from_csv(Path("docs/example-runs.csv")))
    >>> table = side_by_side(runs, 1e21, resamples=0)
    >>> [name for name, reason in table["reason"].items() if not reason]
    ['2 parabola', '2 akima', '2 surface', '3 surface']
    """
    import pandas as pd

    table = observations.rows_of(runs)
    at = float(table.flops.max()) if budget is None else float(budget)
    curves = table if checkpoints is None else checkpoints
    if judged is None:
        judged = valleys.fit(table, resamples=0, seed=0, choices=choices).block.valleys
    asked = {"resamples": resamples, "seed": seed, **options}
    calls: dict[str, Callable[[], dict[str, Any]]] = {
        "1 envelope": lambda: _envelope(curves, at, resamples, seed, False),
        "1 hull": lambda: _envelope(curves, at, resamples, seed, True),
        **{f"2 {name}": partial(_isoflop, table, name, at, judged) for name in isoflop.METHODS},
    }
    lines = [_line(name, call) for name, call in calls.items()]
    out = pd.DataFrame([*lines, law_line(table, at, law, asked)]).reindex(columns=COLUMNS).set_index("approach")
    sizes = out["params"].dropna()
    out.attrs["budget"] = at
    out.attrs["disagreement"] = float(sizes.max() / sizes.min()) if len(sizes) > 1 else None
    return out


def law_line(table: Rows, budget: float, law: LawFit | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the line of approach 3 by one law: `law`, or what `options` of fit_law make of the rows."""
    form = options.get("form", "chinchilla") if law is None else law.form
    own = registry.named(form).name
    name = SURFACE if own == "chinchilla" else f"3 {own}"
    return _line(name, partial(_law, table, budget, law, {**options, "form": form}))


def _line(approach: str, call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return an approach's line of the table; where it is not possible the reason alone."""
    try:
        return {"approach": approach, **call(), "reason": ""}
    except ValueError as error:
        return {"approach": approach, "reason": str(error)}


def _isoflop(table: Rows, method: str, budget: float, judged: Sequence[Valley]) -> dict[str, Any]:
    """Return approach 2 by an interpolation, over the budgets whose valley has a minimum."""
    found = isoflop.optima(_with_minimum(table, judged), method)
    good = int(found["params_opt"].notna().sum())
    if good < FEWEST_MINIMA:
        raise ValueError(
            f"{numbers.counted(good, 'budget')} with a best size inside the sizes swept: two fix any power law, "
            "and three are needed to see whether it holds"
        )
    size, tokens = (isoflop.exponents(found, name) for name in ("params_opt", "tokens_opt"))
    return _from_laws(size, tokens, budget)


def _with_minimum(table: Rows, judged: Sequence[Valley]) -> Rows:
    """Return the rows of budgets whose valley has a minimum; ValueError says why the others are left out."""
    good = [v.flops_budget for v in judged if v.status == "minimum"]
    left = Counter(v.status for v in judged if v.status != "minimum")
    if len(good) < FEWEST_MINIMA:
        why = f" (the others: {', '.join(f'{n} {STATUS[status]}' for status, n in left.most_common())})" if left else ""
        raise ValueError(
            f"{numbers.counted(len(good), 'budget')} with a best size inside the sizes swept{why}: three are needed to "
            "see whether a power law holds"
        )
    return table.take(np.isin(table.labels[table.budget], good))


def _envelope(runs: Any, budget: float, resamples: int, seed: int, hull: bool) -> dict[str, Any]:
    found = envelope.fit(runs, resamples=resamples, seed=seed, hull=hull)
    return _from_laws(found.exponents["params"], found.exponents["tokens"], budget)


def _from_laws(size: PowerLaw, tokens: PowerLaw, budget: float) -> dict[str, Any]:
    n, d = (law.coefficient * (budget / law.reference_flops) ** law.exponent for law in (size, tokens))
    return _row(size.exponent, size.exponent_interval, tokens.exponent, n=n, d=d, points=size.points)


def _law(table: Rows, budget: float, law: LawFit | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return approach 3; ValueError where the rows do not hold the law, or do not identify the exponent of N*."""
    form = registry.named(options["form"])
    sizes = len(np.unique(table.size))
    if len(table) < len(form.names) + 1 or sizes < FEWEST_SIZES:
        raise ValueError(
            f"{numbers.counted(len(table), 'run')} of {numbers.counted(sizes, 'size')}; {len(form.names)} constants "
            f"need at least {len(form.names) + 1} runs of {FEWEST_SIZES} sizes"
        )
    if law is None:
        refusals.refuse(form, observations.read(table, form))
        law = fit_law(table, **options)
    on, price, ends = compute_optimal.priced(law, table)
    best = compute_optimal.by_law(on, price, budget, ends)
    if best is None:
        raise ValueError("the law has no best size at this budget near the sizes swept")
    verdict = law.identified.get("a")
    if verdict is not None and not verdict.identified:
        raise ValueError(f"a is not identified: {verdict.reason}")
    a, b = (float(law.derived[name]) if name in law.derived else np.nan for name in ("a", "b"))
    interval = law.block().intervals.get("a") if len(law.thetas) else None
    return _row(a, interval, b, n=best.params, d=best.tokens, points=law.nobs)


def _row(a: float, interval: Interval | None, b: float, *, n: float, d: float, points: int) -> dict[str, Any]:
    low, high = interval or (np.nan, np.nan)
    return {
        "a": a, "a_low": low, "a_high": high, "b": b, "params": n, "tokens": d, "tokens_per_param": d / n,
        "points": points,
    }  # fmt: skip
