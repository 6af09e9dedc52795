"""From a command line to a search: Hydra's sweep syntax becomes domains, everything else is the base config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, Glob, IntervalSweep, Override, RangeSweep

from study.config.dotted import flat
from study.config.errors import check_listed
from study.config.schema import StudyConfig
from study.executors import load
from study.search.settings import Settings, described
from study.search.usage import LEAST_SECONDS
from sweeps.history import Setting
from sweeps.rungs import first_rung
from sweeps.samplers import SAMPLERS
from sweeps.schedulers import SCHEDULERS, STAKE, Compares
from sweeps.space import Choice, Condition, Domain, Integers, Interval, Space
from train.spec.config import RunConfig

SEARCHED = ("model", "batch", "optim", "schedule", "precision")
"""Sections whose keys may be searched over: not the data nor the budget, by which trials are compared."""


TAGS = ("log", "ordered")
"""What a tag may say of a list or a range: a logarithmic scale, values whose neighbours are near."""

WORKERS = 4
"""Default number of workers, or of concurrent jobs, of a search on SLURM."""
INHERITABLE = ("optim", "schedule")
NOT_INHERITABLE = ("optim.name", "schedule.name", "schedule.parent")


def domains(overrides: Sequence[Override]) -> tuple[dict[str, Domain], dict[str, Condition], list[str]]:
    """Return the domains by key, the conditional ones with their conditions, and the overrides that are fixed.

    A key that exists only where another has some value says so by a tag: `optim.momentum=tag("optim.name=muon|sgd",
    interval(0.8,0.99))`. ValueError for a key that is not searched over.
    """
    found: dict[str, Domain] = {}
    tagged: dict[str, str] = {}
    fixed: list[str] = []
    for override in overrides:
        if not override.is_sweep_override():
            fixed.append(override.input_line or "")
            continue
        key = override.get_key_element()
        if "." not in key or key.split(".")[0] not in SEARCHED:
            raise ValueError(
                f"{override.input_line}: a search is over keys of {', '.join(SEARCHED)}, such as optim.lr, not {key}"
            )
        check_listed(override)
        try:
            found[key] = _domain(override)
        except ValueError as error:
            raise ValueError(f"{override.input_line}: {error}") from None
        said = [tag for tag in getattr(override.value(), "tags", ()) if "=" in tag]
        if len(said) > 1:
            raise ValueError(f"{override.input_line}: give one condition for the key, not {' and '.join(sorted(said))}")
        if said:
            tagged[key] = said[0]
    # A key that others depend on comes before them.
    ordered = {key: found[key] for key in (*(k for k in found if k not in tagged), *tagged)}
    return ordered, {key: _condition(key, tag, found) for key, tag in tagged.items()}, fixed


def _condition(key: str, tag: str, found: Mapping[str, Domain]) -> Condition:
    """Return the condition in a tag such as `optim.name=muon|sgd`; ValueError where it can never hold."""
    on, _, said = tag.partition("=")
    domain = found.get(on)
    if not isinstance(domain, Choice):
        lists = ", ".join(name for name, other in found.items() if isinstance(other, Choice)) or "none"
        raise ValueError(f'{key}=tag("{tag}",…): {on} must be searched over as a list of values; those are: {lists}')
    by_text = {str(value): value for value in domain.values}
    unknown = [word for word in said.split("|") if word not in by_text]
    if unknown:
        raise ValueError(f'{key}=tag("{tag}",…): {on} is never {unknown[0]!r}, only {", ".join(by_text)}')
    return Condition(on, tuple(by_text[word] for word in said.split("|")))


def enqueued(config: Mapping[str, Any], space: Space) -> dict[str, Setting]:
    """Return a point to be tried as a search keeps it; ValueError for a key or value that is not in the space."""
    point = flat(config)
    for name, given in point.items():
        if name not in space.domains:
            raise ValueError(f"{name}={given}: the search is not over it, only over {', '.join(space.domains)}")
        domain = space.domains[name]
        value = float(given) if isinstance(domain, Interval) and isinstance(given, int) else given
        point[name] = value
        if not domain.holds(value):
            raise ValueError(f"{name}={value} is outside the search: it takes {domain.allowed()}")
        condition = (space.conditions or {}).get(name)
        if condition is not None and point.get(condition.on, condition.values[0]) not in condition.values:
            raise ValueError(f"{name}={value} means nothing where {condition.on}={point[condition.on]}: leave it out")
        if condition is not None and condition.on not in point:
            raise ValueError(f"{name}={value} also needs {condition.on}: give both")
    if not point:
        raise ValueError(f"no point to try: give values of {', '.join(space.domains)}")
    return point


def _check(config: StudyConfig, space: Mapping[str, Domain]) -> None:
    """Raise ValueError for keys of a search that cannot be, or that do not go together."""
    search = config.search
    if search.sampler not in SAMPLERS:
        raise ValueError(f"search.sampler={search.sampler!r} is not allowed: {', '.join(SAMPLERS)}")
    if config.budget.tokens is None or any(key.startswith("budget.") for key in space):
        raise ValueError(
            "a search compares trials at equal tokens: give budget.tokens, the full training of one trial [tokens]"
        )
    if search.eta < 2:
        raise ValueError(
            f"search.eta={search.eta} is not allowed: one trial in eta is promoted, so it is 2 or more (3 is usual)"
        )
    for name in ("trials", "lease_seconds", "workers", "budget_flops", "budget_gpu_hours"):
        value = getattr(search, name)
        if value is not None and value <= 0:
            raise ValueError(f"search.{name}={value} is not allowed: it must be positive")
    if search.explore != "perturb" and search.name != "pbt":
        raise ValueError(
            f"search.explore={search.explore} says what members of a population vary: it needs search=pbt, and "
            f"search.name is {search.name}"
        )
    if not 0 < search.stake < 1:
        raise ValueError(
            f"search.stake={search.stake} is not allowed: a share of the resource, above 0 and below 1 "
            f"({STAKE:g} is usual)"
        )
    if search.stake != STAKE and search.name != "asha_guarded":
        raise ValueError(
            f"search.stake={search.stake} is what asha_guarded selects with: it needs search=asha_guarded, and "
            f"search.name is {search.name}"
        )
    if search.shape == "jobs" and not load(config.cluster.executor).detached:
        raise ValueError(
            "search.shape=jobs submits a job for each unit: it needs cluster=slurm, or take search.shape=pool"
        )
    if "pack" in config.cluster.auto:
        raise ValueError("cluster.auto=[pack] is not allowed in a search, whose units run separately: leave pack out")
    for name in ("pack", "points_per_job"):
        if (getattr(config.cluster, name) or 1) > 1:
            raise ValueError(
                f"cluster.{name}={getattr(config.cluster, name)} is not allowed in a search, whose units run "
                "separately: set it to 1"
            )


def settings_of(
    config: StudyConfig,
    run: RunConfig,
    base: dict[str, Any],
    space: dict[str, Domain],
    conditions: Mapping[str, Condition] | None = None,
) -> Settings:
    """Return the search that a checked config asks for, `run` being its resolved run; ValueError says what is wrong."""
    _check(config, space)
    search, R = config.search, run.budget.tokens
    assert R is not None, "a resolved run has its tokens"
    made = Settings(
        scheduler=search.name,
        sampler=search.sampler,
        r=_first_look(config, R),
        R=R,
        eta=search.eta,
        trials=search.trials,
        seed=search.seed,
        budget=search.budget_flops,
        lease=search.lease_seconds,
        space={name: described(domain) for name, domain in space.items()},
        conditions={name: {"on": c.on, "values": list(c.values)} for name, c in (conditions or {}).items()},
        objectives=tuple(search.objectives),
        base=base,
        quantile=search.quantile,
        resample=search.resample,
        stake=search.stake,
        burn_in=search.burn_in_tokens,
        explore=search.explore,
        gpu_hours=search.budget_gpu_hours,
        devices=max(1, config.cluster.nodes * config.cluster.gpus_per_node),
        shape=search.shape,
        workers=search.workers or WORKERS,
    )
    if made.compares is Compares.WITH_MEMBERS:
        _check_population(made.make_space(), search.trials)
    _check_hours(made)
    made.make_scheduler()
    made.make_sampler()
    for point in search.enqueue:
        enqueued(point, made.make_space())
    return made


def _check_hours(made: Settings) -> None:
    """Refuse GPU-hours with which no unit would ever be handed out."""
    if made.gpu_hours is not None and 3600 * made.gpu_hours < LEAST_SECONDS * made.devices:
        held = "" if made.devices == 1 else f", which holds {made.devices} devices"
        raise ValueError(
            f"search.budget_gpu_hours={made.gpu_hours:g} is not allowed: it is less than {LEAST_SECONDS:g} s of a "
            f"worker{held}, and no unit is given less"
        )


def _first_look(config: StudyConfig, R: int) -> int:
    """Return at how many tokens trials are compared first; ValueError where that is not within their training of R."""
    search, compares = config.search, SCHEDULERS[config.search.name].compares
    parts = 20 if compares is Compares.WITH_MEMBERS else search.eta ** SCHEDULERS[search.name].rungs
    r = search.min_tokens if search.min_tokens is not None else max(1, -(-R // parts))
    if compares is not Compares.NEVER and not 1 <= r <= R:
        raise ValueError(
            f"search.min_tokens={r} is not allowed: at least 1 and at most the full training of a trial, which "
            f"budget.tokens={config.budget.tokens} makes {R} tokens"
        )
    return first_rung(r, R, search.eta) if compares is Compares.AT_RUNGS else r


def after_first_step(settings: Settings, runs: Sequence[RunConfig]) -> Settings:
    """Return the search with the lowest rung that has an optimizer step before it, of R / eta^3 at most."""
    if settings.compares is not Compares.AT_RUNGS:
        return settings
    least = min(_longest_step(runs), -(-settings.R // settings.eta**3))
    return replace(settings, r=max(settings.r, first_rung(max(least, 1), settings.R, settings.eta)))


def _longest_step(runs: Sequence[RunConfig]) -> int:
    return max(run.batch.ramp_from or run.batch.tokens or 0 for run in runs)


def check_first_rung(settings: Settings, runs: Sequence[RunConfig]) -> None:
    """Refuse a first rung, or a look at a member, before a trial's first optimizer step; runs: of the whole space."""
    if settings.compares is Compares.NEVER:
        return
    step = _longest_step(runs)
    if settings.r < step:
        raise ValueError(
            f"search.min_tokens: the first rung, at {settings.r} tokens, is before the end of the first optimizer step "
            f"of {step}: give search.min_tokens={step} or more, a larger budget.tokens or a smaller batch.tokens"
        )


