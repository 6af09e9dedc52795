"""How a command of the analysis begins: Ctrl-C minded, and only beside a `train` that is ours."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]
WRONG = 2
"""Exit code for what the user can put right."""


def start(main: Callable[[], int], command: str, home: Path = HOME) -> int:
    """Run a command's `main` and return its exit code: 130 after Ctrl-C, 2 where a script `train` hides our package.

    That script is not run. home: the folder of our packages.
    """
    spec = find_spec("train")
    place = Path(spec.origin) if spec is not None and spec.origin is not None else None
    if place is not None and place.resolve().parent != home / "train" and (home / "train").is_dir():
        print(
            f"{command}: Python finds another train than ours: {place}, not {home / 'train'}. Start from another "
            "folder, run the command as scaling-study …, or rename that file",
            file=sys.stderr,
        )
        return WRONG
    from train.spec.interrupts import guarded

    return guarded(main, command)
