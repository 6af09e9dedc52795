"""What `make kernels` runs the analysis' tests under: `python -m tests.analysis.blas_kernels` prints KERNEL:THREADS.

Two kernels beside the machine's own, under which `make test` runs them with one thread.
"""

from __future__ import annotations

import importlib

import numpy  # noqa: F401 (loads the BLAS that is asked)

SETTINGS = ("Prescott:2", "Haswell:1", "Zen:1")


def others(own: str) -> tuple[str, ...]:
    """Return the settings that are not of the machine's own kernel."""
    return tuple(setting for setting in SETTINGS if setting.partition(":")[0] != own)[:2]


if __name__ == "__main__":
    loaded = importlib.import_module("threadpoolctl").threadpool_info()
    print(*others(next((str(one.get("architecture")) for one in loaded), "")))
