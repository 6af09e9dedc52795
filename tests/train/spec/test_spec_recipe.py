"""What optimizer, schedule, ramp, muP and watching may say; muP's factors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from train.spec import mup
from train.spec.config import BudgetConfig, DataConfig, ModelConfig, OptimConfig, RunConfig
from train.spec.counts import params
from train.spec.from_mapping import read
from train.spec.optimizers import algorithm_of
from train.spec.resolve import resolve


def made(**sections: Any) -> RunConfig:
    base = {"data": {"sequence_length": 16}, "budget": {"tokens": 16000}, "optim": {"lr": 0.01}}
    return read(RunConfig, {**base, **sections})


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"optim": {"name": "sgd"}}, "optim.lr=null has no rule here"),
        ({"optim": {"name": "muon", "muon_scale": "spectral"}}, "optim.muon_scale=match_rms"),
        ({"optim": {}, "model": {"mup_base_width": 32}}, "model.mup_base_width"),
        ({"optim": {"lr": 1, "momentum": 1.0}}, "optim.momentum=1.0"),
        ({"optim": {"lr": 1, "head_decay": -1.0}}, "optim.head_decay=-1.0"),
        ({"optim": {"lr": -1.0}}, "optim.lr=-1.0"),
        ({"model": {"mup_base_head_dim": 8}}, "without model.mup_base_width"),
        ({"batch": {"tokens": 64, "ramp_from": 24}}, "nearest is 32"),
        ({"batch": {"tokens": 64, "ramp_from": 48}}, "not a multiple of batch.ramp_from=48"),
        ({"spikes": {"warmup_steps": 200}}, "2 to spikes.window=128"),
        ({"spikes": {"threshold": -1.0}}, "spikes.threshold=-1.0"),
        ({"health": {"activations": True}}, "give health.statistics_steps"),
        ({"health": {"probe_steps": -1}}, "health.probe_steps=-1"),
        ({"health": {"probe_steps": 5}, "runtime": {"device": "cuda"}}, "runtime.deterministic=true"),
        ({"profile": {"every": 10}}, "give profile.start"),
        ({"profile": {"start": 5, "every": 3}}, "must exceed profile.steps=3"),
        ({"schedule": {"name": "wsd", "warmup_fraction": 0.9}}, "overlap"),
        ({"runtime": {"log_steps": 0}}, "runtime.log_steps=0"),
        ({"runtime": {"threads": 0}}, "runtime.threads=0"),
        ({"runtime": {"timeout_seconds": 0}}, "runtime.timeout_seconds=0"),
        ({"runtime": {"prefetch_batches": -1}}, "runtime.prefetch_batches=-1"),
        ({"runtime": {"checkpoint_seconds": -1}}, "runtime.checkpoint_seconds=-1"),
        ({"eval": {"sequences": 0}}, "eval.sequences=0"),
        ({"eval": {"by_position": -1}}, "eval.by_position=-1"),
        ({"data": {"sequence_length": 16, "max_bytes": 0}}, "data.max_bytes=0"),
        ({"model": {"mlp_width": 0}}, "model.mlp_width=0"),
        ({"model": {"rope_theta": 0}}, "model.rope_theta=0"),
        ({"model": {"norm_eps": -1e-6}}, "model.norm_eps=-1e-06"),
        ({"model": {"init_std": 0}}, "model.init_std=0"),
        ({"optim": {"name": "muon", "lr": 1}, "parallel": {"strategy": "fsdp1", "dp_shard": 2}}, "fsdp1"),
        ({"health": {"desync_steps": 5}, "parallel": {"strategy": "fsdp1", "dp_shard": 2}}, "fsdp1"),
    ],
)
def test_what_cannot_be_is_refused_with_its_key(sections: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=r"\.") as caught:
        resolve(made(**sections))
    assert words in str(caught.value)


def test_resolving_twice_is_resolving_once() -> None:
    config = made(
        optim={"lr": 0.02, "lr_scale": 0.5, "head_decay": None},
        model={"width": 128, "head_dim": None, "mup_base_width": 64},
        batch={"tokens": 64, "ramp_from": 32},
    )
    once = resolve(config)
    assert resolve(once) == once
    assert once.optim.lr == 0.01
    assert once.optim.head_decay == 0.1
    assert once.model.mup_base_head_dim in {8, 12}


@pytest.mark.parametrize(("width", "layers"), [(256, 8), (768, 12), (4096, 32)])
def test_the_step_law_takes_n_without_embedding_and_head(width: int, layers: int) -> None:
    """Li et al. 2025, equation 1; a block has 12 width² weights, and norms are next to nothing."""
    model, tokens = ModelConfig(width=width, layers=layers, head_dim=64), 2**31
    wanted = RunConfig(model=model, data=DataConfig(vocab_size=50304), budget=BudgetConfig(tokens=tokens))
    found = resolve(wanted).optim
    assert found.lr == pytest.approx(1.79 * (12 * layers * width**2) ** -0.713 * tokens**0.307, rel=0.01)
    assert found.lr_rule is None, "of a learning rate that is there it does not matter where it came from"
    before = resolve(replace(wanted, optim=OptimConfig(lr_rule=None))).optim
    with_head = params(model, 50304).matmul
    assert before.lr == pytest.approx(1.79 * with_head**-0.713 * tokens**0.307, rel=1e-3)
    assert (before.lr or 0) < (found.lr or 0)


@pytest.mark.parametrize("width", [64, 256, 1024])
def test_under_mup_a_given_std_is_the_bases_and_transfers(width: int) -> None:
    """Hidden matrices sqrt(base / width) times as large, the head as at the base; resolving again changes nothing."""
    given = ModelConfig(width=width, head_dim=64, mup_base_width=64, mup_base_head_dim=64, init_std=0.02)
    config = RunConfig(given, DataConfig(), optim=OptimConfig(lr=0.01), budget=BudgetConfig(tokens=12800))
    once = resolve(config)
    for model in (given, once.model, resolve(once).model):
        assert mup.matrix_std(model) == pytest.approx(0.02 * (64 / width) ** 0.5)
        assert mup.head_std(model) == pytest.approx(0.02)
    assert once.model.init_std_at == ("width" if width == 64 else "base")
    derived = resolve(replace(config, model=replace(given, init_std=None)))
    for model in (derived.model, resolve(derived).model):
        assert mup.matrix_std(model) == pytest.approx(width**-0.5, rel=1e-5)
        assert mup.head_std(model) == pytest.approx(64**-0.5, rel=1e-5)
    assert derived.model.init_std_at == "width", "as it was frozen before there was the key"
    before = replace(given, init_std_at="width")  # a config that was frozen with a std of its own goes on as it was
    assert mup.matrix_std(before) == 0.02
    assert mup.head_std(before) == pytest.approx(0.02 * (width / 64) ** 0.5)


def test_without_mup_a_given_std_is_that_of_all_matrices() -> None:
    model = resolve(RunConfig(ModelConfig(width=64, init_std=0.02), budget=BudgetConfig(tokens=12800))).model
    assert (mup.matrix_std(model), mup.head_std(model), model.init_std_at) == (0.02, 0.02, "width")


def test_at_the_base_width_mup_changes_nothing() -> None:
    plain = resolve(RunConfig(ModelConfig(width=64), DataConfig(), budget=BudgetConfig(tokens=12800))).model
    based = replace(plain, mup_base_width=64, mup_base_head_dim=plain.head_dim)
    for kind in ("embedding", "head", "norm", "matrix"):
        for rule in ("adamw", "sgd", "match_rms", "spectral"):
            assert mup.lr_scale(based, kind, rule) == mup.lr_scale(plain, kind, rule) == 1.0
    assert mup.query_scale(based) == mup.output_scale(based) == 1.0
    assert mup.head_std(based) == mup.head_std(plain)


def test_mup_table_at_four_times_the_width() -> None:
    model = ModelConfig(width=256, head_dim=64, mup_base_width=64, mup_base_head_dim=16)
    assert mup.lr_scale(model, "matrix", "adamw") == 0.25
    assert mup.lr_scale(model, "matrix", "match_rms") == 0.5
    assert mup.lr_scale(model, "matrix", "spectral") == 1.0
    assert mup.lr_scale(model, "matrix", "sgd") == 1.0
    assert mup.lr_scale(model, "head", "sgd") == 4.0
    assert mup.lr_scale(model, "embedding", "adamw") == 1.0
    assert mup.output_scale(model) == 0.25
    assert mup.query_scale(model) == 0.5  # scores: 0.5 / sqrt(64) = sqrt(16) / 64
    assert mup.head_std(model) == pytest.approx(1 / 8)


def test_muon_has_the_learning_rate_of_the_rule() -> None:
    assert algorithm_of("muon", "head") == "adamw"
    assert resolve(made(optim={"name": "muon"})).optim.lr == resolve(made(optim={"name": "adamw"})).optim.lr
