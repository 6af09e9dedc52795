"""First weights: every part of a weight is the same numbers in whatever way it is drawn."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.peers import zero_rows
from benchmarks.peers.zero_step import first_weights
from train.model import init
from train.model.init import draw, initialise
from train.model.transformer import Transformer
from train.spec.config import ModelConfig


@given(st.data())
def test_a_part_is_that_part_of_the_whole(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=3))
    region = []
    for size in shape:
        begin = data.draw(st.integers(0, size - 1))
        region.append(slice(begin, data.draw(st.integers(begin + 1, size))))
    with patch.object(init, "BLOCK", data.draw(st.sampled_from([8, 30, 1000]))):
        whole = draw("some.weight", shape, tuple(slice(0, size) for size in shape), 3)
        part = draw("some.weight", shape, tuple(region), 3)
    assert torch.equal(part, whole[tuple(region)])
    assert not torch.equal(draw("other.weight", shape, tuple(region), 3), part)


def test_whole_blocks_are_drawn_one_after_the_other_each_by_its_own_seed() -> None:
    with patch.object(init, "BLOCK", 20):
        found = draw("w", (7, 10), (slice(0, 7), slice(0, 10)), 5)
    for block in range(4):
        generator = torch.Generator().manual_seed(init._block_seed(5, "w", block))
        rows = min(2, 7 - 2 * block)
        assert torch.equal(found[2 * block : 2 * block + 2], torch.empty(rows, 10).normal_(generator=generator))


def test_a_cpu_draws_the_same_on_the_device_of_the_weights() -> None:
    config = ModelConfig(width=32, layers=2, head_dim=8)
    one, other = Transformer(config, 40, 8), Transformer(config, 40, 8)
    initialise(one, 7)
    initialise(other, 7, on_device=True)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_both_sides_of_the_comparison_with_deepspeed_begin_with_the_same_bits() -> None:
    sides = []
    for library in ("ours", "deepspeed"):
        config = zero_rows.config(zero_rows.find(f"{library}-3-tiny-bf16"), "cpu")
        module = Transformer(config.model, config.data.vocab_size, config.data.sequence_length)
        first_weights(config, exact=False)(module)
        sides.append(dict(module.named_parameters()))
    ours, theirs = sides
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert all(torch.equal(weight, weight.bfloat16().float()) for weight in ours.values())
    assert len({float(weight.detach().std()) for weight in ours.values()}) > 2
