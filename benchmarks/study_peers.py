"""An isoFLOP study of 15 points done in three ways on SLURM: seconds from command to fitted law.

    python -m benchmarks.study_peers [ways=ours,hydra_submitit,torchtitan] [budgets=1e15,3e15,1e16] [out=FOLDER] …

The same models, tokens, batches and learning rates (those of `study=isoflop_gpu`) over the same prepared corpus:

- ours: `python -m study.sweep study=isoflop_gpu cluster=slurm wait=true`, then `python -m analysis.fit`;
- hydra_submitit: a script in the manner of nanoGPT (benchmarks/peers/script.py) under hydra/launcher=submitit_slurm,
  then the fit that people write (benchmarks/peers/parabolas.py);
- torchtitan: one sbatch a point, then the same fit.

What is on the path decides what can run: hydra_submitit needs the package hydra-submitit-launcher (`pip install -e
.[bench]`), torchtitan a GPU and what benchmarks.trainer_peers says. A way that fails says why, and the others go on.
Each begins with empty caches of compiled code, on a queue without its predecessor's jobs. After each way the table is
written to OUT/study_peers.txt, with what earlier commands with the same `out` found of other ways. Without a SLURM the
throwaway one of the tests is started. The corpus is prepared before the clocks start.

On two cores without a GPU, six minutes (benchmarks/results/study_peers_cpu.txt):

    python -m benchmarks.study_peers gpus=0 cpus=1 mem_gb=1.5 ways=ours,hydra_submitit budgets=2e10,6e10,2e11 \\
    ratios=10,40,160 points="data=bytes data.sequence_length=128 model.head_dim=4 search.width_step=4 precision=fp32"
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.peers.commands import Shell, WayError
from benchmarks.peers.points import StudyPoint, design, script_settings
from benchmarks.peers.ways import REPOSITORY, WAYS, Done, Study, do
from tests.slurm.cluster import ThrowawayCluster
from tests.slurm.install import unavailable

MEMORY_GB = 24.0
"""What a job asks for where mem_gb is not given: the preset's."""


@dataclass(frozen=True)
class Options:
    """The command's words: lists are separated by commas, further words by spaces.

    source: folder of text; none: the Python sources of this environment. points: words of study.sweep for all ways.
    ours: words for ours alone. gpus: of a job; 0: CPU. seconds: for each way [s]. slurm: here, throwaway or auto.
    """

    ways: str = "ours,hydra_submitit,torchtitan"
    budgets: str = "1e15,3e15,1e16"
    ratios: str = "10,20,40,80,160"
    gpus: int = 1
    cpus: int = 4
    mem_gb: float | None = None
    out: str = "/tmp/study_peers"
    source: str = ""
    points: str = ""
    ours: str = ""
    seconds: float = 1800.0
    slurm: str = "auto"


def read_options(words: Sequence[str]) -> Options:
    """Return the options; ValueError for an unknown one, a way that does not exist, or a value of another type."""
    known, given = {one.name: one for one in fields(Options)}, dict[str, Any]()
    for word in words:
        name, equals, value = word.partition("=")
        if name not in known or not equals:
            raise ValueError(f"{word!r} is no option: there are {', '.join(f'{one}=' for one in known)}")
        kind = {"gpus": int, "cpus": int, "mem_gb": float, "seconds": float}.get(name, str)
        try:
            given[name] = kind(value)
        except ValueError:
            raise ValueError(f"{name}={value} is not allowed: give a number") from None
    options = Options(**given)
    unknown = [name for name in options.ways.split(",") if name not in WAYS]
    if unknown:
        raise ValueError(f"ways={options.ways}: there is no way {unknown[0]!r}, but {', '.join(WAYS)}")
    if options.slurm not in ("auto", "here", "throwaway"):
        raise ValueError(f"slurm={options.slurm} is not allowed: auto, here or throwaway")
    return options


