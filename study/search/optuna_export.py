"""A search as an Optuna study in a file of its own, for optuna-dashboard and Optuna's plots; our log stays the truth.

Filled from the log by commands of the login node, never by jobs; again and again, each time with what is new. It may be
deleted at any time. What Optuna could not take back (a trial that it has as ended and that went on) makes it anew.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from study.search import view
from study.search.pareto import values_at
from study.search.state import Search, Trial
from study.search.trial_queue import TrialQueue
from study.storage.files import locked
from study.storage.layout import StudyFolder
from sweeps.history import Config
from sweeps.samplers.optuna_models import distribution
from sweeps.space import Choice, Domain

if TYPE_CHECKING:
    import optuna

LOCK_SECONDS = 60.0
METRICS = {"loss": "validation loss [nats per token]", "gpu_seconds": "device time [GPU-seconds]"}


def url(folder: StudyFolder) -> str:
    """Return the storage's address, as `optuna-dashboard` takes it."""
    return f"sqlite:///{folder.optuna.absolute()}"


def fill(folder: StudyFolder) -> int:
    """Bring the storage up to date with the log; return how many trials it has. ValueError where there is no search."""
    import optuna

    if not folder.search.exists():
        raise ValueError(f"{folder.name} is not a search: its points are a fixed list, so it has no trials")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    queue = TrialQueue.of(folder)
    search = queue.search
    begun: dict[int, float] = {}
    over: dict[int, float] = {}
    for record in queue.log.records:
        if record["event"] == "started":
            begun.setdefault(record["trial"], record["time"])
        if "trial" in record:
            over[record["trial"]] = record["time"]
    wanted = [_to_optuna(search, trial, begun[number], over[number]) for number, trial in sorted(search.trials.items())]
    with locked(folder.optuna_lock, LOCK_SECONDS), _storage(folder) as storage:
        _bring(storage, folder.name, wanted, search)
    return len(wanted)


@contextmanager
def _storage(folder: StudyFolder) -> Iterator[optuna.storages.RDBStorage]:
    import optuna

    storage = optuna.storages.RDBStorage(url(folder))
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _bring(storage: Any, name: str, wanted: list[optuna.trial.FrozenTrial], search: Search) -> None:
    """Make the stored study say what is wanted: trials that changed are brought forward, or all is written anew."""
    import optuna

    if any(summary.study_name == name for summary in storage.get_all_studies()):
        known = optuna.load_study(study_name=name, storage=storage)
        have = storage.get_all_trials(known._study_id, deepcopy=False)
        if len(have) <= len(wanted) and all(_leads_to(a, b) for a, b in zip(have, wanted, strict=False)):
            for stored, target in zip(have, wanted, strict=False):
                _forward(storage, stored, target)
            known.add_trials(wanted[len(have) :])
            _describe(known, search)
            return
        optuna.delete_study(study_name=name, storage=storage)
    objectives = search.settings.objectives
    study = optuna.create_study(study_name=name, storage=storage, directions=["minimize"] * len(objectives))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names([METRICS[one] for one in objectives])
    study.add_trials(wanted)
    _describe(study, search)


def _describe(study: optuna.Study, search: Search) -> None:
    best = search.incumbent
    said = {
        "scheduler": search.settings.scheduler,
        "sampler": search.settings.sampler,
        "full training [tokens]": search.settings.R,
        "incumbent": None if best is None else best.key,
        "over": search.over,
    }
    for name, value in said.items():
        if study.user_attrs.get(name) != value:
            study.set_user_attr(name, value)


def _leads_to(stored: optuna.trial.FrozenTrial, target: optuna.trial.FrozenTrial) -> bool:
    """Whether a stored trial can still become what is wanted: ended ones are final, values are only added."""
    same = stored.params == target.params and stored.distributions == target.distributions
    kept = all(_equal(target.intermediate_values.get(at), v) for at, v in stored.intermediate_values.items())
    ended = stored.state.is_finished()
    final = not ended or (stored.state == target.state and stored.values == target.values)
    return same and kept and final and (not ended or len(stored.intermediate_values) == len(target.intermediate_values))


def _forward(storage: Any, stored: optuna.trial.FrozenTrial, target: optuna.trial.FrozenTrial) -> None:
    if stored.state.is_finished():
        return
    number = stored._trial_id
    for at, value in target.intermediate_values.items():
        if at not in stored.intermediate_values:
            storage.set_trial_intermediate_value(number, at, value)
    for name, attribute in target.user_attrs.items():
        if stored.user_attrs.get(name) != attribute:
            storage.set_trial_user_attr(number, name, attribute)
    if target.state.is_finished():
        storage.set_trial_state_values(number, target.state, target.values)


def _to_optuna(search: Search, trial: Trial, begun: float, over: float) -> optuna.trial.FrozenTrial:
    """Return a trial as Optuna keeps it: paused ones as running until the search is over, then as pruned."""
    import optuna

    state, values = _state(search, trial)
    config = _schedule(search, trial)[-1][1]
    domains = {name: domain for name, domain in search.space.domains.items() if name in config}
    ended = state.is_finished()
    return optuna.trial.FrozenTrial(
        number=trial.number,
        trial_id=trial.number,
        state=state,
        value=None,
        values=values,
        datetime_start=datetime.fromtimestamp(begun),
        datetime_complete=datetime.fromtimestamp(over) if ended else None,
        params=dict(config),
        distributions={name: _shown(domain) for name, domain in domains.items()},
        user_attrs=_attributes(search, trial),
        system_attrs={},
        intermediate_values={at: value for at, value in sorted(trial.values.items()) if math.isfinite(value)},
    )


def _state(search: Search, trial: Trial) -> tuple[optuna.trial.TrialState, list[float] | None]:
    import optuna

    states = optuna.trial.TrialState
    verdict = view.verdict(search, trial)
    if verdict == view.TrialState.FAILED or (verdict == view.TrialState.DIVERGED and not trial.values):
        return states.FAIL, None
    if verdict == view.TrialState.COMPLETED:
        return states.COMPLETE, values_at(search, trial, search.settings.R)
    if verdict == view.TrialState.DIVERGED or search.over:
        return states.PRUNED, None
    return states.RUNNING, None


def _attributes(search: Search, trial: Trial) -> dict[str, Any]:
    said: dict[str, Any] = {
        "point": trial.key,
        "bracket": trial.bracket,
        "verdict": view.verdict(search, trial),
        "tokens": trial.at,
        "device seconds": round(trial.took, 3),
    }
    if search.scheduler.population is not None:
        said["schedule"] = json.dumps([{"tokens": at, "config": dict(c)} for at, c in _schedule(search, trial)])
    return said


def _schedule(search: Search, trial: Trial) -> list[tuple[int, Config]]:
    """Return the settings that a trial's weights were trained with, from which resource on [tokens]; oldest first.

    In a population they are those of the members that it goes back to, and the last ones are what Optuna calls its
    parameters: those that it began with may have nothing to do with its loss.
    """
    population = search.scheduler.population
    if population is None:
        return [(0, search.first[trial.number])]
    whole = population.schedule(trial.number)
    return [step for step in whole if step[0] < trial.at] or whole[:1]


def _shown(domain: Domain) -> Any:
    """Return a domain as Optuna's, an ordered choice by its values."""
    return distribution(Choice(domain.values)) if isinstance(domain, Choice) else distribution(domain)


def _equal(a: float | None, b: float) -> bool:
    return a is not None and (a == b or (math.isnan(a) and math.isnan(b)))
