"""What a claim costs: workers of one search that claim and tell without training, on one event log of this disk.

The peer is Optuna's journal file with as many processes: ask, report, tell.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from study.config.schema import StudyConfig, plain
from study.search.settings import Settings, described, save
from study.search.trial_queue import TrialQueue
from study.storage.layout import StudyFolder
from sweeps.space import Interval
from train.spec.command_line import Parser
from train.spec.config import BudgetConfig


def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--units", type=int, default=10, help="units of each worker")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        before, held = _ours(Path(scratch) / "s", options.workers, options.units)
        print(
            f"{options.workers} workers x {options.units} units: no event lost; claim and tell of one unit "
            f"takes {1e3 * median(held):.2f} ms of processor time (median), "
            f"{1e3 * sorted(held)[int(0.95 * len(held))]:.2f} ms (95 %)"
        )
        firsts = held[:: options.units]
        rest = sorted(one for k, one in enumerate(held) if k % options.units)
        print(
            f"of these the first of a process: {1e3 * median(firsts):.2f} ms; "
            f"the others: {1e3 * median(rest):.2f} ms (median), {1e3 * rest[int(0.95 * len(rest))]:.2f} ms (95 %)"
        )
        print(f"once a process, without the lock: {1e3 * median(before):.2f} ms (the log's past, imports, a rehearsal)")
        theirs = _optuna(Path(scratch) / "journal.log", options.workers, options.units)
        print(f"Optuna's journal, ask + report + tell: {1e3 * median(theirs):.2f} ms (median) of its processor time")
        print(f"ratio of the medians: {median(held) / median(theirs):.2f}")


def _ours(folder: Path, workers: int, units: int) -> tuple[list[float], list[float]]:
    """Return what each worker's start took, and each of its claims with what it told [s of processor time]."""
    study = StudyFolder(folder)
    base = replace(StudyConfig().run(), budget=BudgetConfig(tokens=27_008))
    space = {"optim.lr": described(Interval(1e-4, 1e-1, log=True))}
    save(study, Settings("asha", "random", 1000, 27_008, 3, 10**6, 0, None, 600.0, space, plain(asdict(base))))
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        done = pool.starmap(_work, [(folder, f"w{number}", units) for number in range(workers)])
    search = TrialQueue.of(study).search
    reached = sum(len(trial.values) for trial in search.trials.values())
    assert reached == workers * units, f"{reached} units in the log, {workers * units} were done"
    return [start for start, _ in done], [one for _, many in done for one in many]


def _work(folder: Path, name: str, units: int) -> tuple[float, list[float]]:
    """Claim and tell, as a worker does; return what its start took, and each unit [s of processor time]."""
    began = time.process_time()
    queue = TrialQueue.of(StudyFolder(folder))
    queue.warm_up()
    start, times = time.process_time() - began, []
    for _ in range(units):
        began = time.process_time()
        claim = queue.claim(name)
        assert claim is not None
        queue.record_end(claim, "reached", value=float(claim.number))
        times.append(time.process_time() - began)
    return start, times


def _optuna(path: Path, workers: int, units: int) -> list[float]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    optuna.create_study(storage=_journal(path), study_name="peer")
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        times = pool.starmap(_work_optuna, [(path, units) for _ in range(workers)])
    return [one for many in times for one in many]


def _journal(path: Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(str(path)))


def _work_optuna(path: Path, units: int) -> list[float]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.load_study(study_name="peer", storage=_journal(path), sampler=optuna.samplers.RandomSampler())
    times = []
    for number in range(units):
        began = time.process_time()
        trial = study.ask({"lr": optuna.distributions.FloatDistribution(1e-4, 1e-1, log=True)})
        trial.report(float(number), 1)
        study.tell(trial, float(number))
        times.append(time.process_time() - began)
    return times


if __name__ == "__main__":
    main()
