"""Block masks: the same pairs as written out, found without a tensor that grows with the pairs; and none in silence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from benchmarks.long_attention import Largest
from train.model.attention import masks
from train.model.attention.masks import BLOCK, block_mask, dense_mask, make_masks, mask_of
from train.model.transformer import Transformer
from train.spec.config import ModelConfig
from train.spec.decoder import resolve_model

CPU = torch.device("cpu")


def largest(length: int, **changes: Any) -> int:
    documents = torch.arange(length)[None] // 100
    with Largest() as seen:
        block_mask(length, length, **{"window": None, "documents": documents, "device": CPU, **changes})
    return int(seen.size)


@pytest.mark.parametrize("changes", [{}, {"window": 300}, {"documents": None}, {"window": 300, "documents": None}])
def test_no_tensor_grows_with_the_pairs(changes: dict[str, Any]) -> None:
    for length in (4096, 16_384):
        # Positions and their documents, int64; and what says of every block of pairs where it stands among others.
        assert largest(length, **changes) <= max(8 * length, 8 * (length // BLOCK) * (length // BLOCK + 1))


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 500),
    st.integers(1, 500),
    st.one_of(st.none(), st.integers(1, 400)),
    st.sampled_from(["none", "runs", "any order"]),
    st.integers(0, 99),
)
def test_block_masks_are_the_written_out_ones(
    queries: int, more: int, window: int | None, kind: str, seed: int
) -> None:
    keys = queries + more if more > 100 else queries
    generator = torch.Generator().manual_seed(seed)
    documents: Tensor | None = None
    if kind == "runs":
        documents = (torch.rand(2, keys, generator=generator) < 0.01).long().cumsum(1)
    elif kind == "any order":
        documents = torch.randint(0, 3, (2, -(-keys // 90)), generator=generator).repeat_interleave(90, 1)[:, :keys]
    written = dense_mask(queries, keys, window, documents, CPU)
    made = block_mask(queries, keys, window, documents, CPU)
    rows, columns = -(-queries // BLOCK), -(-keys // BLOCK)
    padded = torch.zeros(len(written), rows * BLOCK, columns * BLOCK, dtype=torch.bool)
    padded[:, :queries, :keys] = written[:, 0]
    by_block = padded.view(-1, rows, BLOCK, columns, BLOCK).transpose(2, 3).flatten(-2)
    work, whole = (_chosen(*part) for part in _parts(made))
    assert not (by_block.any(-1) & ~(work | whole)).any(), "what is seen is worked on"
    assert (by_block.all(-1) | ~whole).all(), "no mask is left out where not all is seen"
    if kind != "any order":  # nor is there work for nothing
        theirs = create_block_mask(made.mask_mod, len(written), None, queries, keys, device="cpu")
        for ours, wanted in zip(_parts(made), _parts(theirs), strict=True):
            assert torch.equal(_chosen(*ours), _chosen(*wanted))


def _parts(mask: Any) -> list[tuple[Tensor, Tensor]]:
    return [(mask.kv_num_blocks, mask.kv_indices), (mask.full_kv_num_blocks, mask.full_kv_indices)]


def _chosen(count: Tensor, order: Tensor) -> Tensor:
    listed = torch.arange(order.shape[-1]) < count[..., None]
    return torch.zeros_like(listed).scatter(-1, order.long(), listed)[:, 0]


def test_sizes_that_no_mask_was_made_for_are_refused() -> None:
    made = make_masks([(4, 8)], [None], None, CPU)[None]
    assert mask_of(made, 4, 8) is None
    with pytest.raises(ValueError, match=r"no mask was made for 8 queries of 8 keys, only for .* \(4, 8\)"):
        mask_of(made, 8, 8)


def test_a_model_told_of_other_pieces_does_not_attend_without_a_mask() -> None:
    config = resolve_model(ModelConfig(width=32, layers=2, head_dim=8, window=4), 16)
    model = Transformer(config, 40, 16)
    model.pieces = lambda length: ((length // 2, length),)
    with pytest.raises(ValueError, match="no mask was made for 16 queries"):
        model(torch.zeros(1, 16, dtype=torch.long))


@pytest.mark.parametrize(
    ("plain", "window", "wanted"), [(True, None, 0), (False, None, 1), (False, 4, 1), (True, 4, 1)]
)
def test_a_gpu_has_one_block_mask_a_window_also_for_changed_scores(
    plain: bool, window: int | None, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def counted(*_: Any) -> str:
        nonlocal calls
        calls += 1
        return "made"

    monkeypatch.setattr(masks, "block_mask", counted)
    made = make_masks([(16, 16)], [window] * 12, None, torch.device("cuda"), plain)
    assert calls == wanted
    assert mask_of(made[window], 16, 16) == ("made" if wanted else None)
