"""Compiled blocks: one graph for all of them, the eager numbers, and no compilation after the warm-up."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.train.compiler import compiles
from train.memory.activation_checkpointing import FULL, NONE, SELECTIVE, wrap
from train.runtime.compile import Compilation, compile_blocks
from train.spec.config import CompileConfig

ON = CompileConfig(blocks=True, warmup_steps=1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.down(F.silu(self.up(x)))
        return y


def stack(selective: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [Block() for _ in range(3)]
    if selective:
        wrap(blocks, [SELECTIVE] * 3)
    return nn.Sequential(*blocks)


def gradients(model: nn.Module, rows: int = 4) -> list[Tensor]:
    model.zero_grad()
    x = torch.linspace(-1, 1, rows * 8).view(rows, 8).requires_grad_()  # as the stream that comes out of an embedding
    model(x).square().sum().backward()
    return [w.grad.clone() for w in model.parameters() if w.grad is not None]


@compiles
@pytest.mark.slow
def test_one_graph_serves_all_blocks_and_later_shapes_are_refused() -> None:
    torch._dynamo.reset()
    plain, model = gradients(stack()), stack()
    compile_blocks(list(model), ON)
    watch = Compilation(ON)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for _ in range(3):
        with watch.step():
            compiled = gradients(model)
        assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(plain, compiled, strict=True))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before + 1
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in stack().named_parameters()]
    with pytest.raises(RuntimeError, match=r"1 steps of warmup.*compile\.warmup_steps"), watch.step():
        gradients(model, rows=5)
    gradients(model, rows=6)  # outside of a step anything may be compiled


@compiles
def test_selective_checkpointing_inside_a_compiled_block() -> None:
    torch._dynamo.reset()
    plain, model = gradients(stack()), stack(selective=True)
    compile_blocks(list(model), ON)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(plain, gradients(model), strict=True))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before + 1


@compiles
@pytest.mark.parametrize(("mode", "kept"), [(FULL, 3), (NONE, None)])
def test_a_compiled_block_that_is_recomputed_keeps_its_input_alone(mode: str, kept: int | None) -> None:
    """And the backward pass compiles nothing. Inside of the compiled block, torch 2.11 keeps nearly everything."""
    torch._dynamo.reset()
    plain, model = gradients(stack()), stack()
    wrap(list(model), [mode] * 3, ON)
    watch, saved = Compilation(ON), []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with watch.step():
        gradients(model)
    with watch.step(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        compiled = gradients(model)
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(plain, compiled, strict=True))
    inputs = [tensor for tensor in saved if tensor.shape == (4, 8)]
    if kept is not None:
        assert len(saved) - 1 == len(inputs) - 1 == kept, "beside the blocks, what square() keeps"
    else:
        assert len(saved) > 2 * 3 + 1


def test_off_means_untouched() -> None:
    model = stack()
    compile_blocks(list(model), CompileConfig())
    assert all("forward" not in vars(block) for block in model)
    with Compilation(CompileConfig()).step():
        gradients(model)


def test_an_error_of_the_step_itself_passes_as_it_is() -> None:
    with pytest.raises(RuntimeError, match=r"^shape$"), Compilation(ON).step():
        raise RuntimeError("shape")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_attention_of_the_last_queries_is_one_graph_on_a_gpu(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As context parallelism has it; no GPU is needed to see what is traced. tests/gpu compares the numbers."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from train.model.attention.sdpa import attend

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    compiled = torch.compile(attend, fullgraph=True, dynamic=False, backend="eager")
    with FakeTensorMode():
        q, k, v = (torch.empty(2, length, heads, 16, device="cuda", dtype=dtype) for length, heads in SIZES)
        assert compiled(q, k, v).shape == q.shape


SIZES = ((8, 4), (24, 4), (24, 4))
"""Length and heads of queries, keys and values: alike, as torch without CUDA cannot copy what has no memory."""
