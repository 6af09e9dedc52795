"""One optimiser step: micro-batches, gradients summed over micro-batches and ranks, clipping, the update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from train.data.batch import Batch, even_parts
from train.health.nonfinite import skip_flag
from train.metrics.timers import UNTIMED, Clock
from train.optim.optimizer import set_lr
from train.parallel.grad_norm import clip_factor, total_norm
from train.setup import Setup
from train.spec.schedule import batch_sequences, factor
from train.state import TrainState


def lr_at(setup: Setup, tokens: int) -> float:
    """Return the learning rate of the step that ends at `tokens`."""
    config = setup.config
    assert config.optim.lr is not None
    assert config.budget.tokens is not None
    return config.optim.lr * factor(config.schedule, tokens, config.budget.tokens)


def take(setup: Setup, start: int, count: int, later: Iterable[tuple[int, int]] = ()) -> Batch:
    """Return this rank's part of sequences start to start + count, on the CPU, padded to the largest rank's part.

    `later` says what will likely be taken next, so that it can be read ahead.
    """
    return setup.reader.take((start, count), later)


def upcoming(setup: Setup, progress: TrainState) -> Iterator[tuple[int, int]]:
    """Yield what the steps after the next one will take: the first sequence's number, and how many."""
    at, length, budget = replace(progress), setup.config.data.sequence_length, setup.config.budget.tokens
    assert budget is not None
    while (count := next_sequences(setup, at)) > 0:
        if at.tokens > progress.tokens:
            yield at.sequences, count
        at.sequences, at.tokens = at.sequences + count, at.tokens + count * length


def accumulate(setup: Setup, batch: Batch, clock: Clock = UNTIMED) -> Tensor:
    """Add up the gradients of a global batch of which this rank has `batch`; return its mean loss [nats/token].

    An fp64 scalar, on the device, the same on every rank.
    """
    return setup.mesh.sum_losses_(accumulate_own(setup, batch, clock))


def accumulate_own(setup: Setup, batch: Batch, clock: Clock = UNTIMED) -> Tensor:
    """Do what `accumulate` does and return this rank's own part of the mean loss.

    The loss of every micro-batch is divided by the tokens that the whole global batch trains on before its backward
    pass, so that gradients are the same sum however the step is cut into micro-batches and ranks, and however many
    tokens of each count.
    """
    # Filled in on the device: a copy from memory that is not page-locked would wait for all that runs there.
    valid = torch.full((), float(batch.valid()), dtype=torch.float64, device=setup.device)
    valid = setup.mesh.sum_tokens_(valid).clamp_(min=1.0)
    if setup.config.compile.blocks:  # one shape for all micro-batches, whatever is left for the last
        batch = batch.padded(-(-len(batch) // setup.micro) * setup.micro)
    batch = batch.to(setup.device)
    if setup.pipeline is not None:
        with clock.phase("forward_backward"):
            return setup.pipeline.step(batch, valid, setup.scaler.scale if setup.scaler.enabled else 1.0)
    total = torch.zeros((), dtype=torch.float64, device=setup.device)
    (stage,) = setup.stages
    start, sizes = 0, even_parts(len(batch), setup.micro)
    for i, size in enumerate(sizes):
        micro = batch.part(start, start + size)
        stage.last_micro(i == len(sizes) - 1)
        with clock.phase("forward"), setup.autocast:
            loss = stage.call(micro.inputs, micro.targets, micro.positions, micro.documents) / valid
        with clock.phase("backward"):
            torch.autograd.backward(setup.scaler.scaled(loss * stage.loss_factor if stage.loss_factor != 1.0 else loss))
        total += loss.detach()
        start += size
    stage.finish()
    return total


@torch.no_grad()
def look(setup: Setup, batch: Batch) -> None:
    """Send the batch's first micro-batch through the model, for its activations."""
    first = batch.part(0, min(setup.micro, len(batch))).to(setup.device)
    if setup.pipeline is not None:
        setup.pipeline.evaluate(first)
        return
    (stage,) = setup.stages
    with setup.autocast:
        stage.call(first.inputs, first.targets, first.positions, first.documents)


def next_sequences(setup: Setup, progress: TrainState) -> int:
    """Return how many sequences the next step takes, of all ranks."""
    config = setup.config
    budget = config.budget.tokens
    assert budget is not None
    return batch_sequences(config.batch, budget, progress.tokens, config.data.sequence_length)


class Taken(NamedTuple):
    """What a step gave, as scalars on the device: loss [nats/token] and gradient norm before clipping."""

    loss: Tensor
    norm: Tensor


class Observer(Protocol):
    """Looks at a step from inside (train.health)."""

    def gradients(self) -> None:
        """Gradients are summed over ranks, not yet clipped, and still there."""

    def updated(self) -> None:
        """Weights are updated."""


def step(
    setup: Setup,
    progress: TrainState,
    *,
    clock: Clock = UNTIMED,
    observer: Observer | None = None,
    before_update: Callable[[], None] = lambda: None,
) -> Taken:
    """Take one step and move `progress`. `before_update` is called before weights and moments change."""
    config = setup.config
    count = next_sequences(setup, progress)
    tokens = count * config.data.sequence_length
    with clock.phase("data"):
        batch = take(setup, progress.sequences, count, upcoming(setup, progress))
    setup.optimizer.zero_grad(set_to_none=True)
    with setup.compilation.step():
        loss = accumulate(setup, batch, clock)
    weights = [weight for _, weight in setup.named_parameters()]
    with clock.phase("optimizer"):
        if setup.scaler.enabled:
            setup.scaler.unscale_([weight.grad for weight in weights if weight.grad is not None])
        norm = total_norm(weights, setup.mesh)
        if observer is not None:
            observer.gradients()
        clip = clip_factor(norm, config.optim.grad_clip) if config.optim.grad_clip > 0 else None
        set_lr(setup.optimizer, lr_at(setup, progress.tokens + tokens))
        before_update()
        skip = skip_flag(loss, norm)
        setup.optimizer.seed(progress.step)
        setup.optimizer.step(skip=skip, grad_scale=clip)
        setup.scaler.update(skip)
        setup.history.update(skip)
        if observer is not None:
            observer.updated()
    if setup.filler is not None:
        setup.filler.after_step()
    progress.step += 1
    progress.sequences += count
    progress.tokens += tokens
    return Taken(loss, norm)
