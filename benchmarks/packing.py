"""Several runs on one GPU: how many tokens they train together, over what one trains alone.

    python -m benchmarks.packing [--sizes 1M,5M,14M,85M] [--counts 1,2,3,4,6] [--ways slices,mps] [--seconds 500]

Sizes [matmul parameters] are the nearest shapes of study=isoflop_gpu, with the rule's batch for 40 tokens a parameter.
Each process is a `train.run` with its share of the GPU's memory, as points of a packed job are. Tokens/s of all
together come from the runs' own records, of the seconds in which all are training: from the 20th step of the last one
on. slices: the GPU's own time slices; mps: NVIDIA's multi-process service.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from benchmarks.fake_corpus import write_corpus
from study.config.compose import Composer, HydraSource, conf_folder
from study.job.packed import DEVICES, multi_process_service, numbered
from study.planning.designs import family
from sweeps.designs.isoflop import Shape
from sweeps.designs.ladder import nearest
from train.spec import scaling_rules
from train.spec.command_line import Parser
from train.spec.config import RunConfig
from train.spec.counts import flops_per_token
from train.spec.gpu_share import VARIABLE
from train.spec.resolve import resolve
from train.spec.yamlfile import dump

RATIO = 40
"""Tokens for each parameter, by which the rule chooses a batch; the study has 5 to 160."""
STEPS = 1_000_000
"""Of a run's budget: none reaches it."""
WARM_RECORDS = 2
CONTROL = "nvidia-cuda-mps-control"
WAYS = ("slices", "mps")
HEAD = "  size  layers x width  tokens a step  FLOPs a step     way  runs      tokens/s  x alone"
Records = Sequence[tuple[float, int]]
"""When a run had trained how many tokens: seconds since the epoch, tokens; rising."""


@dataclass(frozen=True)
class Kind:
    """What all processes of a measurement train: a name, a config but for its seed, FLOPs of one step."""

    name: str
    config: RunConfig
    flops: float

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.config.batch.tokens or 0


@dataclass(frozen=True)
class Figure:
    """What was measured of `count` runs side by side: tokens/s of all together, or why there is none."""

    kind: Kind
    way: str
    count: int
    rate: float | None
    failure: str = ""


def kinds(sizes: Mapping[str, float], device: str, data: Path, length: int | None) -> list[Kind]:
    """Return what is trained at each size [matmul parameters]; length: of sequences, where not the study's."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        composer = Composer(
            HydraSource(GlobalHydra.instance().config_loader(), compose("config", return_hydra_config=True))
        )
        given = [] if length is None else [f"data.sequence_length={length}"]
        config = composer.compose(["study=isoflop_gpu", "cluster=slurm", f"data.source={data}", *given]).config
    shapes = family(config, None, max(sizes.values()))
    return [_kind(name, nearest([size], shapes)[0], config.run(), device, data) for name, size in sizes.items()]


def _kind(name: str, shape: Shape, study: RunConfig, device: str, data: Path) -> Kind:
    length = study.data.sequence_length
    batch = scaling_rules.batch_tokens(RATIO * shape.params, length)
    model = replace(study.model, width=shape.width, layers=shape.layers)
    flops = float(batch) * flops_per_token(model, study.data.vocab_size, length)
    run = replace(
        study,
        model=model,
        data=replace(study.data, name="fake", source=None),
        batch=replace(study.batch, tokens=batch),
        budget=replace(study.budget, tokens=STEPS * batch, flops=None, tokens_per_param=None),
        eval=replace(study.eval, count=1, sequences=8),
        runtime=replace(
            study.runtime,
            device=device,
            data_root=str(data),
            checkpoint_seconds=1e9,
            log_steps=10 if flops < 1e13 else 1,
        ),
    )
    return Kind(name, resolve(run), flops)


def together(runs: Sequence[Records], seconds: float) -> float | None:
    """Return tokens/s of all runs in the `seconds` after the last of them was warm; None: not all got so far."""
    if any(len(records) <= WARM_RECORDS for records in runs):
        return None
    begin = max(records[WARM_RECORDS - 1][0] for records in runs)
    end = begin + seconds
    if any(records[-1][0] < end for records in runs):
        return None
    return sum(_at(records, end) - _at(records, begin) for records in runs) / seconds


def _at(records: Records, when: float) -> float:
    """Return the tokens that a run had trained at this time, between its records in proportion."""
    later = next(place for place, (at, _) in enumerate(records) if at >= when)
    (before, had), (after, has) = records[max(0, later - 1)], records[later]
    return float(has) if after == before else had + (has - had) * (when - before) / (after - before)


def records(path: Path) -> Records:
    """Return the training records of a run's metrics.jsonl, without a line that is being written."""
    with contextlib.suppress(FileNotFoundError):
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        found = [record for record in map(json.loads, lines) if record["kind"] == "train"]
        return [(float(record["time"]), int(record["tokens"])) for record in found]
    return []


