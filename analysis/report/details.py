"""The report's later pages: constants, checks, runs, what was left out, how it was done."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from analysis.report import formula, terminal
from analysis.report.alone import is_alone
from analysis.report.answer import loss
from analysis.report.figures.data import Row
from analysis.report.html import Html, join, table, tag
from analysis.text import numbers
from analysis.values.blocks import STATUS, Block, Check, Optimizer
from analysis.values.findings import LEVELS
from analysis.values.study_result import Fit

OPEN_ROWS = 40
FEW = 12
MOST_ROWS = 1000
FEW_RESAMPLES = 200
"""What a fit under another choice, or by another approach, takes at most (analysis.results.evidence)."""
WAYS = {
    "1 envelope": "1 learning curves: envelope",
    "1 hull": "1 learning curves: hull",
    "2 parabola": "2 valleys: parabola of ln loss",
    "2 akima": "2 valleys: Akima spline",
    "2 surface": "2 valleys: local surface",
    "valleys": "2 valleys: parabola of loss",
}
"""What the approaches of the table are, by their names in fit.json."""
_LEVELS = {level: place for place, level in enumerate(LEVELS)}


def constants(fit: Fit) -> Html:
    """Return every constant of every law with its interval, or the reason why there is none."""
    rows: list[list[str]] = []
    laws: list[Html] = []
    sides = {"surface": "L(N, D) = ", "frontier": "L(C) = ", "law": "the law asked for: "}
    further = [("law", fit.fits.law), ("envelope", fit.fits.envelope)]
    every = [("surface", fit.fits.surface), ("valleys", fit.fits.valleys), ("frontier", fit.fits.frontier)]
    for title, block in [(name, b) for name, b in further if b is not None] + every:
        if block.status != "ok":
            if is_alone(fit):
                continue
            laws.append(tag("li", f"{title}: not possible ({block.reason or 'no reason given'})"))
            continue
        laws.append(tag("li", f"{title}: {sides.get(title, '')}", formula.law(block.form, {})))
        rows += [_constant(title, name, block, fit) for name in (*block.params, *block.derived)]
    head = ["law", "constant", "value", f"{numbers.percent(fit.confidence)} interval"]
    return join(
        tag("ul", *laws),
        table(head, rows, ["whole", "whole", "number", ""], "fitted constants") if rows else "",
        "" if is_alone(fit) else tag("p", formula.prose(_references(fit)), class_="quiet"),
    )


def warned(fit: Fit) -> Html:
    """Return how many warnings there are, with the way to them; empty where there are none."""
    count = sum(check.level == "warning" for check in _found(fit))
    link = tag("a", "What to be careful about", href="#checks")
    return tag("p", f"{numbers.counted(count, 'warning')}: see ", link, ".", class_="unknown") if count else Html("")


def checks(fit: Fit) -> Html:
    """Return findings with their advice, errors first, each once."""
    ordered = _found(fit)
    if not ordered:
        return tag("p", "No check found anything to warn about.")
    items = [
        tag(
            "li",
            tag("span", check.level, class_="level"),
            _sentence(check.message),
            " ",
            tag("span", check.to_do, class_="quiet"),
            class_=check.level if check.level in _LEVELS else "warning",
        )
        for check in ordered
    ]
    return tag("ul", *items, class_="checks")


def _found(fit: Fit) -> list[Check]:
    """Return the findings, errors first, each once."""
    seen: dict[tuple[str, str], Check] = {}
    asked = fit.fits.law is not None and fit.fits.law.status == "ok"  # the surface's constants are then not the answer
    for block in (fit, fit.fits.valleys, *(() if asked else (fit.fits.surface,)), fit.fits.frontier):
        for check in block.checks:
            seen.setdefault((check.code, check.message), check)
    return sorted(seen.values(), key=lambda check: _LEVELS.get(check.level, 1))


def ways(fit: Fit) -> Html:
    """Return the exponent and the optimum by every approach and way of finding a valley's lowest point."""
    body: list[list[str]] = []
    remarks: list[Html] = []
    none: dict[tuple[str, str], list[str]] = {}
    lines = fit.record.get("approaches", ())
    for line in lines:
        if line.get("params") is None:
            kind, _, how = way(line).partition(": ")
            none.setdefault((kind, str(line.get("reason"))), []).append(how)
            continue
        bounds = numbers.interval((line.get("a_low"), line.get("a_high")))
        sizes = [numbers.amount(line.get("params")), numbers.amount(line.get("tokens"))]
        exponents = [numbers.number(numbers.settled(line["a"])), bounds, numbers.number(line.get("b"))]
        body.append([way(line), *exponents, *sizes])
        if line.get("note"):
            remarks.append(tag("li", f"{way(line)}: ", tag("span", str(line["note"]), class_="quiet")))
    for (kind, reason), hows in none.items():
        tried = f"{kind}: {', '.join(hows)}" if all(hows) else kind
        remarks.append(tag("li", f"{tried}: ", tag("span", reason, class_="quiet")))
    if not body and not remarks:
        return Html("")
    body += _further(fit, {str(line["approach"]) for line in lines if line.get("params") is not None})
    body.sort(key=lambda row: (not row[0][:1].isdecimal(), row[0][:1]))  # those of an approach together
    head = ["approach", "a", "interval of a", "b", "N*", "D*"]
    grid = table(head, body, ["", "number", "nowrap", "number", "number", "number"], "approaches side by side")
    why = tag("ul", *remarks) if remarks else ""
    note = (
        "Approach 1 follows the lower edge of all learning curves. Approach 2 takes the lowest point of each budget's "
        "valley, found in several ways: figures and recommendations show the parabola of loss. Approach 3 fits a "
        "surface to all runs. "
    )
    if fit.recommendation is not None:
        note += f"N* and D* are for {numbers.flops(fit.recommendation.budget_flops)}. "
    note += "a + b is 1 only where FLOPs are in proportion to N D."
    said = tag("p", note, class_="caption") if body else ""
    return join(tag("h3", "All approaches side by side"), said, grid if body else "", why)


