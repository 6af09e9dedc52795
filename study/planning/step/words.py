"""A step's time in words: tables for people and for Markdown, fields for JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from study.planning.memory.words import NO_CURE, Table, gb
from study.planning.parallel import profiles
from study.planning.parallel.profiles import peak
from study.planning.parallel.words import mesh_of, seconds
from study.planning.step.answer import Answer
from study.text import counted
from train.spec.communication.messages import Message
from train.spec.step_time.result import ARITHMETIC, GAPS

LIMITS = ("matmul", "memory", "communication", "launch", "pipeline")
"""What a part of a step can be limited by, as train.spec.step_time has it."""


def title(answer: Answer) -> str:
    """Return what was asked in a line."""
    question, config = answer.question, answer.question.config
    gpus = f"{counted(question.axes.size, profiles.rank(question.profile))} of {question.memory / 1e9:.4g} GB"
    machine = f"{question.profile.name}, {question.profile.kind}"
    run = f"{mesh_of(question.axes)}, {config.precision.name}, {config.optim.name}"
    return f"{config.model.width} x {config.model.layers} on {gpus} ({machine}): {run}"


def tables(answer: Answer) -> list[Table]:
    """Return the tables of an answer."""
    found = [_parts(answer), _limits(answer)]
    return [*found, *([_messages(answer)] if answer.messages else [])]


def verdict(answer: Answer) -> str:
    """Return the step's time, what limits it, and what a GPU needs."""
    question, time, config = answer.question, answer.time, answer.question.config
    rate, form = peak(question.profile, config.precision.name)
    said = (
        f"Predicted: {seconds(time.seconds)} a step of {time.tokens:,} tokens, {time.tokens_per_second:,.0f} tokens/s, "
        f"{100 * time.mfu(rate):.1f} % of {rate / 1e12:g} TFLOP/s ({form}), limited by {time.binding}. "
        f"Micro-batches on each rank: {_micro_batches(answer)}"
    )
    if question.chosen:
        largest = question.axes.pp == 1 and answer.fits and question.profile.device == "cuda"
        said += ", the largest that fits" if largest else ", as none was given"
    if answer.sent and question.axes.size > 1:
        sent = ", ".join(f"{gb(size)} GB by {level}" for level, size in answer.sent.items())
        said += f". A rank sends {sent}"
    return (
        f"{said}. The fullest {profiles.rank(question.profile)} needs {gb(answer.needed)} of {gb(question.memory)} GB."
    )


def refusal(answer: Answer) -> str:
    """Return by how much the run does not fit, and the smallest change with which it does."""
    over, each = answer.needed - answer.question.memory, profiles.rank(answer.question.profile)
    said = (
        f"does not fit: the fullest {each} needs {gb(answer.needed)} GB, {gb(over)} GB more than the "
        f"{gb(answer.question.memory)} there are"
    )
    if answer.cure is None:
        return f"{said}; {NO_CURE}"
    words, needed = answer.cure
    return f"{said}; {words} fits ({gb(needed)} GB)"


def parts(answer: Answer) -> list[tuple[str, float, str]]:
    """Return what a step's seconds go to, in the order of the step, each with its limit."""
    time = answer.time
    found = [(name, value, _limit(name)) for name, value in time.parts.items()]
    launch = "waiting for launches" if answer.question.profile.device == "cuda" else "calls of operations"
    found.append((launch, time.launch, "launch"))
    for axis, value in time.exposed.items():
        name = axis if axis == "stragglers" else f"messages of {axis}, not hidden"
        found.append((name, value, "communication"))
    found += [("pipeline's bubble", time.bubble, "pipeline"), ("update", time.update, "memory")]
    return [row for row in found if row[1] > 0.0]


def fields(answer: Answer) -> dict[str, Any]:
    """Return an answer as plain values for JSON; sizes in bytes, times in seconds."""
    question, time = answer.question, answer.time
    rate, form = peak(question.profile, question.config.precision.name)
    return {
        "gpus": question.axes.size,
        "axes": asdict(question.axes),
        "cluster": {name: getattr(question.profile, name) for name in ("name", "kind", "date", "versions")},
        "predicted": True,
        "seconds": time.seconds,
        "tokens": time.tokens,
        "tokens_per_second": time.tokens_per_second,
        "mfu": time.mfu(rate),
        "peak": {"flops_per_second": rate, "format": form},
        "binding": time.binding,
        "limits": time.limits,
        "compute": time.compute,
        "parts": dict(time.parts),
        "launch": time.launch,
        "exposed": dict(time.exposed),
        "bubble": time.bubble,
        "update": time.update,
        "slowest": question.slowest,
        "micro_batches": list(answer.micro.sizes),
        "messages": [
            {**asdict(one), "sent": one.sent, "seconds_alone": value} for one, value in answer.messages.items()
        ],
        "sent": dict(answer.sent),
        "needed": answer.needed,
        "memory": question.memory,
        "fits": answer.fits,
        "cure": None if answer.cure is None else {"words": answer.cure[0], "needed": answer.cure[1]},
    }


def rows(answer: Answer) -> str:
    """Return the parts of a step as CSV: what, its limit, seconds."""
    lines = [f'"{name}",{limit},{value}' for name, value, limit in parts(answer)]
    return "\n".join(["part,limit,seconds", *lines, f"step,,{answer.time.seconds}"]) + "\n"


def _limit(part: str) -> str:
    if part == GAPS:
        return "launch"
    return "matmul" if part in ARITHMETIC else "memory"


def _micro_batches(answer: Answer) -> str:
    counts = Counter(answer.micro.sizes)
    return " and ".join(f"{count} of {counted(size, 'sequence')}" for size, count in counts.items())


def _parts(answer: Answer) -> Table:
    whole = answer.time.seconds
    found = [(name, f"{1e3 * value:,.1f}", f"{100 * value / whole:.1f} %") for name, value, _ in parts(answer)]
    found.append(("step", f"{1e3 * whole:,.1f}", ""))
    busiest = f"Predicted time of a step on the busiest {profiles.rank(answer.question.profile)}"
    return Table(busiest, ("part", "ms", "of the step"), tuple(found))


def _limits(answer: Answer) -> Table:
    found = answer.time.limits
    rows = tuple((name, f"{1e3 * found[name]:,.1f}") for name in LIMITS if found[name] > 0)
    return Table("By what limits it", ("limit", "ms"), rows)


def _messages(answer: Answer) -> Table:
    rows = tuple(_message(one, value) for one, value in answer.messages.items())
    told = "Messages of a rank in a step; ms: one after the other, with nothing beside them"
    return Table(told, ("what, in which pass", "collective", "axis", "number", "bytes each", "ms"), rows)


def _message(one: Message, value: float) -> tuple[str, ...]:
    axis = f"{one.axis} {one.ranks}"
    return f"{one.of}, {one.phase}", one.collective, axis, f"{one.count:,}", f"{one.size:,}", f"{1e3 * value:,.2f}"
