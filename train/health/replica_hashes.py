"""Do ranks still hold the same copies? By fingerprints of every part that more than one rank holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from train.health.shard_names import Part, held, part_of, stacked
from train.health.tensor_hash import fingerprint


class DesyncError(RuntimeError):
    """Copies that must be equal are not: what these ranks compute from here on is wrong."""


@dataclass(frozen=True)
class Desync:
    """A part whose copies differ. ranks: those that hold something else than most, or all where there is no most."""

    part: Part
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.part} on rank{'s' if len(self.ranks) > 1 else ''} {', '.join(map(str, self.ranks))}"


def fingerprints(named: Iterable[tuple[str, Tensor]]) -> dict[Part, int]:
    """Return the fingerprint of every part that this rank holds; waits for the device once."""
    pairs = list(named)
    if not pairs:
        return {}
    together = stacked([fingerprint(held(tensor)) for _, tensor in pairs]).tolist()
    return {part_of(name, tensor): int(value) for (name, tensor), value in zip(pairs, together, strict=True)}


def compare(ranks: Sequence[Mapping[Part, int]]) -> list[Desync]:
    """Return the parts whose copies differ, given every rank's fingerprints in the order of ranks."""
    holders: dict[Part, dict[int, int]] = {}
    for rank, found in enumerate(ranks):
        for part, value in found.items():
            holders.setdefault(part, {})[rank] = value
    wrong = []
    for part, values in holders.items():
        ordered = Counter(values.values()).most_common()
        if len(ordered) > 1:
            most = ordered[0][0] if ordered[0][1] > ordered[1][1] else None
            wrong.append(Desync(part, tuple(rank for rank, value in values.items() if value != most)))
    return wrong


def message(found: Sequence[Desync], step: int) -> str:
    """Return what to tell a person of copies that differ after `step`."""
    shown = "; ".join(str(one) for one in found[:5]) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")
    return (
        f"after step {step} ranks no longer hold the same copies: {shown}. Go back to a checkpoint before it, and look "
        "at the hosts of these ranks (docs/loss-spikes.md)"
    )
