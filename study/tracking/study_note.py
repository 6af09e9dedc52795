"""What a study came to, for a person: the description of the study's own run and its totals. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from study.records import metric_names as names
from study.tracking import law
from study.tracking.mlflow_view import SIGNED, run_page

MOST_BUDGETS = 16
MOST_CHECKS = 6
SUMMED = (names.TOKENS, names.FLOPS, names.GPU_HOURS, names.CORE_HOURS)


@dataclass(frozen=True)
class Row:
    """A run: its name, its id in the store, its budget [FLOPs] if it has one, what it came to."""

    name: str
    run: str
    budget: float | None
    totals: Mapping[str, float]


def totals(rows: Sequence[Row]) -> dict[str, float]:
    """Return what all runs together took, and the best final loss of them [nats per token]."""
    found = {name: float(f"{sum(row.totals.get(name, 0.0) for row in rows):.12g}") for name in SUMMED}
    losses = [row.totals[names.FINAL] for row in rows if names.FINAL in row.totals]
    return {name: value for name, value in found.items() if value} | ({names.BEST: min(losses)} if losses else {})


def note(experiment: str, rows: Sequence[Row], states: str, fit: Mapping[str, Any] | None) -> str:
    """Return the description as Markdown, the best runs first: MLflow folds what is long behind "Show more"."""
    law_found = "" if fit is None else _law(fit)
    parts = [
        _best(experiment, rows),
        law_found,
        _cost(totals(rows)),
        f"**Points**: {states}",
        _checks(fit or {}),
        SIGNED,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _cost(found: Mapping[str, float]) -> str:
    words = {names.GPU_HOURS: "GPU-hours", names.CORE_HOURS: "core-hours", names.FLOPS: "FLOPs", names.TOKENS: "tokens"}
    said = [f"{found[name]:.4g} {word}" for name, word in words.items() if name in found]
    return f"**Cost**: {', '.join(said)}" if said else ""


def _law(fit: Mapping[str, Any]) -> str:
    rows = law.table(fit)
    if not rows:
        return f"**Law**: none ({fit.get('reason') or fit.get('status') or 'no fit'})"
    level = f"{float(fit['confidence']):.0%} interval" if fit.get("confidence") else "interval"
    lines = [f"**Law**: {law.formula(fit) or fit.get('form')}", "", f"| | value | {level} |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {value} | {interval} |" for name, value, interval in rows)])


def _best(experiment: str, rows: Iterable[Row]) -> str:
    """Return the best run of each budget, or of all where runs have none."""
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
        numbers = [row.totals.get(name) for name in (names.PARAMS, names.TOKENS, names.TOKENS_PER_PARAM)]
        said = " | ".join("" if value is None else f"{value:.4g}" for value in numbers)
        link = f"[{row.name}]({run_page(experiment, row.run)})"
        lines.append(f"| {f'{budget:.3g}' if budget else 'any'} | {link} | {row.totals[names.FINAL]} | {said} |")
    return "\n".join(lines)


def _checks(fit: Mapping[str, Any]) -> str:
    found = [check for check in fit.get("checks") or () if check.get("level") in ("warning", "error")]
    lines = [f"- {check.get('message', '')}: {check.get('advice', '')}" for check in found[:MOST_CHECKS]]
    return "\n".join(["**What the fit warns of**", "", *lines]) if lines else ""
