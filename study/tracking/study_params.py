"""What tells studies apart in MLflow: the parameters of a study's own run. What is swept, and what its points share."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from study.config.dotted import flat
from study.records.point import Point
from study.storage.secrets import Redact
from study.tracking.mapping import params
from study.tracking.mlflow_view import varying
from study.tracking.state import StoreState
from study.tracking.store import Store

POINTS, SWEPT, FAMILY = "points", "swept", "model.family"
TOLD = (
    *("data.name", "data.source", "data.fingerprint", "data.tokenizer", "data.vocab_size", "data.sequence_length"),
    *("model.width", "model.layers", "model.experts", "batch.tokens", "budget.flops", "budget.tokens", "seed"),
    *("optim.name", "optim.lr", "schedule.name", "precision.name", "parallel.strategy"),
)
"""Keys that every study tells, swept or not: so its columns are those of other studies, and of the runs."""
COMPARED = 1000
"""Points of a large study that are looked at for what tells its points apart."""
LISTED = 8
"""So many values are listed; of more the lowest, the highest and how many there are."""
LONGEST = 499
"""Letters of a value: some stores take no more."""


def study_params(points: Sequence[Point], swept: Sequence[str], redact: Redact) -> dict[str, str]:
    """Return the parameters of a study's own run by their names; a key that no point sets is left out.

    swept: the keys that tell points apart (:func:`apart`). Each key has its value where all points share it, else its
    values: `16, 24, 32`, or `16 to 88 (13 values)`.
    """
    if not points:
        return {}
    configs = [point.raw for point in points]
    found = {POINTS: str(len(points)), SWEPT: ", ".join(sorted(swept)), FAMILY: _family(configs)}
    for key in dict.fromkeys((*TOLD, *swept)):
        values = _values(configs, key)
        if values:
            found[key] = _said(values, redact)
    return {key: text if len(text) <= LONGEST else text[: LONGEST - 1] + "…" for key, text in found.items() if text}


def apart(points: Sequence[Point]) -> list[str]:
    """Return the dotted keys that tell points apart, those that a person swept first."""
    swept = {said.partition("=")[0].strip("+") for point in points for said in point.overrides}
    every = max(1, -(-len(points) // COMPARED))
    return varying([flat(point.raw) for point in points[::every]], swept)


def send(
    store: Store,
    target: StoreState,
    points: Sequence[Point],
    swept: Sequence[str],
    redact: Redact,
    *,
    search: str | None,
) -> bool:
    """Tell a study's own run its parameters; return whether something was sent.

    MLflow's parameters cannot be changed. Where points that came later change one, a tag of its name says what holds.
    The points of a search are known once it has ended (`search`: "over" or "stopped", "" while it goes on).
    """
    told = {} if search == "" else study_params(points, swept, redact)
    digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]
    if not told or target.told == digest:
        return False
    held = store.held(target.parent).params
    new = [(name, value) for name, value in told.items() if name not in held]
    changed = {name: value for name, value in told.items() if held.get(name, value) != value}
    store.log(target.parent, [], params=new, tags=changed)
    target.told = digest
    return True


def _family(configs: Iterable[Mapping[str, Any]]) -> str:
    """Return what kind of model is trained."""
    experts = {bool((config.get("model") or {}).get("experts")) for config in configs}
    names = {False: "dense transformer", True: "mixture of experts"}
    return ", ".join(names[kind] for kind in sorted(experts))


def _values(configs: Iterable[Mapping[str, Any]], key: str) -> list[Any]:
    """Return the different values of a dotted key, numbers in their order, others as they come; None is none."""
    found: dict[str, Any] = {}
    for config in configs:
        value: Any = config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None and value != []:
            found.setdefault(json.dumps(value, default=str), value)
    values = list(found.values())
    return sorted(values) if _numbers(values) else values


def _said(values: Sequence[Any], redact: Redact) -> str:
    """Return values in words, each as a run's parameter has it."""
    ends = values if len(values) <= LISTED else (values[0], values[-1]) if _numbers(values) else values[:LISTED]
    texts = [text for value in ends for _, text in params({"": value}, redact)]
    if len(values) <= LISTED:
        return ", ".join(texts)
    listed = " to ".join(texts) if _numbers(values) else f"{', '.join(texts)}, …"
    return f"{listed} ({len(values)} values)"


def _numbers(values: Collection[Any]) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < math.inf for v in values)
