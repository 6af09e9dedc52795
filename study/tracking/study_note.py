"""Descriptions of a study and its runs in MLflow: results, cost and links, as Markdown; and a study's totals. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from analysis.report import optima, sentences
from analysis.text import numbers
from analysis.values.blocks import Check
from study.records import metric_names as names
from study.records.point import Point
from study.status.states import PointState
from study.tracking import law
from study.tracking.facts import Facts
from study.tracking.mapping import Corpus, code_words
from study.tracking.mlflow_view import SIGNED, artifact_page, links, run_page
from train.spec.lineage import parse

MOST_BUDGETS = 16
MOST_CORPORA = 3
MOST_CHECKS = 20
MOST_NAMED = 12
ERROR_LETTERS = 3000
SUMMED = (names.TOKENS, names.FLOPS, names.GPU_HOURS, names.CORE_HOURS)
REPORT = "report/report.html"
"""The report among the artifacts of the study's own run."""
WORDS = {names.GPU_HOURS: "GPU-hours", names.CORE_HOURS: "core-hours", names.FLOPS: "FLOPs", names.TOKENS: "tokens"}


@dataclass(frozen=True)
class Row:
    """A run: its name, its id in the store, its budget [FLOPs] if it has one, and its totals.

    begun: tokens at which it branched from another run, whose totals count them.
    """

    name: str
    run: str
    budget: float | None
    totals: Mapping[str, float]
    state: str = PointState.COMPLETED
    begun: int = 0

    def own(self, name: str) -> float:
        """Return the run's own part of a total: tokens and FLOPs without its parent's, hours as they are."""
        value, tokens = self.totals.get(name, 0.0), self.totals.get(names.TOKENS, 0.0)
        if name not in (names.TOKENS, names.FLOPS) or not tokens:
            return value
        return value * max(0.0, tokens - self.begun) / tokens


def row(point: Point, name: str, run: str, found: Mapping[str, float], state: str) -> Row:
    """Return a point's run as a row; found: its totals."""
    budget, parent = (point.raw.get("budget") or {}).get("flops"), parse(point.parent)
    return Row(name, run, budget, found, state, 0 if parent is None else parent.tokens)


@dataclass(frozen=True)
class Study:
    """A study in a store: experiment and own run, its runs, its points by state ("20 completed"), fit, report.

    data: the corpora that its points read. code: the version of its latest submission (study.process.code_version).
    """

    experiment: str
    parent: str
    rows: Sequence[Row]
    states: str
    fit: Mapping[str, Any] | None = None
    report: bool = False
    data: Sequence[Corpus] = ()
    code: str = ""


def totals(rows: Sequence[Row]) -> dict[str, float]:
    """Return the sums over all runs, hours to five digits, and their best final loss [nats per token]."""
    digits = {name: 12 if name in (names.TOKENS, names.FLOPS) else 5 for name in SUMMED}
    found = {name: float(f"{sum(row.own(name) for row in rows):.{digits[name]}g}") for name in SUMMED}
    losses = [row.totals[names.FINAL] for row in rows if names.FINAL in row.totals]
    return {name: value for name, value in found.items() if value} | ({names.BEST: min(losses)} if losses else {})


def headline(study: Study) -> str:
    """Return the experiment's description: law and backtest, links to the study's pages, results, cost.

    MLflow shows one line and cuts it off: after about 90 letters at 1400 pixels beside its assistant. So the law comes
    first, which no other column shows, and then the links.
    """
    whole = totals(study.rows)
    best = [f"Best loss {whole[names.BEST]:.5g}"] if names.BEST in whole else []
    cost = ", ".join(
        f"{numbers.number(whole[name])} {WORDS[name]}" for name in (names.GPU_HOURS, names.CORE_HOURS) if name in whole
    )
    fit = study.fit or {}
    said = ", ".join(part for part in (*best, study.states) if part)
    pages = links(study.experiment, study.parent, REPORT if study.report else "", law=bool(law.table(fit)))
    found, error = law.formula(fit), law.backtest_error(fit)
    tested = f" (backtest {numbers.signed(error, decimals=1)})" if found and error is not None else ""
    parts = (f"{found}{tested}", pages, said, cost) if found else (said, pages, cost)
    line = " — ".join(part for part in parts if part)
    return f"{line}\n\n{SIGNED}\n"