def way(line: Mapping[str, Any]) -> str:
    """Return what an approach is, in words."""
    name = str(line.get("approach"))
    return WAYS.get(name, name)


def _further(fit: Fit, there: set[str]) -> list[list[str]]:
    """Return rows of the approaches that can be recommended, those left out that stand there by another name."""
    rows = []
    named = {"surface"} if "3 surface" in there else set()
    for name, plan in (fit.recommendation.by_approach if fit.recommendation is not None else {}).items():
        if name in there | named:
            continue
        block: Block | None = getattr(fit.fits, name, None)
        grown = {n: _growth(block, n, name in ("surface", "law")) for n in ("a", "b")}
        known = numbers.interval(block.intervals.get("a") if block is not None and grown["a"] is not None else None)
        sizes = [numbers.amount(plan.params), numbers.amount(plan.tokens)]
        rows.append([WAYS.get(name, name), numbers.number(grown["a"]), known, numbers.number(grown["b"]), *sizes])
    return rows


def _growth(block: Block | None, name: str, of_loss: bool) -> float | None:
    """Return an exponent of N* or D* where this block has one that is identified.

    What a law of the loss calls a and b itself, as Gadre et al. their coefficients, are no exponents of N* and D*.
    """
    if block is None or (name in block.identified and not block.identified[name].identified):
        return None
    return block.derived.get(name) if of_loss else block.derived.get(name, block.params.get(name))


def sensitivity(fit: Fit) -> Html:
    """Return the table of what other choices of the analysis would give."""
    if not fit.sensitivity:
        return tag("p", "No table was made: it needs a surface (and sensitivity=yes).")
    body = []
    for line in fit.sensitivity:
        bounds = numbers.interval(None if line.low is None else (line.low, line.high))
        if line.value is None:
            bounds = "none: the law cannot be fitted to these runs"
        body.append([line.choice, line.words, numbers.number(line.value), bounds, str(line.rows)])
    head = ["choice", "option", f"exponent {fit.sensitivity[0].quantity}", "interval", "runs"]
    grid = table(head, body, ["", "", "number", "", "number"], "sensitivity")
    few = fit.resamples > FEW_RESAMPLES
    note = f"Intervals of other choices are of {FEW_RESAMPLES} resamples, that of the fit of {fit.resamples}."
    return join(tag("p", note, class_="caption") if few else "", grid)


