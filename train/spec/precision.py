"""Which settings of precision, memory and compile are refused, and why. Pure Python."""

from __future__ import annotations

import math
from collections.abc import Iterable

from train.spec.config import RunConfig
from train.spec.counts import head_dim, kv_heads, mlp_width

MOST_STEPS = 1024
"""The longest history of fp8: a checkpoint keeps it as text."""


def check(config: RunConfig, sharded: bool, shards: int | None = None) -> None:
    """Raise ValueError, with the reason and a way out, for settings that cannot be.

    sharded: FSDP2 holds the weights. shards: over how many ranks it cuts them; None: as the config says, as far as it
    does.
    """
    _check_precision(config)
    _check_history(config)
    alone = shards == 1 if shards is not None else config.parallel.dp_shard == config.parallel.cp == 1
    _check_gather(config, sharded and not alone)
    _check_memory(config, sharded)
    _check_compile(config, sharded and shards is not None)


def _check_precision(config: RunConfig) -> None:
    precision = config.precision
    if math.frexp(precision.loss_scale)[0] != 0.5:  # nor is it of 0 or of a negative number
        raise ValueError(
            f"precision.loss_scale={precision.loss_scale} is not allowed: a positive power of two, so that it changes "
            "no digit of a gradient"
        )
    if precision.loss_scale_steps < 1:
        raise ValueError(f"precision.loss_scale_steps={precision.loss_scale_steps} is not allowed: at least one step")
    if precision.optimizer_state == "bf16" and config.optim.name != "adamw":
        raise ValueError(
            f"precision.optimizer_state=bf16 with optim.name={config.optim.name} is refused: stochastic rounding is "
            "implemented for AdamW's moments only; use optimizer_state=fp32"
        )
    if precision.name == "fp8":
        _check_fp8(config)


def _check_history(config: RunConfig) -> None:
    precision, steps = config.precision, config.precision.fp8_history
    if not 0 <= steps <= MOST_STEPS:
        raise ValueError(
            f"precision.fp8_history={steps} is not allowed: 0 (scaling by the tensor itself) to {MOST_STEPS} [steps]"
        )
    if not steps:
        return
    scaling, pp = precision.fp8_scaling, config.parallel.pp
    reasons = (
        (precision.name != "fp8", f"precision.name={precision.name} has no fp8 to scale; use precision=fp8"),
        (
            scaling != "tensorwise",
            f"precision.fp8_scaling={scaling} has factors of tokens, which the next step does not have; "
            "use fp8_scaling=tensorwise",
        ),
        (precision.fp8_gather, "precision.fp8_gather=true narrows weights by what they are now; use fp8_gather=false"),
        (
            config.compile.cuda_graphs,
            "compile.cuda_graphs=true replays blocks, and these note what they see; use cuda_graphs=false",
        ),
        (pp > 1, f"the stages of parallel.pp={pp} have no history in common; use parallel.pp=1"),
    )
    _refuse(f"precision.fp8_history={steps}", reasons, "fp8_history=0")


def _check_gather(config: RunConfig, gathered: bool) -> None:
    """`gathered`: weights are, as far as is known: FSDP2 cuts them over more than one rank."""
    precision = config.precision
    if not precision.fp8_gather:
        return
    scaling, pp = precision.fp8_scaling, config.parallel.pp
    reasons = (
        (precision.name != "fp8", f"precision.name={precision.name} has no products that take fp8; use precision=fp8"),
        (
            scaling != "tensorwise",
            f"precision.fp8_scaling={scaling} narrows weights along the other axis for the backward pass, from all "
            "their digits; use fp8_scaling=tensorwise",
        ),
        (
            not gathered,
            "no weights are gathered here; use parallel=fsdp on at least two ranks (cluster.tasks_per_node=2)",
        ),
        (pp > 1, f"parallel.pp={pp} gathers weights ahead of the pass that finds their factors; use parallel.pp=1"),
        (
            config.memory.offload == "parameters",
            "memory.offload=parameters sends shards from the CPU, in bf16; use memory.offload=optimizer or none",
        ),
    )
    _refuse("precision.fp8_gather=true", reasons, "fp8_gather=false")


def _refuse(setting: str, reasons: Iterable[tuple[bool, str]], instead: str) -> None:
    """Raise ValueError with the first of the reasons that holds, if one does."""
    for holds, why in reasons:
        if holds:
            raise ValueError(f"{setting} is refused: {why}, or {instead}")


def _check_fp8(config: RunConfig) -> None:
    model, tp = config.model, config.parallel.tp
    keep = config.precision.fp8_keep_blocks
    if not 0 <= 2 * keep < model.layers:
        raise ValueError(
            f"precision.fp8_keep_blocks={keep} of {model.layers} blocks at each end leaves none in fp8: "
            f"use 0 to {(model.layers - 1) // 2}, or precision=bf16"
        )
    rows = model.width + 2 * kv_heads(model) * head_dim(model)
    for name, size in (
        ("model.width", model.width),
        ("model.width / parallel.tp", model.width // tp),
        ("rows of queries, keys and values / parallel.tp", rows // tp),
        ("model.mlp_width / parallel.tp", mlp_width(model) // tp),
    ):
        if size % 16:
            raise ValueError(
                f"precision.name=fp8 with {name} = {size} is refused: products in fp8 take multiples of 16; change it "
                f"to {-(-size // 16) * 16}, or use precision=bf16"
            )


def _check_memory(config: RunConfig, sharded: bool) -> None:
    memory = config.memory
    if memory.every < 1:
        raise ValueError(f"memory.every={memory.every} is not allowed: 1 is every block, 2 every second")
    if memory.budget_gib is not None and memory.budget_gib <= 0:
        raise ValueError(f"memory.budget_gib={memory.budget_gib} is not allowed: a positive size, or null")
    if memory.checkpointing == "budget" and memory.budget_gib is None and config.runtime.device == "cpu":
        raise ValueError(
            "memory.checkpointing=budget with runtime.device=cpu has no memory of its own to fill: give "
            "memory.budget_gib, or use memory.checkpointing=selective"
        )
    if memory.offload == "parameters" and not sharded:
        raise ValueError(
            "memory.offload=parameters moves the shards of FSDP2, and nothing is sharded here: use parallel=fsdp on at "
            "least two ranks (cluster.tasks_per_node=2), or memory.offload=optimizer"
        )


def _check_compile(config: RunConfig, sharded: bool) -> None:
    """`sharded`: weights are, for certain; without the number of ranks parallel.dp_shard=null may still be one."""
    compiled = config.compile
    sharded = sharded or config.parallel.dp_shard not in (None, 1)
    if compiled.cuda_graphs and not compiled.blocks:
        raise ValueError("compile.cuda_graphs=true replays compiled blocks: set compile.blocks=true as well")
    if compiled.cuda_graphs and (sharded or config.parallel.tp * config.parallel.pp > 1):
        raise ValueError(
            "compile.cuda_graphs=true with sharded weights, tensor parallelism or a pipeline is refused: a graph "
            "replays fixed addresses, and gathered weights and messages come at new ones; use cuda_graphs=false"
        )
    if compiled.blocks and compiled.warmup_steps == 0:
        raise ValueError(
            "compile.warmup_steps=0 refuses the first step, which compiles: at least 1, or -1 for no limit"
        )
