"""`python -m study.sweep --help` beside a Hydra hello-world's --help, in turns, and what importing it loads."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 9
HELLO = """
import hydra

@hydra.main(config_path=None, version_base="1.3")
def main(config):
    print("hello")

if __name__ == "__main__":
    main()
"""
HEAVY = ("torch", "mlflow", "optuna", "statsmodels", "pandas", "matplotlib")
TARGET = 2.0


def seconds(command: list[str], folder: str) -> float:
    """Return how long a command takes [s]."""
    root = str(Path(__file__).resolve().parents[1])
    begun = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, cwd=folder, env={**os.environ, "PYTHONPATH": root})
    return time.perf_counter() - begun


def loaded() -> list[str]:
    """Return the heavy modules that importing study.sweep loads."""
    code = f"import study.sweep, sys; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.split()


def measure() -> dict[str, float]:
    """Return the median seconds of ours and of Hydra's hello-world, run in turns."""
    times: dict[str, list[float]] = {"ours": [], "hydra": []}
    with tempfile.TemporaryDirectory() as folder:
        hello = Path(folder) / "hello.py"
        hello.write_text(HELLO)
        commands = {
            "ours": [sys.executable, "-m", "study.sweep", "--help"],
            "hydra": [sys.executable, str(hello), "--help"],
        }
        for number in range(ROUNDS + 1):
            for name, command in commands.items():
                took = seconds(command, folder)
                if number > 0:
                    times[name].append(took)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> int:
    times = measure()
    heavy = loaded()
    ratio = times["ours"] / times["hydra"]
    print(f"{'--help of':<28}{'median of ' + str(ROUNDS) + ' [s]':>20}")
    print(f"{'python -m study.sweep':<28}{times['ours']:>20.3f}")
    print(f"{'Hydra hello-world':<28}{times['hydra']:>20.3f}")
    print(
        f"ratio {ratio:.2f} (target at most {TARGET:g}); "
        f"import study.sweep loads {heavy or 'none'} of {', '.join(HEAVY)}"
    )
    return 0 if ratio <= TARGET and not heavy else 1


if __name__ == "__main__":
    sys.exit(main())
