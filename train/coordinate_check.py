"""`python -m train.coordinate_check --widths 64,128,256 --lr 0.01`: do activations change equally at every width?

Trains models of several widths for a few steps on one random batch and measures, layer by layer, how much outputs have
moved since the start (Yang et al. 2022, appendix D.1). Under muP the change has the same size at every width: its slope
over the width, both in logarithms, is about 0. Under the standard parametrisation (`--standard`) it grows.
"""

from __future__ import annotations

if __name__ == "__main__":  # above the other imports: Ctrl-C counts from here on
    from train.spec.interrupts import run

    run("train.coordinate_check")

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from train.spec import calls
from train.spec.command_line import Parser, whole_number
from train.spec.config import ModelConfig, OptimConfig
from train.spec.counts import head_dim
from train.spec.decoder import resolve_model
from train.spec.interrupts import WRONG
from train.spec.optimizers import OPTIMIZERS

if TYPE_CHECKING:
    from train.health.coordinates import Scale

FORMATS = (".png", ".svg", ".pdf")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    options = _parser().parse_args(arguments)
    from train.health.coordinates import LENGTH, check, plot, slopes  # loads torch

    base = min(options.widths)
    model = ModelConfig(width=base, layers=options.layers, head_dim=options.head_dim)
    if not options.standard:
        based = replace(model, mup_base_width=base)
        model = replace(based, mup_base_head_dim=head_dim(model))
    try:
        for width in options.widths:
            resolve_model(replace(model, width=width), LENGTH)
        calls.positive("--lr", options.lr)
        _check_files(options.out, options.plot)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG
    optim = OptimConfig(name=options.optim, lr=options.lr, muon_scale=options.muon_scale)
    scales = check(model, optim, options.widths, options.steps)
    found = slopes(scales)
    print("slope of the change over the width (0: the same at every width)")
    for layer, slope in found.items():
        print(f"  {slope:+.2f}  {layer}")
    if options.out is not None:
        _write(options.out, scales, found)
    if options.plot is not None:
        plot(scales, options.steps, options.plot)
    return 0


def _check_files(out: Path | None, plot: Path | None) -> None:
    """Raise ValueError for a file that could not be written once the models are trained."""
    if plot is not None and plot.suffix not in FORMATS:
        raise ValueError(f"--plot {plot}: the suffix is none of {', '.join(FORMATS)}")
    for option, file in (("--out", out), ("--plot", plot)):
        if file is not None:
            _check_file(option, file)


def _check_file(option: str, file: Path) -> None:
    there = file.exists()
    try:
        file.open("ab").close()
    except OSError as error:
        raise ValueError(f"{option} {file}: {error.strerror}: name a file that can be written") from None
    if not there:
        file.unlink()


def _write(path: Path, scales: Sequence[Scale], found: Mapping[str, float]) -> None:
    path.write_text(json.dumps({"scales": [asdict(s) for s in scales], "slopes": dict(found)}, indent=1) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m train.coordinate_check", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--widths", type=_widths, default=[64, 128, 256], help="widths; the smallest is the base width: 64,128"
    )
    parser.add_argument("--layers", type=whole_number, default=2, help="number of blocks")
    parser.add_argument("--head-dim", type=whole_number, help="head dimension; default: grows with the width")
    parser.add_argument("--steps", type=whole_number, default=5, help="training steps")
    parser.add_argument("--optim", choices=tuple(OPTIMIZERS), default="adamw", help="optimizer")
    parser.add_argument(
        "--muon-scale", choices=("match_rms", "spectral"), default="match_rms", help="scale of Muon's update"
    )
    parser.add_argument("--lr", type=float, default=0.01, help="peak learning rate at the base width")
    parser.add_argument("--standard", action="store_true", help="standard parametrisation, for comparison")
    parser.add_argument("--out", type=Path, help="write scales and slopes as JSON")
    parser.add_argument("--plot", type=Path, help=f"draw them ({', '.join(FORMATS)})")
    return parser


def _widths(text: str) -> list[int]:
    found = sorted({int(part) for part in text.split(",") if part.isdecimal()})
    if len(found) < 2 or not all(part.isdecimal() for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: give two widths or more, such as 64,128")
    return found
