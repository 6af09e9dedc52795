"""Akaike's criteria of several laws beside each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def behind(criteria: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how far each criterion lies above the lowest; zeros where none is finite."""
    values = np.asarray(criteria, dtype=np.float64)
    return values - values.min() if np.isfinite(values).any() else np.zeros_like(values)


def weights(criteria: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Akaike's weights of laws from their AICc: exp(-half of how far it is behind), summing to 1."""
    share = np.exp(-0.5 * behind(criteria))
    return np.asarray(share / share.sum())
