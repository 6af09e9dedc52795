"""Settings of precision, memory and compile that are refused, each by its key and with a way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from train.spec import mesh
from train.spec.config import RunConfig
from train.spec.from_mapping import read
from train.spec.precision import check
from train.spec.resolve import resolve

CONF = Path(__file__).resolve().parents[3] / "conf"


def config(**sections: dict[str, Any]) -> RunConfig:
    model = {"width": 64, "layers": 4, "head_dim": 16, "mlp_width": 176} | sections.pop("model", {})
    return read(RunConfig, {"model": model, "budget": {"tokens": 1 << 20}, **sections})


GATHER = {"name": "fp8", "fp8_gather": True}
HISTORY = {"name": "fp8", "fp8_history": 16}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"precision": {"loss_scale": 1000.0}}, r"loss_scale=1000\.0.*power of two"),
        ({"precision": {"loss_scale_steps": 0}}, "loss_scale_steps=0"),
        ({"precision": {"optimizer_state": "bf16"}, "optim": {"name": "muon"}}, "optimizer_state=bf16 .*muon"),
        ({"precision": {"name": "fp8", "fp8_keep_blocks": 2}}, "fp8_keep_blocks=2 of 4 blocks.*0 to 1"),
        (
            {"precision": {"name": "fp8"}, "model": {"mlp_width": 168}},
            r"mlp_width / parallel\.tp = 168.*of 16; change it to 176",
        ),
        ({"precision": {"name": "fp8"}, "parallel": {"tp": 8}}, "multiples of 16"),
        ({"precision": {"fp8_history": 16}}, r"fp8_history=16 is refused: precision\.name=fp32"),
        ({"precision": {**HISTORY, "fp8_history": -1}}, r"fp8_history=-1 is not allowed: 0 .* to 1024"),
        ({"precision": {**HISTORY, "fp8_history": 1025}}, "fp8_history=1025"),
        ({"precision": {**HISTORY, "fp8_scaling": "rowwise"}}, "fp8_history=16 .*factors of tokens"),
        ({"precision": {**HISTORY, "fp8_gather": True}}, "fp8_history=16 .*fp8_gather=false, or fp8_history=0"),
        ({"precision": HISTORY, "parallel": {"pp": 2}}, "fp8_history=16 .*no history in common"),
        ({"precision": {"fp8_gather": True}}, r"fp8_gather=true is refused: precision\.name=fp32"),
        ({"precision": GATHER}, "fp8_gather=true is refused: no weights are gathered here"),
        ({"memory": {"every": 0}}, r"memory\.every=0"),
        ({"memory": {"budget_gib": 0.0}}, r"memory\.budget_gib=0"),
        ({"memory": {"offload": "parameters"}}, "offload=parameters.*FSDP2.*at least two ranks"),
        ({"memory": {"checkpointing": "budget"}, "runtime": {"device": "cpu"}}, r"=budget .*memory\.budget_gib"),
        ({"compile": {"cuda_graphs": True}}, "cuda_graphs=true.*compile.blocks=true"),
        ({"precision": HISTORY, "compile": {"cuda_graphs": True}}, "fp8_history=.*: compile.cuda_graphs=true"),
        (
            {"compile": {"cuda_graphs": True, "blocks": True}, "parallel": {"dp_shard": 2}},
            "cuda_graphs=true with sharded",
        ),
        ({"compile": {"blocks": True, "warmup_steps": 0}}, r"compile\.warmup_steps=0"),
        ({"precision": {"loss_scale": 0.0}}, r"loss_scale=0\.0 .*power of two"),
        ({"precision": {"loss_scale": -2.0}}, r"loss_scale=-2\.0 .*power of two"),
        ({"precision": {"loss_scale": 3.0}}, r"loss_scale=3\.0 .*power of two"),
        ({"precision": {"optimizer_state": "bf16"}, "optim": {"name": "sgd"}}, "optimizer_state=bf16 .*sgd"),
        ({"precision": {"name": "fp8", "fp8_keep_blocks": -1}}, "fp8_keep_blocks=-1 of 4 blocks.*0 to 1"),
        (
            {"precision": {"name": "fp8", "fp8_keep_blocks": 2}, "model": {"layers": 3}},
            "fp8_keep_blocks=2 of 3 blocks.*0 to 1,",
        ),
        (
            {"precision": {"name": "fp8"}, "model": {"width": 72, "head_dim": 12, "mlp_width": 192}},
            r"model\.width = 72 is refused.*change it to 80",
        ),
        (
            {"precision": {"name": "fp8"}, "parallel": {"tp": 4}, "model": {"width": 96, "mlp_width": 192}},
            r"model\.width / parallel\.tp = 24 is refused.*change it to 32",
        ),
        (
            {"precision": {"name": "fp8"}, "model": {"head_dim": 4, "kv_heads": 1}},
            r"rows of queries, keys and values / parallel\.tp = 72 is refused",
        ),
        (
            {"precision": {"name": "fp8"}, "model": {"width": 96, "head_dim": None, "kv_heads": 1, "mlp_width": 256}},
            r"rows of queries, keys and values / parallel\.tp = 120 is refused",  # a head of 12
        ),
        (
            {"precision": {"name": "fp8"}, "parallel": {"tp": 2}, "model": {"head_dim": 4, "kv_heads": 6, "width": 96}},
            r"rows of queries, keys and values / parallel\.tp = 72 is refused",
        ),
        (
            {"precision": {"name": "fp8"}, "parallel": {"tp": 2}, "model": {"mlp_width": 176}},
            r"model\.mlp_width / parallel\.tp = 88 is refused",
        ),
        ({"memory": {"budget_gib": -1.0}}, r"memory\.budget_gib=-1"),
        *[
            (
                {"compile": {"cuda_graphs": True, "blocks": True}, "parallel": parallel},
                "cuda_graphs=true with sharded weights, tensor parallelism or a pipeline",
            )
            for parallel in ({"tp": 2}, {"pp": 2}, {"tp": 2, "pp": 2}, {"tp": 4, "pp": 2})
        ],
    ],
)
def test_refused_with_the_reason(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(config(**sections), sharded=False)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"precision": GATHER, "parallel": {"dp_shard": 1}},
            r"no weights are gathered here.*parallel=fsdp on at least two",
        ),
        ({"precision": {**GATHER, "fp8_scaling": "rowwise"}}, r"fp8_scaling=rowwise narrows weights"),
        ({"precision": {**GATHER, "name": "bf16"}}, r"precision\.name=bf16"),
        ({"precision": {**GATHER, "name": "fp16"}}, r"precision\.name=fp16"),
        ({"precision": GATHER, "parallel": {"dp_shard": 2, "pp": 2}}, r"parallel\.pp=2 gathers weights ahead"),
        ({"precision": GATHER, "memory": {"offload": "parameters"}}, r"memory\.offload=parameters.*optimizer or none"),
    ],
)
def test_gathering_in_fp8_is_refused_where_nothing_or_something_else_is_gathered(
    sections: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=rf"fp8_gather=true is refused: .*{message}"):
        check(config(**({"parallel": {"dp_shard": 4}} | sections)), sharded=True)


def test_cuda_graphs_are_refused_once_it_is_known_that_weights_are_sharded() -> None:
    replayed = config(compile={"cuda_graphs": True, "blocks": True}, parallel={"dp_replicate": 1, "dp_shard": None})
    check(replayed, sharded=True)  # with one rank they are not
    mesh.check(replayed, world_size=1)
    with pytest.raises(ValueError, match="cuda_graphs=true with sharded"):
        mesh.check(replayed, world_size=2)


@pytest.mark.parametrize("path", sorted((CONF / "precision").glob("*.yaml")), ids=lambda path: path.stem)
def test_presets_run_where_they_belong(path: Path) -> None:
    made = resolve(config(precision=yaml.safe_load(path.read_text()), parallel={"dp_shard": 2}))
    mesh.check(made, world_size=2)


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"precision": {"loss_scale": 1.0}},
        {"precision": {"loss_scale": 2.0**-24}},
        {"precision": {"loss_scale": 2.0**40, "loss_scale_steps": 1}},
        {"precision": {"optimizer_state": "bf16"}},
        {"precision": {"optimizer_state": "fp32"}, "optim": {"name": "sgd"}},
        {"precision": {"name": "fp8", "fp8_keep_blocks": 1}},
        {"precision": {"name": "fp8", "fp8_keep_blocks": 1}, "model": {"layers": 3}},
        {"precision": {"name": "fp8", "fp8_keep_blocks": 0}, "model": {"layers": 1}},
        {"precision": {"name": "fp8"}, "parallel": {"tp": 4}, "model": {"mlp_width": 192}},
        {"precision": {"name": "fp8"}, "model": {"head_dim": 8, "kv_heads": 1}},
        {"precision": {"name": "fp8"}, "model": {"head_dim": 4, "kv_heads": 2}},
        {"precision": {"name": "bf16"}, "model": {"mlp_width": 168}},
        {"precision": {**HISTORY, "fp8_history": 1}},
        {"precision": {**HISTORY, "fp8_history": 1024}},
        {"precision": HISTORY, "parallel": {"pp": 1}},
        {"memory": {"every": 1, "budget_gib": 1e-3}},
        {"memory": {"offload": "optimizer"}},
        {"memory": {"checkpointing": "budget"}, "runtime": {"device": "cuda"}},
        {"memory": {"checkpointing": "budget", "budget_gib": 1.0}, "runtime": {"device": "cpu"}},
        {"memory": {"checkpointing": "full"}, "runtime": {"device": "cpu"}},
        {"compile": {"cuda_graphs": True, "blocks": True}},
        {"compile": {"cuda_graphs": True, "blocks": True}, "parallel": {"dp_shard": None, "dp_replicate": 1}},
        {"compile": {"blocks": True}, "parallel": {"tp": 2, "pp": 2, "dp_shard": 2}},
        {"compile": {"blocks": True, "warmup_steps": 1}},
        {"compile": {"blocks": True, "warmup_steps": -1}},
        {"compile": {"blocks": False, "warmup_steps": 0}},
    ],
)
def test_what_can_just_be_passes(sections: dict[str, Any]) -> None:
    check(config(**sections), sharded=False)


def test_on_known_ranks_weights_are_gathered_from_more_than_one() -> None:
    for dp_shard in (None, 1, 2):
        gathering = config(precision=GATHER, parallel={"dp_shard": dp_shard, "dp_replicate": 1})
        for shards in (2, 3):
            check(gathering, sharded=True, shards=shards)
        with pytest.raises(ValueError, match="no weights are gathered here"):
            check(gathering, sharded=True, shards=1)
        with pytest.raises(ValueError, match="no weights are gathered here"):
            check(gathering, sharded=False, shards=2)
    check(config(precision=GATHER, parallel={"dp_shard": 1, "cp": 2}), sharded=True)
    check(config(precision=GATHER, parallel={"dp_shard": 2, "cp": 2}), sharded=True)
    graphs = config(compile={"cuda_graphs": True, "blocks": True}, parallel={"dp_shard": None, "dp_replicate": 1})
    check(graphs, sharded=False, shards=1)
    with pytest.raises(ValueError, match="cuda_graphs=true with sharded"):
        check(graphs, sharded=True, shards=2)


def test_what_can_be_passes() -> None:
    fp8: dict[str, Any] = {"name": "fp8", "fp8_keep_blocks": 1}
    check(resolve(config(precision=fp8, memory={"offload": "parameters"})), sharded=True)
    check(resolve(config(precision=GATHER, parallel={"dp_shard": 2, "zero": 1})), sharded=True)
    check(resolve(config(precision=HISTORY, parallel={"dp_shard": 2}, compile={"blocks": True})), sharded=True)
    check(resolve(config(precision=GATHER, parallel={"dp_shard": None})), sharded=True)
    with pytest.raises(ValueError, match="no weights are gathered here"):
        check(resolve(config(precision=GATHER, parallel={"dp_shard": None})), sharded=True, shards=1)
    check(resolve(config(precision={"name": "fp16"}, compile={"blocks": True})), sharded=False)
