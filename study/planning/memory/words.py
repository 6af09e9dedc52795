"""A memory sheet in words: tables for people and for Markdown, rows for CSV, fields for JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from study.planning.memory.question import Subject
from study.planning.memory.sheet import Answer, Variant
from study.planning.memory.together import Together
from study.text import WIDTH, aligned, human, percent
from train.spec.accounting import held
from train.spec.accounting.step import COMPONENTS
from train.spec.axes import MESH_AXES
from train.spec.config import ParallelConfig
from train.spec.mesh import Axes

NO_CURE = (
    "none of sharding, checkpointing, offloading and more GPUs is enough: set parallel.tp or parallel.pp above 1, as "
    "`python -m study plan parallel` finds them, or take a smaller model"
)
"""What is said where none of the changes that are tried makes a run fit."""


@dataclass(frozen=True)
class Table:
    """A titled table; all columns but the first are numbers."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def gb(size: float) -> str:
    """Return bytes as GB of 10^9."""
    return f"{size / 1e9:,.2f}"


def tables(answer: Answer) -> list[Table]:
    """Return the tables of an answer."""
    return [_parameters(answer), _states(answer), _components(answer), _stages(answer), _policies(answer)]


def shared_tables(found: Together) -> list[Table]:
    """Return the tables of several models on the same GPUs."""
    models = Table(
        "Models, GB on each GPU",
        ("model", "parameters", "stays", "at work"),
        tuple((one.role, human(one.params), gb(one.staying), gb(one.at_work)) for one in found.placed),
    )
    phases = Table(
        f"Phases, GB on each GPU ({found.rollouts} sequences generated at once: {gb(found.cache)} of keys and values)",
        ("phase", "tensors"),
        tuple((name, gb(size)) for name, size in found.phases.items()),
    )
    return [models, phases]


def text(title: str, found: Sequence[Table], verdict: str) -> str:
    """Return tables as they are printed."""
    parts = [title]
    for table in found:
        body = aligned([table.head, *table.rows], right=range(1, len(table.head)))
        parts.append("\n".join([table.title, *(f"  {line}" for line in body)]))
    return "\n\n".join([*parts, *([textwrap.fill(verdict, WIDTH)] if verdict else [])])


def markdown(title: str, found: Sequence[Table], verdict: str, command: str) -> str:
    """Return tables as a page, with the command that makes it."""
    parts = [f"# {title}", f"`{command}`"]
    for table in found:
        rule = ["---", *["---:"] * (len(table.head) - 1)]
        lines = [f"| {' | '.join(row)} |" for row in (table.head, rule, *table.rows)]
        parts.append("\n".join([f"## {table.title}", "", *lines]))
    return "\n\n".join([*parts, verdict]) + "\n"


def comma_separated(values: Mapping[str, Any]) -> str:
    """Return the fields of JSON as one CSV of exact numbers: what, value; inner fields joined by dots."""
    return "\n".join(["what,value", *(f"{name},{value}" for name, value in _leaves(values, ""))]) + "\n"


