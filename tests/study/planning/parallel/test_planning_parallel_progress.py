"""What a long search says of itself: when, how much is left, and nothing where it is quick."""

from __future__ import annotations

import io

import pytest

from study.planning.parallel.answer import answer
from study.planning.parallel.progress import Shown
from tests.study.planning.parallel.questions import question
from train.spec.step_time import step_time


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ([(0.0, "meshes", 0, 10), (1.9, "meshes", 9, 10)], ""),
        ([(0.0, "meshes", 0, 10), (2.0, "meshes", 1, 10)], "meshes: 1 of 10, 18 s left\n"),
        ([(0.0, "meshes", 0, 10), (2.0, "meshes", 1, 10), (11.9, "meshes", 2, 10)], "meshes: 1 of 10, 18 s left\n"),
        (
            [(0.0, "meshes", 0, 4000), (10.0, "meshes", 1000, 4000), (20.0, "prices", 0, 0), (30.0, "prices", 7, 0)],
            "meshes: 1,000 of 4,000, 30 s left\nprices: 0\nprices: 7\n",
        ),
        ([(5.0, "meshes", 0, 10)], "meshes: 0 of 10\n"),
        (
            [(0.0, "one", 0, 2), (90.0, "one", 1, 2), (100.0, "two", 1, 2)],
            "one: 1 of 2, 90 s left\ntwo: 1 of 2, 0 s left\n",
        ),
    ],
)
def test_lines_of_a_file(at: list[tuple[float, str, int, int]], said: str) -> None:
    times, stream = iter([0.0, *(now for now, *_ in at)]), io.StringIO()
    told = Shown(stream, lambda: next(times))
    for _, what, done, total in at:
        told(what, done, total)
    told.end()
    assert stream.getvalue() == said


def test_a_terminal_has_one_line_that_goes_in_the_end() -> None:
    times, stream = iter([0.0, 0.0, 2.0, 2.4, 2.5]), Terminal()
    told = Shown(stream, lambda: next(times))
    for done in range(4):
        told("meshes", done, 4)
    told.end()
    assert stream.getvalue() == "\rmeshes: 1 of 4, 6 s left\x1b[K\rmeshes: 3 of 4, 0.83 s left\x1b[K\r\x1b[K"
    quick = Terminal()
    Shown(quick, lambda: 0.0).end()
    assert not quick.getvalue()


def test_an_answer_says_what_it_does_and_is_the_same() -> None:
    asked = question("gpus=8", "top=3")
    heard: list[tuple[str, int, int]] = []
    found = answer(asked, step_time, lambda what, done, total=0: heard.append((what, done, total)))
    assert [one.candidate.number for one in found.best] == [
        one.candidate.number for one in answer(asked, step_time).best
    ]
    kinds = list(dict.fromkeys(what for what, _, _ in heard))
    assert kinds == ["laying out meshes", "least memory and time of layouts", "layouts with their messages"]
    assert all(done < total for what, done, total in heard if total)
    assert found.found.priced <= heard[-1][1] <= len(found.space.candidates)
