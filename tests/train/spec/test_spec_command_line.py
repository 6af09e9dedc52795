"""What is wrong with a command line is said in one line."""

from __future__ import annotations

import pytest

from train.spec.command_line import Parser


def parser() -> Parser:
    made = Parser(prog="python -m train.example")
    made.add_argument("--seconds", type=float, metavar="N")
    made.add_argument("run", metavar="RUN")
    made.add_argument("points", nargs="*", metavar="POINT")
    return made


USAGE = "usage: python -m train.example [--seconds N] RUN [POINT ...]"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "RUN is missing"),
        (["a", "--fast"], "there is no --fast"),
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
    ],
)
def test_what_may_be_chosen_is_listed(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = Parser(prog="python -m train.example")
    made.add_argument("kind", choices=("text", "code"), metavar="{text,code}")
    made.add_argument("--order", choices=("first", "last"))
    with pytest.raises(SystemExit):
        made.parse_args(words)
    assert capsys.readouterr().err.startswith(f"train.example: {said}; usage: ")
