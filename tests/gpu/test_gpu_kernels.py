"""The kernels on a real GPU: everything that the interpreter is asked, and what only a GPU can be asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import kernels
from tests.kernels.oracle import DTYPES, check, digest
from tests.kernels.oracle import cross_entropy as plain_cross_entropy
from train.precision.float8 import rowwise

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.fixture(autouse=True)
def forced() -> Iterator[None]:
    with kernels.use("triton"):
        yield
    torch.cuda.empty_cache()


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, device="cuda", generator=generator).to(dtype)


def table(positions: int, width: int) -> Tensor:
    angles = torch.arange(positions)[:, None] * 10000.0 ** (-torch.arange(0, width, 2) / width)
    return torch.stack([angles.cos(), angles.sin()], -1).cuda()


def steps() -> dict[str, tuple[Callable[..., Any], list[Tensor]]]:
    """Forward of every operation at sizes of a small model, and its differentiable inputs."""
    x, other, weight = drawn(512, 1024), drawn(512, 1024, seed=1), torch.ones(1024, device="cuda")
    target = torch.randint(0, 5000, (512,), device="cuda")
    q, k, turns = drawn(2, 256, 8, 64), drawn(2, 256, 2, 64, seed=2), table(256, 64)
    return {
        "rms_norm": (lambda a, w: kernels.rms_norm(a, w, 1e-6), [x, weight]),
        "add_rms_norm": (lambda a, b, w: kernels.add_rms_norm(a, b, w, 1e-6), [x, other, weight]),
        "fork_rms_norm": (lambda a, w: kernels.fork_rms_norm(a, w, 1e-6), [x, weight]),
        "swiglu": (kernels.swiglu, [x, other]),
        "swiglu_packed": (kernels.swiglu, [x]),
        "rope": (lambda a, b: kernels.rope(a, b, turns), [q, k]),
        "split_heads": (
            lambda a, b, c: kernels.split_heads(a, turns, (b, c), 1e-6),
            [drawn(2, 256, 4, 5, 64), torch.ones(64, device="cuda"), torch.ones(64, device="cuda")],
        ),
        "gated_mlp": (kernels.gated_mlp, [x, drawn(2, 512, 1024, seed=4) / 32, drawn(1024, 512, seed=5) / 32]),
        "gated_mlp_kept": (
            lambda a, b, c: kernels.gated_mlp(a.bfloat16(), b.bfloat16(), c.bfloat16(), keep=True),
            [x, drawn(2, 512, 1024, seed=4) / 32, drawn(1024, 512, seed=5) / 32],
        ),
        "cross_entropy": (lambda a: kernels.cross_entropy(a, target), [drawn(512, 5000)]),
        "linear_cross_entropy": (
            lambda a, w: kernels.linear_cross_entropy(a, w, target, z_loss=1e-4), [x, drawn(5000, 1024, seed=3)],
        ),
    }  # fmt: skip


def run(function: Callable[..., Any], inputs: list[Tensor]) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    result = function(*leaves)
    outputs = [result] if isinstance(result, Tensor) else list(result)
    grads = torch.autograd.grad(outputs, leaves, [torch.ones_like(o) for o in outputs])
    return [o.detach() for o in outputs] + list(grads)


@pytest.mark.parametrize("name", list(steps()) if torch.cuda.is_available() else [])
def test_captured_in_a_graph_and_replayed(name: str) -> None:
    function, inputs = steps()[name]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(function, inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = run(function, inputs)
    inputs[0].copy_(inputs[0].flip(0))
    for x in outputs:
        x.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert digest(outputs) == digest(run(function, inputs))


@pytest.mark.parametrize("name", list(steps()) if torch.cuda.is_available() else [])
def test_compiled_whole_with_changing_sizes(name: str) -> None:
    function, inputs = steps()[name]
    if name not in {"rope", "split_heads", "gated_mlp", "gated_mlp_kept", "cross_entropy", "linear_cross_entropy"}:
        # Other operations have targets, positions or weights, which do not shrink along.
        compiled = torch.compile(function, fullgraph=True, dynamic=True)
        for rows in (512, 300, 127):
            part = [x[:rows].contiguous() if x.dim() == 2 else x for x in inputs]
            assert digest(run(compiled, part)) == digest(run(function, part))
        return
    compiled = torch.compile(function, fullgraph=True)
    for a, b in zip(run(compiled, inputs), run(function, inputs), strict=True):
        torch.testing.assert_close(a, b)


def test_adamw_and_norm_in_a_graph() -> None:
    weights, means, squares = ([drawn(1000, 77, dtype=torch.float32, seed=s)] for s in range(3))
    grads, step = [drawn(1000, 77, dtype=torch.float32, seed=3)], torch.ones((), device="cuda")
    squares = [x.square() for x in squares]

    def once() -> None:
        scale = 1.0 / kernels.gradient_norm(grads)
        kernels.adamw_step(
            weights, grads, means, squares, lr=1e-2, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1, step=step,
            grad_scale=scale,
        )  # fmt: skip
        step.add_(1)

    start = [x.clone() for x in (*weights, *means, *squares)]
    once()
    once()
    twice = digest([*weights, *means, *squares])
    for x, old in zip((*weights, *means, *squares), start, strict=True):
        x.copy_(old)
    step.fill_(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once()
    for x, old in zip((*weights, *means, *squares), start, strict=True):
        x.copy_(old)
    step.fill_(1)
    graph.replay()
    graph.replay()
    torch.cuda.synchronize()
    assert digest([*weights, *means, *squares]) == twice


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [768, 4096, 8192, 16384])
def test_norms_of_model_widths(width: int, dtype: torch.dtype) -> None:
    x, weight = drawn(333, width, dtype=dtype), drawn(width, dtype=torch.float32, seed=1)
    ours = run(lambda a, w: kernels.rms_norm(a, w, 1e-6), [x, weight])
    theirs = run(lambda a, w: torch.nn.functional.rms_norm(a, (width,), w.to(dtype), 1e-6), [x, weight])
    exact = run(lambda a, w: torch.nn.functional.rms_norm(a, (width,), w, 1e-6), [x.double(), weight.double()])
    for a, b, c in zip(ours, theirs, exact, strict=True):
        check(a, b, c, ulps=8, unit=torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", [50257, 50304, 128256])
def test_cross_entropy_of_real_vocabularies(columns: int, dtype: torch.dtype) -> None:
    logits, target = 4 * drawn(257, columns, dtype=dtype), torch.randint(0, columns, (257,), device="cuda")
    target[::10] = -100
    ours = run(lambda a: kernels.cross_entropy(a, target, reduction="none"), [logits])
    theirs = run(lambda a: plain_cross_entropy(a, target, reduction="none"), [logits])
    exact = run(lambda a: plain_cross_entropy(a, target, reduction="none"), [logits.double()])
    for a, b, c in zip(ours, theirs, exact, strict=True):
        check(a, b, c, ulps=8, unit=torch.finfo(dtype).eps)


def test_gradients_of_long_rows_in_the_same_pass() -> None:
    logits, target = 4 * drawn(700, 128256), torch.randint(0, 128256, (700,), device="cuda")
    target[::10] = -100

    def ours(x: Tensor) -> Any:
        return kernels.cross_entropy(x, target, z_loss=1e-3)

    ran = run(ours, [logits])
    theirs = run(lambda a: plain_cross_entropy(a, target, z_loss=1e-3), [logits])
    exact = run(lambda a: plain_cross_entropy(a, target, z_loss=1e-3), [logits.double()])
    # The mean's error is that of exponentials of 16-bit logits, 2e-6 at most, which does not average out.
    assert abs(ran[0].item() / exact[0].item() - 1) < 2e-6
    check(ran[1], theirs[1], exact[1], ulps=8)
    assert digest(ran) == digest(run(ours, [logits]))
    inner = logits.requires_grad_() * 1
    loss: Any = kernels.cross_entropy(inner, target, z_loss=1e-3, in_place=True)
    assert torch.equal(torch.autograd.grad(loss, inner)[0], ran[1])


def test_more_elements_than_32_bits_count() -> None:
    rows, columns = 17000, 131072  # 2.2e9 logits
    logits = torch.empty(rows, columns, dtype=torch.bfloat16, device="cuda").normal_()
    target = torch.randint(0, columns, (rows,), device="cuda")
    last = slice(rows - 5, rows)
    expected = run(lambda a: kernels.cross_entropy(a, target[last], reduction="none"), [logits[last].clone()])
    of_sum = run(lambda a: kernels.cross_entropy(a, target[last], reduction="sum"), [logits[last].clone()])[1]
    got = run(lambda a: kernels.cross_entropy(a, target, reduction="sum"), [logits])[1]
    assert torch.equal(got[last], of_sum)
    del got
    leaf = logits.requires_grad_()
    losses: Any = kernels.cross_entropy(leaf, target, reduction="none", in_place=True)
    assert torch.equal(losses[last], expected[0])
    assert torch.equal(torch.autograd.grad(losses.sum(), leaf)[0][last], expected[1])


def test_wide_layers_past_32_bits() -> None:
    rows, width = 150_000, 16384  # 2.5e9 elements
    x = torch.empty(rows, width, dtype=torch.bfloat16, device="cuda").normal_()
    weight = torch.ones(width, device="cuda")
    with torch.no_grad():
        for function in (
            lambda a: kernels.rms_norm(a, weight, 1e-6),
            kernels.swiglu,
            lambda a: kernels.cast_fp8(a).values,
            lambda a: kernels.cast_fp8(a, by="row", transposed=True).values[-3:],
        ):
            got = function(x)[-3:]
            if function is not kernels.swiglu and got.dtype != torch.bfloat16:
                got = got.view(torch.uint8)
            expected = function(x[-3:].clone())
            assert torch.equal(got, expected.view(torch.uint8) if got.dtype == torch.uint8 else expected)
            del got
    norm = kernels.gradient_norm([x])
    assert abs(norm.item() / (rows * width) ** 0.5 - 1) < 1e-3
    q = x.view(1, rows, 128, 128)
    turns = table(rows, 128)
    turned, _ = kernels.rope(q, q[:, :, :1], turns)
    part, _ = kernels.rope(q[:, -2:], q[:, -2:, :1], turns, torch.arange(rows - 2, rows, device="cuda"))
    assert torch.equal(turned[:, -2:], part)


def test_adamw_past_32_bits() -> None:
    size = 2**31 + 100_003
    weight = torch.ones(size, dtype=torch.bfloat16, device="cuda")
    grad, mean, square = (torch.full_like(weight, value) for value in (0.5, 0.0, 0.0))
    numbers: dict[str, Any] = {"lr": 0.25, "betas": (0.9, 0.99), "eps": 0.0, "weight_decay": 0.0}
    kernels.adamw_step([weight], [grad], [mean], [square], step=1, **numbers)
    assert bool((weight == 0.75).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(48, 64), (33, 70), (1000, 4096), (16, 40_000)])
def test_fp8_by_row_is_torchs_expression_to_the_bit(rows: int, columns: int, dtype: torch.dtype) -> None:
    x = (drawn(rows, columns) * torch.linspace(-8, 8, rows, device="cuda").exp()[:, None]).to(dtype)
    x[3] = 0.0
    factor = x.abs().amax(dim=1, keepdim=True).float().clamp(min=1e-12) / 448.0
    values = (x.float() / factor).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    with kernels.use("triton"):
        ours = kernels.cast_fp8(x)
    assert digest([ours.values, ours.scale]) == digest([values, factor])


def test_the_trainers_rowwise_product_is_the_same_through_the_kernel_and_without() -> None:
    found = []
    for mode in ("triton", "reference"):
        x, weight = (drawn(*shape, seed=seed).requires_grad_() for seed, shape in enumerate([(256, 512), (128, 512)]))
        with kernels.use(mode):
            y = rowwise(x, weight)
            found.append(digest([y, *torch.autograd.grad(y, (x, weight), drawn(256, 128, seed=2))]))
    assert found[0] == found[1]


def test_fp8_feeds_the_scaled_product() -> None:
    a, b = drawn(256, 512), drawn(128, 512, seed=1)
    x, w = kernels.cast_fp8(a), kernels.cast_fp8(b)
    product = torch._scaled_mm(x.values, w.values.t(), scale_a=x.scale, scale_b=w.scale.t(), out_dtype=torch.bfloat16)
    exact = a.double() @ b.double().t()
    assert (product.double() - exact).norm() / exact.norm() < 0.05
    both = kernels.cast_fp8(a, by="tensor", transposed=True)
    assert both.transposed is not None
    assert digest([both.transposed]) == digest([both.values.t()])
