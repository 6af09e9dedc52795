"""Model-based samplers of Optuna: TPE and a Gaussian process, asked anew for every trial.

A study in memory is filled with what the trials have shown and asked once, with a seed made of the search's and the
trial's number. So a proposal is a function of the history, and a process that died has lost nothing. Optuna is
imported when the first trial is proposed; its Gaussian process needs torch as well.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sweeps.history import Setting
from sweeps.rungs import Rung
from sweeps.samplers import MODELS
from sweeps.samplers.base import SamplerOptions, Tried, identity, taken
from sweeps.samplers.random import RandomDraws
from sweeps.space import Choice, Domain, Integers, Interval, Space

if TYPE_CHECKING:
    import optuna

OBJECTIVES = (("loss",), ("loss", "gpu_seconds"))
REPEATS = 4
"""Retries for a model that proposes settings already tried, before a random draw is taken."""


@dataclass(frozen=True)
class Modelled:
    """TPE (Bergstra et al. 2011) or a Gaussian process with expected improvement, by `kind`.

    TPE takes trials that were stopped or paused below the full resource `R` as what they are, ranked by how far they
    came; the Gaussian process and two objectives compare at the highest resource that `startup` trials have reached.
    Until then configs are drawn at random. What failed or diverged is as bad as can be.
    """

    kind: str
    space: Space
    seed: int
    R: int
    objectives: tuple[str, ...] = ("loss",)
    startup: int = 10

    def __post_init__(self) -> None:
        if self.kind not in MODELS or self.objectives not in OBJECTIVES or self.startup < 1:
            allowed = " or ".join(f"[{', '.join(o)}]" for o in OBJECTIVES)
            raise ValueError(
                f"sampler {self.kind!r} with objectives [{', '.join(self.objectives)}] after {self.startup} trials: "
                f"allowed are {', '.join(MODELS)}, {allowed}, and at least one trial"
            )

    def propose(self, trial: int, tried: Sequence[Tried], rungs: Sequence[Rung] = ()) -> dict[str, Setting] | None:
        """Return the model's best candidate; a random draw while fewer than `startup` trials have reported."""
        shown = self._shown(tried)
        if shown is not None:
            had = taken(tried)
            for repeat in range(REPEATS):
                config = self._asked(trial, shown, repeat)
                if identity(config) not in had:
                    return config
        return RandomDraws(self.space, self.seed).propose(trial, tried, rungs)

    def _shown(self, tried: Sequence[Tried]) -> list[Shown] | None:
        ended = sum(bool(one.values) or one.failed for one in tried)
        if ended < self.startup:
            return None
        if self.kind == "tpe" and len(self.objectives) == 1:
            return [ranked(one, self.R) for one in tried]
        return compared(tried, self.startup, len(self.objectives))

    def _asked(self, trial: int, shown: Sequence[Shown], repeat: int) -> dict[str, Setting]:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(
            sampler=self._sampler(trial, repeat), directions=["minimize"] * len(self.objectives)
        )
        study.add_trials([frozen(one, self.space) for one in shown])
        asked = study.ask()
        config: dict[str, Setting] = {}
        for name, domain in self.space.domains.items():
            if self.space.active(name, config):
                config[name] = suggested(asked, name, domain)
        return config

    def _sampler(self, trial: int, repeat: int) -> optuna.samplers.BaseSampler:
        import warnings

        import optuna

        seed = (self.seed * 1_000_003 + trial * 17 + repeat) % 2**32
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            if self.kind == "gp":
                return optuna.samplers.GPSampler(
                    seed=seed, n_startup_trials=self.startup, warn_independent_sampling=False
                )
            return optuna.samplers.TPESampler(
                seed=seed,
                n_startup_trials=self.startup,
                multivariate=True,
                group=bool(self.space.conditions),
                constant_liar=True,  # what runs now counts as bad: workers that ask at once go to different places
            )


@dataclass(frozen=True)
class Shown:
    """A trial as a model is told of it: complete with `values`, stopped at `stopped` (resource, value), or running."""

    config: dict[str, Setting]
    values: tuple[float, ...] | None = None
    stopped: tuple[int, float] | None = None


