"""Ctrl-C at a planted moment: while a module that is run makes its first import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.environment import python_path

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 60.0
"""How long a dropped Ctrl-C, which is sent again at once, is waited for."""
PRESSED = """
import os, runpy, signal, sys, time, weakref
module, own_name, how, seconds, *words = sys.argv[1:]
guard = {"train", "train.spec", "train.spec.interrupts", "train.runtime", "train.runtime.signals", "train.run"}
guard |= {"analysis.text", "analysis.text.start"}

class Lock:
    pass

class Finder:
    def find_spec(self, name, path=None, target=None):
        frame = sys._getframe(1)
        while "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        asks = getattr(frame.f_globals.get("__spec__"), "name", None)
        if asks != own_name or name in guard:
            return
        sys.meta_path.remove(self)
        if how == "raised":
            signal.raise_signal(signal.SIGINT)
            return
        lock = Lock()  # as those of importlib, whose end calls what keeps account of them
        reference = weakref.ref(lock, lambda _: signal.raise_signal(signal.SIGINT))
        del lock
        time.sleep(float(seconds))
        print("the command goes on", file=sys.stderr, flush=True)
        os._exit(3)

sys.meta_path.insert(0, Finder())
sys.argv = [module, *words]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def run_pressed(module: str, how: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m` of a module, by its own name, with Ctrl-C at its first import other than of what minds Ctrl-C.

    how: raised, as anywhere; or dropped, in a callback where Python goes on as if nothing had been.
    """
    return subprocess.run(
        [sys.executable, "-c", PRESSED, module.removesuffix(".__main__"), module, how, str(SECONDS), *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
