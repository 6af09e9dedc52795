"""`python -m study cost STUDY`."""

from __future__ import annotations

import argparse
import dataclasses

from study.commands import add_json, add_study, emit
from study.records.settings import find_study
from study.status import budget, cost
from study.status.observer import Observer
from study.text import counted, percent

MORE = {
    True: "a job that SLURM requeues has its whole time limit anew, and counts once under asked",
    False: "SLURM gave jobs more than they asked, as where nodes are not shared, or let them run past their limit",
}
"""Why more can be used than was asked, by whether jobs were requeued."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    add_study(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Show what a study's jobs asked, used, lost and left idle; 1 if it has used more than its budget."""
    folder = find_study(options.study, options.runs)
    observer = Observer(folder)
    observer.refresh()
    points, statuses = observer.points, observer.statuses()
    known = observer.known
    costs = cost.measure(folder, points, statuses, known=known)
    balances = budget.balances(folder, budget.section(folder), (), (points, statuses), known=known)
    if options.json:
        rows = [dataclasses.asdict(one) for one in costs]
        budgets = [{**dataclasses.asdict(one), "left": one.left} for one in balances]
        emit("cost", folder, {"costs": rows, "budgets": budgets})
    else:
        print("\n\n".join(text(folder.name, one) for one in costs))
        print("".join(f"\n{balance}" for balance in balances), end="\n" if balances else "")
    return 1 if any(balance.used > balance.limit for balance in balances) else 0


def text(name: str, one: cost.Cost) -> str:
    """Return the cost as a small table, and where its figures come from."""
    again = one.runs - one.jobs
    head = f"{name}: {counted(one.jobs, 'job')} that ran" + (f", {again:,} times anew after a requeue" if again else "")
    lines = [head, *(_line(word, value, one) for word, value in _rows(one))]
    if one.clocks == one.jobs and one.jobs:
        lines.append("by the attempts' own clocks: time before an attempt began is not included")
    elif one.clocks:
        lines.append(f"by sacct with duplicates; {one.clocks:,} jobs that it does not know by their attempts' clocks")
    elif one.jobs:
        lines.append("by sacct with duplicates")
    if one.asked and one.used > one.asked:
        lines.append(f"more was used than asked: {MORE[again > 0]}")
    return "\n".join([*lines, *one.problems])


def _rows(one: cost.Cost) -> list[tuple[str, float | None]]:
    return [
        ("asked", one.asked),
        ("waiting or running", one.reserved),
        ("used", one.used),
        ("lost to failures", one.lost),
        ("idle", one.idle),
    ]


def _few(value: float) -> str:
    """Return hours below ten with four decimals at most, so that used, lost and idle stand below each other."""
    return "0" if value == 0 else "<0.0001" if value < 5e-5 else f"{value:.4f}"


def _line(word: str, value: float | None, one: cost.Cost) -> str:
    said = (
        "?"
        if value is None
        else "–"
        if word == "asked" and not value
        else f"{value:,.2f}"
        if value >= 10
        else _few(value)
    )
    of_used = value and one.used and word in ("lost to failures", "idle")
    share = f"  {percent(value / one.used)} of used" if value and of_used else ""
    return f"  {word:<19}{said:>12} {one.unit}{share}"
