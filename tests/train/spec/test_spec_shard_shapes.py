"""Weights are cut evenly for every preset and number of ranks, and a plan counts what is really held."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.shard_evenness import CONF, PRESETS, config_of, measured
from train.model.transformer import Part, Transformer
from train.spec.config import ModelConfig, ParallelConfig
from train.spec.counts import Weight, block_weights, end_weights, params
from train.spec.decoder import resolve_model
from train.spec.footprint import footprint
from train.spec.mesh import Axes, check
from train.spec.pipeline_layout import layers_of
from train.spec.shard_shapes import largest_shard, largest_shards, regions_of_run

RANKS = range(2, 65)


def model_of(preset: str) -> ModelConfig:
    return resolve_model(ModelConfig(**yaml.safe_load((CONF / f"{preset}.yaml").read_text())), 128)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("vocabulary", [257, 50_304, 128_256])
def test_no_rank_holds_more_than_a_twentieth_above_its_share(preset: str, vocabulary: int) -> None:
    model = model_of(preset)
    block, ends = block_weights(model), end_weights(model, vocabulary)
    for ranks in RANKS:
        most = model.layers * largest_shards(block.values(), ranks) + largest_shards(ends.values(), ranks)
        fair = params(model, vocabulary).total / ranks
        assert 1.0 <= most / fair <= 1.05, ranks
        # Nor of any one matrix: what is gathered of it is its shares, rounded up.
        for name, weight in {**block, **ends}.items():
            if len(weight.shape) > 1:
                allowed = max(1.05 * weight.numbers, weight.numbers + ranks)  # one number more of a router
                assert largest_shard(weight, ranks) * ranks <= allowed, (ranks, name)


@pytest.mark.parametrize(
    ("preset", "ranks"),
    # Those whose gate and up were cut in two halves: 12 to 32 times their share.
    [("8b", 24), ("7b", 32), ("400m", 64), ("70b", 48), ("tiny", 47), ("gemma_tiny", 33), ("124m", 2), ("1b", 61)],
)
def test_what_is_planned_is_what_is_really_held(preset: str, ranks: int) -> None:
    row = measured(preset, ranks)
    assert row.planned == row.real
    assert row.ratio <= 1.05
    assert row.gathered <= 1.05


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("preset", ["tiny", "gemma_tiny", "8b"])
def test_shapes_and_cuts_are_those_of_the_model(preset: str, tied: bool) -> None:
    model = replace(model_of(preset), tied_embeddings=tied, layers=3)
    for part in (Part(0, 3), Part(0, 1, last=False), Part(1, 2, first=False, last=False), Part(1, 3, first=False)):
        with torch.device("meta"):
            made = Transformer(model, 300, 16, part)
        named = {
            f"blocks.{i}.{name}": weight
            for i in range(part.start, part.stop)
            for name, weight in block_weights(model).items()
        }
        named |= end_weights(model, 300, part.first, part.last)
        assert {name: Weight(spec.shape, spec.tp_dim, spec.fsdp_dim) for name, spec in made.specs.items()} == named
        assert {name: tuple(weight.shape) for name, weight in made.named_parameters()} == {
            name: weight.shape for name, weight in named.items()
        }


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.data())
def test_regions_of_a_run_are_its_numbers_in_order(shape: list[int], data: st.DataObject) -> None:
    size = math.prod(shape)
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    numbers = torch.arange(size).view(shape)
    found = [numbers[region].flatten() for region in regions_of_run(tuple(shape), start, stop)]
    assert torch.cat([numbers.new_empty(0), *found]).tolist() == list(range(start, stop))
    assert len(found) <= 2 * len(shape) - 1


@pytest.mark.parametrize(("zero", "times"), [(3, None), (2, 1.0), (1, 2.0)])
def test_gathered_weights_are_planned_with_their_padding(zero: int, times: float | None) -> None:
    config = config_of("tiny", 47, 4096)
    config = replace(config, parallel=replace(config.parallel, zero=zero))
    planned = footprint(config, Axes(dp_shard=47), "cuda")
    shares = planned.states // 16 * 47 * 4
    if times is not None:
        assert planned.gathered == times * shares
    else:
        assert 0 < planned.gathered < shares


def test_the_fullest_rank_of_a_pipeline_is_planned() -> None:
    config = replace(config_of("8b", 4, 50_304), parallel=ParallelConfig(dp_replicate=1, pp=4, dp_shard=1))
    head = 50_304 * 4096
    block = sum(weight.numbers for weight in block_weights(config.model).values())
    assert layers_of(config) == (9, 8, 8, 7)
    assert footprint(config, Axes(pp=4), "cuda").states == 16 * (9 * block + head), "the first, with the embedding"


def test_uneven_hidden_channels_within_tensor_parallelism_are_refused_and_else_cut() -> None:
    config = config_of("8b", 48, 50_304)
    check(config, 48)
    with pytest.raises(ValueError, match=r"7168 hidden channels, which dp_shard x cp = 24 ranks cannot"):
        check(replace(config, parallel=replace(config.parallel, dp_shard=24, tp=2)), 48)
