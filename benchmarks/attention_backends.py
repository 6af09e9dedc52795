"""Causal attention by each of torch's kernels at the shapes of the trainer's benchmarks: forward and backward, in ms.

    python -m benchmarks.attention_backends

Needs a CUDA device. Grouped queries are given as they are, and with keys and values copied for each query head.
"""

from __future__ import annotations

import statistics

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = {  # batch, query heads, key/value heads, length, head_dim
    "150M": (64, 12, 12, 1024, 64),
    "1B": (8, 16, 16, 4096, 128),
    "8B": (2, 32, 8, 8192, 128),
}
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def attention(q: Tensor, k: Tensor, v: Tensor, copied: bool) -> Tensor:
    """Return causal attention of (batch, length, heads, head_dim), grouped as it is or with keys and values copied."""
    grouped = q.shape[2] != k.shape[2]
    if copied:
        times = q.shape[2] // k.shape[2]
        k, v = k.repeat_interleave(times, 2), v.repeat_interleave(times, 2)
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped and not copied)


def milliseconds(backend: SDPBackend, shape: tuple[int, ...], copied: bool, repeats: int = 10) -> float:
    """Return the median time of a forward and backward pass."""
    batch, heads, groups, length, dim = shape
    q, k, v = (
        torch.randn(batch, length, n, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for n in (heads, groups, groups)
    )
    upstream = torch.randn(batch, heads, length, dim, device="cuda", dtype=torch.bfloat16)
    times = []
    with sdpa_kernel([backend]):
        for _ in range(repeats + 3):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            torch.autograd.grad(attention(q, k, v, copied), (q, k, v), upstream)
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
    return float(statistics.median(times[3:]))


def main() -> None:
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing measured")
        return
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {cudnn}")
    for name, shape in SHAPES.items():
        for backend, kind in BACKENDS.items():
            for copied in (False, True) if shape[1] != shape[2] else (False,):
                try:
                    result = f"{milliseconds(kind, shape, copied):.2f} ms"
                except RuntimeError as error:
                    result = str(error).splitlines()[0][:80]
                print(f"{name} {shape} {backend}{', keys and values copied' if copied else ''}: {result}", flush=True)


if __name__ == "__main__":
    main()
