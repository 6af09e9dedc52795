"""A weight says what it is where it is made, and everything that treats weights by kind finds it there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from benchmarks.shard_evenness import pretended
from train.hub import weights
from train.model import transformer
from train.model.init import initialise
from train.model.mlp import MLP
from train.model.params import ParamSpec, parameter
from train.model.transformer import Transformer
from train.optim.build import make_optimizer
from train.parallel import fsdp, tensor
from train.parallel.mesh import Mesh, make_mesh
from train.spec.config import BatchConfig, BudgetConfig, DataConfig, ModelConfig, OptimConfig, ParallelConfig, RunConfig

CONFIG = ModelConfig(width=16, layers=2, head_dim=4, kv_heads=4, mlp_width=24)
NEW = ("blocks.0.mlp.mix", "blocks.1.mlp.mix")


class Mixing(MLP):
    """A feed-forward layer with a weight that nothing else has heard of: two matrices, three rows of each in turn."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.mix = parameter(ParamSpec("matrix", (12, config.width), 0.5, tp_dim=0, muon_split=(3, 3)))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x @ self.mix.T @ self.mix


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Transformer:
    monkeypatch.setattr(transformer, "MLP", Mixing)
    return Transformer(CONFIG, 40, 8)


def sharded(model: Transformer, tp: int = 1, dp_shard: int = 1) -> Iterator[tuple[str, DTensor]]:
    """Yield the new weights as the first rank of a layout has them."""
    parallel = ParallelConfig(strategy="fsdp", dp_replicate=1, dp_shard=dp_shard, tp=tp)
    config = RunConfig(
        model=CONFIG, data=DataConfig(vocab_size=40, sequence_length=8), parallel=parallel,
        batch=BatchConfig(tokens=64), budget=BudgetConfig(tokens=64),
    )  # fmt: skip
    with pretended(tp * dp_shard) as world, torch.device("meta"):
        mesh: Mesh = make_mesh(parallel, world, torch.device("cpu"))
        if tp > 1:
            tensor.shard(model, mesh)
        if dp_shard > 1:
            fsdp.shard(model, config, mesh)
        for name, weight in model.named_parameters():
            if name in NEW:
                assert isinstance(weight, DTensor)
                yield name, weight


def test_the_optimizer_has_it_in_the_group_of_its_kind(model: Transformer) -> None:
    for name, split in (("adamw", None), ("muon", (3, 3))):
        optimizer = make_optimizer(model.named_parameters(), model.specs, CONFIG, OptimConfig(name=name, lr=0.1))
        (group,) = [group for group in optimizer.param_groups if NEW[0] in group["names"]]
        assert NEW[1] in group["names"]
        assert (group["algorithm"], group["weight_decay"], group.get("split")) == (name, 0.1, split)


def test_it_is_drawn_with_its_deviation_and_the_others_as_without_it(
    model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    initialise(model, 7)
    drawn = dict(model.named_parameters())
    for name in NEW:
        assert drawn.pop(name).detach().std() == pytest.approx(0.5, rel=0.2)
    monkeypatch.setattr(transformer, "MLP", MLP)
    plain = Transformer(CONFIG, 40, 8)
    initialise(plain, 7)
    assert [name for name, _ in plain.named_parameters()] == list(drawn)
    assert all(torch.equal(weight, drawn[name]) for name, weight in plain.named_parameters())


def test_it_is_cut_as_it_says(model: Transformer) -> None:
    for name, weight in sharded(model, tp=2):
        assert (tuple(weight.placements), weight.to_local().shape) == ((Shard(0),), (6, 16)), name


def test_fsdp_stores_it_in_rows_that_ranks_share_evenly(model: Transformer) -> None:
    for name, weight in sharded(model, dp_shard=5):
        assert weight.shape[1] < 16, name
        assert weight.to_local().numel() <= -(-12 * 16 // 5), name
        assert model.specs[name].shape == (12, 16)


def test_a_model_with_it_is_not_exported(model: Transformer) -> None:
    with pytest.raises(ValueError, match=r"blocks\.0\.mlp\.mix cannot be exported"):
        list(weights.to_hub(dict(model.named_parameters()), model.specs))


def test_a_weight_that_does_not_say_what_it_is_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(MLP):
        def __init__(self, config: ModelConfig) -> None:
            super().__init__(config)
            self.gain = nn.Parameter(torch.ones(config.width))

    monkeypatch.setattr(transformer, "MLP", Silent)
    with pytest.raises(ValueError, match=r"blocks\.0\.mlp\.gain has no ParamSpec"):
        Transformer(CONFIG, 40, 8)
