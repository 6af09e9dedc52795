"""The end of a process that has imported torch. Standard library only."""

from __future__ import annotations

import atexit
import os

from train.runtime.console import let_go


class Exit:
    """Ends this process with `code`, if that is set, before the interpreter looks for garbage a last time.

    That look takes half a second where torch is imported. Where `gc.freeze` spares it, Triton's bindings take what is
    left of them for leaks and print all of it. Threads have ended by then, and what else is called at exit has been:
    make this before those are imported, as what is registered first is called last.
    """

    def __init__(self) -> None:
        self.code: int | None = None
        atexit.register(self._end)

    def _end(self) -> None:
        if self.code is not None:
            let_go()
            os._exit(self.code)
