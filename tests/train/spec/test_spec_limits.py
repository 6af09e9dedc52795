"""Every limit of a setting from both sides: the last value that is taken and the first that is refused, by its key."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
import torch

from train.spec.config import RunConfig
from train.spec.from_mapping import read
from train.spec.largest import LARGEST, LARGEST_SEED, check
from train.spec.resolve import resolve


def made(sections: dict[str, dict[str, Any]]) -> RunConfig:
    base: dict[str, dict[str, Any]] = {
        "data": {"sequence_length": 16},
        "budget": {"tokens": 16000},
        "optim": {"lr": 0.01},
        "spikes": {"window": 8, "warmup_steps": 4},
    }
    merged = {name: {**base.get(name, {}), **sections.get(name, {})} for name in {**base, **sections}}
    return read(RunConfig, merged)


def one(key: str, value: Any, beside: dict[str, dict[str, Any]]) -> RunConfig:
    section, _, name = key.partition(".")
    sections = {part: dict(keys) for part, keys in beside.items()}
    sections.setdefault(section, {})[name] = value
    return made(sections)


TINY = 1e-12
POSITIVE = "it must be positive"
NOT_NEGATIVE = "it is 0 or positive"
SHARE = "it is a share between 0 and 1"
BELOW_ONE = ("beta1", "beta2", "momentum", "label_smoothing")
MUP = {"model": {"mup_base_width": 32, "mup_base_head_dim": 4, "head_dim": 32}}
LIMITS: list[tuple[str, Any, Any, str]] = [
    ("optim.lr", TINY, 0.0, POSITIVE),
    ("optim.lr_scale", TINY, 0.0, POSITIVE),
    ("optim.embedding_lr_scale", TINY, 0.0, POSITIVE),
    ("optim.head_lr_scale", TINY, 0.0, POSITIVE),
    ("optim.norm_lr_scale", TINY, 0.0, POSITIVE),
    ("optim.eps", TINY, 0.0, POSITIVE),
    ("optim.weight_decay", 0.0, -TINY, "it is 0 (off) or positive"),
    ("optim.head_decay", 0.0, -TINY, "it is 0 (off) or positive"),
    ("optim.embedding_decay", 0.0, -TINY, "it is 0 (off) or positive"),
    ("optim.norm_decay", 0.0, -TINY, "it is 0 (off) or positive"),
    ("optim.z_loss", 0.0, -TINY, "it is 0 (off) or positive"),
    ("optim.grad_clip", 0.0, -TINY, "it is 0 (off) or positive"),
    *[(f"optim.{name}", 0.0, -TINY, "at least 0 and below 1") for name in BELOW_ONE],
    *[(f"optim.{name}", 1 - TINY, 1.0, "at least 0 and below 1") for name in BELOW_ONE],
    ("optim.muon_iterations", 1, 0, POSITIVE),
    ("optim.nonfinite_limit", 1, 0, POSITIVE),
    *[(f"schedule.{name}_fraction", 0.0, -TINY, SHARE) for name in ("warmup", "decay", "final_lr")],
    *[(f"schedule.{name}_fraction", 1.0, 1 + TINY, SHARE) for name in ("warmup", "decay", "final_lr")],
    ("runtime.checkpoint_keep", 1, 0, POSITIVE),
    ("runtime.checkpoint_keep_steps", 0, -1, "it is 0 (none) or positive"),
    ("runtime.threads", 1, 0, POSITIVE),
    ("runtime.log_steps", 1, 0, POSITIVE),
    ("runtime.timeout_seconds", TINY, 0.0, POSITIVE),
    ("runtime.start_seconds", TINY, 0.0, POSITIVE),
    ("runtime.checkpoint_seconds", 0.0, -TINY, NOT_NEGATIVE),
    ("runtime.system_seconds", 0.0, -TINY, NOT_NEGATIVE),
    ("runtime.prefetch_batches", 0, -1, NOT_NEGATIVE),
    ("eval.sequences", 1, 0, POSITIVE),
    ("eval.count", 1, 0, POSITIVE),
    ("parallel.zero", 3, 4, "choose 1, 2 or 3"),
    ("eval.by_position", 0, -1, NOT_NEGATIVE),
    ("spikes.window", 4, 0, POSITIVE),
    ("spikes.persistence", 1, 0, POSITIVE),
    ("spikes.limit", 1, 0, POSITIVE),
    ("spikes.threshold", 0.0, -TINY, "it is 0 (never) or positive"),
    ("spikes.warmup_steps", 2, 1, "2 to spikes.window=8"),
    ("spikes.warmup_steps", 8, 9, "2 to spikes.window=8"),
    ("health.statistics_steps", 0, -1, "it is 0 (never) or positive [steps]"),
    ("health.desync_steps", 0, -1, "it is 0 (never) or positive [steps]"),
    ("health.probe_steps", 0, -1, "it is 0 (never) or positive [steps]"),
    ("profile.steps", 1, 0, POSITIVE),
    ("profile.start", 1, 0, "the first step is 1"),
    ("batch.tokens", 16, 0, POSITIVE),
    ("budget.tokens", 1, 0, POSITIVE),
    ("budget.tokens", 1, -16, POSITIVE),
    ("data.sequence_length", 1, 0, POSITIVE),
    ("data.vocab_size", 1, 0, POSITIVE),
    ("data.vocab_size", 1 << 20, (1 << 20) + 1, "is too large: at most 1048576"),
    ("data.max_bytes", 1, 0, POSITIVE),
    ("data.validation_fraction", TINY, 0.0, "is not between 0 and 1"),
    ("data.validation_fraction", 1 - TINY, 1.0, "is not between 0 and 1"),
    ("model.layers", 1, 0, POSITIVE),
    ("model.width", 32, 0, POSITIVE),
    ("model.head_dim", 2, 0, POSITIVE),
    ("model.mlp_width", 1, 0, POSITIVE),
    ("model.rope_theta", TINY, 0.0, POSITIVE),
    ("model.init_std", TINY, 0.0, POSITIVE),
    ("model.norm_eps", TINY, -TINY, POSITIVE),
    ("model.kv_heads", 1, 0, POSITIVE),
    ("model.window", 1, 0, POSITIVE),
    ("model.attention_softcap", 0.0, -TINY, "a positive cap, or 0 for none"),
    ("model.logit_softcap", 0.0, -TINY, "a positive cap, or 0 for none"),
    ("model.global_every", 0, -1, "every n-th block, or 0 for none"),
]


@pytest.mark.parametrize(("key", "taken", "refused", "words"), LIMITS)
def test_a_limit_from_both_sides(key: str, taken: Any, refused: Any, words: str) -> None:
    resolve(one(key, taken, {}))
    with pytest.raises(ValueError, match=r"^") as caught:
        resolve(one(key, refused, {}))
    assert f"{key}={refused}" in str(caught.value)
    assert words in str(caught.value)


HEADS = {"model": {"width": 64, "head_dim": 4}}
RAMP = {"batch": {"tokens": 64, "ramp_from": 32}}
DEPENDENT: list[tuple[dict[str, dict[str, Any]], str, Any, Any, str]] = [
    # What is there already, the key, the value that is taken beside it and the one that is not.
    (MUP, "model.mup_base_width", 1, 0, "model.mup_base_width=0 is not allowed"),
    (MUP, "model.mup_base_head_dim", 1, 0, "model.mup_base_head_dim=0 must be positive"),
    ({"schedule": {"name": "wsd", "warmup_fraction": 0.25}}, "schedule.decay_fraction", 0.75, 0.76, "phases overlap"),
    (RAMP, "batch.ramp_from", 16, 0, "batch.ramp_from=0 is not allowed: it must be positive"),
    (
        RAMP,
        "batch.ramp_from",
        16,
        4,
        "batch.ramp_from=4 is not a multiple of data.sequence_length=16: the nearest is 16",
    ),
    (RAMP, "batch.ramp_from", 16, 44, "data.sequence_length=16: the nearest is 48"),
    (RAMP, "batch.ramp_from", 64, 48, "batch.tokens=64 is not a multiple of batch.ramp_from=48"),
    (RAMP, "batch.ramp_fraction", 0.0, -TINY, SHARE),
    (RAMP, "batch.ramp_fraction", 1.0, 1.5, SHARE),
    ({"profile": {"start": 5}}, "profile.every", 4, 3, "must exceed profile.steps=3"),
    ({"profile": {"every": 5}}, "profile.start", 1, None, "profile.every=5 has no beginning"),
    ({"health": {"activations": True}}, "health.statistics_steps", 1, 0, "activations=true has no interval"),
    ({"health": {"statistics_steps": 1}}, "health.activations", True, None, "health.activations=null"),
    ({"health": {"probe_steps": 1}}, "runtime.device", "cpu", "cuda", "health.probe_steps=1 compares bits"),
    (
        {"health": {"probe_steps": 1}, "runtime": {"device": "cuda"}},
        "runtime.deterministic",
        True,
        False,
        "runtime.deterministic=true: set it",
    ),
    ({"runtime": {"device": "cuda"}}, "health.probe_steps", 0, 1, "runtime.deterministic=true: set it"),
    (
        {"health": {"probe_steps": 1}, "precision": {"name": "fp8"}},
        "precision.fp8_history",
        0,
        16,
        "probe_steps=1 repeats a step, which precision.fp8_history=16",
    ),
    ({"precision": {"name": "fp8", "fp8_history": 16}}, "health.probe_steps", 0, 1, "probe_steps=1 repeats a step"),
    *[
        (
            {"parallel": {"strategy": "fsdp1", "dp_shard": 2}},
            f"health.{name}",
            0,
            1,
            f"health.{name}=1 with parallel.strategy=fsdp1",
        )
        for name in ("desync_steps", "statistics_steps")
    ],
    (
        {"parallel": {"strategy": "fsdp1"}},
        "optim.name",
        "adamw",
        "muon",
        "optim.name=muon with parallel.strategy=fsdp1",
    ),
    ({"parallel": {"strategy": "fsdp1"}}, "optim.name", "sgd", "muon", "optim.name=muon with parallel.strategy=fsdp1"),
    ({"parallel": {"strategy": "fsdp"}, "optim": {"name": "muon"}}, "health.desync_steps", 1, -1, "desync_steps=-1"),
    ({"optim": {"lr": None}}, "optim.name", "muon", "sgd", "the rule holds for AdamW, not for optim.name=sgd"),
    ({"optim": {"lr": None, "name": "muon"}}, "optim.muon_scale", "match_rms", "spectral", "give optim.lr"),
    ({"optim": {"lr": None}}, "model.mup_base_width", None, 32, "muP transfers the learning rate"),
    ({"optim": {"lr": None, "muon_scale": "spectral"}}, "optim.name", "adamw", "muon", "optim.muon_scale=match_rms"),
    ({"model": {"width": 62}}, "model.head_dim", 62, 31, "model.head_dim=31 is odd"),
    ({"model": {"width": 62, "position": "alibi"}}, "model.head_dim", 31, 4, "take width 64 or another head_dim"),
    (
        {"model": {"head_dim": 32}},
        "model.width",
        32,
        8,
        "model.width=8 is not a multiple of model.head_dim=32: take width 32",
    ),
    (HEADS, "model.kv_heads", 8, 3, "model.kv_heads=3 does not divide the 16 query heads"),
    ({"model": {"window": 4}}, "model.global_every", 1, -1, "model.global_every=-1 is not allowed"),
    ({"model": {"global_every": 1}}, "model.window", 4, None, "model.global_every=1 needs model.window"),
    ({"model": {"rope_scaling": "linear"}}, "model.rope_factor", 1.0, 1 - TINY, "texts can only become longer"),
    ({"model": {"rope_scaling": "yarn"}}, "model.rope_factor", 1.5, 0.5, "texts can only become longer"),
    ({"model": {"rope_scaling": "none"}}, "model.rope_factor", 1.0, 2.0, "choose how to scale, or leave it 1"),
    ({"model": {"position": "alibi"}}, "model.rope_scaling", "none", "linear", "model.position=alibi has no rotation"),
    ({"model": {"position": "none"}}, "model.rope_scaling", "none", "yarn", "model.position=none has no rotation"),
    ({"model": {"width": 64, "rope_scaling": "ntk"}}, "model.head_dim", 4, 2, "ntk needs model.head_dim of 4 or more"),
    ({"model": {"width": 64, "head_dim": 2}}, "model.rope_scaling", "linear", "ntk", "ntk needs model.head_dim of 4"),
    ({"model": {"rope_scaling": "yarn"}}, "model.rope_original_length", 1, 0, "model.rope_original_length=0"),
    ({"model": {"rope_scaling": "llama3"}}, "model.rope_original_length", 7, -1, "model.rope_original_length=-1"),
    ({"model": {"rope_scaling": "linear"}}, "model.rope_original_length", None, 8, "has no meaning with"),
    ({"data": {"tokenizer": "bytes"}}, "data.vocab_size", 1 << 21, 0, "data.vocab_size=0"),
    ({}, "batch.tokens", 64, 60, "batch.tokens=60 is not a multiple of data.sequence_length=16: the nearest is 64"),
    ({}, "batch.tokens", 16, 4, "batch.tokens=4 is not a multiple of data.sequence_length=16: the nearest is 16"),
    ({}, "model.mup_base_head_dim", None, 8, "model.mup_base_head_dim is given without model.mup_base_width"),
    (
        {},
        "data.sources",
        [{"name": "a", "weight": TINY}],
        [{"name": "a", "weight": 0}],
        "data.sources: weight=0.0 of a",
    ),
    ({}, "data.sources", [{"name": "a.B_9-"}], [{"name": "a/b"}], "data.sources: name='a/b' is not allowed"),
]


@pytest.mark.parametrize(("beside", "key", "taken", "refused", "words"), DEPENDENT)
def test_a_limit_that_other_settings_draw(
    beside: dict[str, dict[str, Any]], key: str, taken: Any, refused: Any, words: str
) -> None:
    resolve(one(key, taken, beside))
    with pytest.raises(ValueError, match=r"^") as caught:
        resolve(one(key, refused, beside))
    assert words in str(caught.value)


def test_what_is_derived_and_what_is_left_as_it_is() -> None:
    found = resolve(made({"optim": {"lr": 0.02, "lr_scale": 0.5, "weight_decay": 0.3}}))
    assert (found.optim.lr, found.optim.lr_scale, found.optim.head_decay) == (0.01, 1.0, 0.3)
    assert resolve(made({"eval": {"count": 1}})).eval.count == 1
    assert resolve(made({"optim": {"head_decay": 0.2, "weight_decay": 0.3}})).optim.head_decay == 0.2
    assert found.model.init_std == 0.125, "1 / sqrt(64)"
    assert resolve(made({"model": {"width": 192}})).model.init_std == 0.0721688, "to six digits"
    assert resolve(made({"data": {"tokenizer": "bytes", "vocab_size": 7}})).data.vocab_size == 257
    assert resolve(made({"budget": {"tokens": 1}})).budget.tokens == 16, "one sequence at least"
    assert resolve(made({"budget": {"tokens": 25}})).budget.tokens == 32, "the nearest whole sequences"
    small = resolve(made({"batch": {"tokens": 320}, "budget": {"tokens": 160}}))
    assert small.batch.tokens == 160, "no more than there is to train on"


@pytest.mark.parametrize(
    ("scaling", "factor", "length"), [("yarn", 1.0, 16), ("llama3", 2.0, 8), ("yarn", 3.0, 5), ("yarn", 100.0, 1)]
)
def test_the_length_before_stretching(scaling: str, factor: float, length: int) -> None:
    model = {"rope_scaling": scaling, "rope_factor": factor}
    assert resolve(made({"model": model})).model.rope_original_length == length
    assert resolve(made({"model": {**model, "rope_original_length": 11}})).model.rope_original_length == 11
    for other in ("none", "linear", "ntk"):
        stretched = {"rope_scaling": other, "rope_factor": 1.0 if other == "none" else factor}
        assert resolve(made({"model": stretched})).model.rope_original_length is None


def test_flops_and_tokens_may_stand_together_as_far_as_they_say_the_same() -> None:
    """A frozen config has tokens and the FLOPs that they come from: within a sequence, or 1e-9 of the tokens."""
    base: dict[str, dict[str, Any]] = {"model": {"layers": 1}, "optim": {"lr": 0.01}}
    each = 6 * (64 * 64 * 4 + 3 * 64 * 176 + 4096 * 64) + 12 * 64 * 16

    def tokens(tokens: int, off: int) -> int | None:
        return resolve(
            made({**base, "budget": {"tokens": tokens, "flops": float(each * (tokens + off))}})
        ).budget.tokens

    for count, allowed, refused in ((16_000, 16, 17), (16 * 10**12, 15_999, 16_001)):
        for sign in (1, -1):
            assert tokens(count, sign * allowed) == count
            with pytest.raises(ValueError, match=r"budget\.tokens and budget\.flops disagree: give only one"):
                tokens(count, sign * refused)
    matmul = 64 * 64 * 4 + 3 * 64 * 176 + 4096 * 64
    by_ratio = {**base, "budget": {"tokens": None, "tokens_per_param": 2.0}}
    assert resolve(made(by_ratio)).budget.tokens == 2 * matmul
    by_flops = {**base, "budget": {"tokens": None, "flops": float(each * 160)}}
    assert resolve(made(by_flops)).budget.tokens == 160
    assert asdict(resolve(made(by_flops)).budget) == {
        "tokens": 160,
        "flops": float(each * 160),
        "tokens_per_param": None,
    }
    with pytest.raises(ValueError, match=r"^budget is empty: give one of"):
        resolve(made({**base, "budget": {"tokens": None}}))
    with pytest.raises(ValueError, match=r"budget\.flops and budget\.tokens_per_param disagree"):
        resolve(made({**base, "budget": {"tokens": None, "flops": 1e9, "tokens_per_param": 20.0}}))


@pytest.mark.parametrize(("key", "most"), LARGEST.items())
def test_a_value_above_its_largest_is_refused(key: str, most: int) -> None:
    check(one(key, most, {}))
    with pytest.raises(ValueError, match=f"^{key}={most + 1} is not allowed: at most {most:,}$"):
        resolve(one(key, most + 1, {}))


def test_digits_that_nobody_typed_are_not_said() -> None:
    with pytest.raises(ValueError, match=r"^model\.width=1e\+30 is not allowed: at most 1,048,576$"):
        resolve(one("model.width", 1e30, {}))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_seed_is_as_large_as_torch_takes_it(sign: int) -> None:
    config = resolve(replace(made({}), seed=sign * LARGEST_SEED))
    torch.manual_seed(config.seed * 1_000_003 + 10**6)  # as of a rank
    with pytest.raises(ValueError, match=r"^seed=-?9000000000001 is not allowed: a whole number from -9,0.* to 9,0"):
        resolve(replace(made({}), seed=sign * (LARGEST_SEED + 1)))
    with pytest.raises(ValueError, match=r"^seed=-?1e\+23 is not allowed"):
        resolve(replace(made({}), seed=sign * 10**23))
