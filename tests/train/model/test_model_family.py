"""Every decoder of the family against the one written out in fp64: losses and all gradients."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.train.model.reference import reference_logits
from train.model.attention.kv_cache import KVCache
from train.model.attention.masks import block_mask, dense_mask
from train.model.attention.sdpa import Rule, attend
from train.model.init import initialise
from train.model.transformer import Transformer
from train.spec.config import ModelConfig
from train.spec.counts import flops_per_token, window_of
from train.spec.decoder import resolve_model
from train.spec.labels import IGNORED

VOCABULARY, LENGTH = 40, 14
BASE = ModelConfig(width=32, layers=2, head_dim=8, kv_heads=2, qk_norm=False, mlp_width=48)
YARN = {"rope_scaling": "yarn", "rope_factor": 4.0, "rope_original_length": 64, "rope_theta": 100.0}
FAMILY: dict[str, dict[str, object]] = {
    "multi-head": {"kv_heads": 4},
    "multi-query": {"kv_heads": 1},
    "qk-norm": {"qk_norm": True},
    "tied": {"tied_embeddings": True},
    "linear": {"rope_scaling": "linear", "rope_factor": 3.0},
    "ntk": {"rope_scaling": "ntk", "rope_factor": 3.0},
    "yarn": YARN,
    "llama3": YARN | {"rope_scaling": "llama3", "rope_theta": 30.0},
    "alibi": {"position": "alibi"},
    "alibi, six heads": {"position": "alibi", "width": 48, "kv_heads": 3},
    "no positions": {"position": "none", "head_dim": 16},
    "attention soft-cap": {"attention_softcap": 0.7},
    "logit soft-cap": {"logit_softcap": 1.3},
    "window": {"window": 4},
    "window of one": {"window": 1},
    "every other block global": {"window": 3, "global_every": 2},
    "like Gemma 2": {"window": 5, "global_every": 2, "attention_softcap": 2.0, "logit_softcap": 3.0, "layers": 3},
    "like Gemma 3": {
        "window": 3,
        "global_every": 3,
        "qk_norm": True,
        "layers": 3,
        "kv_heads": 1,
        "tied_embeddings": True,
    },
    "alibi, capped, windowed": {"position": "alibi", "attention_softcap": 1.0, "window": 6, "kv_heads": 4},
    "yarn, normed, capped": YARN | {"qk_norm": True, "attention_softcap": 1.0, "logit_softcap": 2.0},
    "experts": {"experts": 5},
    "experts, sigmoid, shared": {
        "experts": 6,
        "experts_per_token": 3,
        "shared_experts": 2,
        "router_score": "sigmoid",
        "mlp_width": 24,
        "tied_embeddings": True,
    },
    "muP, capped": {"mup_base_width": 16, "attention_softcap": 1.0, "logit_softcap": 2.0, "tied_embeddings": True},
}
DOCUMENTS = torch.tensor([[0] * 3 + [1] * 7 + [2] * 4, [0] * 1 + [1] * 1 + [2] * 12])
PLACES = torch.tensor([[*range(3), *range(7), *range(4)], [0, 0, *range(12)]])


def made(changes: dict[str, object]) -> Transformer:
    unbalanced = {"balance_weight": 0.0} if "experts" in changes else {}  # see test_model_moe
    config = resolve_model(replace(BASE, **unbalanced, **changes), LENGTH)  # type: ignore[arg-type]
    model = Transformer(config, VOCABULARY, LENGTH)
    initialise(model, 3)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.normal_(1.0, 0.2, generator=torch.Generator().manual_seed(len(name)))
            elif "qkv" in name:
                weight.mul_(2.0)  # scores large enough that masks, caps and positions matter
    return model


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, VOCABULARY, (2, LENGTH), generator=generator)
    targets = torch.randint(0, VOCABULARY, (2, LENGTH), generator=generator)
    targets[1, 3] = IGNORED
    return tokens, targets


def compare(model: Transformer, documents: Tensor | None) -> None:
    """Compare loss and gradients with the reference."""
    tokens, targets = batch()
    positions = None if documents is None else PLACES
    loss = model(tokens, targets, positions, documents)
    names, weights = zip(*model.named_parameters(), strict=True)
    ours = torch.autograd.grad(loss, weights)

    exact = {name: w.detach().double().requires_grad_() for name, w in zip(names, weights, strict=True)}
    wanted = torch.zeros((), dtype=torch.float64)
    for row in range(2):
        numbers = None if documents is None else documents[row]
        logits = reference_logits(exact, model.config, tokens[row], numbers)
        wanted = wanted + F.cross_entropy(logits, targets[row], ignore_index=IGNORED, reduction="sum")
    theirs = torch.autograd.grad(wanted, list(exact.values()))
    assert float(loss) == pytest.approx(float(wanted), rel=1e-6)
    for name, a, b in zip(names, ours, theirs, strict=True):
        assert float((a.double() - b).norm()) < 1e-5 * float(b.norm()) + 1e-9, name


@pytest.mark.parametrize("masked", [False, True], ids=["one document", "documents"])
@pytest.mark.parametrize("name", FAMILY)
def test_a_decoder_is_its_formula(name: str, masked: bool) -> None:
    compare(made(FAMILY[name]), DOCUMENTS if masked else None)


def test_every_key_changes_the_loss() -> None:
    """So that no comparison above holds because an option did nothing."""

    def loss(changes: dict[str, object], *masks: Tensor) -> float:
        with torch.no_grad():
            return float(made(changes)(*batch(), *masks))

    plain = loss({})
    for name, changes in FAMILY.items():
        if set(changes) & {"kv_heads", "width", "head_dim", "layers", "tied_embeddings", "mup_base_width"}:
            continue
        assert abs(loss(changes) - plain) > 1e-3, name
    assert abs(loss({}, PLACES, DOCUMENTS) - plain) > 1e-3


def test_documents_in_a_row_are_as_if_alone() -> None:
    model = made({"qk_norm": True, "window": 5})
    tokens, _ = batch()
    with torch.no_grad():
        together = model(tokens, None, PLACES, DOCUMENTS)
        for row, numbers in enumerate(DOCUMENTS):
            for number in numbers.unique():
                here = numbers == number
                alone = model(tokens[row : row + 1, here])
                torch.testing.assert_close(together[row, here], alone[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FAMILY)
def test_with_caches_tokens_in_turn_give_the_logits_of_all_at_once(name: str) -> None:
    model = made(FAMILY[name])
    tokens, _ = batch()
    length = tokens.shape[1]
    caches = {block: KVCache(length) for block in model.blocks}
    with torch.no_grad():
        wanted = model(tokens)
        ends = [0, length // 2, *range(length // 2 + 1, length + 1)]  # a prompt, then one token after the other
        found = [model(tokens[:, start:stop], caches=caches) for start, stop in itertools.pairwise(ends)]
        torch.testing.assert_close(torch.cat(found, 1), wanted, rtol=1e-4, atol=1e-5)
        with pytest.raises(ValueError, match="do not fit into a cache"):
            model(tokens, caches={block: KVCache(length - 1) for block in model.blocks})


@pytest.mark.parametrize(
    ("queries", "window", "cap", "heads"), list(itertools.product([4, 14], [None, 5], [0.0, 1.5], [0, 4]))
)
def test_flex_attention_is_told_the_same(queries: int, window: int | None, cap: float, heads: int) -> None:
    """The masks and score changes that CUDA gets, here run by FlexAttention's own CPU formula."""
    from torch.nn.attention.flex_attention import flex_attention

    from train.model.attention.sdpa import score_mod

    q, k, v = torch.randn(2, 4, queries, 8), torch.randn(2, 2, LENGTH, 8), torch.randn(2, 2, LENGTH, 8)
    rule = Rule(cap, heads)
    mask = block_mask(queries, LENGTH, window, DOCUMENTS, torch.device("cpu"))
    with torch.no_grad():
        flexed = flex_attention(q, k, v, score_mod=score_mod(q, k, rule), block_mask=mask, enable_gqa=True)
        written = dense_mask(queries, LENGTH, window, DOCUMENTS, torch.device("cpu"))
        wanted = attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), written, rule)
    assert isinstance(flexed, Tensor)
    torch.testing.assert_close(flexed.transpose(1, 2), wanted, rtol=1e-5, atol=1e-5)


def test_windows_lower_the_flops() -> None:
    full = replace(BASE, layers=4)
    windowed, mixed = replace(full, window=16), replace(full, window=16, global_every=2)
    assert [window_of(mixed, layer) for layer in range(4)] == [16, None, 16, None]
    whole = flops_per_token(full, 100, 64)
    matmul = whole - 12 * 4 * 32 * 64
    assert flops_per_token(windowed, 100, 64) == matmul + 12 * 4 * 32 * 16
    assert flops_per_token(mixed, 100, 64) == matmul + 12 * 32 * (2 * 16 + 2 * 64)
    assert flops_per_token(replace(full, window=64), 100, 64) == whole