def design_words(options: Options, folder: Path) -> tuple[str, ...]:
    """Return the words of `study.sweep` that say which points there are, and where they read and write."""
    data = ("data=text", f"data.source={options.source}") if options.source else ("data=code", "data.vocab_size=8192")
    return (
        "study=isoflop_gpu",
        *data,
        f"search.budgets=[{options.budgets}]",
        f"search.ratios=[{options.ratios}]",
        f"runtime.data_root={folder / 'data'}",
        *(() if options.gpus else ("runtime.device=cpu",)),
        *options.points.split(),
    )


def words_of_ours(options: Options) -> tuple[str, ...]:
    """Return the words by which our command differs from the README's: the job's size, where it is not the preset's."""
    sizes = (
        *(() if options.gpus == 1 else (f"cluster.gpus_per_node={options.gpus}",)),
        *(() if options.cpus == 4 else (f"cluster.cpus_per_task={options.cpus}",)),
        *(() if options.mem_gb is None else (f"cluster.mem_gb={options.mem_gb:g}",)),
    )
    return (*sizes, *options.ours.split())


def prepare(points: Sequence[StudyPoint], folder: Path, environment: Mapping[str, str]) -> None:
    """Prepare the corpus of all points, unless that was done; WayError where it fails."""
    data = points[0].config.data
    settings = {
        name: value
        for name in ("name", "source", "tokenizer", "vocab_size", "validation_fraction", "max_bytes")
        if (value := getattr(data, name)) is not None
    }
    words = [f"data.{name}={value}" for name, value in settings.items()]
    words += [f"data.extensions=[{','.join(data.extensions)}]"] if data.extensions else []
    shell = Shell(folder, environment, time.monotonic() + 3600)
    shell.run("prepare", sys.executable, "-m", "train.prepare", "--root", str(folder / "data"), "--set", *words)


@contextmanager
def slurm(wanted: str) -> Iterator[dict[str, str]]:
    """Yield the variables with which SLURM's commands reach a cluster: this machine's, or a throwaway one."""
    own = {**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep)}
    if wanted == "here" or (wanted == "auto" and _answers()):
        yield own
        return
    if reason := unavailable():
        raise ValueError(f"no SLURM answers here, and there is no throwaway one: {reason}")
    with ThrowawayCluster(nodes=1, cpus_per_node=os.cpu_count() or 1) as cluster:
        yield cluster.full_environment(PYTHONPATH=own["PYTHONPATH"], OMP_NUM_THREADS="1")


def _answers() -> bool:
    try:
        return subprocess.run(("sinfo",), capture_output=True, check=False, timeout=30).returncode == 0
    except OSError:
        return False


def seconds(value: float | None) -> str:
    """Return seconds as text, "-" where they are not known."""
    return "-" if value is None else f"{value:.0f}"


def exponents(found: tuple[float, float] | None) -> str:
    """Return the exponents of N* and D* as text."""
    return "-" if found is None else f"{found[0]:.3f}, {found[1]:.3f}"


def table(found: Iterable[Done], points: Sequence[StudyPoint]) -> str:
    """Return what became of all ways, and each one's losses beside each other."""
    found = list(found)
    flops = sum(point.budget for point in points)
    lines = [
        f"{len(points)} points, {flops:.3g} FLOPs, {sum(point.steps for point in points):,} steps",
        "",
        f"{'seconds from the command on':<32}" + "".join(f"{done.way:>18}" for done in found),
    ]
    rows = {
        "until the last run's end": [seconds(done.runs_end) for done in found],
        "until the command returned": [seconds(done.returned) for done in found],
        "until the fitted law": [seconds(done.fitted) for done in found],
        "GPU-seconds with a kernel": [seconds(done.busy) for done in found],
        "seconds of training steps": [seconds(done.training) for done in found],
        "points with a loss": [f"{done.points}/{len(points)}" for done in found],
        "N*, D* ~ C^: its law": [exponents(done.law) for done in found],
        "N*, D* ~ C^: parabolas": [exponents(done.parabolas) for done in found],
        "budgets without a minimum": [str(done.left_out) if done.fitted else "-" for done in found],
    }
    lines += [f"{name:<32}" + "".join(f"{value:>18}" for value in values) for name, values in rows.items()]
    lines += ["", f"{'held-out loss [nats/token]':<32}" + "".join(f"{done.way:>18}" for done in found)]
    for point in points:
        shown = (done.losses.get(point.name) for done in found)
        lines.append(f"{point.name:<32}" + "".join(f"{'-' if one is None else f'{one:.4f}':>18}" for one in shown))
    lines += ["", *(f"{done.way} failed: {done.failure}" for done in found if done.failure)]
    lines += [f"{done.way} lost {one}" for done in found for one in done.lost]
    return "\n".join(lines).rstrip() + "\n"


