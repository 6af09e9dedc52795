"""Settings of precision, memory and compile that are refused, each by its key and with a way out."""

from __future__ import annotations

from typing import Any

import pytest

from train.spec.config import RunConfig
from train.spec.precision import check
from train.spec.read import read
from train.spec.resolve import resolve


def config(**sections: dict[str, Any]) -> RunConfig:
    model = {"width": 64, "layers": 4, "head_dim": 16, "mlp_width": 176} | sections.pop("model", {})
    return read(RunConfig, {"model": model, "budget": {"tokens": 1 << 20}, **sections})


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"precision": {"loss_scale": 1000.0}}, r"loss_scale=1000\.0.*power of two"),
        ({"precision": {"loss_scale_steps": 0}}, "loss_scale_steps=0"),
        ({"precision": {"optimizer_state": "bf16"}, "optim": {"name": "muon"}}, "optimizer_state=bf16 .*muon"),
        ({"precision": {"name": "fp8", "fp8_keep_blocks": 2}}, "fp8_keep_blocks=2 of 4 blocks.*0 to 1"),
        ({"precision": {"name": "fp8"}, "model": {"mlp_width": 168}}, r"mlp_width / parallel\.tp = 168.*16"),
        ({"precision": {"name": "fp8"}, "parallel": {"tp": 8}}, "multiples of 16"),
        ({"precision": {"fp8_history": 16}}, "fp8_history=16"),
        ({"precision": {"fp8_gather": True}}, "fp8_gather=true"),
        ({"memory": {"every": 0}}, r"memory\.every=0"),
        ({"memory": {"budget_gib": 0.0}}, r"memory\.budget_gib=0"),
        ({"memory": {"offload": "parameters"}}, "offload=parameters.*FSDP2"),
        ({"compile": {"cuda_graphs": True}}, "cuda_graphs=true.*compile.blocks=true"),
        (
            {"compile": {"cuda_graphs": True, "blocks": True}, "parallel": {"dp_shard": 2}},
            "cuda_graphs=true with sharded",
        ),
        ({"compile": {"blocks": True, "warmup_steps": 0}}, r"compile\.warmup_steps=0"),
    ],
)
def test_refused_with_the_reason(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(config(**sections), sharded=False)


def test_what_can_be_passes() -> None:
    fp8: dict[str, Any] = {"name": "fp8", "fp8_keep_blocks": 1}
    check(resolve(config(precision=fp8, memory={"offload": "parameters"})), sharded=True)
    check(resolve(config(precision={"name": "fp16"}, compile={"blocks": True})), sharded=False)
