"""Lines for a terminal that is narrower than they are."""

from __future__ import annotations

import importlib

import pytest

from analysis.text import commandline, terminal
from study.config import key_lines
from study.config.schema import sections

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
        ("  python -m analysis.fit runs=runs/isoflop seed=1",
         ["  python -m analysis.fit runs=runs/isoflop seed=1"]),
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
    long = [line for line in lines if len(line) > 80 and " " in line.strip()]
    assert [line for line in long if not line.strip().startswith("python -m ")] == [], "commands alone stay whole"


@pytest.mark.parametrize("columns", [40, 80, 99, 118, 200])
def test_keys_are_laid_out_for_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words about a key begin in one column, beside it or below it; lines end where the terminal does."""
    monkeypatch.setenv("COLUMNS", str(columns))
    told = "a law of the loss, by its name, its paper or its formula, as one types them"
    own = commandline.key_lines([commandline.Key("valley_window", told, "all", kind="NAME:NUMBER")])
    schema = [line for part in sections() for line in key_lines.section_lines(part)]
    assert max(map(len, own)) <= min(columns, 118)
    assert " ".join(" ".join(own).split()) == f"valley_window NAME:NUMBER {told} (default all)"
    widest = max(len(line) for line in schema if line.startswith("     ") and " " in line.strip())
    assert widest <= min(columns, 118)
    starts = {len(line) - len(line.lstrip()) for line in schema}
    assert (58 in starts, 8 in starts) == (columns >= 100, columns < 100)


def test_only_a_terminal_folds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    terminal.show(OTHER)
    assert capsys.readouterr().out == OTHER + "\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    terminal.show("one\n" + OTHER)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 50


def test_errors_are_folded_in_a_terminal_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    keys = [commandline.Key(name, "text") for name in ("runs", *(f"other_{i}" for i in range(20)))]
    for width, folds in ((10_000, False), (50, True)):
        monkeypatch.setattr("sys.stderr.isatty", lambda folds=folds: folds)
        assert commandline.run("analysis.none", "", keys, lambda _: 0, ["unheard=1"]) == 2
        said = capsys.readouterr().err
        assert max(map(len, said.splitlines())) <= width
        assert " ".join(said.split()).endswith(
            "there is no key 'unheard'. Keys: " + ", ".join(key.name for key in keys)
        )
    assert commandline.run("analysis.none", "", keys, lambda _: 0, ["rums=1"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.endswith("there is no key 'rums'; did you mean runs=?"), "one key, not all of them"
