"""The report's first page: what to train next, the law, and how far to trust both."""

from __future__ import annotations

from collections.abc import Callable

from analysis.report import formula, optima, sentences
from analysis.report.html import Html, join, table, tag
from analysis.text import numbers
from analysis.values.blocks import Block
from analysis.values.json_values import to_json
from analysis.values.study_result import Fit, Growth, Recommendation

TRUSTED_ERROR = 0.03
FAR = 10.5
IN_WORDS = {
    "surface": "one law L(N,\u00a0D) through all runs",
    "law": "the law asked for, through all runs",
    "valleys": "the best size of each budget, continued by a power law",
    "envelope": "the lower edge of all learning curves, continued by a power law",
}
"""What the approaches that can be recommended rest on, by their names in fit.json."""


def lead(fit: Fit) -> Html:
    """Return the answer in one sentence."""
    plan = fit.recommendation
    if plan is None:
        why = "; ".join(b.reason for b in (fit.fits.valleys, fit.fits.surface) if b.status != "ok" and b.reason)
        said = [c.message for c in fit.checks if c.code == "no_recommendation" and not c.message.startswith("no ")]
        why = said[0] if said else why
        return tag("p", f"These runs do not yet say what to train next{': ' + why if why else ''}.", class_="lead")
    sentence = join(
        "With ",
        tag("b", numbers.flops(plan.budget_flops)),
        f", {numbers.factor(plan.extrapolation_factor)} the largest run, train ",
        tag("b", f"{numbers.amount(plan.params)} parameters"),
        " on ",
        tag("b", f"{numbers.amount(plan.tokens)} tokens"),
    )
    if numbers.finite(plan.loss) is None:
        return tag("p", sentence, ".", class_="lead")
    expected = f" {fit.kinds.loss}{_doubt(fit)}."
    return tag("p", sentence, ": expect ", tag("b", loss(plan.loss)), expected, class_="lead")


def _doubt(fit: Fit) -> str:
    """Return by how much the backtest missed, where that warns of the loss to expect; else nothing."""
    if fit.backtest is None or not any(check.code == "backtest_error" for check in fit.checks):
        return ""
    error = fit.backtest.relative_error
    assert error is not None, "a finding says it"
    return f" (the backtest was {numbers.percent(abs(error))} too {'low' if error < 0 else 'high'})"


def tiles(fit: Fit) -> Html:
    """Return the proposal's numbers with their intervals, then the three measures of trust."""
    plan = fit.recommendation
    parts = []
    if plan is not None:
        parts = [
            _quantity(fit, plan, "params", numbers.labelled("parameters N", fit.kinds.params), numbers.amount),
            _quantity(fit, plan, "tokens", "training tokens D", numbers.amount),
            _quantity(fit, plan, "tokens_per_param", "tokens per parameter", lambda x: numbers.number(x, 2)),
            _quantity(fit, plan, "loss", f"expected loss, {fit.kinds.loss}", loss),
        ]
    return join(
        tag("div", *parts, class_="tiles") if parts else "",
        tag("p", f"Ranges are {numbers.percent(fit.confidence)} intervals.", class_="quiet") if _ranges(fit) else "",
        tag("div", *_trust(fit), class_="tiles"),
    )


def _ranges(fit: Fit) -> bool:
    """Return whether one of the proposal's numbers has an interval."""
    plan = fit.recommendation
    return plan is not None and any(numbers.interval(pair) != numbers.MISSING for pair in plan.intervals.values())


def alarms(fit: Fit) -> Html:
    """Return findings that forbid trusting the answer, to stand beside it; empty where there are none."""
    every = (fit, fit.fits.valleys, fit.fits.surface, fit.fits.frontier)
    found = dict.fromkeys(c for one in every for c in one.checks if c.level == "error")
    items = [
        tag(
            "li",
            tag("span", "error", class_="level"),
            f"{c.message.rstrip('. ')}. {c.to_do}",
            class_="error",
        )
        for c in found
    ]
    return tag("ul", *items, class_="checks") if items else Html("")


