"""`python -m study plan parallel`: the answer to a command line, and its files."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from study.config.single import composed
from study.planning.memory import words as say
from study.planning.parallel import measured as ran
from study.planning.parallel import words as told
from study.planning.parallel.answer import Answer, answer
from study.planning.parallel.figure import draw
from study.planning.parallel.measured import Measurement
from study.planning.parallel.progress import Shown
from study.planning.parallel.question import Question, ask
from study.planning.reply import Reply, write
from train.spec.step_time import step_time


def answered(words: Sequence[str], check: Callable[[Question], None] = lambda _: None) -> Answer:
    """Return the answer to the words; ValueError for what the user can put right.

    check: raises it as well, before anything is searched.
    """
    question = ask(words, composed)
    check(question)
    told = Shown(sys.stderr)
    try:
        return answer(question, step_time, told)
    finally:
        told.end()


def reply(words: Sequence[str], found: Answer, measured: Measurement | None = None) -> Reply:
    """Return an answer to the words, and what of it was measured, as text, fields and files."""
    title, tables, said = told.title(found.question), told.tables(found), told.verdict(found)
    if measured is not None:
        tables = [*tables, ran.table(found, measured)]
        said = f"{said} {ran.verdict(found, measured)}"
    refused = "" if found.best else said
    command = f"python -m study plan parallel {shlex.join(words)}"
    page, text = say.markdown(title, tables, said, command), say.text(title, tables, "" if refused else said)
    if found.best:
        page += f"\n```text\n{told.command(found)}\n```\n"
        text += f"\n\n{told.command(found)}"
    fields = told.fields(found)
    fields["measured"] = None if measured is None else ran.fields(found, measured)
    fields["files"] = _written(page, found, measured)
    return Reply(text, fields, refused, 0 if measured is None else measured.code)


def _written(page: str, found: Answer, measured: Measurement | None) -> list[str]:
    """Write the page, the rows and the picture where the question names a folder; return the files."""

    def pictures(out: Path) -> list[Path]:
        if not found.best:
            return []
        bars = [(told.in_short(one.candidate), told.grouped(one.time)) for one in found.best]
        marks = {} if measured is None else {one.place: one.seconds for one in measured.rows if one.seconds is not None}
        return draw(bars, told.title(found.question), out, marks)

    return write(found.question.out, "parallel", page, told.rows(found, ran.columns(measured)), pictures)
