"""The stake of the guard (sweeps.schedulers.asha_guarded) where nobody names another."""

from __future__ import annotations

STAKE = 0.125
"""Share of the resource that selects; the rest trains trials to the end that nobody selects."""
