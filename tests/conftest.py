"""The throwaway SLURM cluster of the test session, shared by all of its xdist workers."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import quick
from tests.environment import keep_passed
from tests.slurm.cluster import ThrowawayCluster
from tests.slurm.install import unavailable
from tests.warm import SHARED

GPU = Path("/dev/nvidiactl").exists()

keep_passed(os.environ)
time.tzset()
# Files that tests make are as others may read them: PostgreSQL runs as another user, where these are root's.
os.umask(0o022)
# Several workers share the cores: threads of each only get in each other's way. Before anything imports torch or NumPy.
# OpenBLAS has a variable of its own, which would outdo the single thread that tests give to what has to fork.
os.environ.setdefault("OMP_NUM_THREADS", os.environ.pop("OPENBLAS_NUM_THREADS", "1"))
# For a CPU torch compiles with g++ in its own process; the others that it starts for Triton would import torch only.
if not GPU:
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# A user may bring a locale that this machine lacks, as through ssh: bash warns of it, and initdb refuses it.
os.environ["LC_ALL"] = "C.UTF-8"

# While modules are imported nothing becomes garbage, and the collector would look through all of them again and again.
gc.disable()

# Machines that run tests are shared and slow now and then: an example's time says nothing about the code.
hypothesis.settings.register_profile("shared-machine", deadline=None)
hypothesis.settings.load_profile("shared-machine")


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C reach what tests start: a shell's background jobs ignore it, and so would all their children.

    Workers share warm processes, but not where each test's seconds are counted: those of its own children. A pytest
    that a test starts has a worker's environment, and shares what that one does.
    """
    basetemp = config.getoption("basetemp")
    if "PYTEST_XDIST_WORKER" in os.environ and basetemp is not None and config.getoption("cpu", None) is None:
        os.environ[SHARED] = str(Path(basetemp).parent / "warm")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)  # pytest runs without xdist too
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Let workers that collect all tests begin as forks of one process that has imported what tests do.

    Not on a machine with a GPU: what asks for it while it is imported has to do so in each process.
    """
    if config.args == config.getini("testpaths") and not GPU:
        folder = config._tmp_path_factory.getbasetemp() / "workers"  # type: ignore[attr-defined]
        for spec in specs:
            spec.python = shlex.join([sys.executable, "-m", "tests.worker", str(folder)])


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Have each of several workers that collect all tests begin with other files, before pytest takes all in order.

    In a fresh checkout there is no bytecode: what one worker has compiled the others read, where all would compile the
    same at the same time. Errors are pytest's to report, which imports such a file again.
    """
    config, worker = collector.config, os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None or not isinstance(collector, pytest.Session) or config.args != config.getini("testpaths"):
        return
    files = sorted(file for path in config.args for file in (config.rootpath / path).rglob("test_*.py"))
    number, count = int(worker.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    for file in files[number * len(files) // count : (number + 1) * len(files) // count]:
        if str(file.parent) not in sys.path:
            sys.path.insert(0, str(file.parent))
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(file.stem)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Let a test draw the same numbers in every run, in whatever order: torch begins each process with other ones."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)


DURATIONS = Path(__file__).with_name("durations.json")
"""Seconds of a core that the longest files cost, as `python -m tests.cpu --record` notes them."""
UNKNOWN_SECONDS = 15.0
"""What a file with a test that is marked slow costs where that was not measured."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the tests in an order drawn with this seed")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order tests such that none that takes long begins last, when it would have the machine to itself.

    Each xdist worker begins with a run of the list. The first one's starts with the tests on SLURM, which mostly wait;
    the others' start with the files that cost most, the longest first, shared out such that all have as much to do. All
    go on with quick ones, which idle workers take away. Before `-m quick` chooses, tests that are get the marker.
    """
    if "quick" in config.option.markexpr:
        known = quick.recorded()
        for item in items:
            if quick.is_quick(item, known):
                item.add_marker("quick")
        config.pluginmanager.register(quick)
        quick.watch_processes(forbidden=True)
    seed = config.getoption("shuffle")
    if seed is not None:
        random.Random(seed).shuffle(items)
        return
    costs = json.loads(DURATIONS.read_text(encoding="utf-8"))
    costs = {config.rootpath / name: float(seconds) for name, seconds in costs.items()}
    for item in items:
        if item.get_closest_marker("slow"):
            costs.setdefault(item.path, UNKNOWN_SECONDS)
    on_slurm = [item for item in items if item.get_closest_marker("slurm")]
    on_slurm.sort(key=lambda item: "time_limit" not in item.name)
    rest = [item for item in items if not item.get_closest_marker("slurm")]
    short = [item for item in rest if item.path not in costs]
    files = sorted({item.path for item in rest} & costs.keys(), key=lambda path: (-costs[path], path))
    others = max(1, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) - 1)
    shares: list[list[Path]] = [[] for _ in range(others)]
    for path in files:
        min(shares, key=lambda share: sum(costs[one] for one in share)).append(path)
    ordered: list[pytest.Item] = []
    for number, share in enumerate([[], *shares]):
        first = on_slurm if number == 0 else [item for path in share for item in rest if item.path == path]
        room = max(0, (len(items) - len(ordered)) // (others + 1 - number) - len(first))
        ordered, short = [*ordered, *first, *short[:room]], short[room:]
    items[:] = [*ordered, *short]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Collect garbage again, but never look through what has been imported."""
    gc.freeze()
    gc.enable()


def require_slurm() -> None:
    """Skip with the reason where the cluster cannot run; in CI that is a failure."""
    reason = unavailable()
    if reason is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI=true, but the tests on a real SLURM cannot run: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def slurm_here() -> None:
    """What a test asks for that starts clusters of its own."""
    require_slurm()


@pytest.fixture(scope="session")
def session_folder(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of the test session share; one that a test starts has its own."""
    base = tmp_path_factory.getbasetemp()
    # Under xdist each worker has a folder of its own in the session's.
    return base.parent if hasattr(pytestconfig, "workerinput") else base


@pytest.fixture(scope="session")
def cluster(slurm_here: None, session_folder: Path) -> Iterator[ThrowawayCluster]:
    """The session's cluster: nodes n1 … n4 with 2 CPUs each, in use by the tests of other workers as well."""
    running = ThrowawayCluster.shared(session_folder / "slurm-cluster")
    yield running
    running.stop()
