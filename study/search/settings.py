"""What a search is: its space, its scheduler and its limits, as `search.json` in the study's folder holds them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from study.config.dotted import flat
from study.records.frozen_config import canonical
from study.storage.files import read_text, write_atomic
from study.storage.layout import StudyFolder
from study.storage.shapes import COUNT, NUMBER, OBJECT, TEXT, TEXTS, WHOLE, Shape, WrongRecordError, values_of
from study.storage.shapes import check as check_record
from sweeps.rungs import first_rung, levels
from sweeps.samplers.base import Sampler, SamplerOptions, make_sampler
from sweeps.schedulers import SCHEDULERS, STAKE, Compares
from sweeps.schedulers.base import Scheduler, SchedulerOptions, make_scheduler
from sweeps.space import Choice, Condition, Domain, Integers, Interval, Space
from train.spec.axes import MESH_AXES
from train.spec.config import SCIENTIFIC, RunConfig
from train.spec.from_mapping import read
from train.spec.later import filled

FORMAT = 1
_SPACES = values_of(OBJECT, "an object of objects")
SHAPE = Shape(
    "a search",
    {
        **dict.fromkeys(("scheduler", "sampler", "explore", "shape"), TEXT),
        **dict.fromkeys(("r", "R", "eta", "trials", "burn_in", "devices", "workers"), COUNT),
        **dict.fromkeys(("budget", "lease", "quantile", "resample", "gpu_hours", "stake"), NUMBER),
        **dict.fromkeys(("space", "conditions"), _SPACES),
        "seed": WHOLE,
        "base": OBJECT,
        "objectives": TEXTS,
    },
    ("scheduler", "sampler", "r", "R", "eta", "trials", "seed", "lease"),
)
FREE = ("trials", "budget", "gpu_hours", "lease", "devices", "shape", "workers")
"""What may change while a search goes on."""


@dataclass(frozen=True)
class Settings:
    """A search. r, R, burn_in in tokens; lease in seconds; `base` is the config without the space.

    budget: training FLOPs; gpu_hours: device time, of which a worker uses `devices` at once; workers: jobs at once
    where each unit is one.
    """

    scheduler: str
    sampler: str
    r: int
    R: int
    eta: int
    trials: int
    seed: int
    budget: float | None
    lease: float
    space: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    base: Mapping[str, Any] = field(default_factory=dict)
    conditions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    objectives: tuple[str, ...] = ("loss",)
    quantile: float = 0.2
    resample: float = 0.25
    burn_in: int = 0
    explore: str = "perturb"
    gpu_hours: float | None = None
    devices: int = 1
    shape: str = "pool"
    workers: int = 4
    stake: float = STAKE

    @property
    def pauses(self) -> bool:
        """Whether trials pause at rungs."""
        return SCHEDULERS[self.scheduler].pauses

    @property
    def compares(self) -> Compares:
        """When the scheduler compares trials."""
        return SCHEDULERS[self.scheduler].compares

    def enough(self, rungs: int | None = None) -> int:
        """Return how many trials bring one to the end whatever the losses, where none fails; rungs: None: its own."""
        ensures = SCHEDULERS[self.scheduler].ensures
        return ensures.trials(len(levels(self.r, self.R, self.eta)) if rungs is None else rungs, self.eta)

    def gives(self, key: str, value: object) -> bool:
        """Return whether every trial has a value of a key that is this one in the base."""
        about = self.space.get(key)
        if about is None or key in self.conditions:
            return value is not None
        return None not in about.get("values", ())

    def make_scheduler(self) -> Scheduler:
        """Return the scheduler, before any event."""
        options = SchedulerOptions(
            r=self.r,
            R=self.R,
            eta=self.eta,
            trials=self.trials,
            seed=self.seed,
            space=self.make_space(),
            stake=self.stake,
            quantile=self.quantile,
            resample=self.resample,
            burn_in=self.burn_in,
            explore=self.explore,
        )
        return make_scheduler(self.scheduler, options)

    def make_sampler(self) -> Sampler:
        """Return what proposes the configs of new trials; ValueError where the space does not suit it."""
        members = self.compares is Compares.WITH_MEMBERS
        if members and self.sampler != "random":
            raise ValueError(
                f"search.sampler={self.sampler} is not allowed with search.name={self.scheduler}: a population "
                "starts from random settings and members copy each other: leave search.sampler=random"
            )
        if members and tuple(self.objectives) != ("loss",):
            raise ValueError(
                f"search.objectives=[{', '.join(self.objectives)}] is not allowed with search.name={self.scheduler}: "
                "members of a population are compared by their loss: leave search.objectives=[loss]"
            )
        return make_sampler(
            self.sampler, SamplerOptions(self.sampler, self.make_space(), self.seed, self.R, tuple(self.objectives))
        )

    def make_space(self) -> Space:
        """Return the domains of the keys that are searched over."""
        conditions = {name: Condition(said["on"], tuple(said["values"])) for name, said in self.conditions.items()}
        return Space({name: domain_of(about) for name, about in self.space.items()}, conditions)


def domain_of(about: Mapping[str, Any]) -> Domain:
    """Return the domain that a JSON object describes."""
    kind, rest = about["kind"], {name: value for name, value in about.items() if name != "kind"}
    if kind == "choice":
        return Choice(tuple(rest["values"]), bool(rest.get("ordered", False)))
    return Integers(**rest) if kind == "integers" else Interval(**rest)


def described(domain: Domain) -> dict[str, Any]:
    """Return a domain as a JSON object."""
    match domain:
        case Choice(values, ordered):
            return {"kind": "choice", "values": list(values), "ordered": ordered}
        case Integers(low, high, log):
            return {"kind": "integers", "low": low, "high": high, "log": log}
        case Interval(low, high, log):
            return {"kind": "interval", "low": low, "high": high, "log": log}
    raise AssertionError(domain)


def load(folder: StudyFolder) -> Settings | None:
    """Return a study's search; None where it has none. ValueError where the file is of another version, or damaged."""
    try:
        text = read_text(folder.search)
    except OSError:
        return None
    except UnicodeDecodeError:
        text = ""
    try:
        found = _object(text)
        settings = _read(found) if found.pop("format", None) == FORMAT else None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        why = error if isinstance(error, WrongRecordError) else f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{folder.search} is not a search ({why}): the file was edited or damaged; restore it from a backup, or "
            "start a new study (study.name=…)"
        ) from error
    if settings is None:
        raise ValueError(f"{folder.search} was written by another version: start a new study (study.name=…)")
    return settings


