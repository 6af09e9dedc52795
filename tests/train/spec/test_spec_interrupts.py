"""Ctrl-C at the moments that a process which is stopped at random hardly ever meets."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import ExtensionFileLoader
from types import ModuleType

import pytest

from train.spec import interrupts
from train.spec.interrupts import INTERRUPTED, WRONG, guarded, no_command


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def pressed(*ignored: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["_Pressed", "_again"])
def test_ctrl_c_before_the_command_begins_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setattr(interrupts, name, pressed)
    assert guarded(lambda: 0, "tool") == INTERRUPTED
    assert capsys.readouterr() == ("", "tool: interrupted\n")


def test_ctrl_c_as_the_command_ends_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    true, called = interrupts._finish, []

    def pressed_at_first() -> None:
        called.append(0)
        if len(called) == 1:
            pressed()
        true()

    monkeypatch.setattr(interrupts, "_finish", pressed_at_first)
    assert guarded(lambda: 0, "tool") == INTERRUPTED
    assert capsys.readouterr() == ("", "tool: interrupted\n")
    assert len(called) == 2, "from then on Ctrl-C ends the process"


def test_an_error_is_none_of_ctrl_c() -> None:
    def wrong() -> int:
        raise RuntimeError("wrong")

    with pytest.raises(RuntimeError, match="wrong"):
        guarded(wrong, "tool")


class Swallowing(ExtensionFileLoader):
    """An extension module whose initialisation clears whatever is raised in it, as Cython's may."""

    def exec_module(self, module: ModuleType) -> None:
        with suppress(BaseException):
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_while_an_extension_module_is_imported_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    begun: list[float] = []

    def imports_and_waits() -> int:
        Swallowing("module", "module.so").exec_module(ModuleType("module"))
        begun.append(time.monotonic())
        time.sleep(10.0)
        return 0

    assert guarded(imports_and_waits, "tool") == INTERRUPTED
    assert capsys.readouterr() == ("", "tool: interrupted\n")
    assert begun, "the import came to its end first"


def test_a_module_that_is_no_command_says_what_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        no_command("train.evaluate", "every run validates by itself")
    assert ended.value.code == WRONG
    assert capsys.readouterr().err == "train.evaluate is no command: every run validates by itself\n"
