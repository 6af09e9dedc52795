"""Softmax, its loss and its gradient, one program a row of logits; the mathematics is that of
kernels.cross_entropy.math.

Bytes for N rows of V logits of b bytes: `statistics` reads N V b; `gradient` reads and writes N V b each; `fused`
reads a row twice and writes its gradient once. The second reading goes backward, so that as much of it as the cache
holds of the rows in flight comes from there. A row's largest logit is carried from block to block as one number, which
costs one exponential a logit where lanes of their own would cost two.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.core import launch
from kernels.core.launch import fp32
from kernels.core.launch_table import launch_of
from kernels.cross_entropy.math import Options, Rows, Shard

LOG2E = tl.constexpr(1.4426950408889634)
LOG2E_REST = tl.constexpr(1.925963033500e-8)
"""What fp32 leaves out of LOG2E."""


@triton.jit
def _exp(x, PRECISE: tl.constexpr):
    """exp(x); PRECISE makes up for the rounding of x · log2 e, which large x would show in the sixth digit."""
    power = x * LOG2E
    if not PRECISE:
        return tl.exp2(power)
    rest = tl.fma(x, LOG2E, -power) + x * LOG2E_REST
    return tl.exp2(power) * (1.0 + 0.6931471805599453 * tl.where(x > -100.0, rest, 0.0))


@triton.jit
def _tanh(x, PRECISE: tl.constexpr):
    """Hyperbolic tangent, 1 - 2 / (exp(2x) + 1), off by 1e-7; PRECISE: by an odd polynomial near 0 (Cephes)."""
    large = 1.0 - 2.0 / (tl.exp2(x * (2.0 * LOG2E)) + 1.0)
    if not PRECISE:
        return large
    z = x * x
    p = -5.70498872745e-3 * z + 2.06390887954e-2
    p = p * z - 5.37397155531e-2
    p = p * z + 1.33314422036e-1
    p = p * z - 3.33332819422e-1
    return tl.where(z < 0.390625, x + x * z * p, large)


@triton.jit
def _transformed(x, scale, softcap, SCALED: tl.constexpr, CAPPED: tl.constexpr):
    """Return (t, t / cap). Formats shorter than fp32 round more than the short tanh does."""
    t = x.to(tl.float32)
    ratio = t
    if SCALED:
        t = t * scale
    if CAPPED:
        ratio = _tanh(t * (1.0 / softcap), x.dtype == tl.float32)
        t = softcap * ratio
    return t, ratio


@triton.jit
def _loaded(row, start, columns, POLICY: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    column = start + tl.arange(0, BLOCK)
    if MASKED:
        return tl.load(row + column, mask=column < columns, other=float("-inf"), eviction_policy=POLICY)
    return tl.load(row + column, eviction_policy=POLICY)


@triton.jit
def _more_statistics(
    row, start, columns, largest, sums, totals, scale, softcap,
    SCALED: tl.constexpr, CAPPED: tl.constexpr, SUMMED: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Take a block of a row into its statistics."""
    x = _loaded(row, start, columns, "evict_last", MASKED, BLOCK)
    t, _ = _transformed(x, scale, softcap, SCALED, CAPPED)
    inside = start + tl.arange(0, BLOCK) < columns
    if MASKED and (CAPPED or SCALED):
        t = tl.where(inside, t, float("-inf"))
    larger = tl.maximum(largest, tl.max(t, 0))
    base = tl.where(larger == float("-inf"), 0.0, larger)
    PRECISE: tl.constexpr = x.dtype == tl.float32
    sums = sums * _exp(largest - base, PRECISE) + _exp(t - base, PRECISE)
    if SUMMED:
        totals += tl.where(inside, t, 0.0) if MASKED else t
    return larger, sums, totals


