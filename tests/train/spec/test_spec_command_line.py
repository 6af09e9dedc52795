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
        (["a", "--seconds", "soon"], "argument --seconds: invalid float value: 'soon'"),
    ],
)
def test_an_error_is_one_line_with_the_usage(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parser().parse_intermixed_args(words)
    assert end.value.code == 2
    assert capsys.readouterr().err == f"train.example: {said}; {USAGE}\n"
