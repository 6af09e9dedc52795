"""124M parameters on real text (study=convergence): train, and compare the validation curve with the recorded one.

    python -m benchmarks.convergence_text text 250       # where packages are installed: text.tar.xz to carry
    python -m benchmarks.convergence text [runs/curve]   # on the GPU machine: prepare, train, print, compare

The reference is benchmarks/results/convergence.txt where it is there: lines of `tokens loss`. Without a GPU this takes
days; nothing here runs in the tests.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import yaml

from train.spec.yamlfile import dump

REFERENCE = Path(__file__).with_name("results") / "convergence.txt"
TOLERANCE = 0.02
"""Difference of two seeds' losses that is no news [nats per token]."""


def config_of(text: Path, root: Path) -> dict[str, object]:
    """Return the run's config: conf/study/convergence.yaml and conf/model/124m.yaml as one file."""
    conf = Path(__file__).resolve().parents[1] / "conf"
    study = yaml.safe_load((conf / "study" / "convergence.yaml").read_text("utf-8"))
    model = yaml.safe_load((conf / "model" / "124m.yaml").read_text("utf-8"))
    sections = {name: study[name] for name in ("batch", "budget", "optim", "eval")}
    sections["optim"]["lr"] = float(sections["optim"]["lr"])
    data = {**study["data"], "source": str(text), "tokenizer": "bpe"}
    runtime = {"data_root": str(root), "log_steps": 10}
    return {
        **sections,
        "model": model,
        "data": data,
        "precision": {"name": "bf16"},
        "schedule": {"name": "wsd"},
        "runtime": runtime,
    }


def curve(run: Path) -> list[tuple[int, float]]:
    """Return (tokens, validation loss) of a run, in order."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [(r["tokens"], r["metrics"]["loss"]) for r in records if r["kind"] == "validation"]


def compare(found: list[tuple[int, float]], wanted: dict[int, float]) -> list[str]:
    """Return a line for each point: loss, and how far it is from the reference."""
    lines = []
    for tokens, loss in found:
        known = wanted.get(tokens)
        apart = "" if known is None else f"  {loss - known:+.4f}{'' if abs(loss - known) <= TOLERANCE else '  DIFFERS'}"
        lines.append(f"{tokens:>12,} {loss:.4f}{apart}")
    return lines


def main(arguments: list[str]) -> int:
    """Prepare, train and compare; return the trainer's exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.convergence", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("text", type=Path, help="folder of text files, see benchmarks.convergence_text")
    parser.add_argument("run", type=Path, nargs="?", default=Path("runs/convergence"), help="the run's folder")
    options = parser.parse_args(arguments)
    text, run = options.text, options.run
    run.mkdir(parents=True, exist_ok=True)
    config, root = run / "config.yaml", run / "data"
    config.write_text(dump(config_of(text, root)), "utf-8")
    for command in (["train.prepare", "--config", str(config)], ["train.run", "--config", str(config)]):
        code = subprocess.run([sys.executable, "-m", *command], check=False).returncode
        if code:
            return code
    wanted = {}
    if REFERENCE.exists():
        pairs = [line.split()[:2] for line in REFERENCE.read_text("utf-8").splitlines() if len(line.split()) > 1]
        wanted = {int(tokens.replace(",", "")): float(loss) for tokens, loss in pairs if tokens[:1].isdigit()}
    print("\n".join(compare(curve(run), wanted)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
