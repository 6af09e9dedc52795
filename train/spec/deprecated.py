"""Settings that earlier versions took and that are refused now: without effect, or without sense.

A new run is refused, so that nobody believes in what does nothing. A run that has begun with one would gain nothing
from that: its config is part of its checkpoints' identity, so it could not even be put right. It goes on as it was, and
a run that branches off has its model.
"""

from __future__ import annotations

from train.spec import mup
from train.spec.config import RunConfig


def complaints(config: RunConfig, whole: bool) -> list[str]:
    """Return what is wrong with the config in this way; `whole`: every rank has the whole model (ddp)."""
    precision, zero = config.precision, config.parallel.zero
    reasons = (
        (
            config.model.norm_eps == 0 and config.schedule.parent is None,
            "model.norm_eps=0 is refused: a token whose channels are all 0 has no norm; use a positive number, as 1e-6",
        ),
        (
            config.model.init_from is not None and config.schedule.parent is None and mup.changes(config.model),
            f"model.init_from with model.mup_base_width={config.model.mup_base_width} is refused: muP divides logits "
            "and scores by the width over the base's, and those of weights that were trained otherwise are not; use "
            "model.mup_base_width=null",
        ),
        (
            precision.reduce == "bf16" and precision.name == "fp32",
            "precision.reduce=bf16 with precision.name=fp32 is refused: gradients of fp32 products are summed in fp32; "
            "use precision.reduce=fp32, or precision=bf16",
        ),
        (
            zero < 3 and whole,
            f"parallel.zero={zero} cuts moments over ranks, and here each has the whole model (ddp): use "
            "parallel.dp_shard or parallel.strategy=fsdp, or leave parallel.zero=3",
        ),
    )
    return [why for holds, why in reasons if holds]


def refuse(config: RunConfig, whole: bool) -> None:
    """Raise ValueError with the first complaint, if there is one."""
    for why in complaints(config, whole):
        raise ValueError(why)
