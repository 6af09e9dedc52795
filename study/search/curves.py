"""The learning curves of a study as one table, for replaying schedulers on them (`python -m sweeps.replay`)."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.inputs import recorded
from analysis.inputs.tracking_store import past_proxies
from study.config.dotted import flat
from study.failures.kinds import AttemptState
from study.records.metric_names import EARLIER, ROLLBACK, TOKENS, VALIDATION_LOSS
from study.records.points import load_points
from study.records.shapes import ATTEMPT_END, METRICS, RUN_OUTCOME
from study.storage.layout import StudyFolder
from study.storage.shapes import read_record, wrong
from study.text import counted
from train.spec.lineage import parse

NOT_WHOLE = "not trained to the end"
COLUMNS = 81
"""Most columns of a table; runs with fewer validations have fewer."""


@dataclass(frozen=True)
class Curve:
    """One run: its settings, its budget, validation losses by tokens [nats per token], how it ended.

    seconds: its device time; starts: how many attempts it took, of which `lost` ended without saying why. begun: where
    it went on from another run's checkpoint [tokens].
    """

    key: str
    settings: Mapping[str, Any]
    budget: int
    losses: Mapping[int, float] = field(default_factory=dict)
    state: str = "unknown"
    seconds: float = math.nan
    start_seconds: tuple[float, ...] = ()
    starts: int = 0
    lost: int = 0
    begun: int = 0


@dataclass(frozen=True)
class Exported:
    """A table and what it is made of. startup [columns] and failures [a unit] are what the study itself had.

    branches: rows that go on from another run's checkpoint, and have no value before.
    """

    arrays: Mapping[str, NDArray[Any]]
    budget: int
    left_out: Mapping[str, int]
    startup: float
    failures: float
    branches: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """Configurations and columns."""
        rows, columns = self.arrays["val_loss"].shape
        return rows, columns


def from_runs(folder: StudyFolder) -> list[Curve]:
    """Return the curves of a study's folder."""
    return [
        _curve(folder, key, flat(_science(point.config)), point.config.budget.tokens or 0)
        for key, point in load_points(folder).items()
        if folder.run(key).metrics.exists() or folder.run(key).outcome.exists()
    ]


def from_mlflow(uri: str, experiment: str) -> list[Curve]:
    """Return the curves of an MLflow experiment that the study's syncer wrote; ValueError where there is none."""
    past_proxies(uri)
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    try:
        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(experiment)
        if found is None:
            raise ValueError(f"mlflow:{experiment}: {uri} has no such experiment")
        curves, page = [], None
        while True:
            runs = client.search_runs([found.experiment_id], "tags.role = 'run'", page_token=page)
            curves += [_from_run(client, run) for run in runs]
            page = runs.token
            if not page:
                return curves
    except MlflowException as error:
        raise ValueError(f"mlflow:{experiment}: {uri} cannot be read: {str(error).splitlines()[0]}") from None


def table(curves: Iterable[Curve]) -> Exported:
    """Return the curves at equal tokens, of the budget that most runs have (the largest, where several do).

    A column is a share of the budget; its value the latest validation up to it. Where there is none it is NaN: what
    diverged has none from there on, a copy of another run's weights none before. There are as many columns as the most
    validations of a run, and the first one is not before the first validation of any run that began at the start. Runs
    that were stopped before the end, or have another budget, are left out and counted: their end is not known.
    ValueError where fewer than three runs remain.
    """
    every = list(curves)
    if not every:
        raise ValueError("no run of the study has begun: there are no curves")
    counts = Counter(curve.budget for curve in every if _whole(curve))
    budget = max(counts, key=lambda b: (counts[b], b), default=0)
    kept = [curve for curve in every if _whole(curve) and curve.budget == budget]
    left = Counter(_why_not(curve, budget) for curve in every if not (_whole(curve) and curve.budget == budget))
    if len(kept) < 3:
        said = ", ".join(f"{count} {why}" for why, count in left.items())
        raise ValueError(
            f"{counted(len(kept), 'whole curve')} of one budget: too few to replay ({said}), at least 3 are needed"
        )
    columns = _columns(kept, budget)
    losses = np.array([_row(curve, columns) for curve in kept])
    config = {name: _as_numbers(values) for name, values in _varying(kept).items()}
    # A copy took only the time of its own part.
    seconds = np.array([curve.seconds / (1 - min(curve.begun, budget - 1) / budget) for curve in kept])
    arrays: dict[str, NDArray[Any]] = {"val_loss": losses, "keys": np.array([c.key for c in kept])}
    branches = sum(curve.begun > 0 for curve in kept)
    if branches:
        arrays["begun"] = np.array([curve.begun for curve in kept])
    if config:
        arrays |= {"config": np.column_stack(list(config.values())), "config_names": np.array(list(config))}
    if np.isfinite(seconds).all() and seconds.min() > 0:
        arrays["epoch_cost"] = seconds / seconds.mean()
    begun = [s for c in every for s in c.start_seconds]
    startup = (
        float(np.median(begun) / (np.nanmedian(seconds) / columns)) if begun and np.isfinite(seconds).any() else 0.0
    )
    starts = sum(curve.starts for curve in every)
    lost = sum(c.lost for c in every) / starts if starts else 0.0
    return Exported(arrays, budget, left, startup, lost, branches)


def _science(config: Any) -> dict[str, Any]:
    from dataclasses import asdict

    from train.spec.config import SCIENTIFIC

    whole = asdict(config)
    return {name: whole[name] for name in SCIENTIFIC if name not in ("data", "eval")}


