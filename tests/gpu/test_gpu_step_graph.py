"""Steps replayed as one CUDA graph are the steps without it, bit for bit, whatever else uses the GPU meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from train.evaluate import evaluate
from train.runtime.distributed import World
from train.spec.config import (
    BatchConfig,
    CompileConfig,
    HealthConfig,
    MemoryConfig,
    ParallelConfig,
    PrecisionConfig,
    RunConfig,
)
from train.spec.resolve import resolve
from train.trainer import Trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

Change = Callable[[RunConfig], RunConfig]


def with_(**sections: Any) -> Change:
    return lambda config: replace(config, **sections)


def optimizer(name: str) -> Change:
    return lambda config: replace(config, optim=replace(config.optim, name=name))


def documents(config: RunConfig) -> RunConfig:
    """Attention within documents, which FlexAttention computes for heads of at least 16."""
    return replace(config, data=replace(config.data, packing="mask"), model=replace(config.model, head_dim=16))


def ramp(config: RunConfig) -> RunConfig:
    tokens = config.batch.tokens
    assert tokens is not None
    return resolve(replace(config, batch=BatchConfig(tokens=tokens, ramp_from=tokens // 4, ramp_fraction=0.1)))


CHANGES: dict[str, Change] = {
    "fp32": with_(precision=PrecisionConfig(name="fp32")),
    "bf16": with_(precision=PrecisionConfig(name="bf16")),
    "fp16": with_(precision=PrecisionConfig(name="fp16", loss_scale_steps=5)),
    "compiled": with_(precision=PrecisionConfig(name="bf16"), compile=CompileConfig(blocks=True, warmup_steps=-1)),
    "micro-batches": with_(parallel=ParallelConfig(micro_batch_sequences=3)),
    "checkpointing": with_(memory=MemoryConfig(checkpointing="selective")),
    "documents": documents,
    "fp8": with_(precision=PrecisionConfig(name="fp8")),
    "fp8, delayed": with_(precision=PrecisionConfig(name="fp8", fp8_history=4)),
    "muon": optimizer("muon"),
    "sgd": optimizer("sgd"),
    "ramp": ramp,
}


def poison() -> None:
    """Fill whatever torch has free with NaN, so that a graph that reads it shows."""
    for size in (1 << 9, 1 << 14, 1 << 20, 1 << 24):
        kept = [torch.full((size // 4,), torch.nan, device="cuda") for _ in range(16)]
        del kept


@pytest.mark.parametrize("name", CHANGES)
def test_replayed_steps_are_those_without(tiny: RunConfig, tmp_path: Path, name: str) -> None:
    """Over 120 steps with clipping, a skipped step, statistics, evaluations and moments that move in between."""
    base = CHANGES[name](replace(tiny, optim=replace(tiny.optim, grad_clip=0.5)))
    base = replace(
        base,
        health=HealthConfig(statistics_steps=40),
        runtime=replace(tiny.runtime, device="cuda"),
        budget=replace(tiny.budget, tokens=tiny.batch.tokens * 400),  # type: ignore[operator]
    )

    def run(step_graph: bool | None) -> tuple[list[Tensor], dict[str, Tensor], int]:
        config = replace(base, compile=replace(base.compile, step_graph=step_graph))
        trainer = Trainer(config, tmp_path, World(), torch.device("cuda", 0))
        weights = dict(trainer.model.named_parameters())
        first, losses, replayed = next(iter(weights.values())), list[Tensor](), 0
        for step in range(120):
            kept = first.detach().clone()
            if step == 30:
                with torch.no_grad():
                    first.view(-1)[:] = torch.nan
            losses.append(torch.stack([x.double() for x in trainer.train_step(trainer.inspection.watch(step))]))
            if step == 30:
                with torch.no_grad():
                    first.copy_(kept)
            if step == 60:
                trainer.optimizer.load_state_dict(deepcopy(trainer.optimizer.state_dict()))
            if step % 25 == 24:
                found = evaluate(trainer.model, trainer.data.validation, 0, lambda: False)
                assert found is not None
                losses.append(torch.tensor([found.loss, 0.0], dtype=torch.float64, device="cuda"))
            poison()
            replayed += trainer.graph is not None and trainer.graph.recorded
        state = {f"{name}.{key}": v for name, w in weights.items() for key, v in trainer.optimizer.state[w].items()}
        trainer.data.loader.close()
        return losses, {name: w.detach() for name, w in weights.items()} | state, replayed

    losses, weights, none = run(False)
    others, changed, replayed = run(None)
    assert none == 0
    assert replayed > 60
    torch.testing.assert_close(torch.stack(others), torch.stack(losses), rtol=0, atol=0, equal_nan=True)
    assert [name for name, value in weights.items() if not torch.equal(changed[name], value)] == []


def test_what_cannot_be_recorded_goes_on_without_and_torch_is_as_it_was(
    tiny: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = replace(tiny, runtime=replace(tiny.runtime, device="cuda"))
    trainer = Trainer(config, tmp_path, World(), torch.device("cuda", 0))
    true = trainer.model.forward_backward

    def waiting(*rest: Any) -> Tensor:
        loss = true(*rest)
        torch.cuda.current_stream().synchronize()  # which no graph may
        return loss

    object.__setattr__(trainer.model, "forward_backward", waiting)
    losses = [float(trainer.train_step()[0]) for _ in range(10)]
    assert all(math.isfinite(loss) for loss in losses)
    assert trainer.graph is not None
    assert not trainer.graph.recorded
    assert capsys.readouterr().out.count("steps run without a CUDA graph") == 1
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    large = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    del large
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before, "torch frees cached memory again"
    trainer.data.loader.close()
