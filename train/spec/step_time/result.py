"""A step's time by what it goes to, and which limit is the largest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from train.spec.step_time.timeline import Pipeline

MATMUL, NARROW, ATTENTION, HEAD = "matmul", "narrow matmul", "attention", "head"
GROUPED, ROUTING = "products of experts", "routing"
ELEMENTWISE, LOSS, EMBEDDING, CASTS = "norms and elementwise", "loss", "embedding", "casts"
AGAIN, AGAIN_ELEMENTWISE, COPIES, GAPS = "recomputation", "recomputed elementwise", "copies of messages", "gaps"
SUMS = "sums over micro-batches"
"""Parts of `StepTime.parts`. narrow matmul: products that wait for memory. routing: passes over scores and over rows of
experts. gaps: between kernels."""
ARITHMETIC = frozenset((MATMUL, GROUPED, ATTENTION, HEAD, AGAIN))
"""Parts whose limit is arithmetic; of all others but gaps it is memory."""


@dataclass(frozen=True)
class StepTime:
    """Where the seconds of a step go on the busiest rank. They are a prediction, and add up to `seconds`.

    compute: kernels of forward, backward and recomputation: the longer of arithmetic and memory, summed over kinds of
    work. launch: time that the GPU waits for launches; 0 where a graph or enough work hides them. exposed:
    communication that compute does not hide, by axis (fsdp, dp, tp, cp, pp, world) and `stragglers`. bubble: idle time
    of the pipeline, with its messages. update: optimizer, clipping. tokens: of a step. model_flops: of a step, as the
    trainer's MFU counts them. parts: what `compute` consists of [s]. pipeline: what its schedule runs, if
    there is one.
    """

    compute: float
    launch: float
    exposed: Mapping[str, float]
    bubble: float
    update: float
    tokens: int
    model_flops: float
    ranks: int
    parts: Mapping[str, float]
    pipeline: Pipeline | None = None

    @property
    def seconds(self) -> float:
        """The whole step [s]."""
        return self.compute + self.launch + sum(self.exposed.values()) + self.bubble + self.update

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second of all ranks together."""
        return self.tokens / self.seconds

    def mfu(self, peak: float) -> float:
        """Return model FLOPs a second as a share of the peaks of all ranks; `peak`: of one [FLOP/s]."""
        if not peak > 0:
            raise ValueError(f"peak={peak:g} is not allowed: FLOP/s of one device, more than 0")
        return self.model_flops / self.seconds / (self.ranks * peak)

    @property
    def limits(self) -> dict[str, float]:
        """Seconds by limit: matmul (arithmetic), memory, communication, launch, pipeline."""
        arithmetic = sum(self.parts.get(name, 0.0) for name in ARITHMETIC)
        gaps = self.parts.get(GAPS, 0.0)
        return {
            "matmul": arithmetic,
            "memory": self.compute - arithmetic - gaps + self.update,
            "communication": sum(self.exposed.values()),
            "launch": self.launch + gaps,
            "pipeline": self.bubble,
        }

    @property
    def binding(self) -> str:
        """The largest limit: matmul, memory, communication, launch or pipeline."""
        return max(self.limits, key=self.limits.__getitem__)


def added(*weighed: tuple[float, Mapping[str, float]]) -> dict[str, float]:
    """Return the sum of parts, each times its factor."""
    total: dict[str, float] = {}
    for factor, parts in weighed:
        if factor:
            for name, seconds in parts.items():
                total[name] = total.get(name, 0.0) + factor * seconds
    return total
