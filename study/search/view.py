"""What a search looks like to a person: its plan, one line, and the table of rungs, incumbent and budget."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict
from enum import StrEnum
from typing import Any

from analysis.text import numbers
from study.search.forecast import forecast
from study.search.outlook import nothing_finished
from study.search.pareto import front_of, values_at
from study.search.settings import Settings
from study.search.state import Search, Trial
from study.storage.layout import StudyFolder
from study.text import aligned, counted, duration, percent
from sweeps.history import Setting
from sweeps.rank_correlation import spearman
from sweeps.rungs import levels
from sweeps.schedulers import Compares
from sweeps.schedulers.base import Evidence
from sweeps.space import Choice, Domain, Integers, Interval

TRUST = 0.5
SHOWN = 8


def plan_text(settings: Settings, folder: StudyFolder, workers: int, executor: str) -> str:
    """Return what is about to be searched."""
    at_rungs = settings.compares is Compares.AT_RUNGS
    rungs = levels(settings.r, settings.R, settings.eta) if at_rungs else (settings.R,)
    lines = [
        f"Search {folder.name}: {settings.scheduler} over {', '.join(settings.space)}, {settings.trials} trials, "
        f"{workers} workers on {executor}",
        f"  rungs at {' '.join(f'{level:,}' for level in rungs)} tokens; new trials: {settings.sampler}",
    ]
    if settings.compares is Compares.WITH_MEMBERS:
        share, how = (
            percent(settings.quantile),
            "varied" if settings.explore == "perturb" else "chosen by what settings have gained so far",
        )
        lines[1] = (
            f"  members are compared every {settings.r:,} of {settings.R:,} tokens; the bottom "
            f"{share} go on from one of the top {share} with its settings {how}"
        )
    if settings.scheduler == "hyperband":
        starts = " ".join(f"{level:,}" for level in rungs)
        lines.append(f"  {len(rungs)} brackets, given the same compute, whose trials start at {starts} tokens")
    if settings.budget is not None:
        lines.append(f"  budget {numbers.flops(settings.budget, 3)} of training")
    if settings.gpu_hours is not None:
        lines.append(f"  budget {settings.gpu_hours:g} GPU-hours; a worker holds {settings.devices} at once")
    return "\n".join(lines)


def line(search: Search) -> str:
    """Return the search in one line."""
    best = search.incumbent
    parts = [f"{len(search.trials)}/{search.settings.trials} trials", f"{len(search.running)} running"]
    gone = len(search.claims) - len(search.running)
    parts += [f"{gone} silent"] if gone else []
    failed = sum(trial.failed for trial in search.trials.values())
    parts += [f"{failed} failed"] if failed else []
    if best is not None:
        parts.append(f"best {best.value:.4f} at {best.at:,} tokens ({best.key})")
    return ", ".join(parts) + f", {_spent(search)}"


def text(search: Search, folder: StudyFolder, now: float | None = None) -> str:
    """Return the search as `status` shows it; now [s since 1970]: running units have lasted until then."""
    state = "stopped" if search.stopped else "over" if search.over else "going on"
    lines = [f"{folder.name}: {search.settings.scheduler}, {state}: {line(search)}"]
    population = population_lines(search)
    lines += ["", *_rungs(search)] if search.scheduler.population is None else []
    lines += ["", *_best(search)]
    lines += _front(search)
    lines += ["", *population] if population else []
    lines += _rest(search, now)
    lines += _start_up(search)
    if search.why_stopped:
        lines.append(f"stopped automatically: {search.why_stopped}; fix that, and the same command continues it")
    missed = nothing_finished(search)
    lines += [missed] if missed else []
    lines += _failures(search)
    if search.lost:
        how = ", ".join(f"{word}: {count}" for word, count in search.lost.most_common())
        lines.append(f"{counted(search.lost_units, 'unit')} ended without a result ({how})")
    gone = len(search.claims) - len(search.running)
    if gone:
        lines.append(f"{counted(gone, 'worker')} silent for longer than a lease: the next worker takes the unit over")
    return "\n".join(lines)


def as_json(search: Search, folder: StudyFolder, now: float | None = None) -> dict[str, Any]:
    """Return the search for machines; losses in nats per token, resource in tokens, what is left as in `Forecast`."""
    best, rest, evidence = search.incumbent, forecast(search, now), search.scheduler.evidence()
    return {
        "study": folder.name,
        "folder": str(folder.path),
        "scheduler": search.settings.scheduler,
        "over": search.over,
        "nothing_finished": nothing_finished(search) or None,
        "spent_flops": search.spent,
        "budget_flops": search.settings.budget,
        "spent_gpu_hours": search.usage.used / 3600,
        "budget_gpu_hours": search.settings.gpu_hours,
        "start_up_seconds": search.usage.start_up,
        "start_up_share": search.start_share(),
        "lost_units": search.lost_units,
        "evidence": None if evidence is None else asdict(evidence),
        "incumbent": None if best is None else best.key,
        "left": None if rest is None else asdict(rest),
        "front": [
            {"number": t.number, "key": t.key, "tokens": best.at, **_objectives(search, t, best.at)}
            for t in front_of(search)
            if best is not None
        ],
        "rungs": [
            {"tokens": r.level, "trials": len(r.entries), "promoted": len(r.promoted)} for r in search.scheduler.rungs
        ],
        "trials": [
            {
                "number": trial.number,
                "key": trial.key,
                "config": dict(trial.config),
                "bracket": trial.bracket,
                "tokens": trial.at,
                "loss": trial.value if math.isfinite(trial.value) else None,
                "verdict": verdict(search, trial),
            }
            for trial in search.trials.values()
        ],
        **population_as_json(search),
    }


class TrialState(StrEnum):
    """Where a trial stands, in one word."""

    FAILED = "failed"
    RUNNING = "running"
    SILENT = "silent"
    """Its worker's lease has run out."""
    DIVERGED = "diverged"
    COMPLETED = "completed"
    PAUSED = "paused"
    WAITING = "waiting"
    REPLACED = "replaced"
    """Shown for a member's point once the member has been replaced by a copy of another."""


