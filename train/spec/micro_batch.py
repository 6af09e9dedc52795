"""How many sequences go through a GPU at once: as many as its memory holds, and a step is not cut where one fits.

Pure decisions: what a rank needs is counted from the config, what runs of the same shape found is handed in. Gradients
are the same sum however a step is cut (train.trainer), so none of this is part of a point.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from train.spec import activations
from train.spec.config import RunConfig
from train.spec.footprint import footprint, of_a_token
from train.spec.mesh import Axes

SHARE = 0.9
"""Part of the free memory that is filled: the allocator leaves gaps, libraries have workspaces."""
MARGIN = 1.05
"""What is asked for over the bytes of a sequence that were measured."""


@dataclass(frozen=True)
class Need:
    """What one rank needs of its GPU [bytes]: whatever the micro-batch, and for each of its sequences."""

    fixed: int
    sequence: int


@dataclass(frozen=True)
class Seen:
    """What runs of one shape found on one kind of GPU.

    fits: the largest micro-batch that trained [sequences]. per_sequence: what each of its sequences took [bytes].
    fails: the smallest that ran out of memory, when `free` bytes were left for the run.
    """

    fits: int = 0
    per_sequence: int | None = None
    fails: int | None = None
    free: int = 0


def need(config: RunConfig, axes: Axes) -> Need:
    """Return what a rank needs by the config alone; an estimate from above.

    An evaluation runs beside what a recorded step keeps to itself, so what one micro-batch has at work counts twice.
    """
    plan, length = footprint(config, axes, "cuda"), config.data.sequence_length
    kept, once = of_a_token(config, axes, "cuda")
    fixed = plan.states + plan.gathered + 2 * activations.CHUNK_BYTES["cuda"] // axes.tp
    fixed += 4 * config.data.vocab_size * config.model.width // axes.tp
    return Need(fixed, int((kept + 2 * once) * length))


def most(share: int, needed: Need, free: int, seen: Seen | None = None) -> int:
    """Return the largest micro-batch to try of a rank's `share` of a step [sequences], at least 1.

    free: bytes that the run may take in all. What was measured counts instead of the estimate, and what has failed with
    no less memory is not tried again.
    """
    seen = seen or Seen()
    each = needed.sequence if seen.per_sequence is None else min(needed.sequence, int(seen.per_sequence * MARGIN))
    fitting = int(SHARE * free - needed.fixed) // max(1, each)
    if seen.fails is not None and free <= seen.free * MARGIN:
        fitting = min(fitting, seen.fails - 1)
    return max(1, min(share, fitting))


def smaller(share: int, size: int) -> int | None:
    """Return the micro-batch to try after one of `size` ran out of memory: at most half of it; None: there is none."""
    return None if size <= 1 else even(share, size // 2)


def even(sequences: int, most: int) -> int:
    """Return the size of equal micro-batches, at most `most`, that `sequences` make with the fewest and emptiest."""
    return -(-sequences // -(-sequences // most))


def even_parts(count: int, most: int) -> list[int]:
    """Return `count` sequences cut into the fewest micro-batches of at most `most`, as equal as can be."""
    passes = -(-count // most)
    return [count * (i + 1) // passes - count * i // passes for i in range(passes)]


def ran(seen: Seen | None, size: int, per_sequence: int) -> Seen:
    """Return what is known once a micro-batch of `size` has trained with so many bytes a sequence."""
    seen = seen or Seen()
    fails, free = (None, 0) if seen.fails is not None and seen.fails <= size else (seen.fails, seen.free)
    larger = size >= seen.fits or seen.per_sequence is None
    return Seen(max(size, seen.fits), per_sequence if larger else seen.per_sequence, fails, free)


def failed(seen: Seen | None, size: int, free: int) -> Seen:
    """Return what is known once a micro-batch of `size` has run out of `free` bytes."""
    seen = seen or Seen()
    fits = min(seen.fits, size - 1)
    return Seen(fits, seen.per_sequence if fits else None, size, free)


def shape_of(config: RunConfig, axes: Axes, gpu: str) -> dict[str, Any]:
    """Return all that the memory of a micro-batch depends on, as plain values; `gpu`: its name and memory."""
    sections = asdict(config)
    parallel = {name: value for name, value in sections["parallel"].items() if name != "micro_batch_sequences"}
    data = {name: sections["data"][name] for name in ("vocab_size", "sequence_length", "packing")}
    compiled = {name: value for name, value in sections["compile"].items() if name not in ("cache", "warmup_steps")}
    optimizer = {name: sections["optim"][name] for name in ("name", "z_loss", "label_smoothing")}
    return {
        "model": {name: value for name, value in sections["model"].items() if name != "init_from"},
        "data": data,
        "optim": optimizer,
        "precision": sections["precision"],
        "memory": sections["memory"],
        "parallel": parallel,
        "compile": compiled,
        "axes": asdict(axes),
        "gpu": gpu,
    }


def read(found: Mapping[str, Any]) -> Seen:
    """Return what was written of a `Seen`; ValueError or TypeError where it is none."""
    numbers = {name: None if (value := found.get(name)) is None else int(value) for name in Seen.__dataclass_fields__}
    return Seen(numbers["fits"] or 0, numbers["per_sequence"], numbers["fails"], numbers["free"] or 0)
