"""The largest values that keys of a run may have: far above any machine or model, and with which sums stay quick."""

from __future__ import annotations

from collections.abc import Mapping

from train.spec.config import RunConfig

LARGEST: Mapping[str, int] = {
    "model.width": 1 << 20,
    "model.mlp_width": 1 << 22,
    "model.window": 1 << 30,
    "model.global_every": 10_000,
    "model.experts": 1 << 16,
    "model.shared_experts": 1 << 10,
    "data.sequence_length": 1 << 30,
    "batch.tokens": 10**12,
    "parallel.dp_replicate": 10**6,
    "parallel.dp_shard": 10**6,
    "parallel.cp": 10**6,
    "parallel.tp": 10**6,
    "parallel.pp": 10_000,
    "parallel.ep": 10**6,
    "parallel.pp_stages": 10_000,
    "parallel.pp_micro_batches": 10**6,
    "parallel.micro_batch_sequences": 10**9,
    "parallel.ddp_bucket_mib": 10**6,
    "parallel.fsdp_prefetch": 10_000,
    "memory.every": 10_000,
    "precision.fp8_keep_blocks": 10_000,
    "precision.fp8_history": 10**6,
}

LARGEST_SEED = 9 * 10**12
"""Of either sign: torch takes 64 bits, and the seed of a rank is `seed` x 1,000,003 and the rank."""


def check(config: RunConfig) -> None:
    """Raise ValueError, naming key and value, for a value that is above its largest."""
    if abs(config.seed) > LARGEST_SEED:
        raise ValueError(
            f"seed={shown(config.seed)} is not allowed: a whole number from {-LARGEST_SEED:,} to {LARGEST_SEED:,}"
        )
    for name, most in LARGEST.items():
        section, _, field = name.partition(".")
        value = getattr(getattr(config, section), field)
        if value is not None and value > most:
            raise ValueError(f"{name}={shown(value)} is not allowed: at most {most:,}")


def shown(value: float) -> str:
    """Return a number as it is said: digits that nobody typed are left out."""
    if abs(value) > 10**15:
        return f"{value:g}"
    return str(int(value) if value == int(value) else value)
