"""How a command of the analysis begins: Ctrl-C minded, and only beside a `train` that is ours."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

HOME = Path(__file__).resolve().parents[2]
WRONG = 2
"""Exit code for what the user can put right."""


def start(module: str, home: Path = HOME) -> NoReturn:
    """Run the command of a module and exit with its code: 130 after Ctrl-C, 2 where a script `train` hides our package.

    That script is not run. home: the folder of our packages.
    """
    spec = find_spec("train")
    place = Path(spec.origin) if spec is not None and spec.origin is not None else None
    if place is not None and place.resolve().parent != home / "train" and (home / "train").is_dir():
        print(
            f"{module.removesuffix('.__main__')}: Python finds another train than ours: {place}, not {home / 'train'}. "
            "Start from another folder, run the command as scaling-study …, or rename that file",
            file=sys.stderr,
        )
        raise SystemExit(WRONG)
    from train.spec.interrupts import run

    run(module)
