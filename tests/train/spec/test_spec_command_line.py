"""What is wrong with a command line is said in one line."""

from __future__ import annotations

import argparse
import sys
from importlib.machinery import ModuleSpec

import pytest

from train.spec.command_line import Parser


def parser() -> Parser:
    made = Parser(prog="python -m train.example")
    made.add_argument("--seconds", type=float, metavar="N")
    made.add_argument("run", metavar="RUN")
    made.add_argument("points", nargs="*", metavar="POINT")
    return made


def count(text: str) -> int:
    raise argparse.ArgumentTypeError(f"{text} is not a count")


USAGE = "usage: python -m train.example [--seconds N] RUN [POINT ...]"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "RUN is missing"),
        (["a", "--fast"], "there is no --fast"),
        (["--fast"], "there is no --fast"),
        (["--secnods=3"], "there is no --secnods=3: did you mean --seconds?"),
        (["a", "--secnods"], "there is no --secnods: did you mean --seconds?"),
        (["--sec", "3"], "RUN is missing"),
        (["a", "--seconds", "soon"], "--seconds 'soon' is not allowed: a number is needed"),
    ],
)
def test_an_error_is_one_line_with_the_usage(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parser().parse_intermixed_args(words)
    assert end.value.code == 2
    assert capsys.readouterr().err == f"train.example: {said}; {USAGE}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "one of text, code is missing"),
        (["txet"], "'txet' is not allowed: choose one of text, code"),
        (["text", "--order", "up"], "--order 'up' is not allowed: choose one of first, last"),
        (["text", "--count", "0"], "--count: 0 is not a count"),
    ],
)
def test_what_may_be_chosen_is_listed(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = Parser(prog="python -m train.example")
    made.add_argument("kind", choices=("text", "code"), metavar="{text,code}")
    made.add_argument("--order", choices=("first", "last"))
    made.add_argument("--count", type=count)
    with pytest.raises(SystemExit):
        made.parse_args(words)
    assert capsys.readouterr().err.startswith(f"train.example: {said}; usage: ")


def test_a_command_is_named_as_it_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec("benchmarks.example.__main__", None))
    assert Parser().prog == "python -m benchmarks.example"
    assert Parser(prog="own").prog == "own"
