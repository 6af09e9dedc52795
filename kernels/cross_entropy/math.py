"""Softmax cross-entropy over a vocabulary, whole or cut into shards: its options, its mathematics, its reference.

Per token, with x the logits, c the soft-cap and V the whole vocabulary:
    t = logit_scale · x, then c · tanh(t / c) if capped
    lse = log Σ exp(t)          kept as (largest t, log Σ exp(t - largest)), for their sum would lose digits
    loss = (1 - ε) · (lse - t[target]) + ε · (lse - mean t) + z · lse²           (ε label smoothing, z the z-loss)
    ∂loss/∂t = exp(t - lse) · (1 + 2 z · lse) - (1 - ε) · [target] - ε / V
A rank that holds a shard of the columns needs of the others four numbers a token: the largest t, the sum of
exponentials, the target's t and, for smoothing, the sum of t. They travel in one all-gather.
z-loss: Chowdhery et al. 2022 (PaLM), section 5; soft-cap: Gemma 2 (2024), section 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Options:
    """What is added to plain cross-entropy; the defaults add nothing."""

    ignore_index: int = -100
    z_loss: float = 0.0
    label_smoothing: float = 0.0
    softcap: float = 0.0  # 0: none
    logit_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.z_loss < 0:
            raise ValueError(f"z_loss={self.z_loss}: must be at least 0")
        if not 0 <= self.label_smoothing <= 1:
            raise ValueError(f"label_smoothing={self.label_smoothing}: must be between 0 and 1")
        if self.softcap < 0:
            raise ValueError(f"softcap={self.softcap}: must be above 0, or None for no cap")

    @property
    def plain(self) -> bool:
        """Whether this is cross-entropy and nothing else."""
        return not self.penalised and self.softcap == 0.0 and self.logit_scale == 1.0

    @property
    def penalised(self) -> bool:
        """Whether the loss is another number than the cross-entropy of the target."""
        return self.z_loss > 0 or self.label_smoothing > 0


@dataclass(frozen=True)
class Shard:
    """The columns held here: the first one's number, the size of the whole vocabulary, the group's name ("": alone)."""

    start: int
    vocabulary: int
    group: str = ""


class Rows(NamedTuple):
    """One number a token, fp32 or fp64: the loss [nats] (0 where ignored), the largest t and log Σ exp(t - largest).

    plain: the cross-entropy alone; empty (0,) where the options have neither z-loss nor label smoothing.
    """

    loss: Tensor
    largest: Tensor
    log_sum: Tensor
    plain: Tensor

    @classmethod
    def room(cls, target: Tensor, dtype: torch.dtype, options: Options) -> Rows:
        """Return memory for the rows of these targets (tokens,)."""
        loss, largest, log_sum = (target.new_empty(len(target), dtype=dtype) for _ in range(3))
        return cls(loss, largest, log_sum, target.new_empty(len(target) if options.penalised else 0, dtype=dtype))


class Engine(Protocol):
    """What the losses need of an implementation. Logits (tokens, columns), targets global column numbers (tokens,)."""

    def statistics(self, logits: Tensor, target: Tensor, options: Options, shard: Shard) -> Tensor:
        """Return (4, tokens): largest t, sum of exp(t - largest), the target's t (0 if not held), sum of t."""
        ...

    def gradient(
        self, logits: Tensor, target: Tensor, rows: Rows, factor: Tensor | None, options: Options, shard: Shard,
        out: Tensor,
    ) -> None:  # fmt: skip
        """Write ∂loss/∂logits times each token's factor (tokens,) to `out`, which may be `logits`."""
        ...

    def fused(
        self, logits: Tensor, target: Tensor, options: Options, out: Tensor | None, factor: Tensor | None
    ) -> Rows:
        """Do both for an unsharded vocabulary; `factor` is one number for all tokens, (), or None for 1."""
        ...


def exact(dtype: torch.dtype) -> torch.dtype:
    """Return the format that sums are kept in: fp64 for fp64, else fp32."""
    return torch.promote_types(dtype, torch.float32)


def whole(columns: int) -> Shard:
    """Return the shard that is the whole vocabulary."""
    return Shard(0, columns)


