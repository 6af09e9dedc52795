"""How much memory one rank of a run needs, from its config alone: weights, gradients, moments and activations."""

from __future__ import annotations

from dataclasses import dataclass

from train.spec.config import ModelConfig, RunConfig
from train.spec.counts import params
from train.spec.mesh import Axes

KEPT_PER_TOKEN = 34
"""Values kept for the backward pass per token, channel and block (Korthikanti et al. 2022, attention not stored)."""
ACTIVATION_BYTES = {"cpu": 1 << 30, "cuda": 8 << 30}
"""What the activations of one micro-batch may take by default, by device type [bytes]."""
CPU_TOKENS = 4096
"""Tokens of a micro-batch on a CPU. At width 128, 4 layers, 1 thread: 512 tokens at once take 11 % longer per token,
1,024 take 2-3 %, 8,192 and more win nothing (at width 64 they lose 2-6 %: they outgrow the caches)."""


@dataclass(frozen=True)
class Footprint:
    """Memory of one rank's device [bytes]: `states` of the parameters, `activations` of one micro-batch."""

    states: int
    activations: int

    @property
    def total(self) -> int:
        """Both [bytes]."""
        return self.states + self.activations


def footprint(config: RunConfig, axes: Axes, device: str) -> Footprint:
    """Return what a rank needs on a device of type cpu or cuda. An estimate from above: sharded parts count as equal.

    Weights and gradients are fp32, moments as `precision.optimizer_state` says; a half-precision run holds a copy of
    the weights more. Sharding with parallel.zero=3 cuts all of it over dp_shard x cp, tp and pp cut it always.
    """
    counts = params(config.model, config.data.vocab_size)
    total = counts.total
    # Muon keeps one for hidden matrices, and AdamW's two for the rest.
    hidden = counts.matmul - counts.embedding
    moments = {"adamw": 2 * total, "muon": 2 * total - hidden, "sgd": total}[config.optim.name]
    moments *= 2 if config.precision.optimizer_state == "bf16" else 4
    copy = 0 if config.precision.name == "fp32" else 2
    weights = 8 + copy
    parts = axes.tp * axes.pp
    shards = parts * axes.fsdp
    offloaded = config.memory.offload != "none" and device == "cuda"
    states = total * weights // (shards if config.parallel.zero == 3 else parts)
    states += 0 if offloaded else moments // shards
    return Footprint(states, _activations(config, axes, device))


def _activations(config: RunConfig, axes: Axes, device: str) -> int:
    model, length = config.model, config.data.sequence_length
    size = 4 if config.precision.name == "fp32" else 2
    per_token = size * KEPT_PER_TOKEN * model.width * model.layers // (axes.tp * axes.pp)
    if config.memory.checkpointing == "full":
        per_token = size * model.width * (2 * model.layers + KEPT_PER_TOKEN)
    sequences = config.parallel.micro_batch_sequences
    if sequences is None:
        share = (config.batch.tokens or 1 << 62) // length // axes.data
        sequences = max(1, min(share, micro_batch_sequences(model, length, device)))
    return per_token * sequences * length // axes.cp


def micro_batch_sequences(model: ModelConfig, sequence_length: int, device: str) -> int:
    """Return how many sequences go through the model at once: as many as `ACTIVATION_BYTES` hold, at least one.

    Counts about 34 fp32 values per token, channel and block kept for the backward pass. Logits do not count, they never
    exist as a whole (kernels.linear_cross_entropy). On a CPU there is no more to win past `CPU_TOKENS`.
    """
    per_token = 4 * KEPT_PER_TOKEN * model.width * model.layers
    tokens = ACTIVATION_BYTES.get(device, 1 << 30) // per_token
    if device == "cpu":
        tokens = min(tokens, CPU_TOKENS)
    return max(1, tokens // sequence_length)
