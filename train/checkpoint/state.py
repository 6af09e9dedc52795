"""The tensors of a run by fully qualified name, the same names whatever the mesh: what makes resharding possible.

Weights are `model.<name>`, an optimizer's tensors `optimizer.<name of the weight>.<what>`, random states
`random.<rank>.<device>`. A sharded tensor is a DTensor and says itself which part of the whole it is, so a checkpoint
of one mesh is read on any other; a pipeline stage simply has fewer names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from train.checkpoint.relaid import relaid, stored_of
from train.model.params import plain_name
from train.spec.counts import Shape

Optimizers = Sequence[torch.optim.Optimizer]
State = dict[str, Tensor]
_NUMBER = "number:"
"""Marks an optimizer's plain numbers, which are kept as tensors of one element."""


def weights_of(parts: Sequence[nn.Module]) -> State:
    """Return weights and persistent buffers of the model parts of this rank, by name.

    Of a tied embedding that two stages of a pipeline hold the first one is returned.
    """
    found: State = {}
    for name, value in _named(parts):
        found.setdefault(name, value)
    return found


def collect(parts: Sequence[nn.Module], optimizers: Optimizers) -> State:
    """Return the tensors of the model parts of this rank and of their optimizers; they are not copied."""
    # state_dict comes first: it makes FSDP put its sharded weights, which the optimizers know, back in their places.
    whole = _shapes(parts)
    state = {f"model.{name}": relaid(value.detach(), whole.get(name)) for name, value in weights_of(parts).items()}
    for name, weight, optimizer, _ in _steered(parts, optimizers):
        for key, value in optimizer.state.get(weight, {}).items():
            if isinstance(value, Tensor):
                shape = whole.get(name) if value.shape == weight.shape else None
                # Not detached: they have no history, and one that waits on the CPU beside a mesh of GPUs cannot be.
                state.setdefault(f"optimizer.{name}.{key}", relaid(value, shape))
            elif isinstance(value, int | float):
                state[f"optimizer.{name}.{_NUMBER}{key}"] = torch.tensor(float(value), dtype=torch.float64)
    return state


def wanted(parts: Sequence[nn.Module], optimizers: Optimizers, stored: Mapping[str, tuple[Any, ...]]) -> State:
    """Return tensors for `stored` (name to shape and dtype) to be read into; the weights' own, new ones for moments.

    ValueError where a weight is not stored, or has another shape.
    """
    whole = _shapes(parts)
    state = {f"model.{name}": relaid(value.detach(), whole.get(name)) for name, value in weights_of(parts).items()}
    _check_stored(state, stored)
    kept = _kept(stored)
    for name, weight, _, group in _steered(parts, optimizers):
        for key in kept.get(name, ()):
            full = f"optimizer.{name}.{key}"
            if full in state:
                continue
            shape, dtype = stored[full]
            if tuple(shape) == whole.get(name, tuple(weight.shape)):
                state[full] = relaid(torch.zeros_like(weight, dtype=dtype).detach(), whole.get(name))
            else:
                on_device = group.get("fused") or group.get("capturable") or len(shape) > 0
                device = weight.device if on_device and not key.startswith(_NUMBER) else torch.device("cpu")
                state[full] = torch.zeros(tuple(shape), dtype=dtype, device=device)
    return state


def put_back(parts: Sequence[nn.Module], optimizers: Optimizers, state: Mapping[str, Tensor]) -> None:
    """Hand the optimizers the moments that were read; the weights were read in place, of two copies the first."""
    firsts: State = {}
    with torch.no_grad():
        for name, value in _named(parts):
            if name in firsts:
                value.detach().copy_(firsts[name])
            else:
                firsts[name] = value.detach()
    kept = _kept(state)
    seen: set[str] = set()
    for name, weight, optimizer, group in _steered(parts, optimizers):
        again = name in seen
        seen.add(name)
        found = optimizer.state[weight]
        found.clear()
        for key in kept.get(name, ()):
            value = stored_of(state[f"optimizer.{name}.{key}"])
            if key.startswith(_NUMBER):
                number = float(value)
                found[key.removeprefix(_NUMBER)] = int(number) if number.is_integer() else number
                continue
            if value.shape == weight.shape:  # a branch may keep its moments in another format than its parent
                value = value.to(group.get("state_dtype", value.dtype))
            found[key] = value.clone() if again else value
        if not found:
            del optimizer.state[weight]


def _named(parts: Sequence[nn.Module]) -> Iterator[tuple[str, Tensor]]:
    for part in parts:
        for name, value in part.state_dict().items():
            yield plain_name(name), value


def _shapes(parts: Sequence[nn.Module]) -> dict[str, Shape]:
    """Return the shapes of the whole weights of our own modules, by name."""
    return {name: spec.shape for part in parts for name, spec in getattr(part, "specs", {}).items()}


def _steered(
    parts: Sequence[nn.Module], optimizers: Optimizers
) -> Iterator[tuple[str, nn.Parameter, torch.optim.Optimizer, Mapping[str, Any]]]:
    """Yield every weight that an optimizer steps: its name, itself, the optimizer and its group there."""
    names = {id(w): plain_name(name) for part in parts for name, w in part.named_parameters()}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for weight in group["params"]:
                assert id(weight) in names, "an optimizer steps a weight that no model part has"
                yield names[id(weight)], weight, optimizer, group


def _kept(stored: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return what is kept of each weight's optimizer state: name to keys."""
    kept: dict[str, list[str]] = {}
    for full in stored:
        if full.startswith("optimizer."):
            name, _, key = full.removeprefix("optimizer.").rpartition(".")
            kept.setdefault(name, []).append(key)
    return kept


def _check_stored(state: Mapping[str, Tensor], stored: Mapping[str, tuple[Any, ...]]) -> None:
    for name, value in state.items():
        if name not in stored:
            raise ValueError(f"the checkpoint has no {name.removeprefix('model.')}: it is one of another model")
        shape = tuple(stored[name][0])
        if shape != tuple(value.shape):
            short = name.removeprefix("model.")
            raise ValueError(f"{short} is {shape} in the checkpoint and {tuple(value.shape)} here: another model")
