"""Losses in another unit than a fit's, told by what its law says of the runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis.diagnostics.two_units import BITS, LEAST_SURPLUS, NEAR
from analysis.inputs.dataset import Array, Mask
from analysis.text import numbers
from analysis.values.blocks import Check
from analysis.values.findings import finding


def units(
    keys: Sequence[str], observed: Array, predicted: Array, unit: str, *, other_corpus: bool = False
) -> list[Check]:
    """Return that runs (n,) lie as far from what a law in `unit` says of them as losses in another unit would.

    So they do where more of them are off by the ratio of units than by other ratios as large. It is a warning where
    the runs are of an `other_corpus`, whose losses per token may be as far from the law's by themselves.
    """
    left = np.log(observed / predicted)
    far = np.abs(left) > 0.5 * BITS
    level = "warning" if other_corpus else ""
    for sign, ratio, called in ((1.0, "1.44", "bits where the fit is in nats"),
                                (-1.0, "0.69", "nats where the fit is in bits")):  # fmt: skip
        mask = np.abs(left - sign * BITS) < NEAR
        if mask.sum() > (far & ~mask).sum():
            text = f"{_counted(mask)} {ratio} times what the law says ({_named(keys, observed, mask)}): "
            text += f"{called}, by their size"
            return [finding("mixed_units", text, "bring these losses to the fit's unit: 1 bit is 0.6931 nats", level)]
    if unit == "nats per token":
        with np.errstate(divide="ignore", invalid="ignore"):
            mask = (left > LEAST_SURPLUS) & (np.abs(np.log(np.log(observed)) - np.log(predicted)) < NEAR)
        if mask.sum() > (far & ~mask).sum():
            text = f"{_counted(mask)} as far above what the law says ({_named(keys, observed, mask)}) as perplexities"
            return [finding("perplexity", text, "give their natural logarithm, in nats per token", level)]
    return []


def _counted(mask: Mask) -> str:
    return numbers.there_are(int(mask.sum()), "loss")


def _named(keys: Sequence[str], observed: Array, mask: Mask) -> str:
    return numbers.listed(f"{keys[i]} {observed[i]:.4g}" for i in np.flatnonzero(mask).tolist())
