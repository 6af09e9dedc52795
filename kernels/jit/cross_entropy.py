"""Softmax, its loss and its gradient, one program a row of logits; the mathematics is that of kernels.vocabulary.

Bytes for N rows of V logits of b bytes: `statistics` reads N V b; `gradient` reads and writes N V b each; `fused`
reads a row twice and writes its gradient once, but with one or two programs a multiprocessor the rows in flight (132
of 256 KB at V = 128,256) stay in the cache of 50 MB, so that memory sees one read. A row's largest logit is carried
from block to block as one number, which costs one exponential a logit where lanes of their own would cost two.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.jit import launching
from kernels.jit.launching import fp32
from kernels.tuning import launch_of
from kernels.vocabulary import Options, Rows, Shard


@triton.jit
def _tanh(x):
    """Hyperbolic tangent to fp32's last digits: an odd polynomial near 0 (Cephes' tanhf), exponentials elsewhere."""
    z = x * x
    p = -5.70498872745e-3 * z + 2.06390887954e-2
    p = p * z - 5.37397155531e-2
    p = p * z + 1.33314422036e-1
    p = p * z - 3.33332819422e-1
    small = x + x * z * p
    size = tl.abs(x)
    large = 1.0 - 2.0 / (tl.exp(2.0 * size) + 1.0)
    return tl.where(size < 0.625, small, tl.where(x < 0, -large, large))


@triton.jit
def _transformed(x, scale, softcap, SCALED: tl.constexpr, CAPPED: tl.constexpr):
    t = x.to(tl.float32)
    if SCALED:
        t = t * scale
    if CAPPED:
        t = softcap * _tanh(t / softcap)
    return t


@triton.jit
def _row_statistics(
    row, columns, scale, softcap,
    SCALED: tl.constexpr, CAPPED: tl.constexpr, SUMMED: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return (largest t, Σ exp(t - largest), Σ t) of one row; (-inf, 0, Σ t) where all are -inf."""
    largest = tl.full((), float("-inf"), tl.float32)
    sums = tl.zeros((BLOCK,), tl.float32)
    totals = tl.zeros((BLOCK,), tl.float32)
    for start in tl.range(0, columns, BLOCK, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK)
        inside = column < columns
        x = tl.load(row + column, mask=inside, other=float("-inf"), eviction_policy="evict_last")
        t = _transformed(x, scale, softcap, SCALED, CAPPED)
        if CAPPED or SCALED:
            t = tl.where(inside, t, float("-inf"))
        larger = tl.maximum(largest, tl.max(t, 0))
        base = tl.where(larger == float("-inf"), 0.0, larger)
        sums = sums * tl.exp(largest - base) + tl.exp(t - base)
        largest = larger
        if SUMMED:
            totals += tl.where(inside, t, 0.0)
    return largest, tl.sum(sums, 0), tl.sum(totals, 0)


@triton.jit
def _row_gradient(
    row, out, columns, wanted, largest, log_sum, keep, factor, scale, softcap, smoothing, share, z_loss,
    SCALED: tl.constexpr, CAPPED: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write (p (1 + 2 z lse) - (1 - ε) [wanted] - share) dt/dx · factor to one row, zeros unless keep."""
    base = tl.where(largest == float("-inf"), 0.0, largest)
    weight = 1.0 + 2.0 * z_loss * (largest + log_sum)
    for start in tl.range(0, columns, BLOCK, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK)
        inside = column < columns
        x = tl.load(row + column, mask=inside, other=float("-inf"), eviction_policy="evict_first")
        t = _transformed(x, scale, softcap, SCALED, CAPPED)
        error = tl.exp((t - base) - log_sum) * weight - share
        error = tl.where(column == wanted, error - (1.0 - smoothing), error)
        if CAPPED:
            error = error * (1.0 - (t / softcap) * (t / softcap))
        if SCALED:
            error = error * scale
        error = tl.where(keep, error * factor, 0.0)
        tl.store(out + column, error.to(out.dtype.element_ty), mask=inside, eviction_policy="evict_first")


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
    chosen = _transformed(tl.load(row + wanted, mask=held, other=0.0), scale, softcap, SCALED, CAPPED)
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
    logits, target, factor, loss, largest_out, log_sum_out, out, logits_stride, out_stride, columns, ignore_index,
    scale, softcap, smoothing, share, z_loss,
    SCALED: tl.constexpr, CAPPED: tl.constexpr, SMOOTHED: tl.constexpr, FACTOR: tl.constexpr, WRITE: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write one row's loss, largest t and log Σ exp(t - largest) and, if WRITE, its gradient, maybe over the logits."""
    scale, softcap, smoothing = fp32(scale), fp32(softcap), fp32(smoothing)
    share, z_loss = fp32(share), fp32(z_loss)
    number = tl.program_id(0).to(tl.int64)
    row = logits + number * logits_stride
    token = tl.load(target + number)
    held = (token >= 0) & (token < columns)
    # Read before any thread writes: the statistics below end in a barrier.
    chosen = _transformed(tl.load(row + token, mask=held, other=float("nan")), scale, softcap, SCALED, CAPPED)
    largest, total, summed = _row_statistics(row, columns, scale, softcap, SCALED, CAPPED, SMOOTHED, BLOCK, STAGES)
    log_sum = tl.log(total)
    value = log_sum + (largest - chosen)
    if SMOOTHED:
        value = (1.0 - smoothing) * value + smoothing * (log_sum + (largest - summed / columns))
    value += z_loss * (largest + log_sum) * (largest + log_sum)
    keep = token != ignore_index
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
    """The engine in Triton; see kernels.vocabulary.Engine. Rows may lie apart, the numbers of a row may not."""

    def statistics(self, logits: Tensor, target: Tensor, options: Options, shard: Shard) -> Tensor:
        """See Engine."""
        logits = _rows_dense(logits)
        rows, columns = logits.shape
        out = logits.new_empty((4, rows), dtype=torch.float32)
        launching.launch(
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
        launching.launch(
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
        result = Rows(*(logits.new_empty(rows, dtype=torch.float32) for _ in Rows._fields))
        smoothing = float(options.label_smoothing)
        written = logits if out is None else out
        launching.launch(
            fused_kernel, (rows,), logits, target, target if factor is None else factor, *result, written,
            logits.stride(0), written.stride(0), columns, options.ignore_index,
            float(options.logit_scale), float(options.softcap or 1.0), smoothing, smoothing / columns,
            float(options.z_loss), **_flags(options), SMOOTHED=smoothing > 0, FACTOR=factor is not None,
            WRITE=out is not None, **_meta(columns, options),
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
