"""Installs SLURM's Debian packages where that is possible, and says why where it is not.

`python -m tests.slurm.install` is what `make test` and `make slurm` run first; with everything present it does nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("slurm-wlm", "slurmdbd", "munge", "mariadb-server")
EXTRAS = ("postgresql", "zsh")
"""For tests of a tracking store and of the completion, which do without them: not to have them is no failure."""
PROGRAMS = (
    "slurmctld",
    "slurmd",
    "slurmdbd",
    "munged",
    "mariadbd",
    "mariadb-install-db",
    "sbatch",
    "srun",
    "squeue",
    "sacct",
    "sacctmgr",
)
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
POLICY = Path("/usr/sbin/policy-rc.d")


def search_path() -> str:
    """Return PATH with the folders of daemons, which a plain user's PATH lacks."""
    return f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"


def missing() -> tuple[str, ...]:
    """Return the programs of the throwaway cluster that this machine lacks."""
    return tuple(name for name in PROGRAMS if shutil.which(name, path=search_path()) is None)


def unavailable() -> str | None:
    """Return why the throwaway cluster cannot run here, or None if it can."""
    if not sys.platform.startswith("linux"):
        return f"SLURM runs on Linux, this is {sys.platform}"
    absent = missing()
    if absent:
        return f"{', '.join(absent)} not found: as root on Debian or Ubuntu, run python -m tests.slurm.install"
    return None


@contextlib.contextmanager
def _no_services() -> Iterator[None]:
    """Keep dpkg from starting the packages' own daemons: the tests start theirs, and none should stay behind."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="utf-8")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)


def install() -> str | None:
    """Install the packages if this is a Debian-like system and we are root; return why not, or None if all is there."""
    reason = unavailable()
    if reason is None or not missing():
        return reason
    if os.geteuid() != 0:
        return f"{reason} (not root: nothing was installed)"
    apt = shutil.which("apt-get", path=search_path())
    if apt is None:
        return f"{reason} (no apt-get here: nothing was installed)"
    print(f"== set-up: apt-get install {' '.join(PACKAGES + EXTRAS)} (for the tests on a real SLURM)", flush=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "PATH": search_path()}

    def run(*words: str) -> str | None:
        done = subprocess.run(
            [apt, *words], check=False, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        tail = " / ".join(done.stderr.strip().splitlines()[-3:])
        return f"apt-get {words[0]} failed with exit code {done.returncode}: {tail}" if done.returncode else None

    options = ("-y", "-qq", "--no-install-recommends")
    with _no_services():
        run("update", "-qq")  # an index that could not be refreshed may still serve
        failure = run("install", *options, *PACKAGES)
        if failure is None and (without := run("install", *options, *EXTRAS)):
            print(f"== some tests will be skipped: {without}", flush=True)
    return failure or unavailable()


def main() -> int:
    """Install what is missing; say why not. Fails only where a skipped test is a failure (CI=true)."""
    reason = install()
    if reason is None:
        return 0
    print(f"== the tests on a real SLURM will be skipped: {reason}", flush=True)
    return 1 if os.environ.get("CI") == "true" else 0


if __name__ == "__main__":
    sys.exit(main())
