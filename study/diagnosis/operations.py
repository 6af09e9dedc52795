"""What kernels and operations do, by their names, and how much, by the shapes of their inputs. Pure."""

from __future__ import annotations

import enum
import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class Kind(enum.IntEnum):
    """What a kernel, or an operation on a CPU, spends its time on."""

    MATMUL = 0
    """Matrix products, convolutions and attention: bound by arithmetic, as a rule."""
    MEMORY = 1
    """Everything else that computes: it reads and writes more than it calculates."""
    COMMUNICATION = 2
    MESSAGE = 3
    """Communication of one rank with one other."""
    COPY = 4


_MESSAGE = re.compile(r"nccl\w*(SendRecv|_Send|_Recv)|(nccl|gloo|mpi):(send|recv)|c10d::(send|recv)", re.IGNORECASE)
_COMMUNICATION = re.compile(r"^(nccl|rccl|gloo:|mpi:|c10d::|_c10d_functional::|c10d_functional::|multimem_|symm_mem)")
_COPY = re.compile(r"^Mem(cpy|set)")
_MATMUL = re.compile(
    r"gemm|gemv|cutlass|cublas|nvjet|xmma|flash|fmha|attention|sdpa|conv|wgrad|dgrad|implicit|matmul|mkldnn::linear"
    r"|_scaled_mm|(^|[:_])(b?mm|addb?mm|linear|addmv|mv|dot|baddbmm)($|[_<( ])",
    re.IGNORECASE,
)


@functools.cache
def kind_of(name: str) -> Kind:
    """Return what a kernel or an operation of this name does."""
    if _COPY.match(name):
        return Kind.COPY
    if _MESSAGE.search(name):
        return Kind.MESSAGE
    if _COMMUNICATION.match(name):
        return Kind.COMMUNICATION
    return Kind.MATMUL if _MATMUL.search(name) else Kind.MEMORY


@dataclass(frozen=True)
class Work:
    """What an operation has to do: FLOPs (0: not a matrix product), bytes read and written, and the inputs' format."""

    flops: float
    bytes: float
    format: str


_SIZES = {"double": 8, "float": 4, "c10::bfloat16": 2, "c10::half": 2, "long int": 8, "long": 8, "int": 4, "bool": 1}
_FORMATS = {"c10::bfloat16": "bf16", "c10::half": "bf16", "float": "fp32"}


def work(name: str, dims: Sequence[Any], types: Sequence[Any]) -> Work | None:
    """Return the work of an operation with these `Input Dims` and `Input type`; None where they do not say it.

    bytes: inputs and output once each, for products exactly, else with an output like the largest input.
    """
    inputs = [(shape, str(kind).lower()) for shape, kind in zip(dims, types, strict=False) if _is_shape(shape)]
    if not inputs:
        return None
    size = [math.prod(shape) * _SIZES.get(kind, 1 if "float8" in kind else 4) for shape, kind in inputs]
    kind = inputs[-1][1] if name in ("aten::addmm", "aten::baddbmm") else inputs[0][1]
    form = _FORMATS.get(kind, "fp8" if "float8" in kind else kind)
    product = _product([shape for shape, _ in inputs], name)
    if product is None:
        return Work(0.0, float(sum(size) + max(size)), form)
    flops, output = product
    return Work(flops, float(sum(size) + output * _SIZES.get(kind, 2)), form)


def _product(shapes: Sequence[Sequence[int]], name: str) -> tuple[float, float] | None:
    """Return FLOPs of a matrix product and elements of its output; None where `name` is none."""
    match name, shapes:
        case (("aten::mm" | "aten::_scaled_mm"), [[m, k], [_, n], *_]):
            return 2.0 * m * k * n, m * n
        case "aten::addmm", [_, [m, k], [_, n], *_]:
            return 2.0 * m * k * n, m * n
        case "aten::bmm", [[b, m, k], [_, _, n], *_]:
            return 2.0 * b * m * k * n, b * m * n
        case "aten::baddbmm", [_, [b, m, k], [_, _, n], *_]:
            return 2.0 * b * m * k * n, b * m * n
    return None


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and len(shape) > 0 and all(isinstance(size, int) for size in shape)