def _read(found: dict[str, Any]) -> Settings:
    check_record(found, SHAPE)
    settings = Settings(**found)
    settings.make_space()
    return settings


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise WrongRecordError("it is not JSON") from None
    check_record(found, Shape(SHAPE.what))
    return dict(found)


def save(folder: StudyFolder, wanted: Settings) -> Settings:
    """Write a study's search, or go on with the one there is; ValueError as :func:`refuse_another`."""
    there = refuse_another(folder, wanted)
    if there != wanted:
        folder.path.mkdir(parents=True, exist_ok=True)
        write_atomic(folder.search, json.dumps({"format": FORMAT, **_plain(wanted)}, indent=1) + "\n")
    return wanted


def as_begun(there: Settings | None, wanted: Settings, asked: int | None) -> Settings:
    """Return the wanted search as the existing one, if any, was begun: with its first rung and what its points are of.

    Defaults may have changed since. What is no part of a point is as the command says it, for trials that begin now,
    and so is where the data lie. `asked` is search.min_tokens.
    """
    wanted = with_rungs_of(there, wanted, asked)
    if there is None or _science(there) != _science(wanted):
        return wanted
    kept = {name: there.base[name] for name in SCIENTIFIC if name in there.base}
    kept["data"] = {**kept["data"], **{name: wanted.base["data"][name] for name in ("source", "sources")}}
    return replace(wanted, base={**wanted.base, **kept})


def with_rungs_of(there: Settings | None, wanted: Settings, asked: int | None) -> Settings:
    """Return the wanted search with the first rung of the existing one, where an earlier version placed it.

    `asked` is search.min_tokens. Without it versions differ in where the first rung is. Earlier ones counted rungs up
    from it, which need not be R / eta^k.
    """
    if there is None or there.scheduler != wanted.scheduler:
        return wanted
    if asked is None and (there.R, there.eta) == (wanted.R, wanted.eta):
        return replace(wanted, r=there.r)
    if there.r >= wanted.r:
        return wanted
    asked_the_same = first_rung(there.r, there.R, there.eta) == wanted.r
    return replace(wanted, r=there.r) if asked_the_same else wanted


def refuse_another(folder: StudyFolder, wanted: Settings) -> Settings | None:
    """Return the study's search, if any; ValueError where it differs from the wanted one.

    More trials or a larger budget continue the same search, from then on. A population's size cannot change.
    """
    there = load(folder)
    if there is None:
        return None
    fixed = {"trials"} if there.compares is Compares.WITH_MEMBERS else set()
    free = {name: getattr(there, name) for name in FREE if name not in fixed}
    same = replace(wanted, **free)
    asked, had = (_compared(one) for one in (same, there))
    if asked != had:
        differing = ", ".join(sorted(name for name in asked | had if asked.get(name) != had.get(name)))
        raise ValueError(
            f"study {folder.name} holds another search (different: {differing}): take another study.name, or give "
            "the same command; only search.trials, search.shape, its budgets, search.lease_seconds and what is no part "
            "of a point may change"
        )
    for name in ("trials", "budget", "gpu_hours"):
        old, new = getattr(there, name), getattr(wanted, name)
        if (float("inf") if new is None else new) < (float("inf") if old is None else old):
            key = {"budget": "budget_flops", "gpu_hours": "budget_gpu_hours"}.get(name, name)
            raise ValueError(
                f"study {folder.name}: search.{key}={new} is below what the study has ({old}): it may only grow"
            )
    return there


def _compared(settings: Settings) -> dict[str, Any]:
    """Return what makes a search this one, by key: all settings, and of the base what makes its points.

    The sizes of the mesh count too: trials that are not finished go on in it.
    """
    plain = _plain(settings)
    parallel, seed = plain.pop("base").get("parallel") or {}, plain.pop("seed")
    mesh = {f"parallel.{axis}": parallel.get(axis) for axis in MESH_AXES}
    return {**plain, "search.seed": seed, **mesh, **_science(settings)}


def _science(settings: Settings) -> dict[str, Any]:
    """Return the values of a search's base config that points are made of, by their dotted names.

    Keys that the schema has gained since are left out at the values that act as before, and rules that say nothing of
    any trial: for a learning rate that every trial has, and for an initialisation without muP or without a std.
    """
    said = {name: settings.base[name] for name in SCIENTIFIC if name in settings.base}
    try:
        config = read(RunConfig, filled(said))
        if settings.gives("optim.lr", config.optim.lr):
            config = replace(config, optim=replace(config.optim, lr_rule=None))
        scaled = {key: getattr(config.model, key) for key in ("mup_base_width", "init_std")}
        if any(value is None and f"model.{key}" not in settings.space for key, value in scaled.items()):
            config = replace(config, model=replace(config.model, init_std_at="width"))
        return flat(json.loads(canonical(asdict(config))))
    except ValueError:  # of another version: its own words are all that can be compared
        return flat(said)


def _plain(settings: Settings) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json.dumps(asdict(settings)))
    return loaded
