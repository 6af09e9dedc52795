"""How long copies of weights in the format of products live: no longer than the passes that use them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from train.memory.activation_checkpointing import modes, wrap
from train.model.transformer import Transformer
from train.precision.policy import formats
from train.spec.config import MemoryConfig, ModelConfig, PrecisionConfig

LAYERS = 4
MODEL = ModelConfig(width=64, layers=LAYERS, head_dim=16, kv_heads=2, mlp_width=160)


class Casts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows copies in bf16 that have the shape of a weight."""

    def __init__(self, net: Transformer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = {tuple(weight.shape): name.split(".", 2)[-1] for name, weight in net.named_parameters()}
        self._made: list[tuple[str, StorageWeakRef]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if "_to_copy" in func.name() and out.dtype is torch.bfloat16 and tuple(out.shape) in self._names:
            name = self._names[tuple(out.shape)]
            self._made.append((name, StorageWeakRef(out.untyped_storage())))  # type: ignore[no-untyped-call]
        return out

    def alive(self) -> Counter[str]:
        return Counter(name for name, storage in self._made if not storage.expired())  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(("policy", "left"), [("none", LAYERS), ("full", 0)])
def test_copies_of_weights_are_gone_at_the_head_where_blocks_are_recomputed(policy: str, left: int) -> None:
    """Autocast's cache kept them until the forward pass was through: 2.5 GiB of attention's matrices at 8B."""
    torch.manual_seed(0)
    net = Transformer(MODEL, 96, 32)
    wrap(list(net.blocks.values()), modes(MemoryConfig(checkpointing=policy), LAYERS))
    casts, seen = Casts(net), list[Counter[str]]()
    assert net.output is not None
    net.output.register_forward_pre_hook(lambda *_: seen.append(casts.alive()))
    tokens = torch.randint(0, 96, (2, 32))
    with casts, formats(PrecisionConfig(name="bf16")).autocast("cpu"):
        net(tokens, tokens)
    (found,) = seen
    assert found["attention.qkv"] == found["attention.out"] == left
