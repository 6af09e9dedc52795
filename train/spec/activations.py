"""What a forward pass keeps for the backward pass, counted from the model's shape: bytes of each token.

Counted are the tensors that train.model saves for autograd: on CUDA with the kernels of this repository and fused
attention, on a CPU with the reference of each kernel, which keeps fp32 copies of what it norms. A compiled block keeps
as much or less. The tests count the same tensors as autograd saves them; with weights and all, plans are 1.11 to 1.24
times what models of 150M and 1B took on H200s.
"""

from __future__ import annotations

from dataclasses import dataclass

from train.spec.config import ModelConfig, RunConfig
from train.spec.counts import experts_per_token, head_dim, kv_heads, mlp_width
from train.spec.mesh import Axes

CHUNK_BYTES = {"cpu": 8 << 20, "cuda": 2 << 30}
"""The largest piece of logits that exists at a time, by device type [bytes] (kernels.cross_entropy.linear)."""
_STATISTIC = 4
"""Bytes of a row's statistic: what a norm divides by, the log-sum-exp of a head's scores."""


NARROW = 512
"""The widest model whose feed-forward layers keep their gated product rather than make it again.

Their products wait for memory, and there is enough of it: at 512 x 1,408 it takes 31 us of 262 less on an H200.
"""


def keeps_hidden(model: ModelConfig) -> bool:
    """Say whether feed-forward layers keep their gated product for the backward pass (kernels.swiglu.gated_mlp)."""
    return model.width <= NARROW


@dataclass(frozen=True)
class FeedForward:
    """Bytes of each token in a feed-forward layer.

    products: results of its products that a backward pass needs, kept when activations are computed again, too. last:
    that of the product before the stream, if those of experts, one for each of a token's. kept: all that is kept.
    work: gradients on their way.
    """

    products: int
    last: int
    kept: int
    work: int


@dataclass(frozen=True)
class Shape:
    """A block as its activations have it: channels of each token, bytes of a number.

    keys: of all key/value heads. padded: attention pads a head's channels to a multiple of 8, times this. turned: by
    rotary positions. reference: the kernels' references run. scores: what attention keeps beside its result, where it
    has no fused kernel or has a mask or bias as a tensor.
    """

    width: int
    keys: int
    feed_forward: FeedForward
    heads: int
    size: int
    padded: float
    qk_norm: bool
    turned: bool
    reference: bool
    scores: int

    @property
    def joint(self) -> int:
        """Channels of queries, keys and values together."""
        return self.width + 2 * self.keys


@dataclass(frozen=True)
class Kept:
    """Bytes of each token that something keeps, by which ranks share them.

    rows: every tensor-parallel rank has them all, as it gathers a layer's input. keys: every context-parallel rank has
    them all, as it gathers keys and values. rest: all ranks share them.
    """

    rows: int
    keys: int
    rest: int

    def on(self, axes: Axes) -> float:
        """Return the bytes of each token of a whole sequence on one rank."""
        return self.rows / axes.cp + self.keys / axes.tp + self.rest / (axes.tp * axes.cp)


def block(config: RunConfig, device: str, checkpointing: str = "none") -> Kept:
    """Return what one block keeps on a device of type cpu or cuda: all, its products (selective) or its input (full).

    In the order of the pass: both norms and their results, the product of queries, keys and values (which their norms
    need), the three as attention takes them, its result, and gate and up of the feed-forward layer.
    """
    shape = _shape(config, device)
    size, width = shape.size, shape.width
    if checkpointing == "full":
        return Kept(0, 0, size * width)
    attention = size * width + _STATISTIC * shape.heads + shape.scores
    of_mlp = shape.feed_forward
    if checkpointing == "selective":  # what enters, products, attention; keys and values are gathered again
        return Kept(0, 0, 2 * size * width + size * shape.joint + attention + of_mlp.products + of_mlp.last)
    streams, normed = 2 * (4 if shape.reference else size) * width, 2 * size * width
    if shape.padded > 1.0:
        attention += round(size * width * shape.padded)
    queries, keys = (round(size * channels * shape.padded) for channels in (width, 2 * shape.keys))
    rest = streams + 2 * _STATISTIC + queries + attention + of_mlp.kept + _joint(shape)
    return Kept(normed, keys, rest)


def kept_either_way(config: RunConfig, device: str) -> int:
    """Return bytes of each token that a block keeps whether all or its products: they are not made again.

    What enters, the product of queries, keys and values where their norms need it, attention's result, gate and up.
    """
    shape = _shape(config, device)
    attention = shape.size * shape.width + _STATISTIC * shape.heads + shape.scores
    joint = shape.size * shape.joint if shape.qk_norm else 0
    return shape.size * shape.width + joint + attention + shape.feed_forward.products


def _joint(shape: Shape) -> int:
    """Return what is kept of queries, keys and values beside what attention takes."""
    if shape.reference:  # values are a view of the product; norms keep fp32 copies, in fp32 the product itself
        copies = _STATISTIC * 2 * shape.heads + (4 * (shape.width + shape.keys) if shape.size < 4 else 0)
        return shape.size * (shape.joint - shape.keys) + (copies if shape.qk_norm else 0)
    if not shape.turned:  # no kernel takes them apart, and what attention takes may be views
        return shape.size * shape.joint + 2 * _STATISTIC * shape.heads
    return shape.size * shape.joint if shape.qk_norm else 0


