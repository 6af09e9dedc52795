"""What the interpreter finds of this process as it ends. Standard library only."""

from __future__ import annotations

import gc
import sys


def unfreeze() -> None:
    """Let the interpreter's last look for garbage find what `gc.freeze` hid from it, where a library asks for that.

    Triton's bindings count at exit what is left of them, and print all of it as leaked. Without them the look, most of
    a second, is saved.
    """
    if "triton" in sys.modules:
        gc.unfreeze()
        gc.disable()  # the interpreter would look twice
