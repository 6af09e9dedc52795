"""What a model is said to keep for the backward pass, against the tensors that autograd saves."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.core import dispatch
from tests.train.spec.saved_tensors import Change, saved
from train.model.transformer import Transformer
from train.spec import activations
from train.spec.config import DataConfig, ModelConfig, PrecisionConfig, RunConfig
from train.spec.counts import block_weights, mlp_width
from train.spec.from_mapping import read
from train.spec.yamlfile import read_mapping

MODELS = Path(__file__).parents[3] / "conf" / "model"
SMALL = ModelConfig(width=256, head_dim=32)
SHAPES = {
    "heads": SMALL,
    "shared keys": replace(SMALL, kv_heads=2),
    "no norms of heads": replace(SMALL, qk_norm=False),
    "one key, wide": replace(SMALL, head_dim=64, kv_heads=1, mlp_width=1536),
    "muP": replace(SMALL, mup_base_width=64),
}
ON_A_CPU = SHAPES | {
    "no positions": replace(SMALL, position="none", qk_norm=False),
    "capped": replace(SMALL, attention_softcap=30.0),
    "alibi": replace(SMALL, position="alibi"),
    "window": replace(SMALL, window=64),
}
LENGTH, SEQUENCES, VOCABULARY = 256, 2, 512


@pytest.fixture
def as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the operators that run on CUDA be called, with tensors that have shapes and no numbers."""
    monkeypatch.setattr(dispatch._Choice, "interpreted", True)
    monkeypatch.setattr(dispatch._Choice, "mode", "triton")


def config_of(model: ModelConfig, precision: str) -> RunConfig:
    data = DataConfig(sequence_length=LENGTH, vocab_size=VOCABULARY)
    return RunConfig(model, data, precision=PrecisionConfig(name=precision))


def of_one_token(config: RunConfig, fake: bool, change: Change = lambda model: None) -> tuple[float, float]:
    """Return what a token has in one block, and in the rest of the model, without casts of weights [bytes]."""
    one, two = (saved(config, layers, SEQUENCES, fake, change) for layers in (1, 2))
    matrices = sum(w.numbers for w in block_weights(config.model).values() if len(w.shape) > 1)
    casts = 2 * matrices if config.precision.name != "fp32" else 0
    head = 4 * VOCABULARY * config.model.width
    return (two - one - casts) / (SEQUENCES * LENGTH), (2 * one - two - head) / (SEQUENCES * LENGTH)


def said(config: RunConfig, device: str) -> tuple[int, int]:
    block = activations.block(config, device)
    return block.rows + block.keys + block.rest, activations.ends(config, device)


def check(found: tuple[float, float], said: tuple[int, int], factor: float) -> None:
    for mine, planned in zip(found, said, strict=True):
        assert mine <= planned <= factor * mine


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.usefixtures("as_on_cuda")
def test_blocks_keep_on_cuda_what_is_said(name: str, precision: str) -> None:
    config = config_of(SHAPES[name], precision)
    shared = precision == "fp32" and config.model.kv_heads is not None
    # With shared keys and values attention in fp32 has no fused kernel there, as it has here.
    check(of_one_token(config, fake=True), said(config, "cuda"), 2.5 if shared else 1.15)


@pytest.mark.parametrize("name", ["124m", "8b"])
@pytest.mark.usefixtures("as_on_cuda")
def test_presets_keep_on_cuda_what_is_said(name: str) -> None:
    preset: ModelConfig = read(ModelConfig, read_mapping(MODELS / f"{name}.yaml"))
    config = config_of(preset, "bf16")
    check(of_one_token(config, fake=True), said(config, "cuda"), 1.15)


@pytest.mark.usefixtures("as_on_cuda")
def test_a_compiled_block_keeps_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    norms = import_module("kernels.rms_norm.api")
    monkeypatch.setattr(norms, "use_triton", lambda *_, **__: False)  # a compiler makes norms itself
    config = config_of(SMALL, "fp32")

    def compiled(model: Transformer) -> None:
        for block in model.blocks.values():
            forward: Any = torch.compile(block.forward, backend="aot_eager_decomp_partition", dynamic=False)
            block.forward = forward

    check(of_one_token(config, fake=True, change=compiled), said(config, "cuda"), 1.15)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("name", ON_A_CPU)
def test_blocks_keep_on_a_cpu_what_is_said(name: str, precision: str) -> None:
    config = config_of(ON_A_CPU[name], precision)
    try:
        found = of_one_token(config, fake=False)
    except RuntimeError as error:
        if "pack_vnni2" not in str(error):
            raise
        # Torch takes its kernel by the processor, which has AVX-512 or AMX, and its instructions by the variable.
        pytest.skip(f"torch's attention in bf16 refuses ATEN_CPU_CAPABILITY={os.environ.get('ATEN_CPU_CAPABILITY')}")
    check(found, said(config, "cpu"), 1.2)


def test_heads_of_odd_sizes_are_padded_on_cuda() -> None:
    odd, even = (config_of(ModelConfig(width=240, head_dim=size), "bf16") for size in (12, 24))
    more = said(odd, "cuda")[0] - said(even, "cuda")[0]
    assert more == 2 * (240 // 3 * 3 + 320) + 4 * 10, "a third of queries, keys, values; a padded result; more heads"


@pytest.mark.parametrize(("width", "more"), [(512, 0), (544, 2 * 1456)])
def test_fp8_and_narrow_models_keep_the_hidden_channels_once_more(width: int, more: int) -> None:
    model = replace(SMALL, width=width)
    bf16, fp8 = (said(config_of(model, name), "cuda")[0] for name in ("bf16", "fp8"))
    assert mlp_width(model) == (1456 if more else 1376)
    assert fp8 - bf16 == more
