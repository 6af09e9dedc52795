"""A search's answer in words: tables for people and for Markdown, a sentence on the winner, fields for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from study import text
from study.planning.memory.words import Table, gb
from study.planning.parallel import profiles
from study.planning.parallel.answer import Answer, StepTime, as_words, settings
from study.planning.parallel.profiles import peak
from study.planning.parallel.question import Question
from study.planning.parallel.search import Priced
from study.planning.parallel.space import Candidate
from train.spec.mesh import Axes

SHORT = {"dp_replicate": "replicas", "dp_shard": "shards", "cp": "cp", "tp": "tp", "pp": "pp", "ep": "ep"}


def title(question: Question) -> str:
    """Return the question in a line."""
    config, profile = question.config, question.profile
    model = config.model
    gpus = f"{text.counted(question.gpus, profiles.rank(profile))} of {question.memory / 1e9:.4g} GB"
    batch = f"{config.batch.tokens:,} tokens a step in sequences of {config.data.sequence_length:,}"
    return f"{model.width} x {model.layers} on {gpus} ({profile.name}, {profile.kind}), {batch}"


def tables(answer: Answer) -> list[Table]:
    """Return the tables of an answer."""
    found = [_layouts(answer), _predicted(answer), _times(answer)] if answer.best else []
    return [*found, _left_out(answer)]


def verdict(answer: Answer) -> str:
    """Return why the winner won, in a sentence or two, and the words that choose it."""
    if not answer.best:
        return refusal(answer)
    winner, question = answer.best[0], answer.question
    peak, form = peak_of(question)
    share = f"{100 * winner.time.mfu(peak):.1f} % of {peak / 1e12:g} TFLOP/s ({form})"
    said = (
        f"Predicted fastest: {in_short(winner.candidate)}: {seconds(winner.time.seconds)} a step, {share}, limited by "
        f"{winner.time.binding}; {gb(winner.needed)} of {gb(question.memory)} GB."
    )
    others = [one for one in answer.best[1:] if one.candidate.axes != winner.candidate.axes]
    for other in (others or list(answer.best[1:]))[:1]:
        said += f" {_beside(winner, other, answer.best.index(other) + 1)}"
    if winner.candidate.config.precision.name != "bf16" and not question.stays("precision.name"):
        form = winner.candidate.config.precision.name
        said += f" {form} gives other losses, and so another point: precision=bf16 keeps to bf16."
    return said


def command(answer: Answer) -> str:
    """Return the keys of the winner as words."""
    return " ".join(as_words(settings(answer.best[0].candidate)))


def refusal(answer: Answer) -> str:
    """Return by how much the smallest layout does not fit, and the smallest change that does."""
    assert answer.miss is not None
    candidate, size = answer.miss
    question = answer.question
    said = (
        f"no layout of gpus={question.gpus} fits: the one that needs least ({in_short(candidate)}) needs {gb(size)} GB "
        f"of each, {gb(size - question.memory)} GB more than the {gb(question.memory)} there are"
    )
    if answer.cure is None:
        return f"{said}; no single change is enough: take a smaller model, or more GPUs and shorter sequences"
    return f"{said}; {answer.cure.words} fits ({gb(answer.cure.needed)} GB)"


def in_short(candidate: Candidate) -> str:
    """Return a candidate in a phrase."""
    return ", ".join(_parts(candidate))


def _parts(candidate: Candidate) -> list[str]:
    config = candidate.config
    parts = [mesh_of(candidate.axes)]
    if candidate.axes.pp > 1:
        parts.append(_schedule(candidate))
    if candidate.axes.fsdp > 1:
        parts.append(f"ZeRO-{config.parallel.zero}")
    parts.append(f"{candidate.accumulated} x {candidate.sequences} sequences")
    kept = config.memory.checkpointing
    parts.append("no checkpointing" if kept == "none" else f"checkpointing {kept}")
    parts.append("compiled" if config.compile.blocks else "not compiled")
    return [*parts, config.precision.name]


def mesh_of(axes: Axes) -> str:
    """Return a mesh in a phrase: axes of more than one rank."""
    return (
        " x ".join(f"{told} {size}" for name, told in SHORT.items() if (size := getattr(axes, name)) > 1) or "one rank"
    )


def seconds(value: float) -> str:
    """Return seconds as they are read: three digits, in s or ms."""
    if value >= 1:
        return f"{value:,.0f} s" if value >= 100 else f"{value:.3g} s"
    return f"{1e3 * value:.3g} ms"


def peak_of(question: Question) -> tuple[float, str]:
    """Return the peak of MFU [FLOP/s] and its format."""
    return peak(question.profile, question.config.precision.name)


def fields(answer: Answer) -> dict[str, Any]:
    """Return an answer as plain values for JSON; sizes in bytes, times in seconds."""
    question, found = answer.question, answer.found
    miss = answer.miss
    return {
        "gpus": question.gpus,
        "memory": question.memory,
        "cluster": {name: getattr(question.profile, name) for name in ("name", "kind", "date", "versions")},
        "predicted": True,
        "candidates": answer.space.size,
        "refused": dict(answer.space.refused),
        "too_large": found.too_large,
        "slower": found.slower,
        "priced": found.priced,
        "layouts": [_layout(answer, place) for place in range(len(answer.best))],
        "winner": command(answer) if answer.best else None,
        "why": verdict(answer),
        "miss": None if miss is None else {"settings": settings(miss[0]), "needed": miss[1]},
        "cure": None if answer.cure is None else asdict(answer.cure),
    }


def _layout(answer: Answer, index: int) -> dict[str, Any]:
    one = answer.best[index]
    time = one.time
    return {
        "settings": settings(one.candidate),
        "accumulation": one.candidate.accumulated,
        "needed": one.needed,
        "sent": dict(answer.sent[index]),
        "seconds": time.seconds,
        **times(time),
        "tokens_per_second": time.tokens_per_second,
        "mfu": time.mfu(peak_of(answer.question)[0]),
        "binding": time.binding,
    }


def times(time: StepTime) -> dict[str, float]:
    """Return what a step's seconds go to."""
    exposed = {f"exposed_{axis}": value for axis, value in time.exposed.items()}
    return {"compute": time.compute, "launch": time.launch, **exposed, "bubble": time.bubble, "update": time.update}


