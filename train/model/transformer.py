"""Decoder-only transformer: pre-norm blocks between an input embedding and an output head; whole, or one part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.cross_entropy.linear import linear_cross_entropy
from train.model.attention.gqa import Attention
from train.model.attention.kv_cache import KVCache
from train.model.attention.masks import Masks, Sizes, make_masks
from train.model.attention.sdpa import rule_of
from train.model.mlp import MLP
from train.model.moe import MoE, Routed, Routing
from train.model.norm import RMSNorm
from train.model.params import ParamSpec, parameter, same_tensor, specs_of
from train.model.rope import rotations
from train.precision.product import shaped
from train.spec import mup
from train.spec.config import ModelConfig, OptimConfig
from train.spec.counts import window_of
from train.spec.labels import IGNORED


@dataclass(frozen=True)
class Part:
    """What one module holds of a model: blocks start to stop, the embedding if `first`, norm and head if `last`."""

    start: int
    stop: int
    first: bool = True
    last: bool = True


class Embedding(nn.Module):
    """Token numbers to vectors.

    An embedding that is only looked up is drawn with std 1, so that the residual stream starts at the scale of a normed
    one. Measured at 80,000 parameters and 500 steps: 3.68 nats per token, 3.75 with a std of 1/sqrt(width), and 4.23
    with a head of std 1/width. A tied embedding is drawn as the head that it is.
    """

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.width = config.width
        shape, hub = (vocab_size, config.width), same_tensor("model.embed_tokens.weight")
        if config.tied_embeddings:
            self.weight = parameter(ParamSpec("head", shape, mup.head_std(config), tp_dim=0, hub=hub))
        else:
            self.weight = parameter(ParamSpec("embedding", shape, 1.0, tp_dim=0, hub=hub))
        self.lookup: Callable[[Tensor, Tensor], Tensor] = F.embedding
        """How rows are found; train.parallel.tensor replaces it where each rank holds a part of the vocabulary."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the vectors (batch, length, width) of int64 tokens (batch, length), in the format of matrix products.

        The residual stream has one format from here on, whether autocast or the weights' own format says which.
        """
        x = self.lookup(tokens, shaped(self.weight, -1, self.width))
        device = x.device.type
        return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


class LMHead(nn.Module):
    """Hidden states to logits or to their loss. Where embeddings are tied it has no weight of its own.

    Under muP the hidden states have a factor, and logits may have a soft cap: both are known here alone.
    """

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        shape, std, hub = (vocab_size, config.width), mup.head_std(config), same_tensor("lm_head.weight")
        self.weight = None if config.tied_embeddings else parameter(ParamSpec("head", shape, std, tp_dim=0, hub=hub))
        self.scale, self.softcap = mup.output_scale(config), config.logit_softcap
        self.group: Any = None
        """The process group over which the vocabulary is cut, if it is; set by train.parallel.tensor."""
        self.z_loss = self.label_smoothing = 0.0
        """What is trained on besides the cross-entropy; see `Transformer.penalise`."""

    def logits(self, hidden: Tensor, tied: Tensor | None) -> Tensor:
        """Return the logits (batch, length, vocab_size) of hidden (batch, length, width), where the weight is whole."""
        weight = self.weight if tied is None else tied
        assert weight is not None
        logits = self._scaled(hidden) @ shaped(weight, -1, hidden.shape[-1]).t()
        return self.softcap * torch.tanh(logits / self.softcap) if self.softcap else logits

    def loss(self, hidden: Tensor, targets: Tensor, tied: Tensor | None, each: bool = False) -> Tensor:
        """Return the summed cross-entropy [nats] of hidden (batch, length, width) against targets (batch, length).

        An fp64 scalar, or with `each` every token's own, fp32 (batch, length), for use without gradients. With z-loss
        or label smoothing the number is the cross-entropy still, its gradient that of the objective with both. The
        logits, the largest tensor of a small model, never exist as a whole.
        """
        loss: Tensor = self(self._scaled(hidden), targets, tied, each)
        return loss

    def _scaled(self, hidden: Tensor) -> Tensor:
        return hidden * self.scale if self.scale != 1.0 else hidden

    def forward(self, hidden: Tensor, targets: Tensor, tied: Tensor | None, each: bool) -> Tensor:
        """Return `loss` of hidden states that have their factor: what sharding hooks to sees them so."""
        weight = self.weight if tied is None else tied
        assert weight is not None
        penalised = torch.is_grad_enabled() and (self.z_loss > 0 or self.label_smoothing > 0)
        loss = linear_cross_entropy(
            hidden,
            shaped(weight, -1, hidden.shape[-1]),
            targets,
            reduction="none" if each else "sum",
            ignore_index=IGNORED,
            z_loss=self.z_loss if penalised else 0.0,
            label_smoothing=self.label_smoothing if penalised else 0.0,
            softcap=self.softcap or None,
            group=self.group,
            hidden_gradient="partial",
            details=penalised,
        )
        if isinstance(loss, Tensor):
            return loss
        # The gradient of one, the number of the other.
        return loss.cross_entropy.sum(dtype=torch.float64) + (loss.loss - loss.loss.detach())


class Block(nn.Module):
    """One pre-norm transformer block: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width, config.norm_eps, same_tensor("input_layernorm.weight"))
        self.attention = Attention(config)
        self.mlp_norm = RMSNorm(config.width, config.norm_eps, same_tensor("post_attention_layernorm.weight"))
        self.mlp: nn.Module = MoE(config) if config.experts else MLP(config)

    def forward(self, x: Tensor, rope: Tensor | None, masks: Masks, *cache: KVCache) -> Tensor:
        """Return the residual stream (batch, length, width) after this block; see `Attention` for rope and masks."""
        x, normed = self._attended(x, rope, masks, *cache)
        after: Tensor = x + self.mlp(normed)
        return after

    def _attended(self, x: Tensor, rope: Tensor | None, masks: Masks, *cache: KVCache) -> tuple[Tensor, Tensor]:
        """Return the stream after attention, and what the feed-forward layer takes."""
        x, normed = self.attention_norm.fork(x)
        return self.mlp_norm.after(self.attention(normed, rope, masks, *cache), x)


