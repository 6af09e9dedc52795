"""What a run is and came to in a few numbers, as MLflow's metrics: sizes, FLOPs, cost, best and final loss."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from analysis.inputs import recorded
from study.records import metric_names as names
from study.records.ledger import Ledger
from study.records.point import Point
from study.status import cost
from study.storage.layout import RunFolder, StudyFolder
from study.tracking.facts import Facts
from study.tracking.metrics_reader import beginnings

UNITS = {cost.GPU: names.GPU_HOURS, cost.CORE: names.CORE_HOURS}


def sizes(point: Point) -> dict[str, float]:
    """Return the parameter counts of a point's model; none where its config cannot be read any more.

    params_active: those that work on a token, which are all of a dense model.
    """
    from train.spec.counts import params

    with suppress(ValueError):
        counts = params(point.config.model, point.config.data.vocab_size)
        found = {names.PARAMS: counts.matmul, names.PARAMS_TOTAL: counts.total, names.PARAMS_ACTIVE: counts.active}
        return {**found, names.LOG_PARAMS: _rounded(math.log10(counts.matmul))}
    return {}


def reached(outcome: Mapping[str, Any], validations: list[dict[str, Any]]) -> dict[str, float]:
    """Return what a run reached: tokens, FLOPs, tokens per matmul parameter, losses [nats per token].

    best_loss: the smallest of its validations on the path that it took. A loss that there is none of is left out.
    Losses are rounded to five digits: as validated, they are the last `validation/loss`.
    """
    counts, losses = outcome.get("params") or {}, outcome.get("loss") or {}
    tokens, final = outcome.get("tokens"), losses.get("validation_nats_per_token")
    seen = [float(one["metrics"]["loss"]) for one in validations if one["metrics"].get("loss") is not None]
    best = min([*seen, *([] if final is None else [float(final)])], default=None)
    matmul, flops = counts.get("matmul"), outcome.get("flops")
    found = {
        names.TOKENS: tokens,
        names.FLOPS: flops,
        names.LOG_FLOPS: math.log10(flops) if flops else None,
        names.TOKENS_PER_PARAM: _rounded(tokens / matmul) if tokens is not None and matmul else None,
        names.FINAL: None if final is None else _rounded(final),
        names.BEST: None if best is None else _rounded(best),
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def so_far(point: Point, validations: list[dict[str, Any]]) -> dict[str, float]:
    """Return what a run that ended without an outcome had reached at its last validation, as trials of searches do.

    tokens, flops, tokens per matmul parameter, and the smallest validation loss [nats per token].
    """
    known = [one for one in validations if one["metrics"].get("loss") is not None]
    tokens = max((int(one.get("tokens") or 0) for one in known), default=0)
    if not tokens:
        return {}
    found = {names.TOKENS: float(tokens), names.BEST: _rounded(min(float(one["metrics"]["loss"]) for one in known))}
    with suppress(ValueError):
        found |= {names.FLOPS: tokens * point.flops_per_token, names.TOKENS_PER_PARAM: _rounded(tokens / point.params)}
    return found


def after_rollbacks(run: RunFolder, outcome: Mapping[str, Any] | None) -> dict[str, float]:
    """Return where a run that went back after spikes ended, on the path that it kept; nothing where it never did.

    Its last step and tokens, and its last losses in training and validation [nats per token].
    """
    if not run.metrics.exists() or not beginnings(run.metrics):
        return {}
    rows = recorded.read(run.metrics, "train", "validation")
    kept = {row["kind"]: row for row in rows}
    last = outcome or max(kept.values(), key=lambda row: int(row["step"]), default={})
    losses = {names.END_LOSS: "train", names.END_VALIDATION: "validation"}
    found = {name: (kept.get(kind) or {"metrics": {}})["metrics"].get("loss") for name, kind in losses.items()}
    found |= {names.END_STEP: last.get("step"), names.END_TOKENS: last.get("tokens")}
    return {name: float(value) for name, value in found.items() if value is not None}


def _rounded(value: float) -> float:
    """Return a number in the five digits that a column of MLflow's table has room for."""
    return float(f"{value:.5g}")


def hours(folder: StudyFolder, known: Ledger, point: Point, outcome: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the GPU-hours or core-hours of all attempts of a run, by their own clocks: failed ones count too."""
    found: dict[str, float] = {}
    for one in cost.attempts(folder, [point.key], time.time()):
        batch = known.batches.get(one.batch)
        if batch is None:
            continue
        held = cost.devices_of(batch, point)
        unit = cost.GPU if held.gpus else cost.CORE
        count = held.count(unit) / batch.lanes
        if (
            not held.gpus and outcome is not None and outcome.get("device") == "cuda"
        ):  # a local run on this machine's GPUs
            unit, count = cost.GPU, float(outcome["world_size"]) * float(outcome.get("gpu_share") or 1)
        found[UNITS[unit]] = found.get(UNITS[unit], 0.0) + (one.ended - one.started) / 3600 * count
    return {name: _rounded(value) for name, value in found.items()}


def totals(folder: StudyFolder, known: Ledger, point: Point, facts: Facts) -> dict[str, float]:
    """Return all of it for a run with an outcome; what it reached so far where an attempt has ended; else its sizes."""
    found = sizes(point)
    if facts.ended is not None or facts.outcome is not None:
        found |= hours(folder, known, point, facts.outcome)
    if facts.outcome is not None or facts.ended is not None:
        found |= after_rollbacks(folder.run(point.key), facts.outcome)
        validations = recorded.read(folder.run(point.key).metrics, "validation")
        found |= so_far(point, validations) if facts.outcome is None else reached(facts.outcome, validations)
    return found
