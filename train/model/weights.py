"""A weight as the arithmetic of this process sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor

Product: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""How a layer applies a weight: x (..., columns) and weight (rows, columns) to (..., rows)."""