class ExpertBlock(Block):
    """The same with a layer of experts."""

    def forward(  # type: ignore[override]
        self, x: Tensor, rope: Tensor | None, masks: Masks, counted: Tensor | None, *cache: KVCache
    ) -> tuple[Tensor, Routed]:
        """Return the residual stream after this block, and what its routing was; see `MoE` for `counted`."""
        x, normed = self._attended(x, rope, masks, *cache)
        mixed, routed = self.mlp(normed, counted)
        return x + mixed, routed


class Transformer(nn.Module):
    """Tokens (batch, length) to logits (batch, length, vocab_size), or with targets to their summed loss.

    A `part` of the model takes and returns the residual stream where it does not begin or end the model. Its weights
    have the names that they have in the whole model; a tied embedding is in the first part and in the last.
    """

    def __init__(self, config: ModelConfig, vocab_size: int, length: int, part: Part | None = None) -> None:
        """Make the module with empty weights for sequences up to `length` [tokens]; see `initialise`."""
        super().__init__()
        self.config = config
        self.length = length
        self.part = part = part or Part(0, config.layers)
        tied = config.tied_embeddings
        self.embedding = Embedding(config, vocab_size) if part.first or (part.last and tied) else None
        kind = ExpertBlock if config.experts else Block
        self.blocks = nn.ModuleDict({str(i): kind(config) for i in range(part.start, part.stop)})
        scaled = same_tensor("model.norm.weight", mup.output_scale(config))
        self.norm = RMSNorm(config.width, config.norm_eps, scaled) if part.last else None
        self.output = LMHead(config, vocab_size) if part.last else None
        self.specs = specs_of(self)
        """What each weight is, by name, however wrappers and sharding store it."""
        for number, block in self.blocks.items():
            for name in (f"blocks.{number}.{name}" for name, _ in block.named_parameters()):
                self.specs[name] = replace(self.specs[name], layer=int(number))
        # No buffer: wrappers would send it to other ranks, which have the same numbers.
        self.rope = rotations(config, length)
        self.each = False
        """Whether the last part returns each token's loss instead of their sum; for evaluation, without gradients."""
        self.pieces: Callable[[int], Iterable[Sizes]] = lambda length: ((length, length),)
        """Sizes (queries, keys) that attention runs on, of a row's length here; set by train.parallel.context."""
        self.routing = Routing()

    @property
    def head(self) -> Tensor:
        """The output head's weight, (vocab_size, width); the input embedding's if they are tied."""
        assert self.output is not None
        return self.output.weight if self.output.weight is not None else self._embedding.weight

    @property
    def _embedding(self) -> Embedding:
        assert self.embedding is not None
        return self.embedding

    def forward(
        self,
        x: Tensor,
        targets: Tensor | None = None,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        caches: Mapping[str, KVCache] | None = None,
    ) -> Tensor:
        """Return what this part makes of int64 tokens (batch, length), or of the residual stream before it.

        In the last part: the summed loss [nats] of int64 targets (batch, length), where `IGNORED` ones do not count,
        as an fp64 scalar; without targets the logits (batch, length, vocab_size). positions,
        (length,) or (batch, length), are those of the tokens in their sequence or document; None: 0, 1, 2, … documents
        (batch, whole row's length) numbers each position's document, within which attention stays; None: one.
        caches: one a block, by its name; x goes on from the positions that they hold, as generation does.
        """
        # A later part's stream may be cut over tensor-parallel ranks, which attend to the whole row nevertheless.
        length = x.shape[1] if targets is None else targets.shape[1]
        past = 0 if not caches else next(iter(caches.values())).length
        if self.part.first:
            x = self._embedding(x)
        rope = self.rope
        if rope is not None:
            # Real: the compiler generates no code for complex numbers, and warns of that.
            rope = torch.view_as_real(rope[past : past + length] if positions is None else rope[positions])
        windows = {name: window_of(self.config, int(name)) for name in self.blocks}
        plain = rule_of(self.config).plain
        sizes = self.pieces(length) if caches is None else [(length, past + length)]
        masks = make_masks(sizes, windows.values(), documents, x.device, plain)
        counted = None if targets is None else targets != IGNORED
        routed: list[Routed] = []
        for name, block in self.blocks.items():
            if self.config.experts:
                x, one = block(x, rope, masks[windows[name]], counted, *([caches[name]] if caches else []))
                routed.append(one)
            else:
                x = block(x, rope, masks[windows[name]], *([caches[name]] if caches else []))
        learns = bool(routed) and torch.is_grad_enabled()
        if self.norm is None or self.output is None:
            return self.routing.attached(x, routed, counted) if learns else x
        x = self.norm(x)
        tied = self._embedding.weight if self.output.weight is None else None
        if targets is None:
            return self.output.logits(x, tied)
        loss = self.output.loss(x, targets, tied, self.each)
        return self.routing.added(loss, routed, counted) if learns else loss

    def penalise(self, optim: OptimConfig) -> None:
        """Add z-loss and label smoothing to what is trained on, where this part has the head."""
        if self.output is not None:
            self.output.z_loss, self.output.label_smoothing = optim.z_loss, optim.label_smoothing

    def materialise(self, device: torch.device) -> None:
        """Give a module made on the meta device memory on `device`, and its rotations; weights are left undefined."""
        self._apply(lambda tensor: _undefined(tensor, device))  # type: ignore[no-untyped-call]
        self.rope = None if self.rope is None else self.rope.to(device)


def _undefined(tensor: Tensor, device: torch.device) -> Tensor:
    """Return memory for a tensor of the meta device.

    Not by torch.empty_like where that is the same: for the meta device it reasons in sympy, whose import takes a third
    of a second of the time before the first step.
    """
    if type(tensor) in (Tensor, nn.Parameter) and tensor.is_contiguous():
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    return torch.empty_like(tensor, device=device)
