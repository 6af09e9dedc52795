"""Weights by our names as tensors of Hugging Face, and back: what each becomes is in its spec (train.model.params)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import torch
from torch import Tensor

from train.model.params import HubTensors, ParamSpec
from train.model.transformer import Transformer
from train.spec.config import ModelConfig


def specs_by_layer(model: ModelConfig, vocab_size: int) -> list[dict[str, ParamSpec]]:
    """Return the specs of all weights by our names, a block's together: embedding, each block, the rest."""
    with torch.device("meta"):
        specs = Transformer(model, vocab_size, length=1).specs
    return [dict(weights) for _, weights in groupby(specs.items(), lambda named: named[1].layer)]


def to_hub(ours: Mapping[str, Tensor], specs: Mapping[str, ParamSpec]) -> Iterator[tuple[str, Tensor]]:
    """Yield their names and tensors of some of our weights, muP's factors multiplied in."""
    for name, value in ours.items():
        yield from zip(names_of(name, specs[name]), _tensors_of(name, specs[name]).split(value), strict=True)


def names_of(name: str, spec: ParamSpec) -> list[str]:
    """Return which of their tensors one of our weights is made from."""
    prefix = "" if spec.layer is None else f"model.layers.{spec.layer}."
    return [prefix + theirs for theirs in _tensors_of(name, spec).names]


def from_hub(name: str, theirs: Sequence[Tensor], spec: ParamSpec) -> Tensor:
    """Return one of our weights from the tensors that `names_of` names."""
    return _tensors_of(name, spec).join(theirs)


def _tensors_of(name: str, spec: ParamSpec) -> HubTensors:
    if spec.hub is None:
        raise ValueError(f"{name} cannot be exported: what an export can write has no such weight")
    return spec.hub
