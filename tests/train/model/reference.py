"""The decoder written out plainly and slowly in fp64, from its weights by name. What the fast one is compared with."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from train.spec import mup
from train.spec.config import ModelConfig
from train.spec.counts import head_dim, kv_heads, window_of


def reference_logits(
    weights: Mapping[str, Tensor], config: ModelConfig, tokens: Tensor, documents: Tensor | None = None
) -> Tensor:
    """Return the logits (length, vocabulary) of one row of tokens; `documents` numbers each position's document."""
    documents = torch.zeros_like(tokens) if documents is None else documents
    x = weights["embedding.weight"][tokens]
    for layer in range(config.layers):
        own = {name.split(".", 2)[2]: w for name, w in weights.items() if name.startswith(f"blocks.{layer}.")}
        window = window_of(config, layer)
        x = x + attention(own, config, norm(x, own["attention_norm.weight"], config), documents, window)
        h = norm(x, own["mlp_norm.weight"], config)
        x = x + (experts(own, config, h) if config.experts else gated(h, own["mlp.gate_up"], own["mlp.down"]))
    head = weights["embedding.weight"] if config.tied_embeddings else weights["output.weight"]
    logits = norm(x, weights["norm.weight"], config) @ head.t() * mup.output_scale(config)
    return capped(logits, config.logit_softcap)


def gated(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate = x @ gate_up[0].t()
    return (gate * torch.sigmoid(gate) * (x @ gate_up[1].t())) @ down.t()


def experts(weights: Mapping[str, Tensor], config: ModelConfig, x: Tensor) -> Tensor:
    """One token at a time, one of its experts after the other."""
    found = []
    for token, scores in zip(x, router_scores(weights, config, x), strict=True):
        best = chosen(scores + weights.get("mlp.bias", 0.0), config)
        total = sum(scores[e] for e in best)
        made = torch.zeros_like(token)
        for e in best:
            one = gated(token, weights["mlp.experts.gate_up"][e], weights["mlp.experts.down"][e])
            made = made + scores[e] / total * one
        if config.shared_experts:
            made = made + gated(token, weights["mlp.shared.gate_up"], weights["mlp.shared.down"])
        found.append(made)
    return torch.stack(found)


def router_scores(weights: Mapping[str, Tensor], config: ModelConfig, x: Tensor) -> Tensor:
    logits = x @ weights["mlp.router"].t()
    return torch.softmax(logits, -1) if config.router_score == "softmax" else torch.sigmoid(logits)


def chosen(scores: Tensor, config: ModelConfig) -> list[int]:
    count = config.experts_per_token or 2
    return sorted(range(len(scores)), key=lambda e: -float(scores[e].detach()))[:count]


def balance(scores: Tensor, config: ModelConfig, counted: Tensor) -> Tensor:
    """DeepSeek-V3, equations 17 to 20, over the tokens of one sequence that count; without its weight."""
    tokens, count = [t for t in range(len(scores)) if counted[t]], config.experts_per_token or 2
    found = torch.zeros((), dtype=torch.float64)
    for e in range(config.experts):
        often = sum(e in chosen(scores[t], config) for t in tokens)
        likely = sum(scores[t, e] / scores[t].sum() for t in tokens)
        found = found + config.experts / (count * len(tokens)) * often * likely / len(tokens)
    return found


def norm(x: Tensor, weight: Tensor, config: ModelConfig) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + config.norm_eps) * weight


def capped(x: Tensor, cap: float) -> Tensor:
    return cap * torch.tanh(x / cap) if cap else x


def attention(
    weights: Mapping[str, Tensor], config: ModelConfig, x: Tensor, documents: Tensor, window: int | None
) -> Tensor:
    """One query head at a time; who sees whom, and how far it is, decided pair by pair."""
    dim, groups, length = head_dim(config), kv_heads(config), len(x)
    heads = config.width // dim
    each = heads // groups
    projected = (x @ weights["attention.qkv"].t()).view(length, groups, each + 2, dim)
    number = documents.tolist()
    place = [number[:t].count(number[t]) for t in range(length)]
    angles = [[place[t] * frequency(pair, dim, config) for pair in range(dim // 2)] for t in range(length)]
    unseen = [
        [not (s <= t and number[s] == number[t] and (window is None or t - s < window)) for s in range(length)]
        for t in range(length)
    ]

    def placed(vectors: Tensor, kind: str) -> Tensor:
        if config.qk_norm:
            vectors = norm(vectors, weights[f"attention.{kind}_norm.weight"], config)
        return rotated(vectors, torch.tensor(angles, dtype=torch.float64), config)

    mixed = []
    for head in range(heads):
        group, within = divmod(head, each)
        query = placed(projected[:, group, within], "query")
        key = placed(projected[:, group, each], "key")
        scores = capped(query @ key.t() * mup.query_scale(config) / math.sqrt(dim), config.attention_softcap)
        if config.position == "alibi":
            distances = [[t - s for s in range(length)] for t in range(length)]
            scores = scores - slope(head, heads) * torch.tensor(distances, dtype=torch.float64)
        shares = torch.softmax(scores.masked_fill(torch.tensor(unseen), -math.inf), -1)
        mixed.append(shares @ projected[:, group, each + 1])
    return torch.stack(mixed, 1).flatten(1) @ weights["attention.out"].t()


def slope(head: int, heads: int) -> float:
    """As in the appendix of the ALiBi paper's code: powers of two directly, other counts by two of their sequences."""
    if math.log2(heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return float(start * start**head)
    below = 2 ** math.floor(math.log2(heads))
    return slope(head, below) if head < below else slope(2 * (head - below), 2 * below)


def rotated(vectors: Tensor, angles: Tensor, config: ModelConfig) -> Tensor:
    """Neighbouring channels turned: (length, dim) by (length, dim / 2) angles."""
    if config.position != "rope":
        return vectors
    a, b = vectors[:, 0::2], vectors[:, 1::2]
    turned = torch.stack([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)
    temperature = 0.1 * math.log(config.rope_factor) + 1 if config.rope_scaling == "yarn" else 1.0
    return turned.flatten(1) * temperature


def frequency(pair: int, dim: int, config: ModelConfig) -> float:
    """The angle per position of one channel pair, scaled as each paper says."""
    theta, factor, original = config.rope_theta, config.rope_factor, config.rope_original_length or 0
    if config.rope_scaling == "ntk":
        theta *= factor ** (dim / (dim - 2))
    plain = float(theta ** (-2 * pair / dim))
    turns = original * plain / (2 * math.pi)
    if config.rope_scaling == "linear":
        return plain / factor
    if config.rope_scaling == "llama3":
        if turns < 1:
            return plain / factor
        if turns > 4:
            return plain
        smooth = (turns - 1) / 3
        return (1 - smooth) * plain / factor + smooth * plain
    if config.rope_scaling == "yarn":
        low = max(math.floor(dim * math.log(original / (32 * 2 * math.pi)) / (2 * math.log(theta))), 0)
        high = min(math.ceil(dim * math.log(original / (2 * math.pi)) / (2 * math.log(theta))), dim - 1)
        share = min(max((pair - low) / (high - low if high != low else 0.001), 0), 1)
        return plain / factor * share + plain * (1 - share)
    return plain
