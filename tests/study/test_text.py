from __future__ import annotations

import codecs
import io
import os
import pty
import signal
import sys
import termios

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from study import __main__ as commands
from study import text as terminal
from study.commands import doctor, status
from study.doctor.checks import Check, CheckState
from study.status.overview import bars, table
from study.status.states import PointState, PointStatus
from study.sweep.__main__ import main as sweep
from study.text import recognised, scientific
from study.watch.progress import Lines, Pace, Panel, display

POINTS = [
    PointStatus(
        f"{n:012x}",
        PointState(state),
        tokens=50,
        budget_tokens=100,
        loss=1.5,
        attempt=n,
        job_id=f"1234567_{n}",
        why=why,
    )
    for n, (state, why) in enumerate([("running", ""), ("interrupted", "preempted"), ("failed", "SLURM says " * 9)], 1)
]


@pytest.mark.parametrize(
    ("line", "width", "folded"),
    [
        ("short", 40, ["short"]),
        ("  one two three", 12, ["  one two", "      three"]),
        ("key  failed  two words", 16, ["key  failed", "    two words"]),
        ("key  failed  two words", 13, ["key  failed", "    two words"]),
        ("key  failed  two words", 12, ["key  failed", "    two", "    words"]),
        ("key  ab cdefghijk", 16, ["key", "    ab cdefghijk"]),
        ("          ab cdef", 16, ["          ab", "        cdef"]),
        ("a " + "x" * 50, 40, ["a", "    " + "x" * 50]),  # a path stays whole
        ("python -m study status s    # more", 30, ["python -m study status s", "    # more"]),
        ("look: python -m study logs s KEY", 20, ["look: python -m study logs s KEY"]),
    ],
)
def test_lines_are_folded_at_spaces_and_commands_are_not(line: str, width: int, folded: list[str]) -> None:
    assert terminal.fold(line, width) == folded


