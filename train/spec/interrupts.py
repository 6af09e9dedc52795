"""Ctrl-C ends a command with one line and exit code 130, whatever the command was doing."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.machinery import ExtensionFileLoader
from types import FrameType
from typing import Any, NoReturn

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells give it: 128 + SIGINT."""

WRONG = 2
"""Exit code for what the user can put right, which a line on stderr says: as argparse gives it."""

_AGAIN_SECONDS = 0.01


class _Pressed:
    """A SIGINT handler that raises KeyboardInterrupt and remembers that it did.

    While an extension module is initialised it waits: C code, such as that of Cython, may clear the exception, and C++
    end the process at it. So it does while a dropped one is sent again: Python would drop it too.
    """

    def __init__(self) -> None:
        self.ever = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        del number
        self.ever = True
        if _is_dropped_in(frame):
            _press_again()
            return
        raise KeyboardInterrupt


def run(module: str, command: str | None = None) -> NoReturn:
    """Import a command's module by its own name, run its `main`, and exit with its code: 130 if Ctrl-C ended it.

    A command calls this above its other imports, so that Ctrl-C counts while they run, too. command: what it is called,
    if not as its module.
    """
    end = _End()
    try:
        end.code = guarded(lambda: import_module(module).main(), command or module.removesuffix(".__main__"))
    except SystemExit as leaving:
        end.code = 0 if leaving.code is None else leaving.code
        raise
    raise SystemExit(end.code)


class _End:
    """Ends this process with `code`, if that is a number, before the interpreter looks for garbage a last time.

    That takes tenths of a second, in which Ctrl-C would end the process without a word. Threads have ended by then, and
    what else is called at exit has been: what is registered first is called last.
    """

    def __init__(self) -> None:
        self.code: object = None
        atexit.register(self._leave)

    def _leave(self) -> None:
        if isinstance(self.code, int):
            with suppress(OSError, ValueError):  # else Python says what it could not write
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(self.code)


def guarded(main: Callable[[], int], command: str) -> int:
    """Run a command's `main` in the main thread and return its exit code: 130 if Ctrl-C ended it.

    Where `main` handles KeyboardInterrupt itself, its own words stand. An exception that Ctrl-C turned into another on
    its way (an import that C code gave up, a file that was not read to its end) counts as Ctrl-C. Python drops an
    exception that is raised inside a finalizer or a callback, and so may an extension module that is being imported:
    this one is raised again a moment later.
    """
    pressed: _Pressed | None = None
    try:  # from the first call on: Python looks for signals wherever a function begins
        pressed = _Pressed()
        signal.signal(signal.SIGINT, pressed)
        sys.unraisablehook = _again(sys.unraisablehook)
        code = main()
        sys.stdout.flush()
        if pressed.ever and code != 0:
            code = INTERRUPTED
        _finish("" if code == INTERRUPTED else command)
    except BaseException as error:
        alone = pressed is not None and not pressed.ever
        if isinstance(error, SystemExit) and (alone or error.code in (None, 0, INTERRUPTED)):
            with suppress(OSError, ValueError):  # else Python says what it could not write
                sys.stdout.flush()
            _finish("" if error.code == INTERRUPTED else command)
            raise
        if not (pressed is not None and pressed.ever) and not isinstance(error, KeyboardInterrupt):
            raise
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # pressed once more, it is said all the same
        print(f"{command}: interrupted", file=sys.stderr)
        code = INTERRUPTED
        _finish("")
    return code


def came_of_ctrl_c(error: BaseException) -> bool:
    """Whether an exception is Ctrl-C's, or one that was raised while that was on its way."""
    links: list[BaseException | None] = [error]
    seen: set[int] = set()
    while links:
        link = links.pop()
        if isinstance(link, KeyboardInterrupt):
            return True
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            links += [link.__cause__, link.__context__]
    return False


def no_command(module: str, instead: str) -> NoReturn:
    """End `python -m MODULE` of a module that is none with a line that says what to type."""
    print(f"{module} is no command: {instead}", file=sys.stderr)
    raise SystemExit(WRONG)


def _finish(command: str) -> None:
    """Let Ctrl-C end the process: there is nothing left to undo, and what runs at exit is no place for an exception.

    command: what it says was interrupted; "" where that was said.
    """
    line = f"{command}: interrupted\n".encode() if command else b""

    def leave(number: int, frame: FrameType | None) -> None:
        del number, frame
        with suppress(OSError):
            os.write(2, line)
        os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, leave)
    exec("pass")  # after one in which KeyboardInterrupt was raised, Python would end by the signal, with any exit code


@contextmanager
def deferred() -> Iterator[None]:
    """Let Ctrl-C wait until the block is over, which undoes something and takes a moment. Main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    waiting = []
    signal.signal(signal.SIGINT, lambda number, _: waiting.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if waiting:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def held_back() -> Iterator[None]:
    """Let Ctrl-C wait until the block is over, and not reach the processes that it starts until they allow it.

    Those would print a traceback each while Python starts in them. They call :func:`left_to_the_parent` first of all.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def left_to_the_parent() -> None:
    """Ignore Ctrl-C in a process that was started under :func:`held_back`: its parent ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _again(hook: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Return an unraisablehook that sends SIGINT once more where Python dropped a KeyboardInterrupt."""

    def dropped(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            hook(unraisable)
            return
        _press_again()

    return dropped


def _press_again() -> None:
    """Send this process SIGINT a moment later."""
    timer = threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()


def _is_dropped_in(frame: FrameType | None) -> bool:
    """Say whether a frame is called from an extension module that is being imported, or from the hook of `_again`."""
    while frame is not None:
        # A module of one phase, as pybind11 makes them, is initialised as it is created.
        initialises = frame.f_code.co_name in ("create_module", "exec_module")
        if initialises and isinstance(frame.f_locals.get("self"), ExtensionFileLoader):
            return True
        if frame.f_code.co_name == "dropped" and frame.f_globals is globals():
            return True
        frame = frame.f_back
    return False
