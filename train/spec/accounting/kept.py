"""What a micro-batch keeps on one rank, exactly: blocks under each checkpointing policy, embedding and head [bytes].

The tests count the same tensors as autograd saves them. Where attention has a soft cap on a CPU, where fp32 heads share
keys on a GPU, and for selective checkpointing it is what train.spec.activations says, which is more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from train.spec import activations
from train.spec.activations import Kept
from train.spec.config import RunConfig
from train.spec.counts import head_dim, kv_heads, mlp_width
from train.spec.mesh import Axes

LOGITS_BYTES = {"cpu": 8 << 20, "cuda": 2 << 30}
"""Most logits that exist at a time by device type [bytes] (kernels.cross_entropy.linear)."""
MODES = ("none", "selective", "full")


@dataclass(frozen=True)
class Head:
    """What the head has while it makes its loss and both gradients, all at once [bytes].

    cast: its weight in the format of products, where that is not gathered so. logits: a chunk of them. weight_gradient:
    fp32. hidden: its input, all of it where ranks share the vocabulary, and that input's gradient.
    """

    cast: int
    logits: int
    weight_gradient: int
    hidden: int


def number_bytes(config: RunConfig) -> int:
    """Return the bytes of a number in products and in the residual stream."""
    return 4 if config.precision.name == "fp32" else 2


def narrows(config: RunConfig) -> bool:
    """Say whether products keep what they take in 8 bits, as those in fp8 do that have one factor a tensor.

    The first and last blocks that `precision.fp8_keep_blocks` leaves as they are count as the others.
    """
    return config.precision.name == "fp8" and config.precision.fp8_scaling == "tensorwise"


def block(config: RunConfig, device: str, mode: str, sequences: int) -> Kept:
    """Return what one block keeps of each token under a mode (none, selective, full), by which ranks share it."""
    found = activations.block(config, device, mode)
    if mode == "full":
        return found
    found = replace(found, rest=found.rest - _excess(config, device, mode, sequences))
    if mode == "selective" and config.compile.blocks and device == "cuda":
        # Compiled code keeps no product that nothing needs, as that which goes into the stream last.
        found = replace(found, rest=found.rest - number_bytes(config) * config.model.width)
    if mode == "selective" or not narrows(config) or device == "cpu":
        return found
    # Inputs of the four products are kept in 8 bits, that of the second beside attention's own result.
    width, hidden = config.model.width, mlp_width(config.model)
    return Kept(found.rows - 2 * width, found.keys, found.rest + width - hidden)


def block_bytes(config: RunConfig, axes: Axes, device: str, mode: str, sequences: int) -> int:
    """Return what one block keeps of a micro-batch on one rank."""
    tokens = sequences * config.data.sequence_length
    routed = 0 if mode == "full" else activations.of_sequences(config.model, sequences)
    return round(tokens * block(config, device, mode, sequences).on(axes)) + routed


def recomputed_bytes(config: RunConfig, axes: Axes, device: str, mode: str, sequences: int) -> int:
    """Return what one block makes again in its backward pass, beside what it has kept, of a micro-batch on one rank."""
    whole = block(config, device, "none", sequences)
    if mode == "selective" and device == "cuda":
        whole = replace(whole, rest=whole.rest - activations.kept_either_way(config, device))
    return round(sequences * config.data.sequence_length * whole.on(axes))


def _excess(config: RunConfig, device: str, mode: str, sequences: int) -> int:
    """Return by how much train.spec.activations is above what a CPU's references keep of each token."""
    model, size = config.model, number_bytes(config)
    if device != "cpu" or model.attention_softcap:
        return 0
    each = head_dim(model)
    heads, groups = model.width // each, kv_heads(model)
    found = 0
    if mode == "none" and model.qk_norm:  # one statistic a head that is normed
        found += 4 * (heads - groups)
    if mode == "none" and model.position != "rope" and not model.qk_norm:
        # Keys are views of the product, and queries are where they lie side by side: with a key for each, or for all.
        found += size * (groups * each + (model.width if groups in (1, heads) else 0))
    biased, masked = model.position == "alibi", bool(model.window)
    if (biased or masked) and config.data.packing == "concatenate":  # one for all sequences of the micro-batch
        scores = size * config.data.sequence_length * (heads if biased else 1)
        found += scores - scores // sequences
    return found


def ends(config: RunConfig, device: str, first: bool, last: bool) -> int:
    """Return what embedding (`first`) and last norm (`last`) keep of each token, without the head's own.

    Token numbers of int64, the residual stream and its row's statistic before the last norm. Rotations, where each
    sequence has its own positions.
    """
    size = number_bytes(config)
    numbers = 8 * (int(first) + int(last))
    turns = (
        4 * head_dim(config.model) if config.data.packing != "concatenate" and config.model.position == "rope" else 0
    )
    stream = (4 if device == "cpu" else size) * config.model.width + 4 if last else 0
    return numbers + turns + stream


def head(config: RunConfig, axes: Axes, device: str, tokens: int, gathered: bool) -> Head:
    """Return what the head has of `tokens` at once, which are all of a micro-batch's sequences on a rank of cp.

    gathered: FSDP2 has its weight in the format of products already, and its gradient goes on in that format.
    """
    size, width = number_bytes(config), config.model.width
    rows = config.data.vocab_size // axes.tp
    each = size if device == "cuda" else 4
    chunk = max(64, LOGITS_BYTES[device] // (each * rows) // 64 * 64)
    if device == "cuda":  # chunks of one size
        chunk = -(-tokens // -(-tokens // chunk))
    cut = 2 + (1 / axes.tp if axes.tp > 1 else 0)  # its gradient is this rank's part in the end
    return Head(
        cast=0 if gathered or size == 4 else size * rows * width,
        logits=each * rows * min(chunk, tokens),
        weight_gradient=4 * rows * width,
        hidden=round(cut * size * tokens * width),
    )


def modes(config: RunConfig, blocks: Sequence[int]) -> list[str]:
    """Return the mode of each of these blocks, by their numbers in the model; `budget` as full, which keeps least."""
    checkpointing, every = config.memory.checkpointing, config.memory.every
    if checkpointing == "every":
        return ["full" if number % every == 0 else "none" for number in blocks]
    return ["full" if checkpointing == "budget" else checkpointing] * len(blocks)


def at_work(config: RunConfig, axes: Axes, device: str, tokens: int) -> int:
    """Return what the backward pass of one block has beside what is kept: gradients on their way."""
    return round(tokens * activations.at_work(config, device) / axes.tp)
