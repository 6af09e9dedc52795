"""Decoders whose attention FlexAttention runs on a GPU: losses and gradients as on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from train.model.attention.sdpa import attend
from train.model.init import initialise
from train.model.transformer import Transformer
from train.spec.config import ModelConfig
from train.spec.decoder import resolve_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

VOCABULARY, LENGTH = 64, 256
MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 40, "global_every": 2},
    "soft-cap": {"attention_softcap": 1.5, "logit_softcap": 4.0},
    "ALiBi": {"position": "alibi"},
    "all": {"position": "alibi", "attention_softcap": 1.5, "window": 70, "qk_norm": True},
}


def course(model: Transformer, device: str, masked: bool) -> tuple[float, dict[str, Tensor]]:
    """Return loss and gradients of one batch, in fp32."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, VOCABULARY, (3, LENGTH + 1), generator=generator)
    begins = torch.rand(3, LENGTH, generator=generator) < 0.02
    documents = begins.long().cumsum(1)
    here = torch.arange(LENGTH).expand(3, LENGTH)
    start = torch.where(begins, here, 0).cummax(1).values
    model.materialise(torch.device(device))
    initialise(model, 0)
    masks = (here - start, documents) if masked else ()
    tensors = [tensor.to(device) for tensor in (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), *masks)]
    loss = model(*tensors)
    torch.autograd.backward(loss)
    grads = {name: weight.grad.double().cpu() for name, weight in model.named_parameters() if weight.grad is not None}
    return float(loss.detach()), grads


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_gpu_attends_as_a_cpu_does(name: str, masked: bool) -> None:
    config = resolve_model(ModelConfig(width=64, layers=2, head_dim=16, kv_heads=2, **MODELS[name]), LENGTH)
    torch.backends.cuda.matmul.allow_tf32 = False
    wanted, theirs = course(Transformer(config, VOCABULARY, LENGTH), "cpu", masked)
    loss, ours = course(Transformer(config, VOCABULARY, LENGTH), "cuda", masked)
    assert loss == pytest.approx(wanted, rel=1e-5)
    for weight, grad in theirs.items():
        assert float((ours[weight] - grad).norm()) < 2e-3 * float(grad.norm()), weight


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("dtype", "kv_heads", "size", "bound"),
    [
        # bf16 rounds by up to 2**-9: scores' weights, the output, and the gradients that come of them.
        (torch.bfloat16, 8, 64, 2e-2),
        (torch.bfloat16, 2, 60, 2e-2),
        (torch.float32, 8, 4, 2e-3),
        (torch.float32, 2, 64, 2e-3),
    ],
)
def test_the_last_queries_attend_as_the_formula_says(
    dtype: torch.dtype, kv_heads: int, size: int, bound: float, compiled: bool
) -> None:
    """Output and gradients of 40 queries at the end of 100 keys, as a CPU has them from the same numbers in fp64."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    shapes = ((2, 40, 8, size), (2, 100, kv_heads, size), (2, 100, kv_heads, size))
    given = [torch.randn(shape).to(dtype) for shape in shapes]
    exact = [tensor.double().requires_grad_() for tensor in given]
    q, k, v = exact
    wanted = attend(q, k, v)
    slope = torch.randn(wanted.shape).to(dtype)
    torch.autograd.backward(wanted, slope.double())
    ours = [tensor.cuda().requires_grad_() for tensor in given]
    call = torch.compile(attend, fullgraph=True, dynamic=False) if compiled else attend
    q, k, v = ours
    found = call(q, k, v)
    torch.autograd.backward(found, slope.cuda())
    pairs = [(found.detach(), wanted.detach()), *((a.grad, b.grad) for a, b in zip(ours, exact, strict=True))]
    for a, b in pairs:
        assert a is not None and b is not None
        assert float((a.double().cpu() - b).norm()) < bound * float(b.norm())
