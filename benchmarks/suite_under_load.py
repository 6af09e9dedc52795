"""Is the suite green on a busy machine, in any order? `python -m benchmarks.suite_under_load --times 10 [WORDS …]`.

Each time processes that only count keep every core busy, and the tests run in another order. Prints the machine's load,
what failed and how often, with the seeds of the orders; what fails alone with `pytest --shuffle SEED` fails for its
order. WORDS go to pytest (files, -k …). The output of each run is kept in the folder `--logs`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from train.spec.command_line import Parser


def main() -> int:
    """Run the suite so often; return 1 if a test failed in any run."""
    parser = Parser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--hogs", type=int, default=os.cpu_count(), help="processes that only count")
    parser.add_argument("--workers", type=int, default=4, help="processes that run tests")
    parser.add_argument("--first", type=int, default=1, help="seed of the first order")
    parser.add_argument("--logs", type=Path, default=Path("/tmp/suite_under_load"))
    options, words = parser.parse_known_args()
    options.logs.mkdir(parents=True, exist_ok=True)
    failed: dict[str, list[int]] = defaultdict(list)
    hogs = [multiprocessing.Process(target=_count, daemon=True) for _ in range(options.hogs)]
    for hog in hogs:
        hog.start()
    for seed in range(options.first, options.first + options.times):
        log = options.logs / f"{seed}.log"
        found, summary, loads = _run(seed, options.workers, words, log)
        print(f"order {seed}, load {min(loads):.0f} to {max(loads):.0f}: {summary}; {log}", flush=True)
        for name in found:
            failed[name].append(seed)
    for hog in hogs:
        hog.terminate()
    for name, seeds in sorted(failed.items()):
        print(f"failed {len(seeds)} of {options.times} (orders {', '.join(map(str, seeds))}): {name}")
    return 1 if failed else 0


def _run(seed: int, workers: int, words: list[str], log: Path) -> tuple[list[str], str, list[float]]:
    """Run the tests once; return the ones that failed, pytest's last line, and the load of each minute."""
    command = [sys.executable, "-m", "pytest", "-v", f"--shuffle={seed}", f"--numprocesses={workers}"]
    with log.open("w") as file:
        tests = subprocess.Popen([*command, "--dist=worksteal", *words], stdout=file, stderr=file)
    loads = [os.getloadavg()[0]]
    while tests.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            tests.wait(timeout=60)
        loads.append(os.getloadavg()[0])
    text = log.read_text()
    names = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    return sorted(set(names)), text.strip().splitlines()[-1].strip("= "), loads


def _count() -> None:
    number = 0
    while True:
        number += 1


if __name__ == "__main__":
    sys.exit(main())
