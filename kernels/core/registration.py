"""The operators' registration: `torch.library.define`, `impl` and a fake; cheapest per call, opaque to compilers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

NAMESPACE = "scaling_kernels"


def define(schema: str) -> Callable[[Callable[..., Any]], OpOverload]:
    """Register the decorated function as `scaling_kernels::schema` for every device; it becomes the operator."""

    def register(function: Callable[..., Any]) -> OpOverload:
        name = schema.partition("(")[0]
        torch.library.define(f"{NAMESPACE}::{name}", schema[len(name) :], tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.impl(f"{NAMESPACE}::{name}", "CompositeExplicitAutograd")(function)
        operator: OpOverload = getattr(getattr(torch.ops, NAMESPACE), name).default
        return operator

    return register


def fake(operator: OpOverload) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as what `operator` gives for tensors without data: shapes, strides, dtypes."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        torch.library.register_fake(f"{operator.namespace}::{operator._opname}")(function)
        return function

    return register
