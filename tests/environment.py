"""The environment of processes that tests start."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PASSED = (
    # The user and the machine.
    "HOME", "USER", "LOGNAME", "SHELL", "PATH", "PWD", "TMPDIR", "LANG", "TERM", "CI", "LD_",
    "CUDA_", "NVIDIA_", "NCCL_",
    # Python, and where packages come from: some tests install this one.
    "VIRTUAL_ENV", "CONDA_", "PYENV_", "PYTHONPATH", "PYTHONHOME", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE",
    "PIP_", "UV_", "SSL_", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "http_proxy", "https_proxy", "no_proxy",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "GIT_CONFIG_",
    # Compilers, and what decides how numbers are computed.
    "CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS", "CPATH", "LIBRARY_PATH", "TRITON_", "TORCHINDUCTOR_",
    "OMP_", "OPENBLAS_", "ATEN_",
    # The tests themselves.
    "PYTEST_", "COV_", "COVERAGE_", "WARM_SHARED",
)  # fmt: skip
"""Names of variables that tests see; one that ends in _ stands for all that begin so."""


def keep_passed(environment: MutableMapping[str, str]) -> None:
    """Remove what tests must not see of a user's shell, in place.

    A shell may be one within a job of SLURM (SLURM_NTASKS), of torchrun (RANK), of a git hook (GIT_DIR, where a test's
    commit would land), or one whose user likes COLUMNS=60, FORCE_COLOR or an MLFLOW_TRACKING_URI of their own.
    """
    prefixes = tuple(name for name in PASSED if name.endswith("_"))
    for name in [name for name in environment if name not in PASSED and not name.startswith(prefixes)]:
        del environment[name]


def python_path(first: str | Path = REPOSITORY) -> str:
    """Return PYTHONPATH with a folder, the repository by default, ahead of those that it names already.

    What tests import need not be installed: a machine may have all packages in a folder that only PYTHONPATH names.
    """
    return os.pathsep.join(map(str, filter(None, (first, os.environ.get("PYTHONPATH")))))
