"""What is said where a package that a command needs is not installed."""

from __future__ import annotations

from importlib.util import find_spec


def missing_package(error: ModuleNotFoundError) -> str:
    """Return which package is missing; nothing where it is there and the fault another one."""
    lacking = (error.name or "").partition(".")[0]
    return lacking if lacking and find_spec(lacking) is None else ""


def not_installed(error: ModuleNotFoundError) -> str:
    """Return which package is missing and what to do; nothing where the package is there and the fault another one."""
    lacking = missing_package(error)
    if not lacking:
        return ""
    return (
        f"it needs the module {lacking}, which is not installed here: run pip install . in the project's folder "
        "(requirements/laws.txt installs only what fitting laws needs)"
    )
