"""The environment of processes that tests start."""

from __future__ import annotations

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def python_path(first: str | Path = REPOSITORY) -> str:
    """Return PYTHONPATH with a folder, the repository by default, ahead of those that it names already.

    What tests import need not be installed: a machine may have all packages in a folder that only PYTHONPATH names.
    """
    return os.pathsep.join(map(str, filter(None, (first, os.environ.get("PYTHONPATH")))))
