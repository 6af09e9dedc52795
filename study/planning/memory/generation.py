"""What generation takes: weights in the format of products, keys and values of all sequences, one token at work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from study.planning.memory.question import Generation, Subject
from study.planning.memory.words import Table, gb, title_of
from study.text import counted
from train.spec.accounting import held, inference, kept, kv_cache, outside
from train.spec.accounting.parameters import parameters

LENGTHS = (0.25, 0.5, 1, 2, 4)
"""Of the sequence length, those for which the sequences that fit are listed."""


@dataclass(frozen=True)
class Generating:
    """What a GPU holds while it generates [bytes], the fullest of a pipeline.

    a_token: keys and values of one token of one sequence on this GPU. parts: without the allocator's margin, CUDA's
    context and NCCL's buffers, which are `beside`. most: sequences that fit; by_length: the same for other lengths.
    """

    subject: Subject
    sequences: int
    params: int
    a_token: int
    parts: Mapping[str, int]
    beside: Mapping[str, int]
    most: int
    by_length: Mapping[int, int]

    @property
    def needed(self) -> int:
        """What a GPU has to have [bytes]."""
        return sum(self.parts.values()) + sum(self.beside.values())

    @property
    def fits(self) -> bool:
        """Whether it has."""
        return self.needed <= self.subject.memory


def generating(subject: Subject, asked: Generation) -> Generating:
    """Return what generation takes of the GPUs of a subject."""
    length = subject.config.data.sequence_length
    found = _of(subject, asked, length)
    lengths = [max(1, round(part * length)) for part in LENGTHS]
    return replace(found, by_length={one: _of(subject, asked, one).most for one in lengths})


def _of(subject: Subject, asked: Generation, length: int) -> Generating:
    config = replace(subject.config, data=replace(subject.config.data, sequence_length=length))
    axes, size = subject.axes, kept.number_bytes(config)
    frozen = inference.frozen(config, axes, 1)
    if asked.cached is None:
        a_token = kv_cache.of_sequences(config.model, 1, 1, tp=axes.tp, pp=axes.pp, bytes_per_number=size)
    else:  # one short vector for all heads, which tensor parallelism does not cut
        a_token = -(-config.model.layers // axes.pp) * asked.cached * size
    each = a_token * length + 4 * (config.data.vocab_size // axes.tp + 8 * config.model.width)
    sharded = held.part_of(config, axes, 0).sharded
    parts = {
        "weights": frozen.weights,
        "gathered": frozen.gathered,
        "keys and values": asked.sequences * a_token * length,
        "prompt at work": frozen.at_work,
        "logits and streams": asked.sequences * (each - a_token * length),
    }
    fixed = frozen.total
    beside = {
        "margin": outside.margin(sum(parts.values()), sharded, "cuda"),
        "context": outside.context("cuda"),
        "NCCL": outside.nccl(outside.communicators(axes, sharded), "cuda"),
    }
    room = (subject.memory - beside["context"] - beside["NCCL"]) / (1 + outside.FRAGMENTS[sharded]) - fixed
    most = max(0, int(room // each))
    params = parameters(config.model, config.data.vocab_size).total
    return Generating(subject, asked.sequences, params, a_token, parts, beside, most, {})


def title(found: Generating) -> str:
    """Return what was asked in a line."""
    length = found.subject.config.data.sequence_length
    return f"{title_of(found.subject)}: {counted(found.sequences, 'sequence')} of {length:,} tokens generated at once"


def tables(found: Generating) -> list[Table]:
    """Return the tables of an answer."""
    names = {"margin": "allocator's margin", "context": "CUDA context", "NCCL": "NCCL's buffers, estimated"}
    sizes = [(names.get(name, name), size) for name, size in {**found.parts, **found.beside}.items() if size]
    rows = [(name, f"{size:,}", gb(size)) for name, size in [*sizes, ("needed", found.needed)]]
    told = f"Fullest GPU; keys and values of a token: {found.a_token:,} bytes"
    fit = tuple((f"{length:,}", f"{most:,}") for length, most in found.by_length.items())
    return [
        Table(told, ("component", "bytes", "GB"), tuple(rows)),
        Table("Sequences that fit on these GPUs at once, by length", ("tokens", "sequences"), fit),
    ]


def verdict(found: Generating) -> str:
    """Return whether it fits, and how many sequences do."""
    memory = found.subject.memory
    if found.fits:
        return (
            f"Fits: {gb(found.needed)} of {gb(memory)} GB, {gb(memory - found.needed)} GB are left. "
            f"As many as {counted(found.most, 'sequence')} of this length fit."
        )
    said = (
        f"does not fit: generate={found.sequences} needs {gb(found.needed)} GB on each of gpus={found.subject.gpus}, "
        f"{gb(found.needed - memory)} GB more than cluster.gpu_memory_gb={memory / 1e9:g}"
    )
    if found.most:
        return f"{said}; generate={found.most} fits"
    return f"{said}; not one sequence fits: take more GPUs with parallel.tp or parallel.pp, or a shorter length"


def fields(found: Generating) -> dict[str, Any]:
    """Return an answer as plain values for JSON; sizes in bytes."""
    config = found.subject.config
    return {
        "gpus": found.subject.gpus,
        "memory": found.subject.memory,
        "params": found.params,
        "sequences": found.sequences,
        "sequence_length": config.data.sequence_length,
        "cache_per_token": found.a_token,
        "parts": dict(found.parts),
        "beside": dict(found.beside),
        "needed": found.needed,
        "fits": found.fits,
        "most_sequences": found.most,
        "most_by_length": {str(length): most for length, most in found.by_length.items()},
    }