@pytest.mark.parametrize(
    ("is_terminal", "refused", "coloured"),
    [(True, "", True), (True, "1", False), (False, "", False), (False, "1", False)],
)
def test_a_terminal_has_colours_unless_they_are_refused(
    is_terminal: bool, refused: str, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", refused)
    monkeypatch.setattr(terminal, "redraws", lambda: is_terminal)
    assert terminal.colours() is coloured


def test_cells_are_cut_and_aligned() -> None:
    assert [terminal.cut("abcdef", width) for width in (7, 6, 5, 2)] == ["abcdef", "abcdef", "abcd…", "a…"]
    rows = [("key", "tokens", "state"), ("a", "12", "ok"), ("bcdef", "3", "")]
    assert terminal.aligned(rows, right=(1,)) == ["key    tokens  state", "a          12  ok", "bcdef       3"]


def test_columns_are_those_of_the_terminal_but_forty_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    for said, columns in (("39", 40), ("40", 40), ("41", 41), ("200", 200)):
        monkeypatch.setenv("COLUMNS", said)
        assert terminal.columns() == columns
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr(sys, "__stdout__", None)
    assert terminal.columns() == 80, "no terminal"


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_keys_states_and_reasons_are_shown_at_every_width(width: int) -> None:
    lines = table(POINTS, {}, width)
    assert [line.split()[:2] for line in lines[1:]] == [[s.key, s.state] for s in POINTS]
    assert max(map(len, lines)) <= width
    assert all(("job" in line) == (width >= 60) for line in lines[:1])
    assert max(map(len, bars({"failed": 1, "running": 9999}, 10_000, width))) <= width
    said = status._failure(POINTS[2], width)
    assert " ".join(" ".join(said).split()).endswith(POINTS[2].why.strip())
    assert max(map(len, said)) <= width
    checked = doctor.lines(Check("test job", CheckState.FAILED, "no " * 60), width)
    assert max(map(len, checked)) <= width
    assert " ".join(checked).split() == ["FAILED", "test", "job", *["no"] * 60]


@pytest.mark.parametrize("width", [40, 60, 80])
def test_the_panel_shows_whole_keys_at_every_width_and_bars_without_colours(width: int) -> None:
    console = Console(width=width, file=io.StringIO(), force_terminal=True, no_color=True)
    with Panel(Pace({POINTS[0].key: 1.0}), "s", console) as panel:
        panel.update(POINTS)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert (POINTS[0].key in text, " 50 %" in text, "loss 1.500" in text, "░" in text) == (True,) * 4
    assert "\x1b[35m" not in text


def test_what_cannot_be_drawn_anew_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    controlling, terminals = pty.openpty()
    with os.fdopen(controlling, "rb"), os.fdopen(terminals, "w") as screen:
        monkeypatch.setattr(sys, "stdout", screen)
        for word, kind in (("dumb", Lines), ("xterm", Panel)):
            monkeypatch.setenv("TERM", word)
            assert isinstance(display(Pace({}), "s"), kind)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert isinstance(display(Pace({}), "s"), Lines)


def test_a_narrow_terminal_gets_folded_lines_and_a_pipe_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    line = "word " * 20
    controlling, terminals = pty.openpty()
    with os.fdopen(controlling, "rb", buffering=0) as shown, os.fdopen(terminals, "w") as screen:
        monkeypatch.setattr(sys, "stdout", screen)
        terminal.show(line)
        termios.tcdrain(screen.fileno())
        assert max(map(len, shown.read(4096).decode().splitlines())) <= 40
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stdout", pipe)
    terminal.show(line)
    assert pipe.getvalue() == line + "\n"


def test_an_encoding_without_a_character_fails_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert commands.main(["help"]) == 0
    print("███░ … é", flush=True)
    assert written.getvalue().decode("ascii").splitlines()[-1] == "###- ~ ?"


def test_ctrl_c_leaves_streams_that_can_be_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    ascii_codec = codecs.lookup("ascii")
    pressed: list[str] = []

    def encoder(errors: str = "strict") -> codecs.IncrementalEncoder:
        if errors == "spelt":
            pressed.append(errors)
            signal.raise_signal(signal.SIGINT)
        return ascii_codec.incrementalencoder(errors)

    found = codecs.CodecInfo(
        ascii_codec.encode,
        ascii_codec.decode,
        ascii_codec.streamreader,
        ascii_codec.streamwriter,
        incrementalencoder=encoder,
        incrementaldecoder=ascii_codec.incrementaldecoder,
        name="pressed",
    )

    def search(name: str) -> codecs.CodecInfo | None:
        return found if name == "pressed" else None

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    codecs.register(search)
    try:
        stream = io.TextIOWrapper(io.BytesIO(), encoding="pressed", write_through=True)
        monkeypatch.setattr(sys, "stderr", stream)
        with pytest.raises(KeyboardInterrupt):
            terminal.spell_out()
        stream.write("interrupted")
    finally:
        codecs.unregister(search)
        signal.signal(signal.SIGINT, before)
    assert pressed
    assert stream.buffer.getvalue() == b"interrupted"


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (("model.width=64", "budget.flops=80000000000.0"), "model.width=64 budget.flops=8e+10"),
        (("budget.tokens=2000000", "seed=1234567"), "budget.tokens=2e+06 seed=1234567"),
        (("optim.lr=0.000025", "optim.lr=0.003"), "optim.lr=2.5e-05 optim.lr=0.003"),
        (("model.width=32", "model.width=32", "seed=1"), "model.width=32 seed=1"),
        (("model.qk_norm=False", "cluster.partition=None"), "model.qk_norm=false cluster.partition=null"),
        (("data.name=1e", "a=nan", "b=[100000,200000]"), "data.name=1e a=nan b=[100000,200000]"),
    ],
)
def test_numbers_of_overrides_are_short(overrides: tuple[str, ...], line: str) -> None:
    assert recognised(overrides) == line


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_scientific_reads_as_the_same_float(value: float) -> None:
    assert float(scientific(value)) == value


def test_errors_are_folded_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for at_terminal in (False, True):
        monkeypatch.setattr("sys.stderr.isatty", lambda found=at_terminal: found)
        assert sweep(["study=isoflp"]) == 2
        said = capsys.readouterr().err
        assert (max(map(len, said.splitlines())) <= 60) is at_terminal
        assert " ".join(said.split()).endswith("(did you mean study=isoflop?)")
        assert sweep(["--shell-completion", "install"]) == 2
        with_command = capsys.readouterr().err
        assert "python -m study completion bash" in " ".join(with_command.split())
        assert (max(map(len, with_command.splitlines())) <= 60) is at_terminal, "as those of study and analysis"
        assert commands.main(["unheard-of-word"]) == 2
        assert (max(map(len, capsys.readouterr().err.splitlines())) <= 60) is at_terminal
