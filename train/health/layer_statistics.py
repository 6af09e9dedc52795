"""Sizes of gradients, weights, updates and activations by layer, right under every sharding.

Every rank measures what it holds; parts are put together on the host, each part once however many ranks hold a copy.
Only at an interval: the values are waited for, and the weights are copied to know the update.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from kernels.adamw.gradient_norm import tensor_norm
from train.health.shard_names import Part, held, part_of, stacked


class Size(NamedTuple):
    """Sum of squares, largest magnitude and number of elements of a part."""

    squares: float
    largest: float
    elements: int


class Measured(NamedTuple):
    """Root mean square and largest magnitude of a whole tensor."""

    rms: float
    largest: float


def measure(named: Iterable[tuple[str, Tensor]]) -> dict[Part, Size]:
    """Return the size of every part that this rank holds; waits for the device once."""
    pairs = [(name, tensor, held(tensor)) for name, tensor in named]
    if not pairs:
        return {}
    values = stacked([value for _, _, own in pairs for value in _size(own)]).tolist()
    return {
        part_of(name, tensor): Size(values[2 * i], values[2 * i + 1], own.numel())
        for i, (name, tensor, own) in enumerate(pairs)
    }


def _size(own: Tensor) -> tuple[Tensor, Tensor]:
    if not own.numel():
        zero = torch.zeros((), dtype=torch.float64, device=own.device)
        return zero, zero
    return (
        tensor_norm(own).double().square(),
        torch.linalg.vector_norm(own, ord=float("inf"), dtype=torch.float32).double(),
    )


def together(ranks: Sequence[Mapping[Part, Size]]) -> dict[str, Measured]:
    """Return the measures of whole tensors from every rank's parts, each part counted once."""
    parts: dict[Part, Size] = {}
    for found in ranks:
        for part, size in found.items():
            parts.setdefault(part, size)
    return _measured((part.name, size) for part, size in parts.items())


def pooled(ranks: Sequence[Mapping[str, Size]]) -> dict[str, Measured]:
    """Return the measures of activations from every rank's; copies count as often as they are held, each equally."""
    return _measured((name, size) for found in ranks for name, size in found.items())


def _measured(sizes: Iterable[tuple[str, Size]]) -> dict[str, Measured]:
    whole: dict[str, Size] = {}
    for name, size in sizes:
        before = whole.get(name, Size(0.0, 0.0, 0))
        whole[name] = Size(
            before.squares + size.squares, max(before.largest, size.largest), before.elements + size.elements
        )
    return {name: Measured((s.squares / max(1, s.elements)) ** 0.5, s.largest) for name, s in whole.items()}


def copies(named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Return copies of what this rank holds of every tensor."""
    return {name: held(tensor).clone() for name, tensor in named}


def updates(named: Iterable[tuple[str, Tensor]], before: Mapping[str, Tensor]) -> dict[Part, Size]:
    """Return the size of what was added to every weight since `copies`."""
    found = {}
    for name, tensor in named:
        change = measure([(name, held(tensor) - before[name])])
        found[part_of(name, tensor)] = next(iter(change.values()))
    return found


def values(kind: str, measured: Mapping[str, Measured]) -> dict[str, float]:
    """Return measures as metrics: `<name>/<kind>_rms` and `<name>/<kind>_max`."""
    return {
        f"{name}/{kind}_{what}": value
        for name, m in measured.items()
        for what, value in (("rms", m.rms), ("max", m.largest))
    }


def ratios(changes: Mapping[str, Measured], weights: Mapping[str, Measured]) -> dict[str, float]:
    """Return each update's root mean square over its weight's, as metrics `<name>/update_ratio`."""
    return {f"{name}/update_ratio": m.rms / weights[name].rms for name, m in changes.items() if weights[name].rms > 0}


def activations(modules: Iterable[tuple[str, nn.Module]], forward: Callable[[], object]) -> dict[str, Size]:
    """Return the size of each module's output during `forward`, which runs without gradients and uncompiled."""
    found: dict[str, list[tuple[Tensor, Tensor, int]]] = {}
    with _listening(modules, found), torch.no_grad(), _eager():
        forward()
    sizes = {}
    for name, outputs in found.items():
        squares = torch.stack([one for one, _, _ in outputs]).sum()
        largest = torch.stack([one for _, one, _ in outputs]).max()
        sizes[name] = Size(float(squares), float(largest), sum(count for _, _, count in outputs))
    return sizes


def _eager() -> AbstractContextManager[object]:
    """Return a context in which nothing is compiled; without the compiler, loading it would cost seconds."""
    loaded = "torch._dynamo" in sys.modules
    return torch.compiler.set_stance("force_eager") if loaded else nullcontext()


@contextmanager
def _listening(
    modules: Iterable[tuple[str, nn.Module]], found: dict[str, list[tuple[Tensor, Tensor, int]]]
) -> Iterator[None]:
    """Collect the sizes of modules' outputs, by name, for as long as the context lasts."""

    def listener(name: str) -> Callable[..., None]:
        def listen(module: nn.Module, inputs: object, output: object) -> None:
            first = output[0] if isinstance(output, tuple) else output
            if isinstance(first, Tensor):
                own = held(first)
                found.setdefault(name, []).append((*_size(own), own.numel()))

        return listen

    handles = [module.register_forward_hook(listener(name)) for name, module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
