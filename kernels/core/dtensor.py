"""How the operators run on DTensors: row by row, wherever the rows are, or on the local parts.

The rules are registered when the first DTensor is met, for importing them takes most of a second.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor
from torch._ops import OpOverload

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


_PENDING: list[tuple[OpOverload, str, str]] = []


def rowwise(operator: OpOverload, inputs: str, outputs: str) -> None:
    """Say that `operator` works row by row of its tensors marked "s" (cut along any axis but the last).

    Other letters: "w" a weight, the same for all rows; "p" a sum over rows; "?" a tensor that may be missing or empty
    and goes with the rows if not; "-" no tensor.
    """
    _PENDING.append((operator, inputs, outputs))


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor: the shard of a DTensor (the same memory), any other tensor itself.

    Gradients flow back into the part that they belong to.
    """
    return tensor.to_local() if is_dtensor(tensor) else tensor


def use_dtensor(*tensors: Tensor) -> bool:
    """Say whether any of these is a DTensor; if so, the operators know how to run on them from now on."""
    found = any(is_dtensor(tensor) for tensor in tensors)
    if found:
        _register()
    return found


@lru_cache(maxsize=1)
def _register() -> None:
    from torch.distributed.tensor.experimental import register_sharding

    for operator, inputs, outputs in _PENDING:
        register_sharding(operator)(_strategies(inputs, outputs))


def _strategies(inputs: str, outputs: str) -> Callable[..., Any]:
    from torch.distributed.tensor import Partial, Replicate, Shard

    def placed(marks: str, axis: int | None, arguments: tuple[Any, ...] | None) -> list[Any]:
        result: list[Any] = []
        for i, mark in enumerate(marks):
            argument = arguments[i] if arguments is not None and i < len(arguments) else None
            if mark == "-" or (arguments is not None and not hasattr(argument, "ndim")):
                result.append(None)
            elif axis is None or mark == "w":
                result.append(Replicate())
            else:
                result.append(Partial() if mark == "p" else Shard(axis))
        return result

    def strategy(*arguments: Any) -> list[tuple[list[Any], list[Any]]]:
        lead = arguments[inputs.index("s")]
        missing = "?" in inputs and not hasattr(arguments[inputs.index("?")], "ndim")
        marks = outputs.replace("?", "w") if missing else outputs.replace("?", "s")
        axes: list[int | None] = [None, *range(lead.ndim - 1)]
        return [(placed(marks, axis, None), placed(inputs, axis, arguments)) for axis in axes]

    return strategy


def is_dtensor(tensor: Tensor) -> TypeGuard[DTensor]:
    """Say whether this is a DTensor, without importing them for those who use none."""
    if type(tensor) is Tensor or type(tensor) is torch.nn.Parameter:
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)
