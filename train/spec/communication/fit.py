"""Alpha and bandwidth of a link from times that were measured: a line through them, by ratios, robustly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from train.spec.communication.costs import Link, steps
from train.spec.communication.messages import bus_factor

ROUNDS = 200
LEAST = 1e-4
"""Error, and share of the time, below which neither counts as smaller: it bounds the weights."""


@dataclass(frozen=True)
class Timed:
    """A collective of `ranks` of `size` [bytes, as nccl-tests count them] that took `seconds`."""

    collective: str
    ranks: int
    size: int
    seconds: float

    @property
    def algorithm_bandwidth(self) -> float:
        """Size over time [B/s]."""
        return self.size / self.seconds

    @property
    def bus_bandwidth(self) -> float:
        """What a link carries at least while this runs [B/s] (nccl-tests, doc/PERFORMANCE.md)."""
        return bus_factor(self.collective, self.ranks) * self.algorithm_bandwidth


@dataclass(frozen=True)
class LinkFit:
    """The link by which rings of a collective take the times measured; residuals: fitted / measured - 1 of each."""

    collective: str
    ranks: int
    link: Link
    residuals: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the residuals' magnitudes."""
        ordered = sorted(map(abs, self.residuals))
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2

    @property
    def worst(self) -> float:
        """The largest of them."""
        return max(map(abs, self.residuals))


def fit_link(points: Sequence[Timed]) -> LinkFit:
    """Return the link of one collective over one number of ranks; ValueError where the points do not show both.

    The sum of |log(fitted / measured)| is made least: small messages count as large ones do, half the time as much as
    twice the time, and single bad points little. It takes two sizes at least, of which the larger ones take longer.
    """
    kinds = {(point.collective, point.ranks) for point in points}
    if len(kinds) != 1:
        raise ValueError(f"points of {len(kinds)} kinds (collective, ranks): a link is fitted to those of one")
    ((collective, ranks),) = kinds
    if len({point.size for point in points}) < 2:
        raise ValueError(f"{collective}: a link is fitted to two sizes at least, these are of {points[0].size} bytes")
    start, slope = line([point.size for point in points], [point.seconds for point in points])
    if slope <= 0:
        largest = max(point.size for point in points)
        raise ValueError(
            f"{collective}: messages of up to {largest} bytes take no longer than small ones, which shows no "
            "bandwidth: measure larger ones (sizes=…)"
        )
    link = Link(start / steps(collective, ranks), bus_factor(collective, ranks) / slope)
    residuals = tuple((start + slope * point.size) / point.seconds - 1 for point in points)
    return LinkFit(collective, ranks, link, residuals)


def line(sizes: Sequence[float], times: Sequence[float]) -> tuple[float, float]:
    """Return start (0 or more) and slope of the line with the least sum of |log(line / time)|.

    By weights of squares that are set anew each round (Schlossmacher 1973). With e = line / time - 1, the weight of e²
    that has the slope of |log(1 + e)| is 1 / (|e| (1 + e)).
    """
    weights = [1.0] * len(times)
    start = slope = 0.0
    for _ in range(ROUNDS):
        start, slope = _weighted(sizes, times, weights)
        if start < 0:
            start, slope = 0.0, _through_origin(sizes, times, weights)
        errors = [(start + slope * x) / t - 1 for x, t in zip(sizes, times, strict=True)]
        weights = [1 / (max(abs(error), LEAST) * max(1 + error, LEAST)) for error in errors]
    return start, slope


def _weighted(sizes: Sequence[float], times: Sequence[float], weights: Sequence[float]) -> tuple[float, float]:
    """Return the line of least weighted squares of relative errors: of start / t + slope x / t - 1."""
    aa = ab = bb = a1 = b1 = 0.0
    for x, t, w in zip(sizes, times, weights, strict=True):
        a, b = 1 / t, x / t
        aa, ab, bb, a1, b1 = aa + w * a * a, ab + w * a * b, bb + w * b * b, a1 + w * a, b1 + w * b
    determinant = aa * bb - ab * ab
    return (a1 * bb - b1 * ab) / determinant, (b1 * aa - a1 * ab) / determinant


def _through_origin(sizes: Sequence[float], times: Sequence[float], weights: Sequence[float]) -> float:
    above = sum(w * x / t for x, t, w in zip(sizes, times, weights, strict=True))
    return above / sum(w * (x / t) ** 2 for x, t, w in zip(sizes, times, weights, strict=True))
