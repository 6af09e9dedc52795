"""`python -m study plan memory`: the answer to a command line, and its files."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from study.config.single import composed
from study.planning.memory import generation
from study.planning.memory import words as say
from study.planning.memory.figure import Limit, draw
from study.planning.memory.question import Generation, Question, ask
from study.planning.memory.sheet import Answer, answer
from study.planning.memory.together import Together, cure, together
from study.planning.reply import Reply, write
from study.text import counted
from train.spec.accounting.step import COMPONENTS


def reply(words: Sequence[str]) -> Reply:
    """Return the answer to the words; ValueError for what the user can put right."""
    question = ask(words, composed)
    if question.generation is not None:
        return _of_generation(question, question.generation, words)
    return _of_one(question, words) if list(question.subjects) == ["model"] else _of_several(question, words)


def _of_one(question: Question, words: Sequence[str]) -> Reply:
    found = answer(question.single)
    title, tables = say.title_of(question.single), say.tables(found)
    said = say.verdict(found)
    page = say.markdown(title, tables, said, _command(words))
    fields = say.fields(found)
    files = _written(question.out, page, fields, _bars(found), Limit(title, question.single.memory))
    text = say.text(title, tables, "" if not found.fits else said)
    return Reply(text, {**fields, "files": files}, "" if found.fits else said)


def _of_several(question: Question, words: Sequence[str]) -> Reply:
    found = together(question)
    if not found.fits:
        found = replace(found, cure=cure(question))
    title = f"{', '.join(question.subjects)} on the same {found.gpus} GPUs of {found.memory / 1e9:g} GB"
    tables, said = say.shared_tables(found), say.shared_verdict(found)
    page = say.markdown(title, tables, said, _command(words))
    fields = say.shared_fields(found)
    files = _written(question.out, page, fields, _phases(found), Limit(title, found.memory))
    text = say.text(title, tables, "" if not found.fits else said)
    return Reply(text, {**fields, "files": files}, "" if found.fits else said)


def _of_generation(question: Question, asked: Generation, words: Sequence[str]) -> Reply:
    found = generation.generating(question.single, asked)
    title, tables, said = generation.title(found), generation.tables(found), generation.verdict(found)
    page = say.markdown(title, tables, said, _command(words))
    fields = generation.fields(found)
    bars = {counted(found.sequences, "sequence"): {**found.parts, **found.beside}}
    files = _written(question.out, page, fields, bars, Limit(title, question.single.memory))
    text = say.text(title, tables, "" if not found.fits else said)
    return Reply(text, {**fields, "files": files}, "" if found.fits else said)


def _command(words: Sequence[str]) -> str:
    return f"python -m study plan memory {shlex.join(words)}"


def _written(
    out: Path | None, text: str, fields: Mapping[str, Any], bars: Mapping[str, Mapping[str, int]], limit: Limit
) -> list[str]:
    """Write the page, the rows and the picture where `out` names a folder; return the files."""
    order = dict.fromkeys([*COMPONENTS, *(name for parts in bars.values() for name in parts)])
    last = sorted(order, key=("margin", "context", "NCCL").__contains__)
    return write(out, "memory", text, say.comma_separated(fields), lambda folder: draw(bars, last, limit, folder))


def _bars(found: Answer) -> dict[str, dict[str, int]]:
    variants = [*found.stages, *found.policies]
    named = [one.name if one.name.startswith("ZeRO") else f"checkpointing {one.name}" for one in variants]
    return {
        name: {
            **one.sheet.peak.parts,
            "margin": one.sheet.margin,
            "context": one.sheet.context,
            "NCCL": one.sheet.nccl,
        }
        for name, one in zip(named, variants, strict=True)
    }


def _phases(found: Together) -> dict[str, dict[str, int]]:
    resting: dict[str, int] = {one.role: one.staying for one in found.placed}
    whole = sum(resting.values())
    beside: dict[str, Any] = {"margin": found.margin, "context": found.context, "NCCL": found.nccl}
    return {name: {**resting, "at work": size - whole, **beside} for name, size in found.phases.items()}