def _leaves(values: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{before}{name}.")
        elif isinstance(value, list):
            yield from _leaves({str(item.get("role", n)): item for n, item in enumerate(value)}, f"{before}{name}.")
        else:
            yield f"{before}{name}", "" if value is None else value


def title_of(subject: Subject) -> str:
    """Return a subject in a line: shape, GPUs and layout, precision, optimizer."""
    config, axes = subject.config, subject.axes
    layout = (
        " x ".join(f"{name} {getattr(axes, name)}" for name in (*MESH_AXES, "ep") if getattr(axes, name) > 1)
        or "no axes"
    )
    model = config.model
    gpus = f"{axes.size} GPU{'s' if axes.size > 1 else ''} of {subject.memory / 1e9:g} GB"
    return f"{model.width} x {model.layers} on {gpus} ({layout}), {config.precision.name}, {config.optim.name}"


def verdict(answer: Answer) -> str:
    """Return whether it fits, and the largest micro-batch that does."""
    sheet, memory = answer.chosen.sheet, answer.subject.memory
    if not answer.fits:
        return refusal(answer)
    return (
        f"Fits: {gb(sheet.needed)} of {gb(memory)} GB, {gb(memory - sheet.needed)} GB are left. Micro-batch: "
        f"{sheet.sequences} of the {answer.share} sequences of a step on each rank; the largest that fits is "
        f"{answer.largest}."
    )


def refusal(answer: Answer) -> str:
    """Return by how much it does not fit, and the smallest change that does."""
    subject, sheet = answer.subject, answer.chosen.sheet
    micro = subject.config.parallel.micro_batch_sequences
    what = f"parallel.micro_batch_sequences={micro}" if micro else "a micro-batch of one sequence"
    over = f"{gb(sheet.needed - subject.memory)} GB more than cluster.gpu_memory_gb={subject.memory / 1e9:g}"
    said = f"does not fit: with {what} each of gpus={subject.gpus} needs {gb(sheet.needed)} GB, {over}"
    if answer.cure is None:
        return f"{said}; {NO_CURE}"
    words, needed = answer.cure
    return f"{said}; {words} fits ({gb(needed)} GB)"


def fields(answer: Answer) -> dict[str, Any]:
    """Return an answer as plain values for JSON; sizes in bytes."""
    subject, counts = answer.subject, answer.counts
    return {
        "gpus": subject.gpus,
        "axes": asdict(subject.axes),
        "memory": subject.memory,
        "params": {**asdict(counts), "total": counts.total, "non_embedding": counts.non_embedding},
        "flops_per_token": {
            "forward": answer.flops.forward,
            "backward": answer.flops.backward,
            "training": answer.flops.training,
            "without_attention": answer.flops.without_attention,
            "without_head": answer.flops.without_head,
            "recomputed": answer.chosen.recomputed,
        },
        "fits": answer.fits,
        "largest_micro_batch": answer.largest,
        "sequences_per_rank": answer.share,
        "chosen": _variant(answer.chosen, subject),
        "stages": {one.name: _variant(one, subject) for one in answer.stages},
        "checkpointing": {one.name: _variant(one, subject) for one in answer.policies},
        "cure": None if answer.cure is None else {"words": answer.cure[0], "needed": answer.cure[1]},
    }


def shared_fields(found: Together) -> dict[str, Any]:
    """Return several models on the same GPUs as plain values for JSON; sizes in bytes."""
    return {
        "gpus": found.gpus,
        "memory": found.memory,
        "fits": found.fits,
        "needed": found.needed,
        "models": [asdict(one) for one in found.placed],
        "phases": dict(found.phases),
        "cache": found.cache,
        "rollouts": found.rollouts,
        "context": found.context,
        "margin": found.margin,
        "nccl": found.nccl,
        "cure": None if found.cure is None else {"words": found.cure[0], "needed": found.cure[1]},
    }


def shared_verdict(found: Together) -> str:
    """Return whether several models fit together."""
    phase = max(found.phases, key=lambda name: found.phases[name])
    needs = f"{gb(found.needed)} of {gb(found.memory)} GB on each of gpus={found.gpus}"
    beside = f"most while the {phase}; {gb(found.margin)} GB of it for the allocator, {gb(found.context)} for CUDA"
    if found.nccl:
        beside += f", {gb(found.nccl)} for NCCL"
    if found.fits:
        return f"Fits: {needs} ({beside})."
    over = gb(found.needed - found.memory)
    more = "no number of GPUs that was tried is enough: take smaller models"
    if found.cure is not None:
        words, needed = found.cure
        more = f"{words} fits ({gb(needed)} GB)"
    return f"does not fit: {needs}, {over} GB too many ({beside}); {more}"


def _variant(one: Variant, subject: Subject) -> dict[str, Any]:
    sheet = one.sheet
    return {
        "peak": sheet.peak.name,
        "parts": dict(sheet.peak.parts),
        "tensors": sheet.peak.total,
        "needed": sheet.needed,
        "margin": sheet.margin,
        "context": sheet.context,
        "nccl": sheet.nccl,
        "host": sheet.host,
        "micro_batch": sheet.sequences,
        "waiting": sheet.waiting,
        "recomputed_flops_per_token": one.recomputed,
        "fits": one.fits(subject),
    }


def _parameters(answer: Answer) -> Table:
    counts, cost = answer.counts, answer.flops
    of = {"embedding": 0, "attention": cost.projections + cost.scores, "mlp": cost.mlp, "norms": 0, "head": cost.head}
    rows = [(name, human(getattr(counts, name)), human(3 * flops)) for name, flops in of.items()]
    rows += [("total", human(counts.total), human(cost.training))]
    if counts.idle:
        rows.append(("active", human(counts.active), ""))
    rows += [("without attention scores", "", human(cost.without_attention))]
    rows += [("recomputed", "", human(answer.chosen.recomputed))]
    return Table(
        "Parameters, and FLOPs of a token forward and backward", ("component", "parameters", "FLOPs"), tuple(rows)
    )


def _states(answer: Answer) -> Table:
    """Return the states of the whole model, and what is left of them on one GPU."""
    config, axes = answer.subject.config, answer.subject.axes
    total, part = answer.counts.total, held.part_of(config, axes, answer.chosen.sheet.rank)
    own = held.moments(config, part, axes.fsdp, axes.tp, axes.ep)
    whole = _moments_of_all(answer)
    size = 4 if config.precision.name == "fp32" else 2
    copies = 0 if part.sharded or size == 4 else size * (part.blocks * part.block.matrices)
    rows = [
        ("weights, fp32", 4 * total, 4 * part.shard),
        ("gradients, fp32", 4 * total, 4 * part.shard),
        (f"optimizer states ({config.optim.name})", whole, own),
    ]
    if size == 2:
        rows.append((f"weights in {config.precision.name}", size * total, copies))
    done = [(name, gb(all_of), gb(here)) for name, all_of, here in rows]
    done.append(("together", gb(sum(row[1] for row in rows)), gb(sum(row[2] for row in rows))))
    return Table("States, GB: of the whole model, and what stays on each GPU", ("state", "model", "GPU"), tuple(done))


def _moments_of_all(answer: Answer) -> int:
    """Return the bytes of the optimizer's state of the whole model."""
    alone = replace(answer.subject.config, parallel=ParallelConfig())
    return held.moments(alone, held.part_of(alone, Axes(), 0), 1, 1)


def _components(answer: Answer) -> Table:
    sheet = answer.chosen.sheet
    sizes = [(name, sheet.peak.parts[name]) for name in COMPONENTS if name in sheet.peak.parts]
    sizes += [("tensors together", sheet.peak.total), ("allocator's margin", sheet.margin)]
    sizes.append(("CUDA context", sheet.context))
    if sheet.nccl:
        sizes.append(("NCCL's buffers, estimated", sheet.nccl))
    sizes.append(("needed", sheet.needed))
    if sheet.host:
        sizes.append(("in host memory", sheet.host))
    rows = tuple((name, f"{size:,}", gb(size)) for name, size in sizes)
    return Table(f"Fullest GPU at its peak ({sheet.peak.name})", ("component", "bytes", "GB"), rows)


def _stages(answer: Answer) -> Table:
    rows = []
    for one in answer.stages:
        parts = one.sheet.peak.parts
        held_there = (gb(parts.get(name, 0)) for name in ("weights", "moments", "gradients"))
        copies = gb(parts.get("gathered", 0) + parts.get("casts", 0))
        rows.append((one.name, *held_there, copies, gb(one.sheet.needed), _fits(one, answer)))
    head = ("stage", "weights", "moments", "gradients", "copies", "needed", "fits")
    return Table("Stages of ZeRO, GB on the fullest GPU at its peak", head, tuple(rows))


def _policies(answer: Answer) -> Table:
    rows = []
    for one in answer.policies:
        parts = one.sheet.peak.parts
        kept = parts.get("activations", 0) + parts.get("recomputed block", 0)
        more = one.recomputed / answer.flops.training
        rows.append(
            (one.name, gb(kept), gb(one.sheet.needed), human(one.recomputed), percent(more, 1), _fits(one, answer))
        )
    head = ("policy", "activations", "needed", "recomputed", "of a step", "fits")
    return Table("Checkpointing, GB on the fullest GPU and FLOPs of a token", head, tuple(rows))


def _fits(one: Variant, answer: Answer) -> str:
    return "yes" if one.fits(answer.subject) else "no"