def measure(kind: Kind, way: str, count: int, folder: Path, *, window: float, limit: float) -> Figure:
    """Train `count` runs side by side until `window` seconds of them were measured, for at most `limit` seconds."""
    with _service(way) as variables:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", VARIABLE: repr(1 / count), **variables}
        runs = [folder / f"{kind.name}-{way}-{count}-{seed}" for seed in range(count)]
        processes = [_start(replace(kind.config, seed=seed), run, environment) for seed, run in enumerate(runs)]
        try:
            end, rate = time.monotonic() + limit, None
            while rate is None and time.monotonic() < end:
                time.sleep(0.5)
                ended = [run for run, process in zip(runs, processes, strict=True) if process.poll() is not None]
                if ended:
                    return Figure(kind, way, count, None, f"a run ended: {_reason(ended[0] / 'log')}")
                rate = together([records(run / "metrics.jsonl") for run in runs], window)
            return Figure(kind, way, count, rate, "" if rate else f"not all were measured after {limit:.0f} s")
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@contextlib.contextmanager
def _service(way: str) -> Iterator[dict[str, str]]:
    with multi_process_service(way == "mps") as variables:
        visible = numbered(os.environ.get(DEVICES)) if variables else None
        yield {**variables, **({DEVICES: visible} if visible else {})}


def _start(config: RunConfig, run: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    run.mkdir()
    (run / "config.yaml").write_text(dump(asdict(config)), encoding="utf-8")
    command = [sys.executable, "-m", "train.run", "--config", str(run / "config.yaml")]
    with (run / "log").open("wb") as log:
        return subprocess.Popen(
            command, env=dict(environment), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )


def _reason(log: Path) -> str:
    """Return the line of a log that says best why a run ended."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return ([line for line in lines if "rror" in line] or lines or ["nothing printed"])[-1][:200]


def line(figure: Figure, alone: Mapping[str, float]) -> str:
    """Return a line of the table; alone: tokens/s of one run by size."""
    kind, model = figure.kind, figure.kind.config.model
    shape = f"{model.layers} x {model.width}"
    shown = f"{kind.name:>6}  {shape:>14}  {kind.tokens:>13,}  {kind.flops:>12.3g}"
    shown += f"  {figure.way if figure.count > 1 else '':>6}  {figure.count:>4}"
    if figure.rate is None:
        return f"{shown} {figure.failure}"
    gain = f"{figure.rate / alone[kind.name]:>7.2f}" if kind.name in alone else ""
    return f"{shown}  {figure.rate:>12,.0f}  {gain}".rstrip()


def plan(made: Sequence[Kind], counts: Sequence[int], ways: Sequence[str]) -> Iterator[tuple[Kind, str, int]]:
    """Yield what is to be measured, one run of each size first: it compiles what the others find."""
    for kind in made:
        for count in sorted(counts):
            for way in ways if count > 1 else ways[:1]:
                yield kind, way, count


def size(text: str) -> float:
    """Return what `5M` says [parameters]."""
    return float(text[:-1]) * 1e6 if text.upper().endswith("M") else float(text)


def has_gpu() -> bool:
    """Return whether torch finds a GPU, as a process says that ends: this one holds nothing of it."""
    said = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", said], check=False).returncode == 0


def about(device: str) -> str:
    """Return the device and torch, as a process says that ends: this one holds nothing of the GPU."""
    name = "torch.cuda.get_device_name()" if device == "cuda" else "'CPU'"
    said = f"import torch; print({name}, 'torch ' + torch.__version__, sep=', ')"
    found = subprocess.run([sys.executable, "-c", said], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    return f"{found}, {len(os.sched_getaffinity(0))} cores"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the table, a line as soon as it is known."""
    parser = Parser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default="1M,5M,14M,85M", help="matmul parameters; the nearest shapes are taken")
    parser.add_argument("--counts", default="1,2,3,4,6", help="runs side by side")
    parser.add_argument("--ways", default=",".join(WAYS), help="how runs share the GPU: slices, mps")
    parser.add_argument("--seconds", type=float, default=1e9, help="time for all; what is left then is left out")
    parser.add_argument("--window", type=float, default=6.0, help="time that is measured [s]")
    parser.add_argument("--limit", type=float, default=120.0, help="time for one measurement with its start [s]")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--length", type=int, help="length of sequences [tokens], where not the study's")
    options = parser.parse_args(arguments)
    ways = [way for way in options.ways.split(",") if way in WAYS]
    if not ways:
        parser.error(f"--ways {options.ways}: choose among {', '.join(WAYS)}")
    if "mps" in ways and shutil.which(CONTROL) is None:
        print(f"{CONTROL} is missing here: only time slices are measured")
        ways = ["slices"]
    if options.device == "cuda" and not has_gpu():
        parser.error("--device cuda needs an NVIDIA GPU, and torch finds none here: give --device cpu")
    end, alone = time.monotonic() + options.seconds, dict[str, float]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        vocabulary = 8192
        write_corpus(folder / "data", vocabulary, train_tokens=20_000_000)
        made = kinds(
            {text: size(text) for text in options.sizes.split(",")}, options.device, folder / "data", options.length
        )
        print(f"{about(options.device)}\n{HEAD}", flush=True)
        for kind, way, count in plan(made, [int(text) for text in options.counts.split(",")], ways):
            left = end - time.monotonic()
            if left < options.window:
                print("no time left for more")
                break
            found = measure(kind, way, count, folder, window=options.window, limit=min(options.limit, left))
            if count == 1 and found.rate is not None:
                alone[kind.name] = found.rate
            print(line(found, alone), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
