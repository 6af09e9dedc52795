"""Run benchmarks and keep what they print: `python -m benchmarks [NAME …]` writes `benchmarks/results/NAME.txt`.

Each result begins with the machine, the versions and the date, for a figure without them is worth nothing.
"""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).parent
ARGUMENTS = {"mlflow_sync": ["--runs", "1000"], "trainer_matmul_ratio": ["--threads", str(os.cpu_count() or 1)]}
PACKAGES = ("torch", "numpy", "scipy", "hydra-core", "submitit", "mlflow", "optuna")


def names() -> list[str]:
    """Return the benchmarks there are."""
    return sorted(
        path.stem
        for path in FOLDER.glob("*.py")
        if not path.stem.startswith("_") and "def main" in path.read_text(encoding="utf-8")
    )


def header() -> str:
    """Return the lines that say where and when: processor, cores, load, Python, packages, date."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        models = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = models[0] if models else cpu
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    today = datetime.datetime.now(datetime.UTC).date()
    return (
        f"{today}, {cpu}, {os.cpu_count()} cores (load before the run: {load}), {platform.system()} "
        f"{platform.release()}\nPython {platform.python_version()}, {packages}\n"
    )


def main(arguments: list[str]) -> int:
    """Run the named benchmarks, or all; return 1 if one failed, 2 for a name that does not exist."""
    unknown = [name for name in arguments if name not in names()]
    if unknown:
        print(f"no benchmark {unknown[0]!r}: there are {', '.join(names())}", file=sys.stderr)
        return 2
    failed = False
    for name in arguments or names():
        above = header()
        command = [sys.executable, "-m", f"benchmarks.{name}", *ARGUMENTS.get(name, [])]
        print(f"== {' '.join(command[1:])}", flush=True)
        done = subprocess.run(command, cwd=FOLDER.parent, stdout=subprocess.PIPE, text=True, check=False)
        print(done.stdout, flush=True)
        failed |= done.returncode != 0
        if done.returncode == 0:
            text = f"$ python {' '.join(command[1:])}\n{above}\n{done.stdout}"
            (FOLDER / "results" / f"{name}.txt").write_text(text, encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