def _curve(folder: StudyFolder, key: str, settings: Mapping[str, Any], budget: int) -> Curve:
    run = folder.run(key)
    outcome = read_record(run.outcome, RUN_OUTCOME) or {}
    losses: dict[int, float] = {}
    for record in recorded.read(run.metrics, "validation"):
        if not wrong(record, METRICS) and record["metrics"].get("loss") is not None:
            losses[int(record.get("tokens") or 0)] = float(record["metrics"]["loss"])
    spent = {kind: float(took) for kind, took in (outcome.get("seconds") or {}).items() if took is not None}
    total = spent.get("total", math.nan)
    attempts = [read_record(path, ATTEMPT_END) for path in sorted(run.attempts.glob("*/outcome.json"))]
    ends = [attempt for attempt in attempts if attempt is not None]
    starts = sum(1 for _ in run.attempts.glob("*/job.json"))
    lost = starts - sum(
        str(end.get("state")) in (AttemptState.COMPLETED, AttemptState.DIVERGED, AttemptState.PAUSED) for end in ends
    )
    work = spent.get("train", 0.0) + spent.get("validation", 0.0)
    starting = (
        (max(0.0, sum(float(e.get("seconds") or 0.0) for e in ends) - work) / len(ends),) if ends and spent else ()
    )
    state, begun = str(outcome.get("state", "unknown")), _begun(settings.get("schedule.parent"))
    return Curve(key, settings, budget, losses, state, total, starting, starts, lost, begun)


def _from_run(client: Any, run: Any) -> Curve:
    outcome = _parsed(run.data.tags.get("outcome") or "{}")
    if wrong(outcome, RUN_OUTCOME):
        outcome = {}
    earlier = VALIDATION_LOSS not in run.data.metrics
    named = {name: EARLIER[name] if earlier else name for name in EARLIER}
    history = {name: client.get_metric_history(run.info.run_id, named[name]) for name in EARLIER}
    history = _path_taken(history)
    at = {metric.step: int(metric.value) for metric in history[TOKENS]}
    per_step = (outcome.get("tokens") or 0) / outcome["step"] if outcome.get("step") else None
    losses = {
        at.get(metric.step, round(metric.step * per_step) if per_step else metric.step): float(metric.value)
        for metric in history[VALIDATION_LOSS]
    }
    settings = {name: _parsed(text) for name, text in run.data.params.items()}
    budget = int(settings.get("budget.tokens") or 0)
    took = (outcome.get("seconds") or {}).get("total")
    seconds = math.nan if took is None else float(took)
    state = str(outcome.get("state", run.data.tags.get("state", "unknown")))
    sections = ("model.", "batch.", "optim.", "schedule.", "precision.", "spikes.", "seed")
    settings = {name: value for name, value in settings.items() if name.startswith(sections)}
    starts = int(run.data.tags.get("attempt") or 1)
    key, begun = run.data.tags["point_key"], _begun(settings.get("schedule.parent"))
    return Curve(key, settings, budget, losses, state, seconds, (), starts, max(0, starts - 1), begun)


def _begun(parent: object) -> int:
    """Return the tokens at which a run goes on from another one's checkpoint; 0 where it began from scratch."""
    place = parse(str(parent)) if parent else None
    return 0 if place is None else place.tokens


def _path_taken(history: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Return MLflow's values of each metric without those of paths that a rollback abandoned, the latest of each last.

    A store has what was sent before the rollback was known: steps that are later than where the run went back to, at
    times before it did.
    """
    back = [(metric.timestamp, metric.value) for metric in history[ROLLBACK]]
    return {
        name: sorted(
            (m for m in metrics if not any(m.timestamp <= at and m.step > step for at, step in back)),
            key=lambda metric: (metric.step, metric.timestamp),
        )
        for name, metrics in history.items()
    }


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _whole(curve: Curve) -> bool:
    return bool(curve.losses) and curve.state in (AttemptState.COMPLETED, AttemptState.DIVERGED) and curve.budget > 0


def _why_not(curve: Curve, budget: int) -> str:
    return f"of other budgets than {budget:,} tokens" if _whole(curve) else NOT_WHOLE


def _columns(curves: Sequence[Curve], budget: int) -> int:
    """Return how many columns a table has: as many as validations, and the first one not before any run's first one."""
    most = max(len(curve.losses) for curve in curves)
    firsts = [min(curve.losses) for curve in curves if not curve.begun and curve.state == AttemptState.COMPLETED]
    return max(1, min(COLUMNS, most, *(budget // first for first in firsts if first > 0)))


def _row(curve: Curve, columns: int) -> list[float]:
    reached, row = sorted(curve.losses), []
    for column in range(1, columns + 1):
        mark = curve.budget * column / columns
        known = bisect_right(reached, mark + 1e-9 * mark)
        gone = curve.state == AttemptState.DIVERGED and mark > reached[-1]
        row.append(math.nan if gone or not known else curve.losses[reached[known - 1]])
    return row


def _varying(curves: Sequence[Curve]) -> dict[str, list[Any]]:
    """Return the settings in which the curves differ, by name: each curve's value, None where it has none."""
    names = sorted({name for curve in curves for name in curve.settings})
    columns = {name: [curve.settings.get(name) for curve in curves] for name in names}
    return {name: values for name, values in columns.items() if len(set(map(repr, values))) > 1}


def _as_numbers(values: Sequence[Any]) -> list[float]:
    """Return one setting's values as numbers; what is no number by its place among all of them, sorted as text."""
    places = {text: float(place) for place, text in enumerate(sorted(set(map(repr, values))))}
    return [float(value) if isinstance(value, bool | int | float) else places[repr(value)] for value in values]
