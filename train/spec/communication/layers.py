"""What ranks that share a layer or a sequence send: tensor parallelism with sequence parallelism, context parallelism.

Tensor parallelism is Shoeybi et al. 2019 ("Megatron-LM"), with the residual stream cut along the sequence Korthikanti
et al. 2022: an all-gather before and a reduce-scatter after each layer, as many bytes as an all-reduce after each layer
without it. Context parallelism gathers keys and values (train.parallel.context).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from train.spec.activations import CHUNK_BYTES
from train.spec.communication.data_parallel import FULL
from train.spec.communication.messages import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Message
from train.spec.communication.stages import MicroBatches, Stage, recomputed, short
from train.spec.config import RunConfig
from train.spec.counts import Weight, block_weights, end_weights, head_dim, kv_heads
from train.spec.mesh import Axes, strategy
from train.spec.shard_shapes import largest_shard

STATISTICS = 3
"""Numbers of a token's logits by which ranks that share a vocabulary find its loss; label smoothing needs one more."""


def stream_bytes(config: RunConfig, axes: Axes, sequences: int) -> int:
    """Return the residual stream of a micro-batch on one rank of cp, before tensor parallelism cuts it [bytes]."""
    return sequences * config.data.sequence_length // axes.cp * config.model.width * short(config)


def tensor_parallel(
    config: RunConfig, axes: Axes, stage: Stage, micro: MicroBatches, device: str = "cuda"
) -> Iterator[Message]:
    """Yield what a rank of tensor parallelism, as the trainer has it, sends for one stage in a step."""
    layers, again = len(stage.blocks), recomputed(config, stage)
    tokens = config.data.sequence_length // axes.cp
    for sequences, count in micro.counts.items():
        size = stream_bytes(config, axes, sequences)

        def sent(what: str, times: int, of: str, phase: str, *, size: int = size, count: int = count) -> Message:
            return Message(what, "tp", axes.tp, size, times * count, of, phase)

        yield sent(ALL_GATHER, 2 * layers, "inputs of layers", "forward")
        yield sent(REDUCE_SCATTER, 2 * layers, "outputs of layers", "forward")
        yield sent(ALL_GATHER, 2 * layers, "gradients of outputs", "backward")
        yield sent(REDUCE_SCATTER, 2 * layers, "gradients of inputs", "backward")
        # The last output of a block is not needed to compute its gradients.
        yield sent(ALL_GATHER, 2 * again, "inputs of layers, recomputed", "backward")
        yield sent(REDUCE_SCATTER, again, "outputs of layers, recomputed", "backward")
        if stage.first:
            # The stream gets its format after the lookup, which is in the weight's: FSDP2 gathers that in short.
            whole = size if strategy(config.parallel, axes) == "fsdp" else size // short(config) * FULL
            yield sent(REDUCE_SCATTER, 1, "embedded tokens", "forward", size=whole)
            yield sent(ALL_GATHER, 1, "gradients of embedded tokens", "backward", size=whole)
        if stage.last:
            yield sent(ALL_GATHER, 1, "input of the head", "forward")
            yield sent(REDUCE_SCATTER, 1, "gradient of the head's input", "backward")
            for rows, chunks in Counter(head_chunks(config, axes, sequences * tokens, device)).items():
                numbers = STATISTICS + (config.optim.label_smoothing > 0)
                whole = axes.tp * numbers * rows * 4
                yield sent(ALL_GATHER, chunks, "statistics of logits", "forward", size=whole)
    whole = sum(times * largest_shard(one, axes.fsdp, axes.tp) for one, times in whole_weights(config, stage))
    yield Message(ALL_REDUCE, "tp", axes.tp, FULL * whole, 1, "gradients of norms", "update")


def whole_weights(config: RunConfig, stage: Stage) -> list[tuple[Weight, int]]:
    """Return the weights that every rank of tensor parallelism holds whole, a stage's norms, and how many of each."""
    blocks = [weight for weight in block_weights(config.model).values() if weight.tp_dim is None]
    ends = end_weights(config.model, config.data.vocab_size, stage.first, stage.last).values()
    return [*((one, len(stage.blocks)) for one in blocks), *((one, 1) for one in ends if one.tp_dim is None)]


def head_chunks(config: RunConfig, axes: Axes, tokens: int, device: str) -> list[int]:
    """Return the tokens of each chunk in which the head makes logits (kernels.cross_entropy.linear), on a rank of tp.

    On a GPU chunks are of one size, in the format of products, on a CPU of fp32 logits.
    """
    itemsize = 4 if device == "cpu" else short(config)
    columns = config.data.vocab_size // axes.tp
    rows = max(64, CHUNK_BYTES[device] // (itemsize * columns) // 64 * 64)
    if device != "cpu":
        rows = -(-tokens // -(-tokens // rows))
    return [min(rows, tokens - start) for start in range(0, tokens, rows)]


def context_parallel(config: RunConfig, axes: Axes, stage: Stage, micro: MicroBatches) -> Iterator[Message]:
    """Yield what a rank of context parallelism sends for one stage: keys and values of all ranks, and their gradients.

    They are 2 kv_heads head_dim / width of the stream: few key/value heads make them small.
    """
    model, layers, again = config.model, len(stage.blocks), recomputed(config, stage)
    channels = 2 * kv_heads(model) // axes.tp * head_dim(model)
    for sequences, count in micro.counts.items():
        size = sequences * config.data.sequence_length * channels * short(config)
        yield Message(ALL_GATHER, "cp", axes.cp, size, layers * count, "keys and values", "forward")
        yield Message(ALL_GATHER, "cp", axes.cp, size, again * count, "keys and values, recomputed", "backward")
        if model.experts and model.balance_weight:
            counts = 4 * sequences * (model.experts + 1)
            yield Message(ALL_REDUCE, "cp", axes.cp, counts, (layers + again) * count, "choices of experts", "forward")
        of = "gradients of keys and values"
        yield Message(REDUCE_SCATTER, "cp", axes.cp, size, layers * count, of, "backward")
