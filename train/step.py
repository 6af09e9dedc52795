"""One optimiser step: micro-batches, gradients summed over micro-batches and ranks, clipping, AdamW."""

from __future__ import annotations

import torch
from torch import Tensor

from train.loss import linear_cross_entropy
from train.optimizer import set_lr
from train.progress import Progress, batch_sequences, parts
from train.schedule import factor
from train.setup import Setup


def lr_at(setup: Setup, tokens: int) -> float:
    """Return the learning rate of the step that ends at `tokens`."""
    config = setup.config
    assert config.optim.lr is not None
    assert config.budget.tokens is not None
    return config.optim.lr * factor(config.schedule, tokens, config.budget.tokens)


def accumulate(setup: Setup, start: int, count: int) -> Tensor:
    """Add up the gradients of sequences start to start + count over all ranks; return their mean loss [nats/token].

    The loss of every micro-batch is divided by the tokens of the whole step before its backward pass, so that
    gradients are the same sum however the step is cut into micro-batches and ranks. An fp64 scalar, on the device.
    """
    share = setup.world.share(count)
    scale = 1.0 / (count * setup.config.data.sequence_length)
    total = torch.zeros((), dtype=torch.float64, device=setup.device)
    rows = torch.from_numpy(setup.data.sequences(start + share.start, len(share)))
    if setup.device.type == "cuda":
        rows = rows.pin_memory().to(setup.device, non_blocking=True)
    for part in torch.split(rows, parts(len(rows), setup.micro)):  # none in a short last step's idle rank
        with setup.autocast:
            hidden = setup.model(part[:, :-1]).flatten(0, 1)
            loss = linear_cross_entropy(hidden, setup.model.head, part[:, 1:].reshape(-1), scale)
        torch.autograd.backward(loss)
        total += loss.detach()
    setup.world.sum_gradients(setup.model.parameters())
    return setup.world.sum_(total)


def step(setup: Setup, progress: Progress) -> tuple[Tensor, Tensor]:
    """Take one step and move `progress`; return loss [nats/token] and gradient norm before clipping, on the device."""
    config = setup.config
    assert config.batch.tokens is not None
    assert config.budget.tokens is not None
    length = config.data.sequence_length
    count = batch_sequences(config.batch.tokens, config.budget.tokens, progress.tokens, length)
    setup.optimizer.zero_grad(set_to_none=True)
    loss = accumulate(setup, progress.sequences, count)
    weights = list(setup.model.parameters())
    norm = torch.nn.utils.get_total_norm([w.grad for w in weights if w.grad is not None])
    if config.optim.grad_clip > 0:
        torch.nn.utils.clip_grads_with_norm_(weights, config.optim.grad_clip, norm)
    set_lr(setup.optimizer, lr_at(setup, progress.tokens + count * length))
    setup.optimizer.step()
    progress.step += 1
    progress.sequences += count
    progress.tokens += count * length
    return loss, norm
