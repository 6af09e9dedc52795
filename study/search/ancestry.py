"""A population's history as people and machines read it: who copied whom, and the schedule that led to the best."""

from __future__ import annotations

from typing import Any

from study.search.state import Search
from sweeps.schedulers.pbt import PopulationBased

SHOWN = 12


def lines(search: Search) -> list[str]:
    """Return the latest copies and the incumbent's schedule; nothing for a search that is no population."""
    scheduler = search.scheduler
    if not isinstance(scheduler, PopulationBased):
        return []
    copies = scheduler.lineage
    shown = [
        f"member {copy.member} copied {copy.donor} at {copy.resource:,} tokens (it stood at {copy.own:,}): "
        + _settings(copy.config)
        for copy in copies[-SHOWN:]
    ]
    if len(copies) > SHOWN:
        shown.insert(0, f"{len(copies)} copies, the latest:")
    best = search.incumbent
    if best is not None:
        shown += ["", f"settings that led to the best, member {best.number}:"]
        steps = scheduler.schedule(best.number)
        shown += [f"  from {since:>13,} tokens  {_settings(config)}" for since, config in steps]
    return shown


def as_json(search: Search) -> dict[str, Any]:
    """Return lineage (copies in order) and schedule of the incumbent; resources in tokens."""
    scheduler = search.scheduler
    if not isinstance(scheduler, PopulationBased):
        return {}
    best = search.incumbent
    schedule = [] if best is None else scheduler.schedule(best.number)
    return {
        "lineage": [
            {"member": c.member, "donor": c.donor, "own_tokens": c.own, "tokens": c.resource, "config": dict(c.config)}
            for c in scheduler.lineage
        ],
        "schedule": [{"tokens": since, "config": dict(config)} for since, config in schedule],
        "tokens_trained": scheduler.used,
    }


def _settings(config: Any) -> str:
    shown = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in config.items()}
    return " ".join(f"{name}={value}" for name, value in shown.items())
