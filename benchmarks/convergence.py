"""124M parameters on real text (study=convergence): train, and compare the validation curve with the recorded one.

    python -m benchmarks.convergence_text text 150                # where packages are installed: text.tar.xz to carry
    python -m benchmarks.convergence text runs/curve --write benchmarks/results/convergence.txt   # on the GPU machine

The recorded curve is benchmarks/results/convergence.txt; one of other text (the fingerprint of its tokens says so) is
not compared. The curve is written however the training ends, also when `--seconds` stop it. On a CPU this takes days;
`--set model.width=64 …` makes it small enough to try.
"""

from __future__ import annotations

import datetime
import itertools
import json
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from train.spec.command_line import Parser
from train.spec.config import RunConfig
from train.spec.from_mapping import read
from train.spec.manifest import folder, read_manifest
from train.spec.yamlfile import dump

REFERENCE = Path(__file__).with_name("results") / "convergence.txt"
TOLERANCE = 0.02
"""Difference of two seeds' losses that is no news [nats per token]."""
SAVING = 30.0
"""How long a run that was asked to stop may take to save itself [s]."""


@dataclass(frozen=True)
class Point:
    """A validation: after how many tokens, its loss [nats/token], and that of training since the one before.

    training: the mean of the steps that were recorded since then; None: none was.
    """

    tokens: int
    loss: float
    bits_per_byte: float
    training: float | None


def config_of(text: Path, root: Path, gpu: bool, changes: Sequence[str] = ()) -> dict[str, Any]:
    """Return the run's config: conf/study/convergence.yaml and conf/model/124m.yaml as one file.

    `changes` are KEY.KEY=VALUE. On a GPU blocks are compiled, and micro-batches are as large as make it fast.
    """
    conf = Path(__file__).resolve().parents[1] / "conf"
    study = yaml.safe_load((conf / "study" / "convergence.yaml").read_text("utf-8"))
    model = yaml.safe_load((conf / "model" / "124m.yaml").read_text("utf-8"))
    config: dict[str, Any] = {name: study[name] for name in ("batch", "budget", "optim", "eval")}
    config["optim"]["lr"] = float(config["optim"]["lr"])
    config |= {
        "model": model,
        "data": {**study["data"], "source": str(text), "tokenizer": "bpe"},
        "precision": {"name": "bf16"},
        "schedule": yaml.safe_load((conf / "schedule" / "wsd.yaml").read_text("utf-8")),
        "runtime": {"data_root": str(root), "log_steps": 10, "checkpoint_seconds": 60.0},
        "parallel": {"micro_batch_sequences": 64} if gpu else {},
        "compile": {"blocks": gpu},
    }
    for change in changes:
        keys, _, value = change.partition("=")
        section, _, key = keys.partition(".")
        config[section][key] = yaml.safe_load(value)
    return config


def records(run: Path, kind: str) -> list[dict[str, Any]]:
    """Return what a run has recorded of a kind; a last line that is not whole does not count."""
    path = run / "metrics.jsonl"
    lines = path.read_text("utf-8").splitlines(keepends=True) if path.exists() else []
    every = [json.loads(line) for line in lines if line.endswith("\n")]
    return [record for record in every if record["kind"] == kind]


def curve(run: Path) -> list[Point]:
    """Return the validations of a run, in order."""
    train, points, before = records(run, "train"), [], 0
    for record in records(run, "validation"):
        tokens, metrics = record["tokens"], record["metrics"]
        losses = [r["metrics"]["loss"] for r in train if before < r["tokens"] <= tokens]
        mean = sum(losses) / len(losses) if losses else None
        points.append(Point(tokens, metrics["loss"], metrics["bits_per_byte"], mean))
        before = tokens
    return points