def shard_of(columns: int, group: dist.ProcessGroup | None, vocabulary: tuple[int, int] | None) -> Shard:
    """Return the shard of `columns` that this rank of `group` holds; raises ValueError if it does not fit."""
    if group is None or group.size() == 1:
        return whole(columns)
    start, size = vocabulary or (group.rank() * columns, group.size() * columns)
    if not 0 <= start <= start + columns <= size:
        raise ValueError(f"vocabulary={(start, size)}: numbers {start} to {start + columns} do not fit into {size}")
    return Shard(start, size, group.group_name)


# Torch 2.13 has new names for these two and warns users of the old ones, which are the only ones in 2.11.
gather_into: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
scatter_sum_into: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def group_named(name: str) -> dist.ProcessGroup:
    """Return the process group that an operator was given by its name."""
    from torch.distributed import distributed_c10d

    group: dist.ProcessGroup = distributed_c10d._resolve_process_group(name)  # type: ignore[arg-type, attr-defined, unused-ignore]
    return group


def gathered(statistics: Tensor, shard: Shard, smoothing: bool) -> Tensor:
    """Return the statistics (4, tokens) of the whole vocabulary from each rank's, by one all-gather.

    The sum of t, the fourth row, stays at home unless smoothing needs it.
    """
    if not shard.group:
        return statistics
    group = group_named(shard.group)
    sent = statistics if smoothing else statistics[:3]
    everyone = sent.new_empty((group.size(), *sent.shape))
    gather_into(everyone.view(-1, sent.shape[1]), sent.contiguous(), group=group)
    return combined(everyone)


def combined(parts: Tensor) -> Tensor:
    """Return the statistics (4, tokens) of a vocabulary from those of its shards (shards, 3 or 4, tokens)."""
    largest = parts[:, 0].amax(0)
    # A shard without a finite logit has the largest -inf and the sum 0: its factor must be 0, not exp(-inf + inf).
    shift = torch.where(parts[:, 0] == largest, 0.0, parts[:, 0] - largest)
    total = (parts[:, 1] * shift.exp()).sum(0)
    rest = parts[:, 2:].sum(0)
    if len(rest) == 1:
        rest = torch.cat([rest, torch.zeros_like(rest)])
    return torch.cat([torch.stack([largest, total]), rest])


def losses(statistics: Tensor, target: Tensor, options: Options, vocabulary: int) -> Rows:
    """Return each token's loss from the statistics (4, tokens) of the whole vocabulary.

    NaN for a target that is neither in the vocabulary nor ignored: without a transfer to the host that is the loudest
    there is.
    """
    largest, total, wanted, summed = statistics
    log_sum = total.log()
    plain = loss = log_sum + (largest - wanted)
    if options.label_smoothing:
        spread = log_sum + (largest - summed / vocabulary)
        loss = (1 - options.label_smoothing) * loss + options.label_smoothing * spread
    if options.z_loss:
        loss = loss + options.z_loss * (largest + log_sum).square()

    def counted(values: Tensor) -> Tensor:
        values = torch.where((target < 0) | (target >= vocabulary), torch.nan, values)
        return torch.where(target == options.ignore_index, 0.0, values)

    return Rows(counted(loss), largest, log_sum, counted(plain) if options.penalised else loss.new_empty(0))


def check_targets(target: Tensor, options: Options, vocabulary: int) -> None:
    """Raise ValueError for a target outside of the vocabulary, if looking costs no transfer from a device."""
    if target.device.type != "cpu" or not len(target):
        return
    low, high = target.aminmax()
    if low >= 0 and high < vocabulary:
        return
    wrong = target[((target < 0) | (target >= vocabulary)) & (target != options.ignore_index)]
    if len(wrong):
        raise ValueError(
            f"target: {int(wrong[0])} is neither a number below the vocabulary's size {vocabulary} nor "
            f"ignore_index={options.ignore_index}"
        )


