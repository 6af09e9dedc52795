"""What a run does on the device that it finds, and what it is told."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from study.records.frozen_config import key_of
from train.spec.config import (
    BatchConfig,
    BudgetConfig,
    CompileConfig,
    DataConfig,
    MemoryConfig,
    ModelConfig,
    ParallelConfig,
    PrecisionConfig,
    RunConfig,
    RuntimeConfig,
)
from train.spec.device_choices import SHORTEST, Gpu, advice, choose, in_words, is_short
from train.spec.pipeline_layout import can_split
from train.spec.resolve import resolve

H200 = Gpu("NVIDIA H200", (9, 0))


def run(flops: float = 1e16, width: int = 512, **changes: Any) -> RunConfig:
    model, data = ModelConfig(width=width, layers=6, head_dim=64), DataConfig(vocab_size=8192, sequence_length=512)
    return resolve(RunConfig(model, data, BatchConfig(tokens=40_960), budget=BudgetConfig(flops=flops), **changes))


BF16: dict[str, Any] = {"precision": PrecisionConfig(name="bf16")}
UNCOMPILED: dict[str, Any] = {"compile": CompileConfig(blocks=False)}


@pytest.mark.parametrize(
    ("config", "gpu", "ranks", "blocks"),
    [
        (run(), H200, 1, True),
        (run(), None, 1, False),
        (run(), Gpu("Tesla P100", (6, 0)), 1, False),
        (run(), replace(H200, obstacle="no C compiler was found"), 1, False),
        (run(0.9 * SHORTEST), H200, 1, False),
        (run(1.1 * SHORTEST), H200, 1, True),
        (run(1.1 * SHORTEST), H200, 2, False),
        (run(**BF16), H200, 1, True),
        (run(width=384, **BF16), H200, 1, False),
        (run(width=384), H200, 1, True),
        (run(width=384, **BF16), H200, 2, True),
        (run(width=384, **BF16, compile=CompileConfig(step_graph=False)), H200, 1, True),
        (run(width=384, **BF16, memory=MemoryConfig(checkpointing="full")), H200, 1, True),
        (run(runtime=RuntimeConfig(deterministic=True)), H200, 1, False),
        (run(parallel=ParallelConfig(dp_shard=None, dp_replicate=1)), H200, 4, True),
        (run(compile=CompileConfig(blocks=True)), None, 1, True),
        (run(compile=CompileConfig(blocks=False)), H200, 1, False),
    ],
)
def test_blocks_are_compiled_on_a_gpu_where_that_is_possible_and_pays(
    config: RunConfig, gpu: Gpu | None, ranks: int, blocks: bool
) -> None:
    chosen = choose(config, gpu, ranks)
    assert chosen.compile.blocks is blocks
    assert replace(chosen, compile=config.compile) == config, "nothing else is touched"
    assert choose(chosen, gpu, ranks) == chosen
    assert key_of(asdict(chosen)) == key_of(asdict(config)), "it is the same point"


@pytest.mark.skipif(not can_split(), reason="this torch has no zero-bubble schedules of compiled blocks")
def test_a_schedule_that_splits_backward_passes_is_not_compiled() -> None:
    config = run(parallel=ParallelConfig(pp=2, pp_schedule="zb1p", zero=2))
    assert choose(config, H200, 2).compile.blocks is False


def test_a_run_is_short_below_5e14_flops_of_a_gpu() -> None:
    def of(tokens: int) -> RunConfig:
        model, data = ModelConfig(width=512, layers=6, head_dim=64), DataConfig(vocab_size=8192, sequence_length=512)
        return resolve(RunConfig(model, data, BatchConfig(tokens=512), budget=BudgetConfig(tokens=tokens)))

    matrices = 6 * (4 * 512**2 + 3 * 512 * 1376) + 8192 * 512
    each = 6 * matrices + 12 * 6 * 512 * 512  # scores count as if every token attended to all
    sequences = round(5e14 / each / 512)
    assert is_short(of(round(0.95 * sequences) * 512)) and not is_short(of(round(1.05 * sequences) * 512))
    assert is_short(of(round(1.9 * sequences) * 512), 2) and not is_short(of(round(2.1 * sequences) * 512), 2)


def test_the_capabilities_at_which_compiling_and_bf16_begin() -> None:
    assert choose(run(), Gpu("a", (7, 0)), 1).compile.blocks is True
    assert choose(run(), Gpu("a", (6, 9)), 1).compile.blocks is False
    sentence = "precision=bf16 is faster (it is part of a point, so it makes other points)"
    assert told(run(), Gpu("a", (8, 0))) == f"this run trains on a in fp32: {sentence}"
    assert told(run(), Gpu("a", (7, 9))) is None
    assert told(run(**UNCOMPILED)) == (
        f"this run trains on NVIDIA H200 in fp32: {sentence}, and without compiled blocks: "
        "compile.blocks=null or true is faster"
    )


def test_a_gpu_that_is_too_old_is_told_with_its_number() -> None:
    assert told(run(**BF16), Gpu("Tesla P100", (6, 1))) == (
        "this run trains on Tesla P100 without compiled blocks: torch.compile has no code for compute capability 6.1"
    )
    fixed = run(**BF16, runtime=RuntimeConfig(deterministic=True))
    assert told(fixed) == (
        "this run trains on NVIDIA H200 without compiled blocks: "
        "runtime.deterministic=true asks for the same kernels every time"
    )


@pytest.mark.parametrize(
    ("width", "changes", "graphed"),
    [
        (384, {}, True),
        (448, {}, False),
        (384, {"precision": PrecisionConfig(name="fp16")}, False),
        (384, {"compile": CompileConfig(step_graph=True)}, True),
        (384, {"memory": MemoryConfig(checkpointing="selective")}, False),
        (384, {"model": {"window": 128}}, False),
        (384, {"model": {"attention_softcap": 50.0}}, False),
        (384, {"model": {"position": "alibi"}}, False),
    ],
)
def test_narrow_models_of_our_kernels_are_graphs_and_are_not_compiled(
    width: int, changes: dict[str, Any], graphed: bool
) -> None:
    further = dict(changes)
    own = further.pop("model", {})
    config = run(width=width, **{**BF16, **further})
    config = replace(config, model=replace(config.model, **own))
    assert choose(config, H200, 1).compile.blocks is not graphed
    asked_off = replace(config, compile=replace(config.compile, blocks=False))
    assert (told(asked_off) is None) is graphed, "who turns compiling off where it gains is told so"


def told(config: RunConfig, gpu: Gpu = H200, ranks: int = 1) -> str | None:
    return advice(config, choose(config, gpu, ranks), gpu, ranks)


def test_nobody_trains_slowly_without_being_told_the_key() -> None:
    assert told(run(**BF16)) is None
    fp32 = told(run())
    assert fp32 is not None and "NVIDIA H200 in fp32: precision=bf16 is faster" in fp32 and "compiled" not in fp32
    plain = told(run(**BF16, **UNCOMPILED))
    assert plain == "this run trains on NVIDIA H200 without compiled blocks: compile.blocks=null or true is faster"
    both = told(run(**UNCOMPILED))
    assert both is not None and "precision=bf16" in both and "compile.blocks" in both and "\n" not in both
    missing = told(run(**BF16), replace(H200, obstacle="no C compiler was found: set CC"))
    assert missing is not None and missing.endswith("without compiled blocks: no C compiler was found: set CC")


def test_what_cannot_be_helped_or_hardly_matters_is_not_mentioned() -> None:
    assert told(run(0.9 * SHORTEST)) is None
    assert told(run(width=384, **BF16)) is None, "our kernels in one CUDA graph are as fast"
    assert told(run(width=384, **BF16, **UNCOMPILED)) is None
    old = told(run(), Gpu("Tesla V100", (7, 0)))
    assert old is None, "it has no bf16, and blocks are compiled"


def test_how_it_trains_is_said() -> None:
    chosen = choose(run(**BF16), H200, 1)
    assert in_words(chosen, H200, 80, 80, 1) == (
        "on NVIDIA H200: bf16, compiled blocks, steps as CUDA graphs, all 80 sequences of a step at once"
    )
    assert "CUDA graphs" not in in_words(chosen, H200, 80, 80, 2), "ranks send messages"
    plain = choose(run(compile=CompileConfig(blocks=False, step_graph=False)), H200, 1)
    assert in_words(plain, H200, 27, 81, 1) == "on NVIDIA H200: fp32, blocks not compiled, 27 of 81 sequences at a time"
