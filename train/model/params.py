"""What a weight is, said where the weight is made.

Optimizer groups (train.optim.param_groups), sharding (train.parallel), initial values (train.model.init) and conversion
to and from Hugging Face (train.hub.weights) read the spec and never look at a weight's name. A wrapper may replace the
`nn.Parameter`, so `Transformer.specs` keeps the specs by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from train.spec.counts import Shape

Kind: TypeAlias = Literal["embedding", "head", "matrix", "norm"]
"""embedding: an input embedding that is only looked up. head: the output head, also where it is the embedding. matrix:
a factor of a product within a block. norm: the gain of a norm."""


@dataclass(frozen=True)
class HubTensors:
    """The tensors of a Hugging Face model that hold one of our weights.

    names: within a block without the block's own prefix. split: their tensors from our weight, in the order of `names`,
    with muP's factors multiplied in, which they have no place for. join: our weight from their tensors.
    """

    names: tuple[str, ...]
    split: Callable[[Tensor], Sequence[Tensor]]
    join: Callable[[Sequence[Tensor]], Tensor]


@dataclass(frozen=True)
class ParamSpec:
    """How one weight is trained, drawn, cut and exported.

    shape: of the whole weight. init_std: standard deviation of its initial values, None: all are 1. tp_dim: the axis
    that tensor parallelism cuts, None: every rank holds it whole. fsdp_dim: the axis that FSDP cuts where the weight
    keeps its shape (see train.spec.shard_shapes). muon_split: rows of the matrices that alternate within it, each of
    which Muon makes orthogonal by itself; None for one. hub: None where Hugging Face's models have no such weight, and
    a model with it is not exported. layer: number of its block, None outside of blocks; set by `Transformer`.
    """

    kind: Kind
    shape: Shape
    init_std: float | None
    tp_dim: int | None = None
    fsdp_dim: int = 0
    muon_split: tuple[int, ...] | None = None
    hub: HubTensors | None = None
    layer: int | None = None


def parameter(spec: ParamSpec) -> nn.Parameter:
    """Return a weight that has this spec: ones, or undefined numbers where they are to be drawn."""
    made = nn.Parameter((torch.ones if spec.init_std is None else torch.empty)(spec.shape))
    made.spec = spec  # type: ignore[attr-defined]
    return made


def specs_of(module: nn.Module) -> dict[str, ParamSpec]:
    """Return the specs of a module's weights by name; ValueError that names a weight which has none."""
    named = dict(module.named_parameters())
    without = [name for name, weight in named.items() if not hasattr(weight, "spec")]
    if without:
        raise ValueError(f"{without[0]} has no ParamSpec: make it by train.model.params.parameter(ParamSpec(…))")
    return {name: weight.spec for name, weight in named.items()}  # type: ignore[attr-defined]


_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")


def plain_name(name: str) -> str:
    """Return a weight's name without what wrappers around modules (compile, checkpointing, DDP) put into it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name.removeprefix("module.")


def same_tensor(name: str, factor: float = 1.0) -> HubTensors:
    """Return that Hugging Face's tensor `name` is our weight, times `factor` when it is exported."""
    return HubTensors((name,), lambda ours: (ours if factor == 1.0 else ours * factor,), lambda theirs: theirs[0])
