"""Shapes to plan with that the trainer has no layers for: latent attention, experts behind dense layers, prediction of
several tokens.

Parameters, FLOPs and key/value caches of such models, for sheets and comparisons; nothing here can be trained by
train.model. The tests hold them against published figures.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GroupedAttention:
    """Multi-head, grouped-query or multi-query attention without biases."""

    heads: int
    kv_heads: int
    head_dim: int

    def weights(self, width: int) -> int:
        """Return the numbers of its matrices."""
        return 2 * width * (self.heads + self.kv_heads) * self.head_dim

    norms = 0

    @property
    def score_flops(self) -> int:
        """FLOPs of a query and a key: their score, and the value that it weighs."""
        return 4 * self.heads * self.head_dim

    @property
    def cached(self) -> int:
        """Numbers that generation keeps of a token."""
        return 2 * self.kv_heads * self.head_dim


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2"): keys and values from one short vector a token.

    query_rank: channels of the queries' own latent; None: queries come from the stream. rope_dim: channels of a key
    that turn, which all heads share.
    """

    heads: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    query_rank: int | None = None

    def weights(self, width: int) -> int:
        """Return the numbers of its matrices."""
        query = self.heads * (self.nope_dim + self.rope_dim)
        queries = width * query if self.query_rank is None else self.query_rank * (width + query)
        down = width * (self.kv_rank + self.rope_dim)
        up = self.kv_rank * self.heads * (self.nope_dim + self.value_dim)
        return queries + down + up + self.heads * self.value_dim * width

    @property
    def norms(self) -> int:
        """Numbers of the norms of its latents."""
        return self.kv_rank + (self.query_rank or 0)

    @property
    def score_flops(self) -> int:
        """FLOPs of a query and a key in training, where keys and values are made whole."""
        return 2 * self.heads * (self.nope_dim + self.rope_dim + self.value_dim)

    @property
    def cached(self) -> int:
        """Numbers that generation keeps of a token: the latent and the key that turns."""
        return self.kv_rank + self.rope_dim


@dataclass(frozen=True)
class Experts:
    """Feed-forward layers of a mixture of experts (SwiGLU), of which a router chooses `active` for each token.

    shared: experts that every token goes through. dense_layers: the first layers, which have one dense feed-forward
    layer instead. router_bias: one number an expert by which its load is balanced.
    """

    count: int
    active: int
    width: int
    shared: int = 0
    dense_layers: int = 0
    router_bias: bool = False


@dataclass(frozen=True)
class PlannedShape:
    """A decoder to plan with. mlp_width: of dense feed-forward layers. predicted: further tokens that are predicted,
    each by a module of one block (DeepSeek-AI 2024, "DeepSeek-V3", section 2.2), beside the model itself."""

    width: int
    layers: int
    vocab_size: int
    attention: GroupedAttention | LatentAttention
    mlp_width: int = 0
    experts: Experts | None = None
    tied_embeddings: bool = False
    predicted: int = 0

    @property
    def total(self) -> int:
        """Every weight of the model itself, without modules that predict further tokens."""
        return self._ends + sum(self._block(layer) for layer in range(self.layers))

    @property
    def active(self) -> int:
        """Weights that a token goes through, with embedding and head."""
        return self.total - self._idle * self._expert_layers

    @property
    def matmul_active(self) -> int:
        """Weights of the products that a token goes through: without embedding and norms, with the head once."""
        norms = self.layers * self._norms + self.width
        embedding = 0 if self.tied_embeddings else self.vocab_size * self.width
        bias = self.experts.count * self._expert_layers if self.experts and self.experts.router_bias else 0
        return self.active - norms - embedding - bias

    @property
    def predicting(self) -> int:
        """Weights of the modules that predict further tokens; embedding and head are the model's own."""
        return self.predicted * (self._block(self.layers - 1) + 2 * self.width**2 + 3 * self.width)

    def training_flops(self, sequence_length: int) -> int:
        """Return the FLOPs of a token, forward and backward, as train.spec.counts: 6 a weight of a product, and
        attention over the full square. With modules that predict further tokens, each of which has the head again."""
        attention = 3 * self.attention.score_flops * sequence_length
        found = 6 * self.matmul_active + self.layers * attention
        block = self._block(self.layers - 1) - self._norms - (self._idle if self.experts else 0)
        again = 6 * (block + 2 * self.width**2 + self.vocab_size * self.width) + attention
        return found + self.predicted * again

    def cache_per_token(self, bytes_per_number: int = 2) -> int:
        """Return the bytes that generation keeps of a token in all layers."""
        return self.layers * self.attention.cached * bytes_per_number

    @property
    def _ends(self) -> int:
        return (1 if self.tied_embeddings else 2) * self.vocab_size * self.width + self.width

    @property
    def _norms(self) -> int:
        return 2 * self.width + self.attention.norms

    @property
    def _expert_layers(self) -> int:
        return self.layers - self.experts.dense_layers if self.experts else 0

    @property
    def _idle(self) -> int:
        """Weights of one layer's experts that a token does not go through."""
        experts = self.experts
        return 3 * self.width * experts.width * (experts.count - experts.active) if experts else 0

    def _block(self, layer: int) -> int:
        fixed, experts = self.attention.weights(self.width) + self._norms, self.experts
        if experts is None or layer < experts.dense_layers:
            return fixed + 3 * self.width * self.mlp_width
        router = experts.count * (self.width + int(experts.router_bias))
        return fixed + router + 3 * self.width * experts.width * (experts.count + experts.shared)
