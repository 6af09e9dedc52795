"""What is looked at inside a run, and at which steps: statistics of layers, copies on other ranks, repeated steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from train.data.batch import Batch
from train.health import layer_statistics, repeat_step, replica_hashes
from train.health.layer_statistics import Size
from train.health.shard_names import Part, held, part_of, state_of
from train.optim.optimizer import Optimizer
from train.parallel.parallel_model import ParallelModel
from train.precision import underflow
from train.precision.loss_scaler import LossScaler
from train.spec.config import HealthConfig

Named = Callable[[], Iterable[tuple[str, nn.Parameter]]]
Compute = Callable[[], Tensor]


class Ranks(Protocol):
    """What ranks tell each other at an interval."""

    @property
    def writes(self) -> bool:
        """Whether this rank writes the run's files."""

    def gather(self, thing: Any) -> list[Any]:
        """Return every rank's thing, in the order of ranks, on every rank."""


class Watch:
    """Looks at one step from inside; the step calls `gradients` before clipping and `updated` after the update."""

    def __init__(self, named: Named, loss_scale: Tensor | None = None) -> None:
        self._named = named
        self._loss_scale = torch.ones(()) if loss_scale is None else loss_scale
        self._lost: dict[Part, list[float]] = {}
        self._before: dict[str, Tensor] = {}
        self._gradients: dict[Part, Size] = {}
        self._updates: dict[Part, Size] = {}
        self._weights: dict[Part, Size] = {}

    def gradients(self) -> None:
        """Measure the gradients, summed over ranks, and remember the weights."""
        grads = [(name, w.grad) for name, w in self._named() if w.grad is not None]
        self._gradients = layer_statistics.measure(grads)
        lost = underflow.counts((held(grad) for _, grad in grads), self._loss_scale).tolist()
        self._lost = {part_of(name, grad): row for (name, grad), row in zip(grads, lost, strict=True)}
        self._before = layer_statistics.copies(self._named())

    def updated(self) -> None:
        """Measure the weights and what the update did to them."""
        self._updates = layer_statistics.updates(self._named(), self._before)
        self._weights = layer_statistics.measure(self._named())
        self._before = {}

    def metrics(self, ranks: Ranks) -> dict[str, float]:
        """Return the measures of the whole model; every rank takes part."""
        gradients, updates, weights = (
            layer_statistics.together(ranks.gather(found)) for found in (self._gradients, self._updates, self._weights)
        )
        lost = {part: row for found in ranks.gather(self._lost) for part, row in found.items()}
        return {
            **underflow.shares(lost.values()),
            **layer_statistics.values("gradient", gradients),
            **layer_statistics.values("weight", weights),
            **layer_statistics.values("update", updates),
            **layer_statistics.ratios(updates, weights),
        }


class Inspection:
    """Everything that the section `health` asks for, at its intervals."""

    def __init__(
        self, config: HealthConfig, ranks: Ranks, named: Named, optimizer: Optimizer, scaler: LossScaler | None = None
    ) -> None:
        """`scaler`: whose factor the loss is multiplied by, if it is."""
        self._config, self._ranks, self._named, self._optimizer = config, ranks, named, optimizer
        self._scaler = scaler

    def before_step(
        self,
        step: int,
        batch: Callable[[], Batch],
        model: ParallelModel,
        gradients: Callable[[Batch], Tensor],
        record: Callable[[str, int, dict[str, float]], None],
    ) -> None:
        """Measure activations and repeat gradients where that is due at step number `step`, on its `batch`.

        gradients: adds up those of a batch, as `probe` wants it.
        """
        activations, probe = self.wants_activations(step), self.wants_probe(step)
        if not (activations or probe):
            return
        found = batch()
        if activations:
            first = found.part(0, min(model.micro, len(found))).to(model.device)
            record("activations", step, self.activations(model.modules, lambda: model.forward(first)))
        if probe:
            self.probe(step, lambda: gradients(found))

    def watch(self, step: int) -> Watch | None:
        """Return what watches step number `step`, where its statistics are due."""
        if not _due(step, self._config.statistics_steps):
            return None
        return Watch(self._named, None if self._scaler is None else self._scaler.scale)

    def wants_activations(self, step: int) -> bool:
        """Say whether activations are measured before step number `step`."""
        return self._config.activations and _due(step, self._config.statistics_steps)

    def activations(self, parts: Iterable[nn.Module], forward: Callable[[], object]) -> dict[str, float]:
        """Return sizes of what each layer puts out, over all ranks, as metrics; `forward` runs the model once.

        parts: those of the model that this rank holds.
        """
        sizes = layer_statistics.activations([layer for part in parts for layer in _layers(part)], forward)
        return layer_statistics.values("activation", layer_statistics.pooled(self._ranks.gather(sizes)))

    def wants_probe(self, step: int) -> bool:
        """Say whether the gradients of step number `step` are computed twice more."""
        return _due(step, self._config.probe_steps)

    def probe(self, step: int, compute: Compute) -> None:
        """Compute gradients twice and compare their bits; CorruptionError naming the rank where they differ.

        compute: adds up the gradients of the step and returns this rank's own loss, from before it is summed.
        """

        def once() -> Iterator[tuple[str, Tensor]]:
            self._optimizer.zero_grad(set_to_none=True)
            yield "loss", compute()
            yield from ((name, w.grad) for name, w in self._named() if w.grad is not None)

        found = repeat_step.differences(self._ranks.gather(repeat_step.repeat(once)))
        if found:
            raise repeat_step.CorruptionError(repeat_step.message(found, step))

    def compare_copies(self, step: int) -> None:
        """Compare what ranks hold as copies where that is due after `step`; DesyncError naming rank and parameter."""
        if not _due(step, self._config.desync_steps):
            return
        mine: Mapping[Part, int] = replica_hashes.fingerprints(state_of(self._named(), self._optimizer))
        found = replica_hashes.compare(self._ranks.gather(mine))
        if found:
            raise replica_hashes.DesyncError(replica_hashes.message(found, step))


def _layers(part: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of a part of the model whose outputs are measured: embedding, blocks, the last norm."""
    for name, child in part.named_children():
        if name == "blocks":
            yield from ((f"blocks.{number}", block) for number, block in child.named_children())
        elif name in ("embedding", "norm"):
            yield name, child


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
