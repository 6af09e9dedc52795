"""The global norm of many tensors, summed in fp32, in few launches and the same to the last bit each time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.core.dispatch import use_triton
from kernels.core.dtensor import local
from kernels.core.registration import define, fake

LONG, ROW = 1 << 16, 1 << 12
"""Numbers beyond which a tensor on a CPU is summed by rows, and of one row."""


def gradient_norm(tensors: Sequence[Tensor], *, squared: bool = False) -> Tensor:
    """Return √Σx² over all elements of all tensors, () fp32 (fp64 if one is), or its square.

    Tensors on one device, of any shapes and float dtypes; of DTensors the local parts, whose squares the caller sums
    over the ranks. Raises ValueError if there is no tensor or they are on several devices.
    """
    parts = [local(x) for x in tensors]
    if not parts or any(x.device != parts[0].device for x in parts):
        raise ValueError(
            f"tensors on {sorted({str(x.device) for x in parts})}: must be at least one, all on one device"
        )
    if use_triton("gradient_norm", *parts):
        total = torch.stack([_squares(list(group)) for group in _by_dtype(parts)]).sum()
        return total if squared else total.sqrt()
    norm: Tensor = torch.linalg.vector_norm(torch.stack([n.to(_exact(parts)) for n in _norms(parts)]))
    return norm.square() if squared else norm


def tensor_norm(tensor: Tensor) -> Tensor:
    """Return √Σx² over one tensor, () fp32 (fp64 for fp64, and for a long tensor on a CPU); nothing of it is a DTensor.

    torch adds up the squares of a whole tensor on a CPU in a few running sums of fp32: of 2^22 normal numbers its norm
    is 8e-5 off, of 2^26 5e-3. That of a long tensor is therefore taken of its rows' norms, in about the same time: 3e-9
    off, of short formats 5e-7.
    """
    if _is_long(tensor):
        return _norm_by_rows(tensor)
    norm: Tensor = torch.linalg.vector_norm(tensor, dtype=_exact([tensor]))
    return norm


def _norms(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return each tensor's norm, of short formats in fp32."""
    short = any(x.dtype.itemsize < 4 for x in tensors)
    rest = [x for x in tensors if not _is_long(x)]
    norms = iter(torch._foreach_norm(rest, dtype=torch.float32 if short else None) if rest else ())
    return [_norm_by_rows(x) if _is_long(x) else next(norms) for x in tensors]


def _is_long(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype != torch.float64 and x.numel() > LONG


def _norm_by_rows(x: Tensor) -> Tensor:
    """Return a tensor's norm in fp64, of norms of its rows in fp32."""
    flat = x.reshape(-1)
    whole = flat.numel() // ROW * ROW
    rows = torch.linalg.vector_norm(flat[:whole].view(-1, ROW), dim=1, dtype=torch.float32)
    rest = torch.linalg.vector_norm(flat[whole:], dtype=torch.float32).view(1)
    norm: Tensor = torch.linalg.vector_norm(torch.cat([rows, rest]), dtype=torch.float64)
    return norm


def _exact(tensors: Sequence[Tensor]) -> torch.dtype:
    return torch.float64 if any(x.dtype == torch.float64 for x in tensors) else torch.float32


def _by_dtype(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    groups: dict[torch.dtype, list[Tensor]] = {}
    for x in tensors:
        groups.setdefault(x.dtype, []).append(x)
    return list(groups.values())


@define("sum_of_squares(Tensor[] tensors) -> Tensor")
def _squares(tensors: list[Tensor]) -> Tensor:
    from kernels.adamw.triton_gradient_norm import squares

    filled = [x if x.is_contiguous() else x.contiguous() for x in tensors if x.numel()]
    return squares(filled) if filled else tensors[0].new_zeros((), dtype=torch.float32)


@fake(_squares)
def _(tensors: list[Tensor]) -> Tensor:
    return tensors[0].new_empty((), dtype=torch.float32)
