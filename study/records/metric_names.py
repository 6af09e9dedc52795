"""The names under which MLflow has a run's metrics; its charts are grouped by what stands before the slash. Pure."""

from __future__ import annotations

import re
from functools import lru_cache

LOSS, VALIDATION_LOSS = "train/loss", "validation/loss"
TOKENS, FLOPS = "tokens", "flops"
LOG_FLOPS, LOG_PARAMS = "log10_flops", "log10_params_matmul"
"""MLflow has no logarithmic axis for a metric over another one: these are drawn instead."""

ROLLBACK = "rollback/to_step"

FINAL, BEST, TOKENS_PER_PARAM = "final_loss", "best_loss", "tokens_per_param"
PARAMS, PARAMS_TOTAL, PARAMS_ACTIVE = "params_matmul", "params_total", "params_active"
GPU_HOURS, CORE_HOURS = "gpu_hours", "core_hours"
END_STEP, END_TOKENS = "end/step", "end/tokens"
END_LOSS, END_VALIDATION = "end/train_loss", "end/validation_loss"
AT_THE_END = frozenset({END_STEP, END_TOKENS, END_LOSS, END_VALIDATION})
"""Where a run that went back ended: MLflow's latest value is that of the highest step, which the run may have left."""
DERIVED = frozenset(
    {FLOPS, LOG_FLOPS, LOG_PARAMS, FINAL, BEST, TOKENS_PER_PARAM, PARAMS, PARAMS_TOTAL, PARAMS_ACTIVE}
    | {GPU_HOURS, CORE_HOURS}
    | AT_THE_END
)
"""Metrics that no record has: the syncer works them out."""

EARLIER = {VALIDATION_LOSS: "validation_loss", TOKENS: TOKENS, ROLLBACK: "rollback_to_step"}
"""Names of the earlier layout, under which a study has them that was sent in it and not since."""

_THROUGHPUT = frozenset({"tokens_per_second", "tokens_per_second_per_device", "model_flops_per_second", "mfu"})
_HEALTH = frozenset({"grad_norm", "skipped_steps", "overflows"})
_FORBIDDEN = re.compile(r"[^\w\-. :/]")


@lru_cache(maxsize=4096)  # every record has the same few
def metric_name(kind: str, name: str) -> str:
    """Return the name of a metric of a record of this kind: `train/loss`, `time/forward`, `health/grad_norm`."""
    return _FORBIDDEN.sub("_", _group(kind, name))


def _group(kind: str, name: str) -> str:
    if kind != "train":
        return f"{kind}/{name}"
    if name.startswith("seconds_"):
        return f"time/{name.removeprefix('seconds_')}"
    if name in _HEALTH or name.startswith("loss_scale"):
        return f"health/{name}"
    if name in _THROUGHPUT or name.startswith("mfu"):
        return f"throughput/{name}"
    if name.startswith("peak_memory"):
        return f"memory/{name.removesuffix('_gib').removesuffix('_memory')}_gib"
    return f"train/{name}"