@triton.jit
def _row_statistics(
    row, columns, scale, softcap,
    SCALED: tl.constexpr, CAPPED: tl.constexpr, SUMMED: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return (largest t, Σ exp(t - largest), Σ t) of one row; (-inf, 0, Σ t) where all are -inf."""
    largest = tl.full((), float("-inf"), tl.float32)
    sums = tl.zeros((BLOCK,), tl.float32)
    totals = tl.zeros((BLOCK,), tl.float32)
    whole = columns // BLOCK * BLOCK  # whose blocks need no mask
    for start in tl.range(0, whole, BLOCK, num_stages=STAGES):
        largest, sums, totals = _more_statistics(
            row, start, columns, largest, sums, totals, scale, softcap, SCALED, CAPPED, SUMMED, False, BLOCK
        )
    if whole < columns:
        largest, sums, totals = _more_statistics(
            row, whole, columns, largest, sums, totals, scale, softcap, SCALED, CAPPED, SUMMED, True, BLOCK
        )
    return largest, tl.sum(sums, 0), tl.sum(totals, 0)


@triton.jit
def _block_gradient(
    row, out, start, columns, base, log_sum, weight, share, scale, softcap,
    SCALED: tl.constexpr, CAPPED: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write (p weight - share) dt/dx for one block of a row."""
    x = _loaded(row, start, columns, "evict_first", MASKED, BLOCK)
    t, ratio = _transformed(x, scale, softcap, SCALED, CAPPED)
    error = _exp((t - base) - log_sum, x.dtype == tl.float32) * weight - share
    if CAPPED:
        error = error * (1.0 - ratio * ratio)
    if SCALED:
        error = error * scale
    column = start + tl.arange(0, BLOCK)
    if MASKED:
        tl.store(out + column, error.to(out.dtype.element_ty), mask=column < columns, eviction_policy="evict_first")
    else:
        tl.store(out + column, error.to(out.dtype.element_ty), eviction_policy="evict_first")


@triton.jit
def _row_gradient(
    row, out, columns, wanted, largest, log_sum, keep, factor, scale, softcap, smoothing, share, z_loss,
    SCALED: tl.constexpr, CAPPED: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write (p (1 + 2 z lse) - (1 - ε) [wanted] - share) dt/dx · factor to one row, zeros unless keep.

    The wanted column is put right after all have been written, which spares a comparison for each of them.
    """
    base = tl.where(largest == float("-inf"), 0.0, largest)
    weight = factor * (1.0 + 2.0 * z_loss * (largest + log_sum))
    whole = columns // BLOCK * BLOCK
    if keep:
        held = (wanted >= 0) & (wanted < columns)
        chosen = tl.load(row + wanted, mask=held, other=0.0)
        tl.debug_barrier()  # out may be row: nobody writes before all have read
        # From the end: what was read last is in the cache still, and is read again before it is lost as well.
        if whole < columns:
            _block_gradient(
                row, out, whole, columns, base, log_sum, weight, factor * share, scale, softcap,
                SCALED, CAPPED, True, BLOCK,
            )  # fmt: skip
        for done in tl.range(0, whole, BLOCK, num_stages=STAGES):
            _block_gradient(
                row, out, whole - BLOCK - done, columns, base, log_sum, weight, factor * share, scale, softcap,
                SCALED, CAPPED, False, BLOCK,
            )  # fmt: skip
        t, ratio = _transformed(chosen, scale, softcap, SCALED, CAPPED)
        error = _exp((t - base) - log_sum, chosen.dtype == tl.float32) * weight - factor * (share + (1.0 - smoothing))
        if CAPPED:
            error = error * (1.0 - ratio * ratio)
        if SCALED:
            error = error * scale
        tl.debug_barrier()
        tl.store(out + wanted, error.to(out.dtype.element_ty), mask=held)
    else:
        for start in range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK)
            tl.store(out + column, tl.zeros((BLOCK,), out.dtype.element_ty), mask=column < columns)


@triton.jit
def statistics_kernel(
    logits, target, out, logits_stride, rows, columns, first_column, scale, softcap,
    SCALED: tl.constexpr, CAPPED: tl.constexpr, SUMMED: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write (largest t, Σ exp(t - largest), t[target] or 0, Σ t), one column of out (4, rows) a row of logits."""
    scale, softcap = fp32(scale), fp32(softcap)
    number = tl.program_id(0).to(tl.int64)
    row = logits + number * logits_stride
    wanted = tl.load(target + number) - first_column
    held = (wanted >= 0) & (wanted < columns)
    chosen, _ = _transformed(tl.load(row + wanted, mask=held, other=0.0), scale, softcap, SCALED, CAPPED)
    largest, total, summed = _row_statistics(row, columns, scale, softcap, SCALED, CAPPED, SUMMED, BLOCK, STAGES)
    tl.store(out + number, largest)
    tl.store(out + rows + number, total)
    tl.store(out + 2 * rows + number, tl.where(held, chosen, 0.0))
    tl.store(out + 3 * rows + number, summed)


@triton.jit
def gradient_kernel(
    logits, target, largest, log_sum, factor, out, logits_stride, out_stride, columns, first_column, ignore_index,
    scale, softcap, smoothing, share, z_loss,
    SCALED: tl.constexpr, CAPPED: tl.constexpr, FACTORS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write the gradient of one row's loss times its factor; `share` is smoothing over the whole vocabulary."""
    scale, softcap, smoothing = fp32(scale), fp32(softcap), fp32(smoothing)
    share, z_loss = fp32(share), fp32(z_loss)
    number = tl.program_id(0).to(tl.int64)
    token = tl.load(target + number)
    each = 1.0
    if FACTORS:
        each = tl.load(factor + number)
    _row_gradient(
        logits + number * logits_stride, out + number * out_stride, columns, token - first_column,
        tl.load(largest + number), tl.load(log_sum + number), token != ignore_index, each,
        scale, softcap, smoothing, share, z_loss, SCALED, CAPPED, BLOCK, STAGES,
    )  # fmt: skip


@triton.jit
def fused_kernel(
    logits, target, factor, loss, largest_out, log_sum_out, plain_out, out, logits_stride, out_stride, columns,
    ignore_index, scale, softcap, smoothing, share, z_loss,
    SCALED: tl.constexpr, CAPPED: tl.constexpr, SMOOTHED: tl.constexpr, PENALISED: tl.constexpr,
    FACTOR: tl.constexpr, WRITE: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write one row's loss, largest t and log Σ exp(t - largest) and, if WRITE, its gradient, maybe over the logits."""
    scale, softcap, smoothing = fp32(scale), fp32(softcap), fp32(smoothing)
    share, z_loss = fp32(share), fp32(z_loss)
    number = tl.program_id(0).to(tl.int64)
    row = logits + number * logits_stride
    token = tl.load(target + number)
    held = (token >= 0) & (token < columns)
    # Read before any thread writes: the statistics below end in a barrier.
    chosen, _ = _transformed(tl.load(row + token, mask=held, other=float("nan")), scale, softcap, SCALED, CAPPED)
    largest, total, summed = _row_statistics(row, columns, scale, softcap, SCALED, CAPPED, SMOOTHED, BLOCK, STAGES)
    log_sum = tl.log(total)
    value = log_sum + (largest - chosen)
    keep = token != ignore_index
    if PENALISED:
        tl.store(plain_out + number, tl.where(keep, value, 0.0))
    if SMOOTHED:
        value = (1.0 - smoothing) * value + smoothing * (log_sum + (largest - summed / columns))
    value += z_loss * (largest + log_sum) * (largest + log_sum)
    tl.store(loss + number, tl.where(keep, value, 0.0))
    tl.store(largest_out + number, largest)
    tl.store(log_sum_out + number, log_sum)
    if WRITE:
        each = 1.0
        if FACTOR:
            each = tl.load(factor)
        _row_gradient(
            row, out + number * out_stride, columns, token, largest, log_sum, keep, each,
            scale, softcap, smoothing, share, z_loss, SCALED, CAPPED, BLOCK, STAGES,
        )  # fmt: skip


class Kernels:
    """The engine in Triton; see kernels.cross_entropy.math.Engine. Rows may lie apart, the numbers of a row may not."""

    def statistics(self, logits: Tensor, target: Tensor, options: Options, shard: Shard) -> Tensor:
        """See Engine."""
        logits = _rows_dense(logits)
        rows, columns = logits.shape
        out = logits.new_empty((4, rows), dtype=torch.float32)
        launch.launch(
            statistics_kernel, (rows,), logits, target, out, logits.stride(0), rows, columns, shard.start,
            float(options.logit_scale), float(options.softcap or 1.0), **_flags(options),
            SUMMED=options.label_smoothing > 0, **_meta(columns, options),
        )  # fmt: skip
        return out

    def gradient(
        self,
        logits: Tensor,
        target: Tensor,
        rows: Rows,
        factor: Tensor | None,
        options: Options,
        shard: Shard,
        out: Tensor,
    ) -> None:
        """See Engine."""
        logits = _rows_dense(logits)
        number, columns = logits.shape
        smoothing = float(options.label_smoothing)
        launch.launch(
            gradient_kernel, (number,), logits, target, rows.largest, rows.log_sum,
            target if factor is None else factor, out, logits.stride(0), out.stride(0), columns, shard.start,
            options.ignore_index, float(options.logit_scale), float(options.softcap or 1.0), smoothing,
            smoothing / shard.vocabulary, float(options.z_loss), **_flags(options), FACTORS=factor is not None,
            **_meta(columns, options),
        )  # fmt: skip

    def fused(
        self, logits: Tensor, target: Tensor, options: Options, out: Tensor | None, factor: Tensor | None
    ) -> Rows:
        """See Engine."""
        logits = _rows_dense(logits)
        rows, columns = logits.shape
        result = Rows.room(target, torch.float32, options)
        smoothing = float(options.label_smoothing)
        written = logits if out is None else out
        launch.launch(
            fused_kernel, (rows,), logits, target, target if factor is None else factor, *result, written,
            logits.stride(0), written.stride(0), columns, options.ignore_index,
            float(options.logit_scale), float(options.softcap or 1.0), smoothing, smoothing / columns,
            float(options.z_loss), **_flags(options), SMOOTHED=smoothing > 0, PENALISED=options.penalised,
            FACTOR=factor is not None, WRITE=out is not None, **_meta(columns, options),
        )  # fmt: skip
        return result


def _rows_dense(logits: Tensor) -> Tensor:
    return logits if logits.stride(1) == 1 or logits.shape[1] == 1 else logits.contiguous()


def _flags(options: Options) -> dict[str, Any]:
    return {"SCALED": options.logit_scale != 1, "CAPPED": options.softcap > 0}


def _meta(columns: int, options: Options) -> dict[str, Any]:
    chosen = launch_of("cross_entropy" if options.plain else "cross_entropy_options", columns)
    block = min(chosen.block, triton.next_power_of_2(columns))
    return {"BLOCK": block, "STAGES": chosen.stages, "num_warps": chosen.warps}