def law(fit: Fit) -> Html:
    """Return the law as maths and in plain words."""
    block, lines, plan = fit.fits.law or fit.fits.surface, [], fit.recommendation
    if block.status == "ok":
        side = "L(N, D) = " if block is fit.fits.surface else sentences.side({"approach": block.approach})
        lines.append(tag("p", join(side, formula.block_law(block)), class_="maths"))
        lines += [_unknown(name, block) for name in block.params if _not_identified(block, name)]
        if plan is not None and plan.approach not in ("surface", "law"):
            text = f"This law does not give the recommendation, which is by {sentences.by(to_json(plan))}."
            lines.append(tag("p", text, class_="unknown"))
    else:
        lines.append(tag("p", f"No law L(N, D) could be fitted: {block.reason or 'too few runs'}."))
    if fit.runs.budgets:
        lines.append(tag("p", _plain_words(fit)))
    return tag("div", *lines, class_="law")


def approaches(fit: Fit) -> Html:
    """Return what each approach recommends, side by side; empty with fewer than two."""
    plan = fit.recommendation
    if plan is None or len(plan.by_approach) < 2:
        return Html("")
    rows = []
    said = sentences.read(fit)
    for name in _recommended_first(plan):
        p = plan.by_approach[name]
        chosen = tag("div", "(recommended)", class_="range word") if name == plan.approach else ""
        cells: list[str] = [join(name, " ", chosen) if chosen else name]
        for value, bounds, show in (
            (p.params, p.intervals.get("params"), numbers.amount),
            (p.tokens, p.intervals.get("tokens"), numbers.amount),
            (p.loss, p.intervals.get("loss"), loss),
        ):
            known = numbers.interval(bounds, show)
            none = f"no interval: {sentences.no_interval({**said, 'recommendation': {'approach': name}})}"
            cells.append(join(show(value), tag("div", none if known == numbers.MISSING else known, class_="range")))
        rows.append(cells)
    head = ["approach", "N", "D", "loss"]
    told = "; ".join(f"{name}: {IN_WORDS[name]}" for name in _recommended_first(plan) if name in IN_WORDS)
    units = f"N in parameters, D in tokens, loss in {fit.kinds.loss}."
    title = join(
        tag("h3", "What each approach recommends"), tag("p", f"{told[:1].upper()}{told[1:]}. {units}", class_="caption")
    )
    return join(title, table(head, rows, ["whole", "number", "number", "number"], "recommendations by approach"))


def best_sizes(fit: Fit) -> Html:
    """Return the table of the compute-optimal run of each budget; empty where there is none."""
    said = sentences.read(fit)
    found = optima.lines(said)
    if not found:
        return Html("")
    body: list[list[str]] = []
    for line in found:
        far = tag("div", "beyond the data", class_="range") if line.beyond else ""
        cells: list[str] = [join(f"{line.budget} FLOPs", far)]
        for name, value in line.values.items():
            known = line.intervals[name]
            cells.append(join(value, "" if known == numbers.MISSING else tag("div", known, class_="range")))
        body.append(cells)
    kind = numbers.labelled("parameters N*", fit.kinds.params)
    note = f"The best run of each budget along one law, {sentences.by(said['recommendation'])}: {kind}, tokens D* and "
    note += f"loss in {fit.kinds.loss}"
    if fit.runs.largest_flops is not None:
        note += f"; the largest run had {numbers.flops(fit.runs.largest_flops)}"
    none = any(numbers.MISSING in line.intervals.values() for line in found)
    note += f". Where there is no interval: {sentences.no_interval(said)}." if none else "."
    head = ["budget", "N*", "D*", "D*/N*", "loss"]
    grid = table(head, body, ["nowrap", *["number"] * 4], "compute-optimal sizes")
    return join(tag("p", note, class_="caption"), grid)


def loss(value: object) -> str:
    """Return a loss with four digits."""
    return numbers.number(value, 4)


def _quantity(fit: Fit, plan: Recommendation, name: str, label: str, show: Callable[[object], str]) -> Html:
    bounds = numbers.interval(plan.intervals.get(name), show)
    none = f"no interval: {sentences.no_interval(sentences.read(fit))}"
    return _tile(label, show(getattr(plan, name)), none if bounds == numbers.MISSING else bounds)


