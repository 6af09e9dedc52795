"""`python -m study plan step`: the answer to a command line, and its files."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from study.config.single import composed
from study.planning import timeline_picture
from study.planning.memory import words as say
from study.planning.reply import Reply, write
from study.planning.step import words as told
from study.planning.step.answer import Answer, answer
from study.planning.step.figure import draw
from study.planning.step.question import ask
from study.text import percent
from train.spec.pipeline_schedule.simulation import Timeline
from train.spec.step_time.timeline import Pipeline

SHOWN = 1e-3
"""Share of a step from which on a part has a bar."""


def reply(words: Sequence[str]) -> Reply:
    """Return the answer to the words; ValueError for what the user can put right."""
    found = answer(ask(words, composed))
    title, tables, said = told.title(found), told.tables(found), told.verdict(found)
    refused = "" if found.fits else told.refusal(found)
    page = say.markdown(title, tables, said, f"python -m study plan step {shlex.join(words)}")
    files = _written(found, page)
    return Reply(say.text(title, tables, said), {**told.fields(found), "files": files}, refused)


def _written(found: Answer, page: str) -> list[str]:
    """Write the page, the rows and the pictures where the question names a folder; return the files."""

    def pictures(out: Path) -> list[Path]:
        shown = [part for part in told.parts(found) if part[1] >= SHOWN * found.time.seconds]
        drawn = draw(shown, told.title(found), out)
        if found.time.pipeline is not None:
            timeline = out / "timeline.svg"
            timeline.write_text(_picture(found.time.pipeline), "utf-8")
            drawn.append(timeline)
        return drawn

    return write(found.question.out, "step", page, told.rows(found), pictures)


def _picture(pipeline: Pipeline) -> str:
    """Return one pass of a pipeline as SVG text, simulated."""
    timeline = _milliseconds(pipeline.timeline())
    said = f"{timeline.step:,.4g} ms, idle {percent(timeline.idle_share, 1)}"
    layout = pipeline.layout
    return timeline_picture.draw(
        f"{layout.pp} pipeline ranks, {pipeline.count} micro-batches: predicted",
        [timeline_picture.Lane(f"{layout.pp_schedule}: {said}", timeline)],
    )


def _milliseconds(timeline: Timeline) -> Timeline:
    return Timeline(
        tuple(tuple(replace(one, start=1e3 * one.start, end=1e3 * one.end) for one in rank) for rank in timeline.ranks)
    )