def rows(answer: Answer, more: Mapping[int, Mapping[str, Any]] | None = None) -> str:
    """Return the listed layouts as CSV, one a row; sizes in bytes, times in seconds.

    more: further columns of those at some places, from 1.
    """
    flat = []
    for place in range(len(answer.best)):
        one = _layout(answer, place)
        sent = {f"sent_{level}": size for level, size in one.pop("sent").items()}
        flat.append({**one.pop("settings"), **one, **sent, **(more or {}).get(place + 1, {})})
    names = list(dict.fromkeys(name for row in flat for name in row))
    lines = [",".join(str(row.get(name, "")) for name in names) for row in flat]
    return "\n".join([",".join(names), *lines]) + "\n"


def _beside(winner: Priced[StepTime], other: Priced[StepTime], number: int) -> str:
    """Return by how much another is slower, and what most of that is."""
    more = other.time.seconds / winner.time.seconds - 1
    here, there = grouped(winner.time), grouped(other.time)
    differences = {name: there[name] - here[name] for name in here}
    name = max(differences, key=lambda each: differences[each])
    why = f", mostly {name} (+{seconds(differences[name])})" if differences[name] > 0 else ""
    known = _parts(winner.candidate)
    other_way = ", ".join(part for part in _parts(other.candidate) if part not in known)
    return f"No. {number} ({other_way}) is predicted {100 * more:.1f} % slower{why}."


def grouped(time: StepTime) -> dict[str, float]:
    """Return what a step's seconds go to, messages of all axes together."""
    return {
        "computing": time.compute,
        "launching kernels": time.launch,
        "messages that nothing hides": sum(time.exposed.values()),
        "the pipeline's bubble": time.bubble,
        "the update": time.update,
    }


def _layouts(answer: Answer) -> Table:
    rows = []
    names = [name for name in SHORT if name != "ep" or answer.question.config.model.experts]
    for place, one in enumerate(answer.best, 1):
        candidate, axes, config = one.candidate, one.candidate.axes, one.candidate.config
        sizes = [str(getattr(axes, name)) for name in names]
        zero = str(config.parallel.zero) if axes.fsdp > 1 else "-"
        micro = f"{candidate.accumulated} x {candidate.sequences}"
        kept = config.memory.checkpointing
        compiled = "yes" if config.compile.blocks else "no"
        rows.append((str(place), *sizes, _schedule(candidate), zero, micro, kept, compiled, config.precision.name))
    told = ("schedule", "ZeRO", "micro-batches", "checkpoint", "compiled", "format")
    head = ("", *(SHORT[name] for name in names), *told)
    return Table("Fastest layouts, as predicted", head, tuple(rows))


def _schedule(candidate: Candidate) -> str:
    parallel = candidate.config.parallel
    if candidate.axes.pp == 1:
        return "-"
    return f"{parallel.pp_schedule} {parallel.pp_stages}" if (parallel.pp_stages or 1) > 1 else parallel.pp_schedule


def _predicted(answer: Answer) -> Table:
    levels = [level.name for level in answer.question.profile.levels]
    peak, form = peak_of(answer.question)
    rows = tuple(
        (
            str(place),
            seconds(one.time.seconds),
            f"{one.time.tokens_per_second:,.0f}",
            f"{100 * one.time.mfu(peak):.1f} %",
            gb(one.needed),
            *(gb(sent[name]) for name in levels),
            one.time.binding,
        )
        for place, (one, sent) in enumerate(zip(answer.best, answer.sent, strict=True), 1)
    )
    told = f"Predicted: GB the fullest GPU needs, GB a rank sends by {' and '.join(levels)}; MFU of bf16's peak"
    told = told if form == "bf16" else told.replace("bf16", form)
    return Table(told, ("", "step", "tokens/s", "MFU", "needs", *levels, "limit"), rows)


def _times(answer: Answer) -> Table:
    found = [grouped(one.time) for one in answer.best]
    rows = tuple((str(place), *(f"{1e3 * value:,.1f}" for value in one.values())) for place, one in enumerate(found, 1))
    return Table("Predicted time of a step, ms", ("", "compute", "launch", "messages", "bubble", "update"), rows)


def _left_out(answer: Answer) -> Table:
    found = answer.found
    counts: Mapping[str, int] = {
        **dict(sorted(answer.space.refused.items(), key=lambda item: -item[1])),
        f"need more than {gb(answer.question.memory)} GB": found.too_large,
        "slower by a lower bound of their time": found.slower,
        "predicted in full": found.priced,
    }
    rows = tuple((why, f"{count:,}") for why, count in counts.items() if count)
    return Table(f"Candidates: {answer.space.size:,}", ("outcome", "number"), rows)