def note(study: Study) -> str:
    """Return the description of the study's own run as Markdown.

    MLflow shows its first lines and folds the rest behind "Show more": law, cost and report come first.
    """
    fit = study.fit
    report = f" · [Report]({artifact_page(study.experiment, study.parent, REPORT)})" if study.report else ""
    parts = [
        "" if fit is None else _law(fit),
        f"{_cost(totals(study.rows))}**Points**: {study.states}{report}",
        _made_of(study),
        _sizes(fit or {}),
        _best(study.experiment, study.rows),
        _others(study.experiment, study.rows),
        _constants(fit or {}),
        _checks(fit or {}),
        SIGNED,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def run_note(
    facts: Facts, found: Mapping[str, float], labels: Mapping[str, str], files: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return the description of a run that has ended: losses, size and cost, and if it failed, why.

    labels: the run's tags; a search's `trial` and `rung` are shown. files: pages of its artifacts, by name.
    """
    losses = {"final": found.get(names.FINAL), "best": found.get(names.BEST)}
    said = [f"{word} loss **{value:.5g}**" for word, value in losses.items() if value is not None]
    said = said[:1] if losses["final"] == losses["best"] else said
    sizes = [
        f"{show(found[name])} {word}"
        for name, show, word in (
            (names.PARAMS, numbers.amount, "matmul parameters"),
            (names.TOKENS, numbers.amount, "tokens"),
            (names.TOKENS_PER_PARAM, numbers.number, "tokens per parameter"),
            (names.FLOPS, numbers.number, "FLOPs"),
            (names.GPU_HOURS, numbers.number, "GPU-hours"),
            (names.CORE_HOURS, numbers.number, "core-hours"),
        )
        if name in found
    ]
    trial = f"trial {labels['trial']}, rung {labels.get('rung') or '-'}" if labels.get("trial") else ""
    pages = [f"[{name}]({link})" for name, link in files.items()]
    parts = [" · ".join(part for part in (f"**{facts.state}**", trial, *said, *sizes, *pages) if part)]
    if facts.state != PointState.COMPLETED:
        parts += [facts.why, _health(facts.outcome or {}), _quoted(facts.error)]
    return "\n\n".join(part for part in (*parts, SIGNED) if part) + "\n"


def _health(outcome: Mapping[str, Any]) -> str:
    """Return the skipped steps, spikes and rollbacks of a run that diverged, in words."""
    skipped = "steps skipped because loss or gradient norm was not finite"
    words = {"skipped_steps": skipped, "spikes": "spikes", "rollbacks": "rollbacks"}
    found = [
        f"{value} {words[name]}" for name, value in (outcome.get("health") or {}).items() if value and name in words
    ]
    return f"At step {outcome.get('step', '?')}, after {', '.join(found)}" if found else ""


def _quoted(text: str) -> str:
    """Return an error as a block: its first line, which says most of it, and of its end what there is room for."""
    first, _, rest = text.partition("\n")
    lines = [first[:ERROR_LETTERS], *rest[-max(1, ERROR_LETTERS - len(first)) :].splitlines()]
    return "".join(f"    {line}\n" for line in lines).rstrip()


def _cost(found: Mapping[str, float]) -> str:
    show = {names.TOKENS: numbers.amount}
    said = [f"{show.get(name, numbers.number)(found[name])} {word}" for name, word in WORDS.items() if name in found]
    return f"**Cost**: {', '.join(said)} · " if said else ""


def _made_of(study: Study) -> str:
    """Return the runs' corpora, with the digests of their tokens, and the code of the latest submission."""
    corpora = [f"{one.name} ({one.digest})" for one in study.data]
    more = [f"{len(corpora) - MOST_CORPORA} more"] if len(corpora) > MOST_CORPORA else []
    said = {"Data": ", ".join(corpora[:MOST_CORPORA] + more), "Code": code_words(study.code) if study.code else ""}
    return " · ".join(f"**{name}**: {text}" for name, text in said.items() if text)


def _law(fit: Mapping[str, Any]) -> str:
    if not law.table(fit):
        return f"**Law**: none ({fit.get('reason') or fit.get('status') or 'no fit'})"
    said = [law.formula(fit) or str(fit.get("form")), law.backtest(fit), _next(fit.get("recommendation") or {})]
    return f"**Law**: {' · '.join(part for part in said if part)}"


def _next(best: Mapping[str, Any]) -> str:
    wanted = [best.get(key) for key in ("budget_flops", "params", "tokens")]
    if any(numbers.finite(value) is None for value in wanted):
        return ""
    budget, params, tokens = (float(value) for value in wanted if value is not None)
    size = f"{numbers.amount(params)} parameters on {numbers.amount(tokens)} tokens"
    return f"train next: {size} for {numbers.flops(budget)}"


def _constants(fit: Mapping[str, Any]) -> str:
    rows = law.table(fit)
    if not rows:
        return ""
    level = f"{100 * float(fit['confidence']):g} % interval" if fit.get("confidence") else "interval"
    lines = ["**Constants, next run and backtest**", "", f"| | value | {level} |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {value} | {interval} |" for name, value, interval in rows)])


