"""A process ends with its code, after its threads and what is called at exit, and before the last look for garbage."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEGINS = """
import atexit, sys, threading, time
from train.runtime.exit import Exit
end = Exit()
class Garbage:
    def __del__(self): print("looked at")
left = Garbage()
atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.2), print("a thread"))).start()
"""


@pytest.mark.parametrize(
    ("code", "ends", "wanted"),
    [
        ("end.code = 75; raise SystemExit(end.code)", 75, ["a thread", "at exit"]),
        ("end.code = 0", 0, ["a thread", "at exit"]),
        ("raise ValueError", 1, ["a thread", "at exit", "looked at"]),
        ("raise SystemExit(2)", 2, ["a thread", "at exit", "looked at"]),
    ],
)
def test_what_is_left_to_do_is_done(code: str, ends: int, wanted: list[str]) -> None:
    process = subprocess.run([sys.executable, "-c", BEGINS + code], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout.splitlines()) == (ends, wanted)


def test_a_reader_that_has_gone_changes_no_exit_code() -> None:
    code = "import os; from train.runtime.exit import Exit\nend = Exit(); end.code = 3; print(1); os.close(1)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (3, "")
