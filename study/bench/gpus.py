"""What NVIDIA's driver tells of this machine's first GPU."""

from __future__ import annotations

import subprocess


def gpu_bytes() -> int | None:
    """Return its memory, None where the driver does not tell."""
    found = _asked("memory.total")
    return int(found) << 20 if found is not None and found.isdigit() else None


def gpu_name() -> str | None:
    """Return its name, None where the driver does not tell."""
    return _asked("name")


def _asked(what: str) -> str | None:
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return None
    return lines[0].strip() if lines else None
