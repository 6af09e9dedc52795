"""Labels that stand for something else than a token."""

from __future__ import annotations

IGNORED = -100
"""Target of a position that is not trained on (padding)."""
