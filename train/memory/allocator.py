"""Memory on a CPU: what the allocator does with a freed tensor, and how large a micro-batch is."""

from __future__ import annotations

import ctypes

from train.spec.config import ModelConfig

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP = 1 << 30

ACTIVATION_BYTES = {"cpu": 1 << 30, "cuda": 8 << 30}
"""What the activations of one micro-batch may take by default, by device type [bytes]."""


CPU_TOKENS = 4096
"""Tokens of a micro-batch on a CPU. At width 128, 4 layers, 1 thread: 512 tokens at once take 11 % longer per token,
1,024 take 2-3 %, 8,192 and more win nothing (at width 64 they lose 2-6 %: they outgrow the caches)."""


def keep_freed_memory() -> bool:
    """Ask glibc to keep blocks below 1 GiB for the next tensor instead of returning them to the system.

    A step frees and allocates the same tensors again; fresh pages cost a fault each, up to 7 % of a step on a CPU.
    Returns whether the C library took it; others than glibc are left as they are.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, _KEEP)) and bool(mallopt(_M_MMAP_THRESHOLD, _KEEP))


def micro_batch_sequences(model: ModelConfig, sequence_length: int, device: str) -> int:
    """Return how many sequences go through the model at once: as many as `ACTIVATION_BYTES` hold, at least one.

    Counts about 34 fp32 values per token, channel and block kept for the backward pass. Logits do not count, they never
    exist as a whole (kernels.linear_cross_entropy). On a CPU there is no more to win past `CPU_TOKENS`.
    """
    per_token = 4 * 34 * model.width * model.layers
    tokens = ACTIVATION_BYTES.get(device, 1 << 30) // per_token
    if device == "cpu":
        tokens = min(tokens, CPU_TOKENS)
    return max(1, tokens // sequence_length)


def even(sequences: int, most: int) -> int:
    """Return the size of equal micro-batches, at most `most`, that `sequences` make with the fewest and emptiest."""
    return -(-sequences // -(-sequences // most))
