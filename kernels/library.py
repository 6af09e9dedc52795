"""The operators' registration: `torch.library.define`, `impl` and a fake; cheapest per call, opaque to compilers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

NAMESPACE = "scaling_kernels"


class Operator:
    """A registered operator: the implementation itself when called, `fake` to give its shapes."""

    def __init__(self, name: str, implementation: Callable[..., Any]) -> None:
        self.name, self.implementation = name, implementation

    def fake(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Register how the outputs look for inputs without data: the same shapes, strides and dtypes."""
        torch.library.register_fake(f"{NAMESPACE}::{self.name}")(function)
        return function


def define(schema: str) -> Callable[[Callable[..., Any]], Operator]:
    """Register the decorated function as `scaling_kernels::schema` for every device."""

    def register(function: Callable[..., Any]) -> Operator:
        name = schema.partition("(")[0]
        torch.library.define(f"{NAMESPACE}::{name}", schema[len(name) :], tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.impl(f"{NAMESPACE}::{name}", "CompositeExplicitAutograd")(function)
        return Operator(name, function)

    return register
