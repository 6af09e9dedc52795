"""Tests see nothing of the shell that they are started from but what they need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.environment import REPOSITORY, keep_passed

SHELLS = {
    # of `salloc`, of torchrun, of a git hook, and of somebody with habits
    "SLURM_JOB_ID": "77", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SQUEUE_FORMAT": "%i", "SBATCH_PARTITION": "gpu",
    "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "elsewhere", "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "GIT_DIR": "/elsewhere", "GIT_INDEX_FILE": "/elsewhere/index",
    "COLUMNS": "50", "FORCE_COLOR": "1", "TZ": "Asia/Kolkata", "MLFLOW_TRACKING_URI": "http://127.0.0.1:9",
    "PYTHONWARNINGS": "default", "PYTHONUNBUFFERED": "1", "HYDRA_FULL_ERROR": "1", "XDG_CACHE_HOME": "/elsewhere",
}  # fmt: skip


def test_what_is_passed_is_named() -> None:
    kept = {"HOME": "/home/me", "PATH": "/bin", "OMP_NUM_THREADS": "2", "ATEN_CPU_CAPABILITY": "default", "CI": "true"}
    kept |= {"PYTEST_XDIST_WORKER": "gw0", "HTTP_PROXY": "http://proxy:3128", "GIT_CONFIG_COUNT": "0", "CC": "gcc"}
    environment = {**SHELLS, "CCX": "1", **kept, "OMP": "1"}
    keep_passed(environment)
    assert environment == kept


def test_tests_are_green_in_any_shell(tmp_path: Path) -> None:
    """Tests that commit with git, and that print help as wide as the terminal."""
    files = ["study/process/test_process_code_version.py", "study/commands/test_commands_key_help.py"]
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "--basetemp", str(tmp_path / "base")]
    done = subprocess.run(
        [*command, *(f"tests/{file}" for file in files)],
        cwd=REPOSITORY, env={**os.environ, **SHELLS}, umask=0o077, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout or "100%" in done.stdout
