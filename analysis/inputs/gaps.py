"""Values that lie apart from all others."""

from __future__ import annotations

import numpy as np

from analysis.inputs.dataset import Array, Mask


def beyond_gap(logs: Array, least: float) -> Mask | None:
    """Return the values (n,) below the widest gap among them, where that is at least so wide; None where none is."""
    ordered = np.sort(logs)
    gaps = np.diff(ordered)
    if not len(gaps) or gaps.max() < least:
        return None
    return np.asarray(logs <= ordered[int(np.argmax(gaps))])
