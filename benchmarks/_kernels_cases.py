"""The operations that benchmarks.kernels times: inputs, ours, their peers, and the floor of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import kernels
from benchmarks._kernels_timing import Case, Variant

BYTES, FLOPS = 4.3e12, 790e12
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16


def drawn(*shape: int, dtype: torch.dtype = DTYPE, scale: float = 1.0) -> Tensor:
    """Return normal random numbers on the device."""
    return (scale * torch.randn(shape, device=DEVICE)).to(dtype)


def liger() -> Any:
    """Return Liger's functions, or an object whose every use says that it is not installed."""
    try:
        from liger_kernel.transformers import functional  # type: ignore[import,unused-ignore]
    except ImportError:
        return None
    return functional


def forward(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return the forward pass of `function` on inputs["x"] and inputs["rest"], without gradients."""

    def run(inputs: Any) -> Any:
        with torch.no_grad():
            return function(*inputs["x"], *inputs.get("rest", ()))

    return run


def both(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return forward and backward of `function` on inputs["x"] with inputs["up"] coming from above."""

    def run(inputs: Any) -> Any:
        leaves = [x.detach().requires_grad_() for x in inputs["x"]]
        result = function(*leaves, *inputs.get("rest", ()))
        outputs = [result] if isinstance(result, Tensor) else list(result)
        ups = inputs.get("up") or [torch.ones_like(o) for o in outputs]
        return torch.autograd.grad(outputs, leaves, ups[: len(outputs)])

    return run


def variants(way: Callable[[Any], Callable[[Any], Any]], functions: dict[str, Any]) -> list[Variant]:
    """Return a variant for each function, by name, all run in one way (`forward` or `both`)."""
    return [Variant(name, way(function)) for name, function in functions.items()]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as torch.compile makes it, for the shapes it is first called with."""
    return torch.compile(function, dynamic=False)


def plain_loss(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Return the loss of a linear head in eager torch, with logits in fp32."""
    return F.cross_entropy(F.linear(hidden, weight).float(), target)


def norm(x: Tensor, weight: Tensor) -> Tensor:
    """Return RMSNorm in eager torch."""
    return F.rms_norm(x, weight.shape, weight, 1e-6)


def add_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of x and the residual, and its RMSNorm, in eager torch."""
    total = x + residual
    return total, norm(total, weight)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """Return SwiGLU in eager torch."""
    return F.silu(gate) * up


def gated_halves(x: Tensor) -> Tensor:
    """Return SwiGLU of gate and up side by side in one tensor, in eager torch."""
    return gated(*x.chunk(2, -1))


def plain_loss_any(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Return the loss of a linear head in eager torch, with logits in the inputs' format."""
    return F.cross_entropy(F.linear(hidden, weight), target)


def linear_case(tokens: int, width: int, vocabulary: int, goal: float, peers: Any) -> Case:
    """Return the linear head with cross-entropy: [tokens, width] by [vocabulary, width]; goal in seconds."""

    def make() -> Any:
        return {
            "x": [drawn(tokens, width), drawn(vocabulary, width, scale=width**-0.5)],
            "rest": [torch.randint(0, vocabulary, (tokens,), device=DEVICE)],
        }

    ours = kernels.linear_cross_entropy

    def every(h: Tensor, w: Tensor, t: Tensor) -> Any:
        return ours(h, w, t, z_loss=1e-4, label_smoothing=0.1, softcap=30.0, logit_scale=0.7)

    variants = [
        Variant("ours", both(ours)),
        Variant("ours, every option", both(every)),
        Variant("ours, recompute", both(lambda h, w, t: ours(h, w, t, recompute=True))),
        Variant("compile", both(compiled(plain_loss)), captured=False),
    ]
    if peers is not None:
        variants.append(Variant("liger", both(peers.liger_fused_linear_cross_entropy), captured=False))
    name = f"linear + CE f+b, {tokens} x {width} x {vocabulary}"
    return Case(name, 6 * tokens * width * vocabulary / FLOPS, make, variants, goal)


def loss_case(tokens: int, vocabulary: int, goal: float, peers: Any) -> Case:
    """Return the cross-entropy of logits [tokens, vocabulary]; goal in seconds."""

    def make() -> Any:
        return {
            "x": [drawn(tokens, vocabulary, scale=3)],
            "rest": [torch.randint(0, vocabulary, (tokens,), device=DEVICE)],
        }

    def plain(x: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(x.float(), t)

    def every(x: Tensor, t: Tensor) -> Any:
        return kernels.cross_entropy(x, t, z_loss=1e-4, label_smoothing=0.1, softcap=30.0, logit_scale=0.7)

    variants = [
        Variant("ours", both(kernels.cross_entropy)),
        Variant("ours, every option", both(every)),
        Variant("compile", both(compiled(plain))),
        Variant("eager", both(F.cross_entropy)),
    ]
    if peers is not None:
        # It writes the gradient over the logits it is given: a pass over other numbers, as long.
        variants.append(Variant("liger (in place)", both(peers.liger_cross_entropy), captured=False))
    return Case(f"CE f+gradient, {tokens} x {vocabulary}", 4 * tokens * vocabulary / BYTES, make, variants, goal)


def norm_cases(rows: int, width: int, peers: Any) -> list[Case]:
    """Return RMSNorm of [rows, width], alone and after an addition."""

    def make(count: int) -> Callable[[], Any]:
        return lambda: {
            "x": [*(drawn(rows, width) for _ in range(count)), torch.ones(width, device=DEVICE, dtype=DTYPE)],
            "up": [drawn(rows, width) for _ in range(count)],
        }

    def ours(x: Tensor, w: Tensor) -> Tensor:
        return kernels.rms_norm(x, w, 1e-6)

    def ours_added(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return kernels.add_rms_norm(x, r, w, 1e-6)

    ways: dict[str, Any] = {"ours": ours, "compile": compiled(norm), "eager": norm}
    added: dict[str, Any] = {"ours": ours_added, "compile": compiled(add_norm), "eager": add_norm}
    if peers is not None:
        ways["liger"] = lambda x, w: peers.liger_rms_norm(x, w, 1e-6)
        added["liger"] = lambda x, r, w: tuple(reversed(peers.liger_fused_add_rms_norm(x, r, w, 1e-6)))
    once = 2 * rows * width / BYTES
    size = f"{rows} x {width}"
    return [
        Case(f"RMSNorm forward, {size}", 2 * once, make(1), variants(forward, ways), 66e-6),
        Case(f"RMSNorm f+b, {size}", 5 * once, make(1), variants(both, ways), 185e-6),
        Case(f"add + RMSNorm f+b, {size}", 8 * once, make(2), variants(both, added), 280e-6),
    ]


def gate_cases(rows: int, hidden: int, peers: Any) -> list[Case]:
    """Return SwiGLU of [rows, hidden], with gate and up apart and in one tensor."""

    def apart() -> Any:
        return {"x": [drawn(rows, hidden), drawn(rows, hidden)], "up": [drawn(rows, hidden)]}

    def packed() -> Any:
        return {"x": [drawn(rows, 2 * hidden)], "up": [drawn(rows, hidden)]}

    ways: dict[str, Any] = {"ours": kernels.swiglu, "compile": compiled(gated), "eager": gated}
    halves: dict[str, Any] = {"ours": kernels.swiglu, "compile": compiled(gated_halves), "eager": gated_halves}
    if peers is not None:
        ways["liger"] = peers.liger_swiglu
    floor = 16 * rows * hidden / BYTES
    size = f"{rows} x {hidden}"
    return [
        Case(f"SwiGLU f+b, {size}", floor, apart, variants(both, ways), 890e-6),
        Case(f"SwiGLU f+b packed, {size}", floor, packed, variants(both, halves), 890e-6),
    ]


def rope_case(tokens: int, peers: Any) -> Case:
    """Return rotary positions of queries and keys."""
    heads, kv_heads, width, batch = (32, 8, 128, 4) if tokens > 1000 else (4, 2, 16, 1)
    length = tokens // batch
    angles = torch.arange(length, device=DEVICE)[:, None] * 10000.0 ** (
        -torch.arange(0, width, 2, device=DEVICE) / width
    )
    table = torch.stack([angles.cos(), angles.sin()], -1)
    cos, sin = (torch.cat([t, t], -1)[None].to(DTYPE) for t in (angles.cos(), angles.sin()))

    def make() -> Any:
        return {"x": [drawn(batch, length, heads, width), drawn(batch, length, kv_heads, width)]}

    def plain(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        with kernels.use("reference"):
            return kernels.rope(q, k, table, interleaved=False)

    variants = [
        Variant("ours, halves", forward(lambda q, k: kernels.rope(q, k, table, interleaved=False))),
        Variant("ours, neighbours", forward(lambda q, k: kernels.rope(q, k, table))),
        Variant("ours, in place", forward(lambda q, k: kernels.rope(q, k, table, in_place=True))),
        Variant("compile", forward(compiled(plain))),
        Variant("eager", forward(plain)),
    ]
    if peers is not None:
        turned = forward(lambda q, k: peers.liger_rope(q.transpose(1, 2), k.transpose(1, 2), cos, sin))
        variants.append(Variant("liger", turned))
    moved = 4 * tokens * (heads + kv_heads) * width
    return Case(f"RoPE, {heads} + {kv_heads} heads of {width}, {tokens} tokens", moved / BYTES, make, variants, 84e-6)


def heads_cases(tokens: int) -> list[Case]:
    """Return heads of 64 and of 128, each key with a query of its own, and groups of four with norms."""
    if tokens < 1000:
        return [heads_case(tokens, 2, 2, 16, normed=True)]
    return [
        heads_case(tokens, 12, 1, 64, normed=False), heads_case(tokens, 16, 1, 128, normed=False),
        heads_case(tokens, 8, 4, 128, normed=True),
    ]  # fmt: skip


def heads_case(tokens: int, kv_heads: int, group: int, width: int, *, normed: bool) -> Case:
    """Return the split of a joint projection into heads with rotary positions and, if `normed`, norms."""
    batch, length = 4, tokens // 4
    angles = torch.arange(length, device=DEVICE)[:, None] * 10000.0 ** (
        -torch.arange(0, width, 2, device=DEVICE) / width
    )
    table = torch.stack([angles.cos(), angles.sin()], -1)
    weights = [torch.ones(width, device=DEVICE)] * 2 if normed else []

    def make() -> Any:
        ups = [drawn(batch, length, heads, width) for heads in (kv_heads * group, kv_heads, kv_heads)]
        return {"x": [drawn(batch, length, kv_heads, group + 2, width), *weights], "up": ups}

    def split(joint: Tensor, *norms: Tensor) -> Any:
        return kernels.split_heads(joint, table, (norms[0], norms[1]) if norms else None, 1e-6)

    def plain(joint: Tensor, *norms: Tensor) -> Any:
        with kernels.use("reference"):
            return split(joint, *norms)

    once = 4 * tokens * kv_heads * (group + 2) * width / BYTES
    name = f"split heads f+b, {tokens} x {kv_heads} x ({group} + 2) of {width}{', normed' if normed else ''}"
    ways = {"ours": split, "compile": compiled(plain), "eager": plain}
    return Case(name, once * (2.5 if normed else 2), make, variants(both, ways))


def shapes(parameters: int) -> list[tuple[int, ...]]:
    """Return the tensors of a model of about so many parameters: matrices of a few millions, norms between them."""
    width, found, total = (2048, [], 0) if parameters > 10**7 else (64, [], 0)
    while total < parameters:
        for shape in ((3 * width, width), (width, width), (8 * width, width), (width, 4 * width), (width,), (width,)):
            found.append(shape)
            total += shape[0] * (shape[1] if len(shape) == 2 else 1)
    return found  # type: ignore[return-value]


def optimizer_cases(sizes: list[tuple[int, ...]]) -> list[Case]:
    """Return gradient norm and AdamW over tensors of these shapes, each alone and both together."""
    count = sum(a * (b[0] if b else 1) for a, *b in sizes)
    numbers: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}

    def make() -> Any:
        weights = [torch.nn.Parameter(drawn(*shape, dtype=torch.float32)) for shape in sizes]
        for weight in weights:
            weight.grad = drawn(*weight.shape, dtype=torch.float32)
        optimizer = torch.optim.AdamW(weights, fused=True, **numbers)
        moments = [[torch.zeros_like(w) for w in weights] for _ in range(2)]
        return {"weights": weights, "optimizer": optimizer, "moments": moments}

    def ours(inputs: Any) -> None:
        weights = inputs["weights"]
        grads = [w.grad for w in weights]
        scale = (1.0 / (kernels.gradient_norm(grads) + 1e-6)).clamp(max=1.0)
        with torch.no_grad():
            kernels.adamw_step(weights, grads, *inputs["moments"], step=10, grad_scale=scale, **numbers)

    def step_only(inputs: Any) -> None:
        with torch.no_grad():
            grads = [w.grad for w in inputs["weights"]]
            kernels.adamw_step(
                inputs["weights"],
                grads,
                *inputs["moments"],
                step=10,
                grad_scale=torch.ones((), device=DEVICE),
                **numbers,
            )

    def theirs(inputs: Any) -> None:
        torch.nn.utils.clip_grad_norm_(inputs["weights"], 1.0, foreach=True)
        inputs["optimizer"].step()

    def theirs_step(inputs: Any) -> None:
        norm = torch.ones((), device=DEVICE)
        torch.nn.utils.clip_grads_with_norm_(inputs["weights"], 1.0, norm, foreach=True)
        inputs["optimizer"].step()

    grads: Callable[[Any], list[Tensor]] = lambda inputs: [w.grad for w in inputs["weights"]]  # noqa: E731
    norms = [
        Variant("ours", lambda inputs: kernels.gradient_norm(grads(inputs))),
        Variant("torch foreach", lambda inputs: torch.nn.utils.get_total_norm(grads(inputs), foreach=True)),
    ]
    steps = [Variant("ours", step_only), Variant("torch fused", theirs_step, captured=False)]
    alltogether = [Variant("ours", ours), Variant("torch fused", theirs, captured=False)]
    return [
        Case(f"gradient norm, {count / 1e9:.2f}e9 fp32", 4 * count / BYTES, make, norms, 1.0e-3),
        Case(f"AdamW, clip scale given, {count / 1e9:.2f}e9 fp32", 28 * count / BYTES, make, steps, 7.0e-3),
        Case(f"norm + clip + AdamW, {count / 1e9:.2f}e9 fp32", 32 * count / BYTES, make, alltogether, 8.0e-3),
    ]


def cast_cases(rows: int, width: int) -> list[Case]:
    """Return casts of [rows, width] to FP8, scaled by row and by tensor."""

    def make() -> Any:
        return {"x": [drawn(rows, width)]}

    def plain(x: Tensor) -> tuple[Tensor, Tensor]:
        size = x.abs().amax(1, keepdim=True).float().clamp(min=1e-12)
        return (x.float() * (448.0 / size)).clamp(-448, 448).to(torch.float8_e4m3fn), size / 448.0

    def plain_both(x: Tensor) -> Any:
        return *plain(x), *plain(x.t())

    def everything(x: Tensor) -> tuple[Tensor, Tensor]:
        size = x.abs().amax().float().clamp(min=1e-12)
        return (x.float() * (448.0 / size)).clamp(-448, 448).to(torch.float8_e4m3fn), size / 448.0

    def ours(**options: Any) -> Callable[[Any], Any]:
        return forward(lambda x: [t for t in kernels.cast_fp8(x, **options) if t is not None])

    unit = rows * width / BYTES
    return [
        Case(f"FP8 by row, {rows} x {width}", 3 * unit, make, [
            Variant("ours", ours()), Variant("compile", forward(compiled(plain))), Variant("eager", forward(plain)),
        ], 52e-6),
        Case(f"FP8 by row and transposed, {rows} x {width}", 6 * unit, make, [
            Variant("ours", ours(transposed=True)), Variant("compile", forward(compiled(plain_both)))], None),
        Case(f"FP8 by tensor, {rows} x {width}", 5 * unit, make, [
            Variant("ours", ours(by="tensor")), Variant("compile", forward(compiled(everything)))], None),
    ]  # fmt: skip


def cases(small: bool) -> list[Case]:
    """Return all cases; small: of tiny sizes, without Liger."""
    peers = None if small else liger()
    if small:
        return [
            linear_case(96, 32, 301, 1.0, peers), loss_case(32, 301, 1.0, peers), *norm_cases(32, 64, peers),
            *gate_cases(16, 64, peers), rope_case(16, peers), *heads_cases(16), *optimizer_cases(shapes(10**5)),
            *cast_cases(32, 64),
        ]  # fmt: skip
    return [
        linear_case(16384, 4096, 128256, 74e-3, peers), linear_case(4096, 4096, 128256, 18e-3, peers),
        loss_case(16384, 128256, 2.4e-3, peers), *norm_cases(16384, 4096, peers), *gate_cases(16384, 14336, peers),
        rope_case(16384, peers), *heads_cases(65536), *optimizer_cases(shapes(10**9)), *cast_cases(16384, 4096),
    ]  # fmt: skip
