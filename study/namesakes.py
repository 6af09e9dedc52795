"""Packages of others under the names of ours: Python takes the first that it finds, and what follows would be a riddle.

Ours are called `train` or `analysis`, as many a folder and many a script is: `python -m study` looks into the working
directory first, and another installed distribution may bring a package of that name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

OURS = ("analysis", "kernels", "sweeps", "train")
"""What is installed beside this package."""
WRONG = 2
"""Exit code for what the user can put right."""


def refuse() -> None:
    """Raise ImportError where one of our packages is not the one that Python finds; a command ends with a line."""
    found = message(Path(__file__).resolve().parents[1])
    if found is None:
        return
    if sys.argv[:1] == ["-m"]:  # `python -m study…` is about to begin
        print(f"study: {found}", file=sys.stderr)
        raise SystemExit(WRONG)
    raise ImportError(found)


def message(home: Path, names: Iterable[str] = OURS) -> str | None:
    """Return what is in the way of our packages, those in the folder `home`, and what to do; None for nothing."""
    for name in names:
        place = _origin(find_spec(name))
        if place is None or not (home / name).is_dir() or place.resolve() == (home / name).resolve():
            continue
        return (
            f"Python finds another {name} than ours: {place}, not {home / name}. Start from another folder, run the "
            "command as scaling-study …, rename that file, or uninstall the package that brought it"
        )
    return None


def _origin(spec: ModuleSpec | None) -> Path | None:
    """Return the folder of a package or the file of a module; None for what is nowhere or spread over folders."""
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin)
    return origin.parent if origin.name == "__init__.py" else origin
