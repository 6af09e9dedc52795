"""Activation checkpointing: what a block keeps for its backward pass and what is computed again (Chen et al. 2016).

none: keep all. full: keep each block's input. every: the same for one block in `every`. selective: keep what matrix
products and attention put out and compute the elementwise rest again: a few per cent of time for about half of the
memory. budget: selective or none for as many blocks as the device holds (see train.memory.activation_budget), full for
the others.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from kernels.grouped.api import GROUPED_PRODUCT
from train.runtime.compile import compile_blocks
from train.spec.config import CompileConfig, MemoryConfig

NONE, SELECTIVE, FULL = "none", "selective", "full"
NOT_COMPILED = CompileConfig()


def modes(config: MemoryConfig, blocks: int) -> list[str]:
    """Return each block's mode by the config; ValueError where it says nothing sensible. Not for `budget`."""
    if config.checkpointing == "every":
        if config.every < 1:
            raise ValueError(f"memory.every={config.every} is not allowed: 1 is every block, 2 every second")
        return [FULL if i % config.every == 0 else NONE for i in range(blocks)]
    assert config.checkpointing != "budget", "a budget is filled by train.memory.activation_budget"
    return [config.checkpointing] * blocks


def wrap(blocks: Sequence[nn.Module], chosen: Sequence[str], compiled: CompileConfig = NOT_COMPILED) -> None:
    """Make each block keep what its mode says, and compile it. Parameters keep their names: only forward is replaced.

    May be called again with other modes, which replace the former. What `full` computes again is called from outside of
    the compiled code: inside, torch 2.11 keeps what functions with a backward pass of their own put out, all of our
    kernels, so that nearly nothing is saved. Not with compile.cuda_graphs, which has to see both passes as one graph.
    """
    for block, mode in zip(blocks, chosen, strict=True):
        block.__dict__.pop("forward", None)
        # A method of the block, not a closure over it: torch.compile then sees the same code in every block.
        if mode == SELECTIVE:
            block.forward = types.MethodType(_selective, block)
        elif mode == FULL and compiled.cuda_graphs:
            block.forward = types.MethodType(_full, block)
        compile_blocks([block], compiled)
        if mode == FULL and not compiled.cuda_graphs:
            block.forward = functools.partial(_checkpoint, block.forward)


def _full(self: nn.Module, *args: Any) -> Any:
    return _checkpoint(functools.partial(type(self).forward, self), *args)


def _selective(self: nn.Module, *args: Any) -> Any:
    return _checkpoint(functools.partial(type(self).forward, self), *args, context_fn=_keep_products)


def _checkpoint(forward: Callable[..., Any], x: Tensor, *others: Any, **options: Any) -> Any:
    # Nothing in a block draws random numbers, so the generators need not be put back for the second forward pass.
    options |= {"use_reentrant": False, "preserve_rng_state": False}
    if torch.compiler.is_compiling():
        return checkpoint(forward, x, *others, **options)
    # torch 2.11 cannot record shapes of what it is given here if it is a dict whose keys are pairs, as masks are.
    return checkpoint(lambda stream: forward(stream, *others), x, **options)


def _keep_products() -> Any:
    return create_selective_checkpoint_contexts(_policy)  # type: ignore[no-untyped-call]


def _policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in _kept_ops() else CheckpointPolicy.PREFER_RECOMPUTE


@functools.cache
def _kept_ops() -> frozenset[Any]:
    """Matrix products, attention, and messages between ranks: what is dear to compute again."""
    aten = torch.ops.aten
    kept = {
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.linear.default,
        aten._scaled_mm.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
        aten._efficient_attention_forward.default,
        torch.ops._c10d_functional.reduce_scatter_tensor.default,
        torch.ops._c10d_functional.all_gather_into_tensor.default,
        torch.ops._c10d_functional.all_reduce.default,
        torch.ops._c10d_functional.all_to_all_single.default,
        GROUPED_PRODUCT,
    }
    flex = getattr(torch._higher_order_ops, "flex_attention", None)
    return frozenset(kept if flex is None else kept | {flex})
