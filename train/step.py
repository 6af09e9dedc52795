"""One optimiser step: micro-batches, gradients summed over micro-batches and ranks, clipping, the update."""

from __future__ import annotations

import torch
from torch import Tensor

from train.batch import Batch
from train.health.guard import skip_flag
from train.optim import set_lr
from train.parallel.context import cut_batch
from train.parallel.norm import clip_, total_norm
from train.progress import Progress, batch_sequences, parts
from train.schedule import batch_tokens, factor
from train.setup import Setup


def lr_at(setup: Setup, tokens: int) -> float:
    """Return the learning rate of the step that ends at `tokens`."""
    config = setup.config
    assert config.optim.lr is not None
    assert config.budget.tokens is not None
    return config.optim.lr * factor(config.schedule, tokens, config.budget.tokens)


def take(setup: Setup, start: int, count: int) -> Batch:
    """Return this rank's part of sequences start to start + count, on the CPU, padded to the largest rank's part."""
    share = setup.mesh.share(count)
    rows = setup.data.rows(start + share.start, len(share))
    return cut_batch(Batch.of_rows(rows).padded(setup.mesh.most(count)), setup.mesh)


def accumulate(setup: Setup, batch: Batch) -> Tensor:
    """Add up the gradients of a global batch of which this rank has `batch`; return its mean loss [nats/token].

    The loss of every micro-batch is divided by the tokens that the whole global batch trains on before its backward
    pass, so that gradients are the same sum however the step is cut into micro-batches and ranks, and however many
    tokens of each count. An fp64 scalar, on the device, the same on every rank.
    """
    valid = torch.tensor(float(batch.valid()), dtype=torch.float64).to(setup.device, non_blocking=True)
    valid = setup.mesh.sum_tokens_(valid).clamp_(min=1.0)
    batch = batch.to(setup.device)
    if setup.pipeline is not None:
        return setup.mesh.sum_losses_(setup.pipeline.step(batch, valid))
    total = torch.zeros((), dtype=torch.float64, device=setup.device)
    (stage,) = setup.stages
    start, sizes = 0, parts(len(batch), setup.micro)
    for i, size in enumerate(sizes):
        micro = batch.part(start, start + size)
        stage.last_micro(i == len(sizes) - 1)
        with setup.autocast:
            loss = stage.call(micro.inputs, micro.targets, micro.positions) / valid
        torch.autograd.backward(loss if stage.loss_factor == 1.0 else loss * stage.loss_factor)
        total += loss.detach()
        start += size
    stage.finish()
    return setup.mesh.sum_losses_(total)


def step(setup: Setup, progress: Progress) -> tuple[Tensor, Tensor]:
    """Take one step and move `progress`; return loss [nats/token] and gradient norm before clipping, on the device."""
    config = setup.config
    budget, length = config.budget.tokens, config.data.sequence_length
    assert budget is not None
    count = batch_sequences(batch_tokens(config.batch, budget, progress.tokens), budget, progress.tokens, length)
    setup.optimizer.zero_grad(set_to_none=True)
    loss = accumulate(setup, take(setup, progress.sequences, count))
    weights = [weight for _, weight in setup.named_parameters()]
    norm = total_norm(weights, setup.mesh)
    if config.optim.grad_clip > 0:
        clip_(weights, config.optim.grad_clip, norm)
    set_lr(setup.optimizer, lr_at(setup, progress.tokens + count * length))
    setup.optimizer.step(skip=skip_flag(loss, norm))
    progress.step += 1
    progress.sequences += count
    progress.tokens += count * length
    return loss, norm