def dropped(fit: Fit, rows: Sequence[Row]) -> Html:
    """Return the runs and budgets that took no part, each with its reason."""
    found: dict[str, tuple[str, str]] = {r.key: (r.drop_code, r.drop_reason) for r in rows if not r.used}
    for row in fit.rows_dropped:
        found.setdefault(row.key, (row.code, row.reason))
    parts = []
    if found:
        body: list[list[str]] = [
            [tag("code", key), code.replace("_", " "), reason]
            for key, (code, reason) in itertools.islice(found.items(), MOST_ROWS)
        ]
        parts.append(table(["run", "why", "in full"], body, ["nowrap", "nowrap", ""], "runs left out"))
        if len(found) > MOST_ROWS:
            parts.append(tag("p", f"… and {len(found) - MOST_ROWS} more: see runs.csv.", class_="quiet"))
    left = [v for v in fit.fits.valleys.valleys if v.status != "minimum"]
    if left:
        body = [[numbers.flops(v.flops_budget, 3), STATUS.get(v.status, v.status), v.reason] for v in left]
        parts.append(tag("h3", "Budgets without a usable minimum"))
        grid = table(["budget", "why", "in full"], body, ["nowrap", "nowrap", ""], "budgets left out")
        parts.append(grid if len(body) <= FEW else tag("details", tag("summary", f"Show all {len(body)}"), grid))
    return join(*parts) if parts else tag("p", "None: every run and every budget was used.")


def runs(fit: Fit, rows: Sequence[Row]) -> Html:
    """Return the table of runs, folded away where it is long; what all runs share is said once, above it."""
    shown = heapq.nsmallest(MOST_ROWS, rows, lambda r: (_last(r.budget), _last(r.params), not r.used, r.key))
    head = ["run", "budget C", "N", "D", "D/N", "loss", "predicted", "error"]
    kinds = ["nowrap"] + ["number"] * 7
    shared, extra = _extras(rows)
    head += list(extra)
    kinds += ["number extra"] * len(extra)
    body = [_run(row) + [show(row) for show in extra.values()] for row in shown]
    grid = table(head, body, kinds, "runs")
    note = f"{numbers.labelled('N in parameters', fit.kinds.params)}, C in {_rule(fit)}, loss in {fit.kinds.loss}; "
    note += "error is predicted over observed loss, less one. "
    note += f"All runs: {', '.join(shared)}. " if shared else ""
    note += "runs.csv, beside this page, has every column."
    if len(rows) > OPEN_ROWS:
        grid = tag("details", tag("summary", f"Show {len(shown)} of {len(rows)} runs"), grid)
    return join(tag("p", note, class_="caption"), grid)


def method(fit: Fit) -> Html:
    """Return how it was done: everything that another group needs to repeat it."""
    beside = (("valleys", fit.fits.valleys), ("frontier", fit.fits.frontier))
    items: list[tuple[str, str]] = [
        ("form", formula.law(fit.form, {})),
        (
            "loss function",
            "; ".join([fit.loss_function, *(f"{name}: {b.loss_function}" for name, b in beside if b.form)]),
        ),
        ("objective", numbers.number(fit.objective, 4)),
        ("optimizer", _optimizer(fit.optimizer or fit.fits.surface.optimizer)),
        ("intervals", f"{numbers.percent(fit.confidence)}, {fit.resamples} resamples; {fit.interval_method}"),
        ("seed", str(fit.seed)),
        ("fitted to", f"{terminal.used(fit)}; {fit.runs.completed} completed"),
        ("parameters", "as given in the source" if fit.kinds.params == "given" else fit.kinds.params),
        ("compute", _rule(fit)),
        ("loss", fit.kinds.loss),
        ("tokens", f"{fit.kinds.tokens}{', tokenizer ' + fit.kinds.tokenizer if fit.kinds.tokenizer else ''}"),
        ("fitted", numbers.moment(fit.created)),
    ]
    parts = [part for name, text in items for part in (tag("dt", name), tag("dd", text or numbers.MISSING))]
    return tag("dl", *parts, class_="method")


def _constant(title: str, name: str, block: Block, fit: Fit) -> list[str]:
    value = block.params.get(name, block.derived.get(name))
    found = block.identified.get(name)
    if found is not None and not found.identified:
        limit = numbers.one_sided(found.side, found.limit)
        known = f", {limit}" if limit else ""
        why = join(tag("b", f"not identified{known}", class_="unknown"), ". ", formula.prose(_sentence(found.reason)))
        shown = numbers.number(numbers.settled(value))  # on a bound, but for rounding
        return [title, formula.symbol(name), tag("span", shown, class_="quiet"), why]
    bounds = numbers.interval(block.intervals.get(name))
    return [
        title,
        formula.symbol(name),
        numbers.number(value),
        f"no interval: {_why(fit, name)}" if bounds == numbers.MISSING else bounds,
    ]