def _feed_forward(config: RunConfig, size: int, reference: bool) -> FeedForward:
    """Return what the feed-forward layer has of each token."""
    model = config.model
    if not model.experts:
        return _dense(config, mlp_width(model), size, reference)
    routed = _routed(model, size, reference, config.parallel.ep > 1)
    if not model.shared_experts:
        return routed
    shared = _dense(config, model.shared_experts * mlp_width(model), size, reference)
    return FeedForward(
        routed.products + shared.products,
        routed.last + shared.last,
        routed.kept + shared.kept,
        routed.work + shared.work,
    )


def _dense(config: RunConfig, hidden: int, size: int, reference: bool) -> FeedForward:
    """Return a dense layer's: gate and up, and where the reference runs, or the product is kept, more of them."""
    width, gate_up = config.model.width, 2 * size * hidden
    made = size * hidden if config.precision.name == "fp8" or width <= NARROW else 0
    more = 2 * size * hidden if reference else made
    return FeedForward(gate_up, size * width, gate_up + more, size * (4 * hidden + 2 * width))


def _routed(model: ModelConfig, size: int, reference: bool, sent: bool) -> FeedForward:
    """Return that of a router and its experts (train.model.moe).

    Of each of a token's experts: its row, gate and up, their product (by the reference the first factor, too), and what
    it made, with its place in both orders, its number and its weight before and after they are made to add up to 1. Of
    all experts the scores. The balancing loss keeps whether the token counts, and with a sigmoid the scores' sum. Where
    rows are sent to other ranks, each of which has its even share then, those that come are put in an order, too.
    """
    chosen, width, hidden = experts_per_token(model), model.width, mlp_width(model)
    gate_up = 2 * size * hidden
    each = 2 * size * width + gate_up + size * hidden * (2 if reference else 1)
    places = 8 * (5 if sent else 3) + 2 * 4
    balance = 0 if not model.balance_weight else 4 if model.router_score == "softmax" else 8
    return FeedForward(
        chosen * (gate_up + size * width) + size * model.experts,
        size * width,
        chosen * (each + places) + 4 + 4 * model.experts + balance,
        size * chosen * (4 * hidden + 2 * width),
    )


def of_sequences(model: ModelConfig, sequences: int) -> int:
    """Return what a layer of experts keeps of a micro-batch beside its tokens: where each expert's rows end, and for
    the balancing loss how often each is chosen in a sequence [bytes]."""
    return 4 * model.experts * (1 + (sequences if model.balance_weight else 0))


def ends(config: RunConfig, device: str) -> int:
    """Return what embedding, last norm and head keep of each token: its number and turn, the stream, its gradient."""
    shape = _shape(config, device)
    turns = 4 * head_dim(config.model)
    return 8 + _STATISTIC + turns + (shape.size + (4 if shape.reference else shape.size)) * shape.width


def at_work(config: RunConfig, device: str) -> int:
    """Return what the backward pass of one block has of each token beside what blocks keep: gradients on their way."""
    shape = _shape(config, device)
    return max(shape.feed_forward.work, shape.size * (2 * shape.joint + 3 * shape.width))


def of_head(config: RunConfig, tokens: int, device: str) -> int:
    """Return what the head has beside what it keeps of each token [bytes]: a chunk of logits, its weight's gradient."""
    vocabulary, shape = config.data.vocab_size, _shape(config, device)
    return min(CHUNK_BYTES[device], 4 * vocabulary * tokens) + 4 * vocabulary * shape.width


def _shape(config: RunConfig, device: str) -> Shape:
    model, precision = config.model, config.precision.name
    each, size = head_dim(model), 4 if precision == "fp32" else 2
    reference = device == "cpu"
    return Shape(
        width=model.width,
        keys=kv_heads(model) * each,
        feed_forward=_feed_forward(config, size, reference),
        heads=model.width // each,
        size=size,
        padded=1.0 if reference else -(-each // 8) * 8 / each,
        qk_norm=model.qk_norm,
        turned=model.position == "rope",
        reference=reference,
        scores=_scores(config, size, reference),
    )


def _scores(config: RunConfig, size: int, reference: bool) -> int:
    """Return what attention keeps of each token beside its result: scores as a whole, keys repeated, a mask, a bias."""
    model, length = config.model, config.data.sequence_length
    heads = model.width // head_dim(model)
    shared = heads != kv_heads(model)
    masked = bool(model.window) or config.data.packing != "concatenate"
    flexible = masked or bool(model.attention_softcap) or model.position == "alibi"
    repeated = 2 * size * (heads - kv_heads(model)) * head_dim(model)
    if reference and model.attention_softcap:
        return 10 * heads * length + repeated
    if reference:  # one for all sequences of a micro-batch, which may be a single one
        return size * length * (heads if model.position == "alibi" else int(masked))
    # In fp32 torch's kernels for CUDA take no shared key/value heads, and scores are made by the formula.
    return 8 * heads * length + repeated if size == 4 and shared and not flexible else 0