def _check_population(space: Space, members: int) -> None:
    """Refuse keys that a member cannot inherit from another, and a space with fewer settings than members."""
    for name in space.domains:
        if name.split(".")[0] not in INHERITABLE or name in NOT_INHERITABLE:
            raise ValueError(
                f"{name}: a member of a population continues with another's weights and optimizer state, so only "
                f"keys of {', '.join(INHERITABLE)} can vary, without {', '.join(NOT_INHERITABLE)}"
            )
    if space.size < members:
        raise ValueError(
            f"search.trials={members} members would differ, but the space has {space.size:.0f} settings: lower "
            "search.trials, or search over more values"
        )


def _domain(override: Override) -> Domain:
    value = override.value()
    if isinstance(value, Glob):
        raise ValueError("a search takes no glob: list the values, or give a range")
    tags: set[str] = getattr(value, "tags", set())
    if unknown := sorted(tag for tag in tags if tag not in TAGS and "=" not in tag):
        raise ValueError(f"tag {unknown[0]} is not known: take {' or '.join(TAGS)}, or a condition, as optim.name=muon")
    log = "log" in tags
    listed = "it has no logarithmic scale: take tag(log,interval(LOW,HIGH)) or leave log out"
    if isinstance(value, IntervalSweep):
        assert value.start is not None and value.end is not None
        return Interval(float(value.start), float(value.end), log)
    if isinstance(value, RangeSweep):
        start, stop, step = value.start, value.stop, value.step
        if start is not None and stop is not None and step == 1 and float(start).is_integer():
            return Integers(int(start), int(stop) - 1, log)
        if log:
            raise ValueError(f"tag log: a range of steps of {step:g} is a list of values, and {listed}")
        return Choice(tuple(_plain(item) for item in value.range()), ordered=True)
    assert isinstance(value, ChoiceSweep), "a list after -m"
    if log:
        raise ValueError(
            f"tag log: in a list each value is drawn as often, and {listed}; tag(ordered,…) keeps its order"
        )
    return Choice(tuple(_plain(item) for item in value.list), ordered="ordered" in tags)


def _plain(value: Any) -> Setting:
    text = getattr(value, "text", value)
    if not isinstance(text, int | float | str):
        raise ValueError(f"{value} cannot be searched over: give numbers, true or false, or text")
    return text
