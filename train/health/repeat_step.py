"""Silent corruption: the same gradients computed twice from the same weights and batch must be the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from train.health.replica_hashes import fingerprints
from train.health.shard_names import Part


class CorruptionError(RuntimeError):
    """Arithmetic that was repeated gave other bits: the device, or what runs on it, cannot be trusted."""


@dataclass(frozen=True)
class Difference:
    """What came out otherwise the second time on one rank: names of losses or gradients."""

    rank: int
    parts: tuple[Part, ...]


def repeat(compute: Callable[[], Iterable[tuple[str, Tensor]]]) -> tuple[Part, ...]:
    """Compute twice; return the parts of what came out (name, tensor) whose bits differ, in their order."""
    first = fingerprints(compute())
    second = fingerprints(compute())
    return tuple(part for part in first | second if first.get(part) != second.get(part))


def differences(ranks: Sequence[Sequence[Part]]) -> list[Difference]:
    """Return what differed, by rank.

    Ranks whose own loss, from before any communication, differed come alone if there are any: what they got wrong has
    reached the gradients of the others.
    """
    found = [Difference(rank, tuple(sorted(parts))) for rank, parts in enumerate(ranks) if parts]
    own = [one for one in found if any(part.name == "loss" for part in one.parts)]
    return own or found


def message(found: Sequence[Difference], step: int) -> str:
    """Return what to tell a person of a repetition of `step` that came out otherwise."""
    ranks = "; ".join(
        f"rank {d.rank}: {', '.join(map(str, d.parts[:3]))}{', …' if len(d.parts) > 3 else ''}" for d in found
    )
    return (
        f"step {step} computed twice gave different bits ({ranks}). Weights are those before the step; test the device "
        "of that rank before it trains on (docs/loss-spikes.md)"
    )