def _sizes(fit: Mapping[str, Any]) -> str:
    """Return the best size at each budget, of the data and beyond, and the power laws that give any other."""
    found = optima.lines(fit)
    if not found:
        return ""
    heads = "| budget [FLOPs] | N\\* | interval | D\\* | loss |"
    lines = ["**Best size by budget**", "", heads, "|---|---|---|---|---|"]
    for line in found:
        bounds = line.intervals["params"]
        said = [line.values["params"], bounds, line.values["tokens"], line.values["loss"]]
        shown = ("" if text == numbers.MISSING else text for text in said)
        lines.append(f"| {line.budget} | {' | '.join(shown)} |")
    grows = "; ".join(text for name in ("params", "tokens") if (text := sentences.power_law(fit, name)))
    largest = numbers.finite((fit.get("runs") or {}).get("largest_flops"))
    trained = f"The largest run had {numbers.flops(largest)}; what lies beyond is extrapolated. " if largest else ""
    other = f"Any other budget C [FLOPs]: about {grows}." if grows else ""
    return "\n".join([*lines, "", f"{trained}{other}".strip().replace("*", "\\*")]).rstrip()


def _others(experiment: str, rows: Iterable[Row]) -> str:
    """Return the runs that failed or diverged, each with a link to its page, which says why."""
    wrong = [row for row in rows if row.state in (PointState.FAILED, PointState.DIVERGED)]
    said = [f"[{row.name}]({run_page(experiment, row.run)}) {row.state}" for row in wrong[:MOST_NAMED]]
    more = f", and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
    return f"**Went wrong**: {', '.join(said)}{more}" if said else ""


def _best(experiment: str, rows: Iterable[Row]) -> str:
    """Return the best run of each budget; of all runs if they have no budget in FLOPs."""
    best: dict[float, Row] = {}
    for row in rows:
        budget = row.budget or 0.0
        if names.FINAL in row.totals and (
            budget not in best or row.totals[names.FINAL] < best[budget].totals[names.FINAL]
        ):
            best[budget] = row
    if not best:
        return ""
    lines = [
        "**Best runs**",
        "",
        "| budget [FLOPs] | run | loss [nats/token] | N | D | D/N |",
        "|---|---|---|---|---|---|",
    ]
    for budget in sorted(best)[-MOST_BUDGETS:]:
        row = best[budget]
        shown = {names.PARAMS: numbers.amount, names.TOKENS: numbers.amount, names.TOKENS_PER_PARAM: numbers.number}
        said = " | ".join(show(row.totals[name]) if name in row.totals else "" for name, show in shown.items())
        link = f"[{row.name}]({run_page(experiment, row.run)})"
        spent = numbers.scientific(budget, 3) if budget else "any"
        lines.append(f"| {spent} | {link} | {row.totals[names.FINAL]:.5g} | {said} |")
    return "\n".join(lines)


def _checks(fit: Mapping[str, Any]) -> str:
    """Return errors and warnings with their advice, errors first; the report has all of them."""
    found = [
        check for level in ("error", "warning") for check in fit.get("checks") or () if check.get("level") == level
    ]
    lines = [f"- {_sentence(check.get('message'))} {_to_do(check)}" for check in found[:MOST_CHECKS]]
    more = [f"- … and {len(found) - MOST_CHECKS} more, in the report"] if len(found) > MOST_CHECKS else []
    return "\n".join(["**What the fit warns of**", "", *lines, *more]) if lines else ""


def _to_do(check: Mapping[str, Any]) -> str:
    return Check("", "", str(check.get("advice") or "")).to_do


def _sentence(text: object) -> str:
    said = str(text or "").strip().rstrip(".")
    return f"{said[:1].upper()}{said[1:]}." if said else ""