def ranked(one: Tried, R: int) -> Shown:
    """Return a trial for TPE, which ranks the stopped by their resource, then by value, all behind the complete."""
    config = dict(one.config)
    if one.bad:
        return Shown(config, stopped=(0, math.inf))
    if not one.values:
        return Shown(config)
    at = max(one.values)
    return Shown(config, (one.values[at],)) if at >= R else Shown(config, stopped=(at, one.values[at]))


def compared(tried: Sequence[Tried], enough: int, objectives: int) -> list[Shown] | None:
    """Return the trials with their values at the highest resource that `enough` of them have; None where none has.

    Bad ones count at every resource, with the ceiling of :func:`clipped`.
    """
    bad = sum(one.bad for one in tried)
    levels = sorted({level for one in tried for level in one.values}, reverse=True)
    level = next((at for at in levels if bad + sum(at in one.values and not one.bad for one in tried) >= enough), None)
    if level is None:
        return None
    values = clipped([math.inf if one.bad else one.values.get(level, math.nan) for one in tried])
    if values is None:
        return None
    known = [one.seconds[level] for one in tried if level in one.seconds]
    shown = []
    for one, value in zip(tried, values, strict=True):
        if math.isnan(value):
            shown.append(Shown(dict(one.config)))
        elif objectives == 1:
            shown.append(Shown(dict(one.config), (value,)))
        else:  # what failed has no time of its own: it must not look cheap
            shown.append(Shown(dict(one.config), (value, one.seconds.get(level, max(known, default=0.0)))))
    return shown


def clipped(values: Sequence[float]) -> list[float] | None:
    """Return the values, what is worse than three times the way from the best to the median set to that.

    One diverged loss of 11 among losses of 3 makes a Gaussian process see a cliff and nothing else. NaN (not known)
    stays; None where no value is finite.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    best, middle = min(finite), statistics.median(finite)
    ceiling = best + 3 * (middle - best) if middle > best else max(finite)
    return [value if math.isnan(value) else min(value, ceiling) for value in values]


def distribution(domain: Domain) -> optuna.distributions.BaseDistribution:
    """Return a domain as Optuna's; an ordered choice is the place of its value, so that neighbours are near."""
    import optuna

    match domain:
        case Interval(low, high, log):
            return optuna.distributions.FloatDistribution(low, high, log=log)
        case Integers(low, high, log):
            return optuna.distributions.IntDistribution(low, high, log=log)
        case Choice(values, True):
            return optuna.distributions.IntDistribution(0, len(values) - 1)
        case Choice(values):
            return optuna.distributions.CategoricalDistribution(values)
    raise AssertionError(domain)


def suggested(asked: optuna.trial.Trial, name: str, domain: Domain) -> Setting:
    """Return the value that Optuna suggests."""
    value: Setting
    match domain:
        case Interval(low, high, log):
            value = asked.suggest_float(name, low, high, log=log)
        case Integers(low, high, log):
            value = asked.suggest_int(name, low, high, log=log)
        case Choice(values, True):
            value = values[asked.suggest_int(name, 0, len(values) - 1)]
        case Choice(values):
            value = values[values.index(asked.suggest_categorical(name, values))]
        case _:
            raise AssertionError(domain)
    return value


def frozen(one: Shown, space: Space) -> optuna.trial.FrozenTrial:
    """Return a trial as Optuna keeps it."""
    import optuna

    names = [name for name in space.domains if name in one.config]
    state = optuna.trial.TrialState.RUNNING
    about: dict[str, Any] = {}
    if one.values is not None:
        state, about = optuna.trial.TrialState.COMPLETE, {"values": list(one.values)}
    elif one.stopped is not None:
        state, about = optuna.trial.TrialState.PRUNED, {"intermediate_values": dict([one.stopped])}
    return optuna.trial.create_trial(
        state=state,
        params={name: internal(space.domains[name], one.config[name]) for name in names},
        distributions={name: distribution(space.domains[name]) for name in names},
        **about,
    )


def internal(domain: Domain, value: Setting) -> Setting:
    """Return a value as its distribution has it."""
    return domain.values.index(value) if isinstance(domain, Choice) and domain.ordered else value


def make(options: SamplerOptions) -> Modelled:
    """Return the sampler of a search, by its name."""
    return Modelled(options.name, options.space, options.seed, options.R, options.objectives)