def verdict(search: Search, trial: Trial) -> TrialState:
    """Return where a trial stands."""
    if trial.failed:
        return TrialState.FAILED
    if trial.number in search.claim_of:
        return TrialState.RUNNING if search.claim_of[trial.number] not in search.silent else TrialState.SILENT
    if trial.values and not math.isfinite(trial.value):
        return TrialState.DIVERGED
    if trial.at >= search.settings.R:
        return TrialState.COMPLETED
    return TrialState.PAUSED if trial.values else TrialState.WAITING


def corner(domain: Domain, high: int) -> Setting:
    """Return a domain's lowest or highest value: configs with both are checked before a search is stored."""
    match domain:
        case Choice(values):
            numbers = [value for value in values if isinstance(value, int | float)]
            if len(numbers) == len(values):
                return max(numbers) if high else min(numbers)
            return values[-1 if high else 0]
        case Interval(low, top) | Integers(low, top):
            return top if high else low
    raise AssertionError(domain)


def _rungs(search: Search) -> list[str]:
    """Return a row for each rung, with the rank correlation of its losses and the final ones of trained trials."""
    rows = [("rung [tokens]", "trials", "went on", "best loss", "rank correlation with the final loss")]
    doubtful: list[int] = []
    for rung in search.scheduler.rungs:
        done = [t for t in search.trials.values() if t.at >= search.settings.R and rung.level in t.values]
        found = spearman([t.values[rung.level] for t in done], [t.value for t in done])
        last = rung.level >= search.settings.R
        said = "" if last else "too few" if found is None else f"{found:.2f} over {len(done)}"
        if found is not None and not last and found < TRUST:
            doubtful.append(rung.level)
        best = f"{rung.entries[0][0]:.4f}" if rung.entries else ""
        rows.append((f"{rung.level:,}", str(len(rung.entries)), "" if last else str(len(rung.promoted)), best, said))
    lines = aligned(rows)
    if doubtful:
        lines.append(
            f"losses at {', '.join(f'{level:,}' for level in doubtful)} tokens say little about the final ones: raise "
            "search.min_tokens, or take search=asha_guarded in a new study"
        )
    if (evidence := search.scheduler.evidence()) is not None:
        lines.append(_guard(evidence))
    return lines


def _guard(seen: Evidence) -> str:
    """Return what the guard's next decision rests on."""
    why = f"the odds are below {seen.needed:g}" if seen.share == 0 else f"nothing below odds of {seen.needed:g}"
    return (
        f"odds that early ranks predict final ranks: {seen.odds:.3g} to 1, by {counted(seen.finished, 'trial')} "
        f"trained to the end, {seen.probes} of them unselected; selection gets {seen.share:.3g} of the tokens ({why}), "
        f"so far {seen.given:,}; probes have earned it {seen.allowed:,.0f}"
    )