class Reference:
    """The engine in plain torch; on a CPU also the fast one for plain cross-entropy."""

    def statistics(self, logits: Tensor, target: Tensor, options: Options, shard: Shard) -> Tensor:
        """See Engine."""
        t = _transformed(logits, options)
        local = target - shard.start
        held = (local >= 0) & (local < t.shape[1])
        if t.shape[1] == 0:
            nothing = t.new_zeros(len(t))
            return torch.stack([nothing - torch.inf, nothing, nothing, nothing])
        largest = t.amax(1)
        shift = torch.where(largest == -torch.inf, 0.0, largest)
        total = (t - shift[:, None]).exp_().sum(1)
        wanted = t.gather(1, torch.where(held, local, 0)[:, None]).squeeze(1)
        return torch.stack([largest, total, torch.where(held, wanted, 0.0), t.sum(1)])

    def gradient(
        self, logits: Tensor, target: Tensor, rows: Rows, factor: Tensor | None, options: Options, shard: Shard,
        out: Tensor,
    ) -> None:  # fmt: skip
        """See Engine."""
        t = _transformed(logits, options)
        slope = None
        if options.softcap:
            slope = (1 - (t / options.softcap).square()).mul_(options.logit_scale)
        shift = torch.where(rows.largest == -torch.inf, 0.0, rows.largest)
        errors = (t - shift[:, None]).sub_(rows.log_sum[:, None]).exp_()
        if options.z_loss:
            errors *= 1 + 2 * options.z_loss * (rows.largest + rows.log_sum)[:, None]
        if options.label_smoothing:
            errors -= options.label_smoothing / shard.vocabulary
        local = target - shard.start
        held = (local >= 0) & (local < t.shape[1])
        if t.shape[1]:
            hit = t.new_zeros(len(t)).masked_fill_(held, options.label_smoothing - 1.0)
            errors.scatter_add_(1, torch.where(held, local, 0)[:, None], hit[:, None])
        if slope is not None:
            errors *= slope
        elif options.logit_scale != 1:
            errors *= options.logit_scale
        if factor is not None:
            errors *= factor[:, None]
        out.copy_(errors.masked_fill_((target == options.ignore_index)[:, None], 0.0))

    def fused(
        self, logits: Tensor, target: Tensor, options: Options, out: Tensor | None, factor: Tensor | None
    ) -> Rows:
        """See Engine."""
        if (
            options.plain
            and out is logits
            and factor is None
            and logits.dtype == exact(logits.dtype)
            and logits.shape[1]
        ):
            return _softmax_in_place(logits, target, options)
        shard = whole(logits.shape[1])
        rows = losses(self.statistics(logits, target, options, shard), target, options, shard.vocabulary)
        if out is not None:
            spread = None if factor is None else factor.expand(len(target))
            self.gradient(logits, target, rows, spread, options, shard, out)
        return rows


def _transformed(logits: Tensor, options: Options) -> Tensor:
    """Return t in fp32 or fp64: the logits scaled and capped."""
    t = logits.to(exact(logits.dtype))
    if options.logit_scale != 1:
        t = t * options.logit_scale
    if options.softcap:
        t = (t / options.softcap).tanh_().mul_(options.softcap)
    return t


def _softmax_in_place(logits: Tensor, target: Tensor, options: Options) -> Rows:
    """Turn logits into probabilities less the one-hot target in place: a single pass of exponentials.

    The largest probability is 1 / sum(exp(logit - largest logit)), so its logarithm gives the normaliser without a
    second pass and without the underflow of log(probability of the target).
    """
    ignored = target == options.ignore_index
    some = bool(ignored.any()) if logits.device.type == "cpu" else True
    index = (torch.where(ignored, 0, target) if some else target)[:, None]
    wanted = logits.gather(1, index).squeeze(1)
    largest = logits.amax(1)
    torch.softmax(logits, dim=1, out=logits)
    log_sum = -logits.amax(1).log()
    logits.scatter_add_(1, index, logits.new_full((len(index), 1), -1.0))
    loss = log_sum + (largest - wanted)
    if some:
        loss = torch.where(ignored, 0.0, loss)
        logits.masked_fill_(ignored[:, None], 0.0)
    return Rows(loss, largest, log_sum, loss.new_empty(0))
