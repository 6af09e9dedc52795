"""Targets that are not tokens."""

from __future__ import annotations

IGNORED = -100
"""Target of a position that is not trained on (padding, or by a loss mask)."""