def _best(search: Search) -> list[str]:
    ranked = sorted(search.trials.values(), key=lambda t: (t.failed, -t.at, t.value))[:SHOWN]
    if not ranked:
        return ["no trial has been handed out yet"]
    names = list(search.settings.space)
    rows = [("trial", "point", "tokens", "loss", "verdict", *names)]
    for t in ranked:
        loss = f"{t.value:.4f}" if math.isfinite(t.value) else ""
        settings = [_short(t.config.get(name, "")) for name in names]
        rows.append((str(t.number), t.key, f"{t.at:,}", loss, verdict(search, t), *settings))
    counts = Counter(verdict(search, t) for t in search.trials.values())
    return [*aligned(rows), "all: " + ", ".join(f"{n} {word}" for word, n in counts.most_common())]


def _front(search: Search) -> list[str]:
    """Return the Pareto front, where there are several objectives."""
    trials, best = front_of(search), search.incumbent
    if not trials or best is None:
        return []
    rows = [("trial", "point", *search.settings.objectives)]
    for t in trials:
        rows.append((str(t.number), t.key, *(f"{x:.6g}" for x in _objectives(search, t, best.at).values())))
    return [
        "",
        f"at {best.at:,} tokens no trial is lower in one objective than these and as low in the others",
        *aligned(rows),
    ]


def _objectives(search: Search, trial: Trial, resource: int) -> dict[str, float]:
    return dict(zip(search.settings.objectives, values_at(search, trial, resource) or (), strict=True))


def _rest(search: Search, now: float | None) -> list[str]:
    """Return how long the search still takes."""
    rest = forecast(search, now)
    if rest is None:
        return []
    units = f"{'at least ' if rest.at_least else ''}{counted(rest.units, 'unit')}"
    ends = "then the budget is used up" if rest.ends_by == "budget" else "then every trial has had its turn"
    if rest.seconds is None:
        return [f"{units} left, {duration(rest.worker_seconds)} of one worker's time; {ends}"]
    workers = counted(rest.workers, "worker")
    return [f"about {duration(rest.seconds)} to the end with {workers}: {units}, {ends}"]


def _failures(search: Search) -> list[str]:
    failed = [t for t in search.trials.values() if t.failed]
    return [f"failed: {t.key} (python -m study logs STUDY {t.key})" for t in failed[:SHOWN]]


def _spent(search: Search) -> str:
    budget, hours = search.settings.budget, search.settings.gpu_hours
    said = f"{numbers.flops(search.spent, 3)} given out"
    said += f" of {numbers.scientific(budget, 3)}" if budget is not None else ""
    if hours is not None:
        said += f", {search.usage.used / 3600:.3g} of {hours:g} GPU-hours used"
        said += f", {sum(search.usage.reserved.values()) / 3600:.3g} set aside" if search.usage.reserved else ""
    return said


def _start_up(search: Search) -> list[str]:
    """Return what starting and resuming has cost so far, and what follows from it."""
    seconds, share = search.usage.start_up, search.start_share()
    if seconds is None or share is None:
        return []
    said = f"starting or resuming a unit takes {seconds:.1f} s, {percent(share, 1)} of a full training"
    scheduler = search.scheduler
    if scheduler.break_even is not None:
        does = "trials continue directly or stop" if scheduler.stopping else "trials pause at every rung"
        return [f"{said}: {does} (it changes at {percent(scheduler.break_even, 1)})"]
    return [said]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


SHOWN_COPIES = 12


def population_lines(search: Search) -> list[str]:
    """Return the latest copies and the incumbent's schedule; nothing for a search that is no population."""
    population = search.scheduler.population
    if population is None:
        return []
    copies = population.lineage
    shown = [
        f"member {copy.member} copied {copy.donor} at {copy.resource:,} tokens (it stood at {copy.own:,}): "
        + _settings(copy.config)
        for copy in copies[-SHOWN_COPIES:]
    ]
    if len(copies) > SHOWN_COPIES:
        shown.insert(0, f"{len(copies)} copies, the latest:")
    best = search.incumbent
    if best is not None:
        shown += ["", f"settings that led to the best, member {best.number}:"]
        steps = population.schedule(best.number)
        shown += [f"  from {since:>13,} tokens  {_settings(config)}" for since, config in steps]
    return shown


def population_as_json(search: Search) -> dict[str, Any]:
    """Return lineage (copies in order) and schedule of the incumbent; resources in tokens."""
    population = search.scheduler.population
    if population is None:
        return {}
    best = search.incumbent
    schedule = [] if best is None else population.schedule(best.number)
    return {
        "lineage": [
            {"member": c.member, "donor": c.donor, "own_tokens": c.own, "tokens": c.resource, "config": dict(c.config)}
            for c in population.lineage
        ],
        "schedule": [{"tokens": since, "config": dict(config)} for since, config in schedule],
        "tokens_trained": population.used,
    }


def _settings(config: Any) -> str:
    shown = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in config.items()}
    return " ".join(f"{name}={value}" for name, value in shown.items())
