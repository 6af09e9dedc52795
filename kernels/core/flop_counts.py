"""What torch's FlopCounterMode counts for the operators, told to it once there is one: importing it imports Triton."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

_FORMULAS: dict[Any, Callable[..., int]] = {}


def flops(operator: OpOverload) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Say that the decorated function returns an operator's FLOPs: it gets its arguments, for tensors their shapes."""

    def remember(formula: Callable[..., int]) -> Callable[..., int]:
        _FORMULAS[operator.overloadpacket] = formula
        return formula

    return remember


def tell_counters() -> None:
    """Make the formulas known to torch and to counters that are at work; call before an operator that has one.

    Nothing happens while there can be no counter, nor in compiled code.
    """
    if torch.compiler.is_compiling() or (counting := sys.modules.get("torch.utils.flop_counter")) is None:
        return
    for packet, formula in _FORMULAS.items():
        if packet not in counting.flop_registry:
            counting.register_flop_formula(packet)(formula)
    for mode in _get_current_dispatch_mode_stack():  # a counter has copied the registry when it was made
        if isinstance(counter := getattr(mode, "counter", None), counting.FlopCounterMode):
            counter.flop_registry.update({packet: counting.flop_registry[packet] for packet in _FORMULAS})
