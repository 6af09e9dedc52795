"""Lines for a terminal that is narrower than they are."""

from __future__ import annotations

import importlib

import pytest

from analysis.text import terminal

OTHER = "  farseer   34.4B parameters, loss 2.043  (AICc 2.90 behind; does not qualify: b is not identified)"


@pytest.mark.parametrize(
    ("line", "folded"),
    [
        ("  tokens    602B", ["  tokens    602B"]),
        (OTHER, ["  farseer   34.4B parameters, loss 2.043",
                 "            (AICc 2.90 behind; does not",
                 "            qualify: b is not identified)"]),
        ("note: the budget is 50 times the largest run: its intervals are short",
         ["note: the budget is 50 times the largest", "    run: its intervals are short"]),
        ("a" * 30 + "  " + "b" * 30, ["a" * 30, "    " + "b" * 30]),
        ("x" * 60, ["x" * 60]),
    ],
)  # fmt: skip
def test_long_lines_go_on_below_their_text(line: str, folded: list[str]) -> None:
    assert terminal.fold(line, 44) == folded
    assert terminal.fold(line, len(line)) == [line]


@pytest.mark.parametrize("words", ["analysis.fit", "analysis.next", "study.sweep", "study", "study.console"])
def test_help_is_folded_in_a_narrow_terminal(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("sys.argv", [words, "--help"])
    main = importlib.import_module(f"{words}.__main__" if words in ("study.sweep", "study") else words).main
    assert main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 20
    assert [line for line in lines if len(line) > 80 and " " in line.strip()] == []


def test_only_a_terminal_folds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    terminal.show(OTHER)
    assert capsys.readouterr().out == OTHER + "\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    terminal.show("one\n" + OTHER)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 50
