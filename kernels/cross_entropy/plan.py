"""What the passes of an operator have in common, and how it crosses into torch's operators, which take plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels.cross_entropy.math import Engine, Options, Reference, Shard

SCHEMA = (
    "int ignore_index, float z_loss, float label_smoothing, float softcap, float logit_scale, int start,"
    " int vocabulary, str group, bool triton"
)
"""The values of a plan in an operator's schema."""


@dataclass(frozen=True)
class Plan:
    """Options of the loss, the columns held here, and whether Triton computes."""

    options: Options
    shard: Shard
    triton: bool

    @classmethod
    def of(
        cls,
        ignore_index: int,
        z_loss: float,
        label_smoothing: float,
        softcap: float,
        logit_scale: float,
        start: int,
        vocabulary: int,
        group: str,
        triton: bool,
    ) -> Plan:
        """Return the plan whose `values` these are."""
        options = Options(ignore_index, z_loss, label_smoothing, softcap, logit_scale)
        return cls(options, Shard(start, vocabulary, group), triton)

    def values(self) -> tuple[Any, ...]:
        """Return what SCHEMA names, in its order."""
        o, s = self.options, self.shard
        return (
            o.ignore_index, o.z_loss, o.label_smoothing, o.softcap, o.logit_scale,
            s.start, s.vocabulary, s.group, self.triton,
        )  # fmt: skip

    def engine(self) -> Engine:
        """Return the engine in Triton, imported when it is first asked for, or the one in plain torch."""
        if not self.triton:
            return Reference()
        from kernels.cross_entropy.triton import Kernels

        return Kernels()