def keep(done: Done, folder: Path) -> None:
    """Write down what became of a way."""
    (folder / f"{done.way}.json").write_text(json.dumps(asdict(done), indent=1) + "\n", encoding="utf-8")


def kept(folder: Path) -> list[Done]:
    """Return what became of the ways that were done with this folder, in the order of WAYS."""
    paths = [path for way in WAYS if (path := folder / f"{way}.json").is_file()]
    return [Done(**_tuples(json.loads(path.read_text(encoding="utf-8")))) for path in paths]


def same_study(points: Sequence[StudyPoint], folder: Path) -> None:
    """Note which points there are; ValueError where earlier commands did others in this folder."""
    path, text = folder / "points.json", json.dumps([script_settings(point) for point in points], indent=1) + "\n"
    if path.is_file() and path.read_text(encoding="utf-8") != text:
        raise ValueError(f"out={folder} holds a study of other points: give another folder")
    path.write_text(text, encoding="utf-8")


def _tuples(fields_: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields_.items()}


def about() -> str:
    """Return date, device and versions of what the ways are made of."""
    import torch

    found = [f"Python {platform.python_version()}", f"torch {torch.__version__}"]
    for name in ("hydra-core", "submitit", "hydra-submitit-launcher", "torchtitan"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    today, load = datetime.datetime.now(datetime.UTC).date(), os.getloadavg()[0]
    return f"{today}, {os.cpu_count()} cores (load before the run: {load:.1f}), {device}\n{', '.join(found)}"


def main(words: Sequence[str] | None = None) -> int:
    """Do the study in the ways that are asked for; return 0, 1 where one failed, 2 for a word that is none."""
    given = sys.argv[1:] if words is None else list(words)
    if given in (["--help"], ["-h"]):
        print(__doc__)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # jobs are cancelled then, as at Ctrl-C
    try:
        options = read_options(given)
        folder = Path(options.out).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        points = design(design_words(options, folder))
        same_study(points, folder)
        above = f"$ python -m benchmarks.study_peers {shlex.join(given)}\n{about()}\n\n"
        with slurm(options.slurm) as environment:
            prepare(points, folder, environment)
            for name in options.ways.split(","):
                keep(attempt(name, options, points, environment), folder)
                text = table(kept(folder), points)
                (folder / "study_peers.txt").write_text(above + text, encoding="utf-8")
                print(text, flush=True)
    except (ValueError, WayError) as error:
        print(f"benchmarks.study_peers: {error}", file=sys.stderr)
        return 2
    return 1 if any(done.failure for done in kept(folder)) else 0


def attempt(name: str, options: Options, points: Sequence[StudyPoint], environment: Mapping[str, str]) -> Done:
    """Do the study in one way, in a folder of its own below `out`."""
    out = Path(options.out).absolute()
    study = Study(
        words=design_words(options, out),
        points=tuple(points),
        folder=out / f"{name}-{sum(1 for _ in out.glob(f'{name}-*'))}",
        environment=environment,
        gpus=options.gpus,
        cpus=options.cpus,
        mem_gb=MEMORY_GB if options.mem_gb is None else options.mem_gb,
        seconds=options.seconds,
        ours=words_of_ours(options),
    )
    print(f"{name}: in {study.folder}", flush=True)
    return do(name, study)


if __name__ == "__main__":
    sys.exit(main())
