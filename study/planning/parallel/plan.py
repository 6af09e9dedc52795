"""`python -m study plan parallel`: the answer to a command line, and its files."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from study.config.single import composed
from study.planning.memory import words as say
from study.planning.parallel import words as told
from study.planning.parallel.answer import Answer, answer
from study.planning.parallel.figure import draw
from study.planning.parallel.question import Question, ask
from study.planning.reply import Reply
from train.spec.step_time import step_time


def reply(words: Sequence[str]) -> Reply:
    """Return the answer to the words; ValueError for what the user can put right."""
    question = ask(words, composed)
    found = answer(question, step_time)
    title, tables, said = told.title(question), told.tables(found), told.verdict(found)
    refused = "" if found.best else said
    fields = told.fields(found)
    page = say.markdown(title, tables, said, f"python -m study plan parallel {shlex.join(words)}")
    if found.best:
        page += f"\n```text\n{told.command(found)}\n```\n"
    files = _written(question, page, found)
    text = say.text(title, tables, "" if refused else said)
    if found.best:
        text += f"\n\n{told.command(found)}"
    return Reply(text, {**fields, "files": files}, refused)


def _written(question: Question, page: str, found: Answer) -> list[str]:
    """Write the page, the rows and the picture where the question names a folder; return the files."""
    out = question.out
    if out is None:
        return []
    out.mkdir(parents=True, exist_ok=True)
    markdown, rows = out / "parallel.md", out / "parallel.csv"
    markdown.write_text(page, "utf-8")
    rows.write_text(told.rows(found), "utf-8")
    pictures: list[Path] = []
    if found.best:
        bars = [(told.in_short(one.candidate), told.grouped(one.time)) for one in found.best]
        pictures = draw(bars, told.title(question), out)
    return [str(path) for path in (markdown, rows, *pictures)]