def _why(fit: Fit, name: str) -> str:
    """Return why a constant that is identified has no interval."""
    if not fit.resamples:
        return "resamples=0"
    law = (fit.record or {}).get("law") or {}
    held = (law.get("constraints") or {}).get(name)
    return f"held at {held}" if held is not None else "more than one in twenty resamples have no finite value of it"


def _references(fit: Fit) -> str:
    parts = ["a and b: N* grows as C^a, D* as C^b, for C proportional to N D."]
    rule = fit.kinds.flops or "given"
    if fit.recommendation is not None and rule not in ("given", "6ND"):
        parts.append(f"N* and D* spend a budget by the exact count of FLOPs ({rule}), not by 6 N D.")
    if fit.fits.frontier.reference_flops is not None:
        at = numbers.flops(fit.fits.frontier.reference_flops)
        parts.append(f"The frontier's a and α are of its own law of the lowest loss, relative to {at}.")
    parts.append("fit.json, beside this page, has every constant at full precision.")
    return " ".join(parts)


def _optimizer(found: Optimizer | None) -> str:
    if found is None:
        return numbers.MISSING
    end = "converged" if found.converged else "NOT converged"
    return (
        f"{found.method}; {end}: {numbers.percent(found.agree_share)} of {found.starts} starts agree on the minimum, "
        f"gradient norm {numbers.scientific(found.gradient_norm)}, {len(found.basins)} distinct "
        f"{'basin' if len(found.basins) == 1 else 'basins'}"
    )


def _run(row: Row) -> list[str]:
    ratio = row.tokens / row.params if row.params > 0 else math.nan
    state = "" if row.used else (row.drop_code or row.state or "not used").replace("_", " ")
    return [
        join(tag("code", row.key), tag("span", f" {state}", class_="unknown") if state else ""),
        numbers.scientific(row.budget if math.isfinite(row.budget) else row.flops, 3),
        numbers.amount(row.params),
        numbers.amount(row.tokens),
        numbers.number(ratio, 2 if ratio < 100 else 3),
        loss(row.loss),
        loss(row.predicted),
        numbers.signed(row.error),
    ]


def _extras(rows: Sequence[Row]) -> tuple[list[str], dict[str, Callable[[Row], str]]]:
    """Return "name value" of what all runs share, and a column for each thing that differs between them."""
    columns: dict[str, Callable[[Row], str]] = {
        "bits/byte": lambda row: numbers.number(_float(row.extra.get("bits_per_byte")), 4),
        "width × layers": _shape,
        "peak LR": lambda row: numbers.number(_float(row.extra.get("lr")), 2),
        "batch [tokens]": lambda row: _whole(_float(row.extra.get("batch_tokens"))),
        "seed": lambda row: _integer(row.extra.get("seed", "")) or numbers.MISSING,
    }
    different = {tuple(row.extra.items()): row for row in rows}.values()
    shared, extra = [], {}
    for name, show in columns.items():
        values = {show(row) for row in different} - {numbers.MISSING}
        if len(values) == 1:
            shared.append(f"{name} {values.pop()}")
        elif values:
            extra[name] = show
    return shared, extra


def _shape(row: Row) -> str:
    width, layers = row.extra.get("width", ""), row.extra.get("layers", "")
    return f"{_integer(width)} × {_integer(layers)}" if width and layers else numbers.MISSING


def _rule(fit: Fit) -> str:
    return "FLOPs, as given" if fit.kinds.flops in ("", "given") else f"FLOPs by {fit.kinds.flops}"


def _float(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _whole(value: float | None) -> str:
    """Return a count that was set, not measured, as it was set where it is short: 2048."""
    return f"{value:.0f}" if value is not None and value.is_integer() and value < 1e5 else numbers.count(value)


def _integer(text: str) -> str:
    return text.removesuffix(".0")


def _last(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _sentence(text: str) -> str:
    text = text.strip().rstrip(".")
    return f"{text[:1].upper()}{text[1:]}." if text else ""
