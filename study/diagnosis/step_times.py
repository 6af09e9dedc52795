"""What a run's own step times say (metrics.jsonl), where nothing was recorded by a profiler. Pure but for reading."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from study.diagnosis.causes import LEAST, Finding
from study.records.shapes import METRICS
from study.storage.shapes import record_in

PHASES = ("data", "forward", "backward", "forward_backward", "optimizer", "graph")
_WARM = 2
"""First records that are left out: compiling and first touches are in them."""


@dataclass(frozen=True)
class StepTimes:
    """Medians over the logged steps: seconds of a step and of its phases, their shares, MFU, tokens per step.

    rest: share of the step that is in no phase. profiled: shares of the run's last `profile` record (GPU runs), else
    empty. findings: what the times tell; most causes need a trace.
    """

    records: int
    seconds_step: float
    phases: Mapping[str, float]
    shares: Mapping[str, float]
    mfu: float | None
    tokens_per_step: int | None
    profiled: Mapping[str, float]
    findings: Sequence[Finding]


def read_step_times(path: Path) -> StepTimes:
    """Return what a metrics file says of steps. ValueError where it is not there, or has no step that is timed."""
    if not path.exists():
        raise ValueError(f"{path} is not there: the run has not trained yet, and has no trace; start it")
    records = list(_records(path))
    train = [one for one in records if one["kind"] == "train" and "seconds_step" in one["metrics"]]
    if not train:
        raise ValueError(f"{path} has no timed step yet: they are written every runtime.log_steps steps; wait for one")
    profiles = [one["metrics"] for one in records if one["kind"] == "profile"]
    return step_times(train, profiles[-1] if profiles else {})


def step_times(train: Sequence[Mapping[str, Any]], profile: Mapping[str, float]) -> StepTimes:
    """Return what records of kind `train`, and the metrics of a `profile` record, say."""
    warm = train[_WARM:] if len(train) > 2 * _WARM else train
    metrics = [one["metrics"] for one in warm]
    step = _median(metrics, "seconds_step")
    phases = {name: _median(metrics, f"seconds_{name}") for name in PHASES if f"seconds_{name}" in metrics[-1]}
    # What the host spends on a batch costs nothing as far as the device goes on meanwhile.
    others = sum(seconds for name, seconds in phases.items() if name != "data")
    waited = min(phases.get("data", 0.0), max(0.0, step - others))
    shares = {name: seconds / step for name, seconds in phases.items()} if step else {}
    shares |= {"data": waited / step} if "data" in phases and step else {}
    shares |= {"rest": max(0.0, 1.0 - sum(shares.values()))} if shares else {}
    known = [one["mfu"] for one in metrics if "mfu" in one]
    return StepTimes(
        len(train), step, phases, shares, float(np.median(known)) if known else None, _tokens(train),
        _profiled(profile, step), _findings(shares, profile, step),
    )  # fmt: skip


def _records(path: Path) -> Iterable[dict[str, Any]]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            record = record_in(line, METRICS)  # the last line may be half written
            if record is not None:
                known = {name: value for name, value in record["metrics"].items() if _is_known(value)}
                yield {**record, "metrics": known}


def _is_known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _median(metrics: Sequence[Mapping[str, float]], name: str) -> float:
    values = [one[name] for one in metrics if name in one]
    return float(np.median(values)) if values else 0.0


def _tokens(train: Sequence[Mapping[str, Any]]) -> int | None:
    last = train[-1]
    return int(last["tokens"]) // int(last["step"]) if last.get("step") and last.get("tokens") else None


def _profiled(profile: Mapping[str, float], step: float) -> dict[str, float]:
    if not profile or not step:
        return {}
    busy, exposed = profile.get("seconds_busy", 0.0), profile.get("seconds_communication_exposed", 0.0)
    return {"communication": exposed / step, "idle": max(0.0, 1.0 - busy / step)}


def _findings(shares: Mapping[str, float], profile: Mapping[str, float], step: float) -> list[Finding]:
    found = []
    if shares.get("data", 0.0) >= LEAST:
        found.append(Finding(
            "input", shares["data"], "the step waits while the loop fetches its batch (seconds_data)",
            "Set runtime.prefetch_batches=4, which reads ahead in a thread.",
        ))  # fmt: skip
    if (exposed := _profiled(profile, step).get("communication", 0.0)) >= LEAST:
        found.append(Finding(
            "communication", exposed, "only messages went (seconds_communication_exposed of the last profile)",
            "Raise parallel.micro_batch_sequences, so that each message has more computation to hide under.",
        ))  # fmt: skip
    return sorted(found, key=lambda one: -one.share)