def _trust(fit: Fit) -> list[Html]:
    parts = []
    plan = fit.recommendation
    if plan is not None:
        parts.append(_extrapolation(fit, plan))
    parts.append(_backtest(fit))
    ratio, count = sentences.apart(sentences.read(fit))
    if plan is not None and ratio is not None:
        kind = "good" if ratio < 1.5 else "warn"
        parts.append(_tile("approaches agree within", numbers.factor(ratio), f"in parameters, by {count} fits", kind))
    used = f"of {fit.runs.total}, at {fit.runs.budgets} budgets"
    parts.append(_tile("runs used", numbers.count(fit.runs.used), used))
    return parts


def _backtest(fit: Fit) -> Html:
    """Return the test's error; good only where it reaches as far as the recommendation and misses on both sides."""
    test = fit.backtest
    if test is None:
        return _tile("backtest error", numbers.MISSING, "needs at least three budgets", "warn")
    if test.relative_error is None:
        return _tile("backtest error", numbers.MISSING, test.reason, "warn")
    said = sentences.read(fit)
    whose = sentences.tested(said)
    note = (
        f"{f'of the {whose}, ' if whose else ''}predicting {numbers.flops(test.held_out_budget)}, "
        f"{numbers.factor(test.extrapolation_factor)} beyond its fit"
    )
    more = [text for text in (sentences.uncovered(said), sentences.sided(said["backtest"])) if text]
    good = abs(test.relative_error) < TRUSTED_ERROR and test.covers
    return _tile(
        "backtest error",
        numbers.percent(abs(test.relative_error)),
        "; ".join([note, *more]),
        "good" if good else "warn",
    )


def _recommended_first(plan: Recommendation) -> list[str]:
    return sorted(plan.by_approach, key=lambda name: (name != plan.approach, name))


def _extrapolation(fit: Fit, plan: Recommendation) -> Html:
    """Return how far the proposal is from the runs, and from the last minimum where that is much farther."""
    note, far = "beyond the largest run's compute", plan.extrapolation_factor
    last = max((v.flops for v in fit.fits.valleys.valleys if v.status == "minimum"), default=None)
    if last is not None and plan.approach == "valleys" and plan.budget_flops / last > 1.5 * far:
        far = plan.budget_flops / last
        note += f"; {numbers.factor(far)} beyond the largest budget with a minimum"
    return _tile("extrapolation", numbers.factor(plan.extrapolation_factor), note, "warn" if far > FAR else "")


def _tile(name: str, value: str, note: str, kind: str = "") -> Html:
    return tag(
        "div",
        tag("div", name, class_="name"),
        tag("div", value, class_="value"),
        tag("div", note, class_="range"),
        class_=f"tile {kind}".strip(),
    )


def _not_identified(block: Block, name: str) -> bool:
    found = block.identified.get(name)
    return found is not None and not found.identified


def _unknown(name: str, block: Block) -> Html:
    found = block.identified[name]
    limit = numbers.one_sided(found.side, found.limit)
    known = f" ({limit})" if limit else ""
    return tag(
        "p", formula.symbol(name), f" is not identified by these runs{known}: do not quote it.", class_="unknown"
    )


def _plain_words(fit: Fit) -> Html:
    """Return how size and tokens grow along the recommended law, and along no other."""
    plan = fit.recommendation
    if plan is None or not {"params", "tokens"} <= plan.growth.keys():
        why = "" if plan is not None else fit.fits.valleys.reason
        return join(
            "The compute-optimal size could not be followed over budgets: ",
            why or "no approach identifies how it grows",
            ".",
        )
    n, d = plan.growth["params"], plan.growth["tokens"]
    return join(
        f"In words: ten times the compute is best spent on a model {numbers.factor(10**n.exponent)} larger, trained on "
        f"{numbers.factor(10**d.exponent)} the tokens. The optimal size grows as C",
        tag("sup", numbers.number(n.exponent)),
        _between(n),
        ", the tokens as C",
        tag("sup", numbers.number(d.exponent)),
        "" if d.reason and d.reason == n.reason else _between(d),
        f", by {sentences.by(to_json(plan))}.",
    )


def _between(growth: Growth) -> str:
    text = numbers.interval(growth.interval)
    if text != numbers.MISSING:
        return f" ({text})"
    return f" (no interval: {growth.reason})" if growth.reason else " (no interval)"
