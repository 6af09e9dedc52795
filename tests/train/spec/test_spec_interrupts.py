"""Ctrl-C at the moments that a process which is stopped at random hardly ever meets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from tests.environment import python_path
from train.spec import interrupts
from train.spec.interrupts import INTERRUPTED, WRONG, came_of_ctrl_c, guarded, no_command


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

    def pressed_at_first(command: str) -> None:
        called.append(command)
        if len(called) == 1:
            pressed()
        true(command)

    monkeypatch.setattr(interrupts, "_finish", pressed_at_first)
    assert guarded(lambda: 0, "tool") == INTERRUPTED
    assert capsys.readouterr() == ("", "tool: interrupted\n")
    assert called == ["tool", ""], "from then on Ctrl-C ends the process, and that it did is said once"


def test_an_error_is_none_of_ctrl_c() -> None:
    def wrong() -> int:
        raise RuntimeError("wrong")

    with pytest.raises(RuntimeError, match="wrong"):
        guarded(wrong, "tool")


def test_what_has_said_that_it_was_interrupted_is_not_said_again(capsys: pytest.CaptureFixture[str]) -> None:
    def inner() -> int:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

        def again() -> int:
            raise KeyboardInterrupt

        raise SystemExit(guarded(again, "inner"))

    with pytest.raises(SystemExit) as ended:
        guarded(inner, "outer")
    assert ended.value.code == INTERRUPTED
    assert capsys.readouterr() == ("", "inner: interrupted\n")


def test_once_help_is_printed_ctrl_c_ends_the_process_with_one_line() -> None:
    code = """if True:
        import os, signal, time
        from train.spec.interrupts import guarded
        def prints():
            print("usage: tool", flush=True)
            raise SystemExit(0)
        try:
            guarded(prints, "tool")
        except SystemExit:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
    """
    environment = os.environ | {"PYTHONPATH": python_path()}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (INTERRUPTED, "usage: tool\n", "tool: interrupted\n")


@pytest.mark.parametrize(("then", "code", "said"), [("return 0", 0, ""), ("raise", 130, "tool: interrupted\n")])
def test_after_ctrl_c_in_code_that_was_text_the_exit_code_is_that_of_the_command(
    tmp_path: Path, then: str, code: int, said: str
) -> None:
    """As in the methods of a dataclass while they are made: left to itself, Python would end by the signal."""
    text = "def main():\n    try: exec('import signal; signal.raise_signal(signal.SIGINT)')\n"
    text += f"    except KeyboardInterrupt: {then}\n"
    (tmp_path / "tool.py").write_text(text)
    (tmp_path / "__main__.py").write_text("from train.spec.interrupts import run\nrun('tool')\n")
    environment = os.environ | {"PYTHONPATH": python_path()}
    ended = subprocess.run([sys.executable, tmp_path], env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (code, said)


class Swallowing(ExtensionFileLoader):
    """An extension module, of one phase or two, whose initialisation clears what is raised in it, as Cython's may."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        with suppress(BaseException):
            signal.raise_signal(signal.SIGINT)
        return ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        with suppress(BaseException):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("phase", ["create", "execute"])
def test_ctrl_c_while_an_extension_module_is_imported_is_not_lost(
    capsys: pytest.CaptureFixture[str], phase: str
) -> None:
    begun: list[float] = []

    def imports_and_waits() -> int:
        loader = Swallowing("module", "module.so")
        if phase == "create":
            loader.create_module(ModuleSpec("module", loader))
        else:
            loader.exec_module(ModuleType("module"))
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


def test_what_came_of_ctrl_c_is_told_from_a_defect() -> None:
    def raised(first: BaseException, second: Exception | None) -> BaseException:
        try:
            try:
                raise first
            except BaseException:
                if second is None:
                    raise
                raise second from None
        except BaseException as error:
            return error

    assert came_of_ctrl_c(raised(KeyboardInterrupt(), None))
    assert came_of_ctrl_c(raised(KeyboardInterrupt(), AttributeError("partially initialized module")))
    assert not came_of_ctrl_c(raised(OSError(), AttributeError("partially initialized module")))
    looped = ValueError()
    looped.__context__, looped.__cause__ = looped, OSError()
    assert not came_of_ctrl_c(looped)
