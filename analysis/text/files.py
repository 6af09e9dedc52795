"""Files that are whole or as they were before: written beside their place, then renamed."""

from __future__ import annotations

import os
from pathlib import Path


def write(path: Path, content: str | bytes) -> None:
    """Write a file by atomic rename, with the folders above it; what interrupts it leaves nothing behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        staged.write_bytes(content.encode() if isinstance(content, str) else content)
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)
