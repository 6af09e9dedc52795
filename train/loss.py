"""Which targets the loss leaves out; the loss itself is kernels.linear_cross_entropy."""

from __future__ import annotations

IGNORED = -100
"""Target of a position that is not trained on: no loss, no gradient."""
