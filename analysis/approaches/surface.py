"""L(N, D) = E + A/N^alpha + B/D^beta on all runs: the fit that every other part of the analysis looks at."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.estimation import multistart
from analysis.inputs.dataset import Array
from analysis.laws.sum_of_powers import SURFACE
from analysis.values.blocks import Block

FEWEST = len(SURFACE.names) + 1
"""Fewest runs that hold its constants."""


@dataclass(frozen=True)
class Surface:
    """A fitted surface: constants (5,) and their draws (R, 5) in the order E, A, B, alpha, beta, and the block."""

    block: Block
    constants: Array
    draws: Array
    point: multistart.PointFit
