"""Tables of made-up runs by design, in which some rows are put into another unit."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

from tests.analysis import studies

LAWS = ((1.7, 400.0, 1200.0, 0.34, 0.37), (1.69, 406.4, 410.7, 0.34, 0.28), (0.9, 20.0, 900.0, 0.22, 0.42))


def designed(kind: str, count: int, generator: np.random.Generator) -> tuple[Any, Any]:
    """Return sizes and tokens of an isoFLOP design, a ladder, or points at random, of about so many runs."""
    if kind == "isoflop":
        each = 5 if count < 120 else 10
        flops, ratio = np.meshgrid(np.geomspace(1e18, 1e20, count // each), np.geomspace(4, 110, each), indexing="ij")
        size = np.sqrt(flops.ravel() / (6 * ratio.ravel()))
        return size, flops.ravel() / (6 * size)
    if kind == "ladder":
        each = round(np.sqrt(count))
        size, ratio = np.meshgrid(np.geomspace(3e7, 2e9, each), np.geomspace(5, 120, count // each), indexing="ij")
        return size.ravel(), (size * ratio).ravel()
    return np.exp(generator.uniform(np.log(3e7), np.log(2e9), count)), np.exp(generator.uniform(20.0, 24.0, count))


def made(kind: str, count: int, noise: float, seed: int) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    size, tokens = designed(kind, count, generator)
    loss = studies.loss(LAWS[seed % len(LAWS)], size, tokens) * np.exp(noise * generator.normal(size=len(size)))
    return pd.DataFrame({"params": size, "tokens": tokens, "flops": 6 * size * tokens, "loss": loss})


def named(checks: list[Any], code: str) -> set[str]:
    return {key for check in checks if check.code == code for key in re.findall(r"\b(r\d+) ", check.message)}