def recorded(path: Path) -> tuple[str, dict[int, float]]:
    """Return the fingerprint of the recorded curve's tokens and its losses by tokens; ("", {}) where there is none."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in lines if line.startswith("|")]
    known = {int(tokens.replace(",", "")): float(loss) for tokens, loss in rows if tokens[:1].isdigit()}
    found = [line.partition("fingerprint ")[2].split()[0] for line in lines if "fingerprint " in line]
    return (found[0] if found else ""), known


def table(points: Sequence[Point], wanted: Mapping[int, float]) -> list[str]:
    """Return the curve as a table; a loss that is further than `TOLERANCE` from the recorded one is marked."""
    lines = ["| tokens | validation [nats/token] | bits/byte | training since the line above |", "|---:" * 4 + "|"]
    for point in points:
        known = wanted.get(point.tokens)
        apart = "" if known is None else f" recorded {known:.4f}, {point.loss - known:+.4f}"
        apart += "" if known is None or abs(point.loss - known) <= TOLERANCE else " DIFFERS"
        training = "" if point.training is None else f"{point.training:.4f}"
        lines.append(f"| {point.tokens:,} | {point.loss:.4f} | {point.bits_per_byte:.4f} | {training} |{apart}")
    return lines


def about(run: Path, config: RunConfig, ended: str) -> list[str]:
    """Return what the curve is of: date, device, versions, text, speed."""
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    lines = [
        f"{datetime.datetime.now(datetime.UTC).date()}, {device}, Python {platform.python_version()}, "
        f"torch {torch.__version__}"
    ]
    target = folder(config.data, Path(config.runtime.data_root))
    if (target / "manifest.json").exists():
        manifest = read_manifest(target)
        train = manifest.splits["train"]
        assert config.budget.tokens is not None
        lines.append(
            f"{train.documents:,} documents, {train.bytes / 1e6:.1f} MB, {train.tokens / 1e6:.2f}M training tokens of "
            f"{train.bytes / train.tokens:.2f} bytes (fingerprint {manifest.fingerprint} of the corpus), read "
            f"{config.budget.tokens / train.tokens:.2f} times"
        )
    return [*lines, f"{speed(records(run, 'train'))}; {ended}"]


def speed(steps: Sequence[Mapping[str, Any]]) -> str:
    """Return the training speed from the first recorded step, which compiles, to the last, and the memory.

    Not a mean or median of the recorded speeds: around a validation, which waits for the device, one counts the time of
    a step too many and the next that of one too few.
    """
    if len(steps) < 2:
        return "no speed"
    tokens = steps[-1]["tokens"] - steps[0]["tokens"]
    seconds = sum(
        (after["tokens"] - before["tokens"]) / after["metrics"]["tokens_per_second"]
        for before, after in itertools.pairwise(steps)
    )
    last, rate = steps[-1]["metrics"], tokens / seconds
    mfu = f", MFU {last['mfu'] * rate / last['tokens_per_second']:.1%}" if "mfu" in last else ""
    memory = f", {last['peak_memory_gib']:.1f} GiB" if "peak_memory_gib" in last else ""
    return f"{rate:,.0f} tokens/s{mfu}{memory}"


def report(run: Path, config: RunConfig, ended: str, reference: Path) -> str:
    """Return what is known of a run, beside the recorded curve where that is of the same tokens."""
    head = about(run, config, ended)
    fingerprint, known = recorded(reference)
    other = bool(known) and not any(f"fingerprint {fingerprint} " in line for line in head)
    note = [f"The recorded curve is of other text ({fingerprint}): not compared."] if other else []
    return "\n".join([*head, *note, "", *table(curve(run), {} if other else known)]) + "\n"


def train(config: Path, seconds: float | None) -> tuple[int, str]:
    """Train for at most so long; return the trainer's exit code and how it ended, in words."""
    process = subprocess.Popen([sys.executable, "-m", "train.run", "--config", str(config)])
    try:
        code = process.wait(seconds)
        return code, "trained to the end" if code == 0 else f"ended with exit code {code}"
    except subprocess.TimeoutExpired:
        return 1, f"stopped after {seconds:.0f} s"
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask a trainer that still runs to save itself and end, and make it end."""
    process.terminate()
    try:
        process.wait(SAVING)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main(arguments: list[str]) -> int:
    """Prepare, train and compare; return the trainer's exit code."""
    parser = Parser(prog="python -m benchmarks.convergence", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("text", type=Path, help="folder of text files, see benchmarks.convergence_text")
    parser.add_argument("run", type=Path, nargs="?", default=Path("runs/convergence"), help="the run's folder")
    parser.add_argument("--seconds", type=float, help="longest that training may take [s]")
    parser.add_argument("--write", type=Path, help="file for the curve, written however training ends")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY.KEY=VALUE", help="change the config")
    options = parser.parse_args(arguments)
    from torch.cuda import is_available

    run: Path = options.run
    run.mkdir(parents=True, exist_ok=True)
    config = run / "config.yaml"
    mapping = config_of(options.text, run / "data", is_available(), options.set)
    config.write_text(dump(mapping), "utf-8")
    prepared = subprocess.run([sys.executable, "-m", "train.prepare", "--config", str(config)], check=False)
    if prepared.returncode:
        return prepared.returncode
    code, ended = 1, "interrupted"
    try:
        code, ended = train(config, options.seconds)
    finally:
        text = report(run, read(RunConfig, mapping), ended, REFERENCE)
        print(text)
        if options.write is not None:
            options.write.write_text(f"$ python -m benchmarks.convergence\n{text}", "utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
