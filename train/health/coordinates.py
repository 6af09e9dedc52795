"""Do activations change alike at every width? The numbers of `python -m train.coordinate_check`.

Trains models of several widths for a few steps on one random batch and measures, layer by layer, how much outputs have
moved since the start (Yang et al. 2022, appendix D.1). Under muP the change has the same size at every width: its slope
over the width, both in logarithms, is about 0. Under the standard parametrisation it grows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from train.model.init import initialise
from train.model.norm import Norm
from train.model.transformer import Transformer
from train.optim.build import make_optimizer
from train.spec.config import ModelConfig, OptimConfig
from train.spec.counts import head_dim, kv_heads, mlp_width

VOCABULARY, LENGTH, SEQUENCES = 256, 32, 8
Outputs = dict[str, Tensor]


@dataclass(frozen=True)
class Scale:
    """What one layer does at one width: rms of its outputs at the start, and of their change after the steps."""

    layer: str
    width: int
    start: float
    change: float


def check(model: ModelConfig, optim: OptimConfig, widths: Sequence[int], steps: int, seeds: int = 2) -> list[Scale]:
    """Return the scales of every layer at every width, averaged over seeds. `model` may name a muP base width."""
    found = []
    for width in widths:
        sized = replace(model, width=width)
        full = replace(sized, head_dim=head_dim(sized), kv_heads=kv_heads(sized), mlp_width=mlp_width(sized))
        runs = [_run(full, optim, steps, seed) for seed in range(seeds)]
        for layer in runs[0]:
            start = sum(run[layer][0] for run in runs) / seeds
            change = sum(run[layer][1] for run in runs) / seeds
            found.append(Scale(layer, width, start, change))
    return found


def slopes(scales: Sequence[Scale]) -> dict[str, float]:
    """Return each layer's slope of the change over the width, both as logarithms: least squares."""
    found = {}
    for layer in dict.fromkeys(scale.layer for scale in scales):
        points = [(math.log(s.width), math.log(max(s.change, 1e-30))) for s in scales if s.layer == layer]
        x, y = (math.fsum(values) / len(points) for values in zip(*points, strict=True))
        spread = math.fsum((a - x) ** 2 for a, _ in points)
        found[layer] = math.fsum((a - x) * (b - y) for a, b in points) / spread
    return found


def _run(config: ModelConfig, optim: OptimConfig, steps: int, seed: int) -> dict[str, tuple[float, float]]:
    """Return rms at the start and of the change after the steps, by layer."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (SEQUENCES, LENGTH + 1), generator=generator)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    model = Transformer(config, VOCABULARY, LENGTH)
    model.materialise(torch.device("cpu"))
    model.penalise(optim)
    initialise(model, seed)
    optimizer = make_optimizer(model.named_parameters(), model.specs, config, optim)
    before = _outputs(model, inputs)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(model(inputs, targets) / targets.numel())
        optimizer.step()
    after = _outputs(model, inputs)
    return {layer: (_rms(before[layer]), _rms(after[layer] - before[layer])) for layer in before}


@torch.no_grad()
def _outputs(model: Transformer, inputs: Tensor) -> Outputs:
    outputs: Outputs = {}
    with _kept(model, outputs):
        logits = model(inputs)
    return {**outputs, "logits": logits}


@contextmanager
def _kept(model: nn.Module, outputs: Outputs) -> Iterator[None]:
    """Keep what attention, MLP and block of every layer put out."""
    wanted = {name: m for name, m in model.named_modules() if name.startswith("blocks.") and name.count(".") <= 2}
    handles = [
        module.register_forward_hook(lambda _, __, out, name=name: outputs.__setitem__(name, out))
        for name, module in wanted.items()
        if not isinstance(module, Norm)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _rms(values: Tensor) -> float:
    return float(values.double().square().mean().sqrt())


def plot(scales: Sequence[Scale], steps: int, path: Path) -> None:
    """Draw the change of every layer over the width."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for layer in dict.fromkeys(scale.layer for scale in scales):
        points = [(s.width, s.change) for s in scales if s.layer == layer]
        axes.plot(*zip(*points, strict=True), marker="o", label=layer)
    axes.set(xscale="log", yscale="log", xlabel="width [channels]", ylabel=f"rms of the change after {steps} steps")
    axes.legend(fontsize="small", ncols=2)
    figure.savefig(path)
