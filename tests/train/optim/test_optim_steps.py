"""Every rule against a plain NumPy implementation in fp64, step by step; and what the kernels are handed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.overrides import TorchFunctionMode

from kernels.core.dtensor import local
from tests.train.optim.test_optim_rules import MODEL, NAMES, SPECS, contents, give_gradients, made, weights
from train.model.params import ParamSpec
from train.model.transformer import Transformer
from train.optim import adamw
from train.optim.adamw import Kernel
from train.optim.build import make_optimizer
from train.optim.muon import direction, orthogonalise
from train.optim.optimizer import set_lr
from train.optim.param_groups import Rule, rule_of
from train.spec.config import OptimConfig

Array = NDArray[np.float64]
MATRICES = ("blocks.0.attention.qkv", "blocks.0.attention.out", "blocks.0.mlp.gate_up", "blocks.0.mlp.down")


def newton_schulz(matrix: Array, iterations: int) -> Array:
    """Jordan et al. 2024: x <- a x + (b x x' + c (x x')^2) x, from the matrix over its Frobenius norm."""
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / max(float(np.sqrt((x**2).sum())), 1e-7)
    for _ in range(iterations):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def scaled(matrix: Array, iterations: int, scale: str) -> Array:
    rows, columns = matrix.shape
    factor = 0.2 * np.sqrt(max(rows, columns)) if scale == "match_rms" else np.sqrt(max(1.0, rows / columns))
    return np.asarray(factor * newton_schulz(matrix, iterations))


def by_matrix(name: str, full: Array, iterations: int, scale: str) -> Array:
    """Each matrix of a weight by itself: gate and up, and of queries (8 rows), keys and values (4) in turn."""
    if name.endswith("gate_up"):
        return np.stack([scaled(part, iterations, scale) for part in full])
    if not name.endswith("qkv"):
        return scaled(full, iterations, scale)
    which = np.tile(np.repeat([0, 1, 2], [8, 4, 4]), 2)
    made = np.empty_like(full)
    for part in range(3):
        made[which == part] = scaled(full[which == part], iterations, scale)
    return made


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("scale", ["match_rms", "spectral"])
def test_muon_is_that_of_the_paper(scale: str, nesterov: bool, ahead: bool) -> None:
    """`ahead`: as on a device that looks at `skip` itself."""
    named = {name: weights()[name] for name in MATRICES}
    optim = OptimConfig(
        name="muon", lr=0.02, momentum=0.8, nesterov=nesterov, muon_scale=scale, muon_iterations=3, weight_decay=0.3
    )
    optimizer = make_optimizer(named.items(), SPECS, MODEL, optim)
    wanted = {name: weight.detach().double().numpy().copy() for name, weight in named.items()}
    buffers = {name: np.zeros_like(value) for name, value in wanted.items()}
    for step in range(3):
        drawn = weights(1000 + step)
        lr = 0.02 / (1 + step)
        set_lr(optimizer, lr)
        for name, value in wanted.items():
            named[name].grad = drawn[name].detach().clone()
            gradient = 0.5 * drawn[name].detach().double().numpy()
            buffers[name] = 0.8 * buffers[name] + 0.2 * gradient
            moved = 0.8 * buffers[name] + 0.2 * gradient if nesterov else buffers[name]
            wanted[name] = value * (1 - lr * 0.3) - lr * by_matrix(name, moved, 3, scale)
        optimizer.update(torch.zeros(()) if ahead else None, torch.tensor(0.5))
        assert all(weight.grad is None for weight in named.values())
    for name, weight in named.items():
        np.testing.assert_allclose(weight.detach().numpy(), wanted[name], rtol=1e-4, atol=1e-5, err_msg=name)
        kept = optimizer.state[weight]["momentum_buffer"].numpy()
        np.testing.assert_allclose(kept, buffers[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("shape", [(5, 5), (3, 7), (7, 3), (2, 6, 4), (2, 4, 6), (1, 4)])
def test_orthogonalising_is_that_of_the_paper_for_every_shape(shape: tuple[int, ...]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    for iterations in (0, 1, 5):
        found = orthogonalise(matrix, iterations)
        wanted = [newton_schulz(one, iterations) for one in matrix.view(-1, *shape[-2:]).numpy()]
        np.testing.assert_allclose(found.view(-1, *shape[-2:]).numpy(), np.stack(wanted), rtol=1e-9, atol=1e-12)
        assert found.shape == matrix.shape
        assert found.is_contiguous()


class Products(TorchFunctionMode):
    """Notes the shapes of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if "matmul" in func.__name__:
            self.shapes.append(tuple(made.shape[-2:]))
        return made


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (2, 4, 6), (2, 6, 4), (9, 4, 6), (9, 6, 4)])
def test_products_are_of_the_shorter_side(shape: tuple[int, ...]) -> None:
    with Products() as products:
        orthogonalise(torch.ones(shape), 1)
    assert products.shapes == [(4, 4), (4, 4), (4, 6)]


def test_a_matrix_of_zeros_stays_one_and_a_small_one_is_brought_to_size() -> None:
    assert torch.equal(orthogonalise(torch.zeros(3, 4), 5), torch.zeros(3, 4))
    matrix = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(orthogonalise(1e-5 * matrix, 5), orthogonalise(matrix, 5))
    tiny = orthogonalise(1e-9 * matrix, 0)  # below 1e-7 it is not: what is as small is noise
    torch.testing.assert_close(tiny, 1e-2 * matrix)


@pytest.mark.parametrize(
    ("rows", "columns", "match", "spectral"),
    [(4, 4, 0.4, 1.0), (4, 16, 0.8, 1.0), (16, 4, 0.8, 2.0), (2, 1, 0.2 * 2**0.5, 2**0.5), (1, 2, 0.2 * 2**0.5, 1.0)],
)
def test_scales_by_shape(rows: int, columns: int, match: float, spectral: float) -> None:
    matrix = torch.randn(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    for scale, factor in (("match_rms", match), ("spectral", spectral)):
        found = direction(matrix, {"iterations": 2, "scale": scale, "split": None})
        torch.testing.assert_close(found, factor * orthogonalise(matrix, 2))


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_sgd_by_hand(momentum: float, nesterov: bool, ahead: bool) -> None:
    named = weights()
    optimizer = made(named, name="sgd", lr=0.02, momentum=momentum, nesterov=nesterov, weight_decay=0.3, norm_decay=0.3)
    before = {name: weight.detach().double() for name, weight in named.items()}
    buffers = {name: torch.zeros_like(value) for name, value in before.items()}
    for step in range(3):
        give_gradients(named, step)
        for name, value in before.items():
            weight = named[name]
            assert weight.grad is not None
            gradient = 0.5 * weight.grad.double()
            buffers[name] = momentum * buffers[name] + gradient
            moved = gradient + momentum * buffers[name] if nesterov else buffers[name]
            decay = 0.0 if name.startswith("embedding") else 0.3
            before[name] = value * (1 - 0.02 * decay) - 0.02 * moved
        optimizer.update(torch.zeros(()) if ahead else None, torch.tensor(0.5))
    for name, weight in named.items():
        torch.testing.assert_close(weight.detach().double(), before[name], rtol=1e-5, atol=1e-6)
        kept = optimizer.state[weight]
        assert set(kept) == ({"momentum_buffer"} if momentum else set())


@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ahead", [False, True])
def test_adamw_by_hand(ahead: bool, state_dtype: torch.dtype) -> None:
    """Loshchilov and Hutter 2019; moments in bf16 are within their eight bits of it, the first step exact."""
    named = weights()
    # Decays of three kinds make three groups, one of them of a single weight.
    optim = OptimConfig(lr=0.02, beta1=0.8, beta2=0.9, eps=1e-3, weight_decay=0.3, norm_decay=0.2)
    decays = {"embedding.weight": 0.0, "norm.weight": 0.2}
    optimizer = make_optimizer(named.items(), SPECS, MODEL, optim, state_dtype=state_dtype)
    before = {name: weight.detach().double() for name, weight in named.items()}
    moments = {name: (torch.zeros_like(value), torch.zeros_like(value)) for name, value in before.items()}
    for step in range(1, 4):
        give_gradients(named, step)
        optimizer.seed(step)
        for name, value in before.items():
            weight = named[name]
            assert weight.grad is not None
            gradient = 0.5 * weight.grad.double()
            first, second = moments[name]
            first, second = 0.8 * first + 0.2 * gradient, 0.9 * second + 0.1 * gradient**2
            moments[name] = first, second
            rate = (second / (1 - 0.9**step)).sqrt() + 1e-3
            before[name] = value * (1 - 0.02 * decays.get(name, 0.3)) - 0.02 * first / (1 - 0.8**step) / rate
        optimizer.update(torch.zeros(()) if ahead else None, torch.tensor(0.5))
        tolerance = 1e-5 if state_dtype is torch.float32 or step == 1 else 1e-2
        for name, weight in named.items():
            torch.testing.assert_close(weight.detach().double(), before[name], rtol=tolerance, atol=tolerance / 10)
            assert optimizer.state[weight]["step"] == step
            for key, wanted in zip(("exp_avg", "exp_avg_sq"), moments[name], strict=True):
                kept = optimizer.state[weight][key]
                assert kept.dtype == state_dtype
                within = 2e-5 if state_dtype is torch.float32 else 0.03
                torch.testing.assert_close(kept.double(), wanted, rtol=within, atol=within / 10)


def test_before_it_is_told_a_step_rounding_is_that_of_the_first() -> None:
    trained = []
    for seeds in ((), (0,), (1,)):
        named = weights()
        optimizer = make_optimizer(named.items(), SPECS, MODEL, OptimConfig(lr=0.01), state_dtype=torch.bfloat16)
        for seed in seeds:
            optimizer.seed(seed)
        give_gradients(named, 0)
        optimizer.step()
        trained.append(contents(optimizer))
    silent, first, second = trained
    assert all(torch.equal(a, b) for a, b in zip(silent, first, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_rank_that_holds_nothing_of_a_weight_counts_its_steps_all_the_same() -> None:
    """Of a short weight the last ranks hold nothing; a kernel would not know what to do with it."""
    called = []

    def kernel(held: list[Tensor], *_: Any, **options: Any) -> None:
        called.append([weight.shape for weight in held])

    empty, full = nn.Parameter(torch.empty(0)), nn.Parameter(torch.ones(3))
    for named, wanted in (([("blocks.0.a", empty), ("blocks.0.b", full)], [[(3,)]]), ([("blocks.0.a", empty)], [])):
        specs = {name: ParamSpec("matrix", (3,), 1.0) for name, _ in named}
        optimizer = make_optimizer(named, specs, MODEL, OptimConfig(lr=0.01), kernel=cast("Kernel", kernel))
        for _, weight in named:
            weight.grad = torch.ones_like(weight)
        called.clear()
        optimizer.step()
        assert called == wanted
        assert [optimizer.state[weight]["step"] for _, weight in named] == [1.0] * len(named)
        assert all(weight.grad is None for _, weight in named)


def test_the_gpu_kernel_is_asked_for_with_one_of_each_and_gets_all(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = {name: [torch.full((2,), float(n)) for n in (1, 2)] for name in ("weights", "grads", "firsts", "seconds")}
    steps = [torch.tensor(3.0), torch.tensor(3.0)]
    factor, skip = torch.tensor(0.5), torch.tensor(0.0)
    asked: list[Any] = []
    handed: list[Any] = []

    def use_triton(name: str, *tensors: Tensor) -> bool:
        asked.append((name, tensors))
        return True

    monkeypatch.setattr(adamw, "use_triton", use_triton)
    monkeypatch.setattr(adamw, "adamw_step", lambda *given, **options: handed.append((given, options)))
    options: dict[str, Any] = {"lr": 0.1, "beta1": 0.8, "beta2": 0.9, "eps": 1e-8, "weight_decay": 0.2}
    one, two, three, four = lists.values()
    adamw.fastest(one, two, three, four, steps, **options, grad_scale=factor, found_inf=skip)
    ((name, tensors),) = asked
    assert name == "adamw_step"
    assert [id(tensor) for tensor in tensors] == [id(every[0]) for every in lists.values()]
    ((given, said),) = handed
    assert all(a is b for a, b in zip(given, lists.values(), strict=True))
    assert said == {
        "step": steps[0],
        "betas": (0.8, 0.9),
        "skip": skip,
        "lr": 0.1,
        "weight_decay": 0.2,
        "eps": 1e-8,
        "grad_scale": factor,
    }


def test_elsewhere_torchs_kernel_takes_the_step() -> None:
    weight, gradient = torch.ones(2), torch.ones(2)
    first, second, step = torch.zeros(2), torch.zeros(2), torch.tensor(1.0)
    options = {"lr": 0.1, "beta1": 0.8, "beta2": 0.9, "eps": 0.0, "weight_decay": 0.0}
    adamw.fastest([weight], [gradient], [first], [second], [step], **options, grad_scale=None, found_inf=None)
    torch.testing.assert_close(weight, torch.full((2,), 0.9))
    assert adamw.common([step]) is step


@pytest.mark.parametrize(
    ("name", "tied", "kind"),
    [
        ("embedding.weight", False, "embedding"), ("embedding.weight", True, "head"), ("output.weight", False, "head"),
        ("norm.weight", True, "norm"), ("blocks.0.mlp_norm.weight", False, "norm"),
        ("blocks.1.attention.query_norm.weight", False, "norm"), ("blocks.0.attention.out", True, "matrix"),
        ("blocks.0.mlp.gate_up", False, "matrix"),
    ],
)  # fmt: skip
def test_what_a_weight_is(name: str, tied: bool, kind: str) -> None:
    assert Transformer(replace(MODEL, layers=2, tied_embeddings=tied), 40, 8).specs[name].kind == kind


@pytest.mark.parametrize(
    ("optim", "name", "rule"),
    [
        ({}, "blocks.0.attention.qkv", Rule("adamw", 1.0, 0.1)),
        ({"name": "sgd"}, "blocks.0.attention.qkv", Rule("sgd", 1.0, 0.1)),
        ({"name": "muon"}, "blocks.0.attention.qkv", Rule("muon", 1.0, 0.1, (8, 4, 4))),
        ({"name": "muon"}, "blocks.0.attention.out", Rule("muon", 1.0, 0.1)),
        ({"name": "muon"}, "output.weight", Rule("adamw", 1.0, 0.1)),
        ({"name": "muon"}, "embedding.weight", Rule("adamw", 1.0, 0.0)),
        ({"head_lr_scale": 4.0}, "output.weight", Rule("adamw", 4.0, 0.1)),
        ({"norm_lr_scale": 3.0, "norm_decay": 0.2}, "norm.weight", Rule("adamw", 3.0, 0.2)),
        ({"embedding_lr_scale": 2.0, "embedding_decay": 0.5}, "embedding.weight", Rule("adamw", 2.0, 0.5)),
        ({"head_decay": 0.3}, "output.weight", Rule("adamw", 1.0, 0.3)),
        ({"head_decay": 0.3}, "blocks.0.mlp.down", Rule("adamw", 1.0, 0.1)),
        # What the schedule leaves of the peak is all that multiplies an independent decay.
        ({"independent_decay": True, "head_lr_scale": 4.0}, "output.weight", Rule("adamw", 4.0, 0.1 / (0.5 * 4.0))),
        ({"independent_decay": True}, "blocks.0.mlp.down", Rule("adamw", 1.0, 0.1 / 0.5)),
    ],
)
def test_the_rule_of_a_weight(optim: dict[str, Any], name: str, rule: Rule) -> None:
    found = rule_of(SPECS[name], MODEL, OptimConfig(**{"lr": 0.5, **optim}))
    assert found == rule
    assert found.split is None or {type(rows) for rows in found.split} == {int}


def test_rules_under_mup() -> None:
    model = replace(MODEL, width=64, head_dim=16, mup_base_width=16, mup_base_head_dim=4)
    matrix, head = "blocks.0.mlp.down", "output.weight"
    scales = {
        ("adamw", "match_rms", matrix): 0.25,
        ("muon", "match_rms", matrix): 0.5,
        ("muon", "spectral", matrix): 1.0,
        ("muon", "spectral", head): 2.0,
        ("sgd", "match_rms", matrix): 1.0,
        ("sgd", "match_rms", head): 8.0,
    }
    for (rule, scale, name), wanted in scales.items():
        optim = OptimConfig(name=rule, lr=0.5, muon_scale=scale, head_lr_scale=2.0, independent_decay=True)
        found = rule_of(SPECS[name], model, optim)
        assert found.lr_scale == wanted
        assert found.decay == pytest.approx(0.1 / (0.5 * wanted))


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceMesh]:
    """A real group of one rank."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1, 1), mesh_dim_names=("fsdp", "tp"))
    dist.destroy_process_group()


@pytest.mark.parametrize("name", NAMES)
def test_shards_step_as_whole_weights(name: str, alone: DeviceMesh) -> None:
    """The ways of exchanging and of gathering, on one rank, where both are quick; see test_optim_sharded for four."""
    layouts: dict[str, list[Placement]] = {
        "exchanged": [Shard(0), Replicate()],
        "gathered": [Shard(0), Shard(1)],
        "copied": [Replicate()] * 2,
    }
    reference = weights()
    optimizer = made(reference, name=name)
    for step in range(2):
        give_gradients(reference, step)
        optimizer.step()
    for layout, placements in layouts.items():
        named = {
            key: nn.Parameter(
                distribute_tensor(weight.detach(), alone, placements if weight.dim() > 1 else [Replicate()] * 2)
            )
            for key, weight in weights().items()
        }
        sharded = made(named, name=name)
        for step in range(2):
            for weight, drawn in zip(named.values(), weights(1000 + step).values(), strict=True):
                weight.grad = distribute_tensor(drawn.detach(), alone, cast("DTensor", weight).placements)
            sharded.step()
        for key, weight in named.items():
            assert torch.equal(local(weight.detach()), reference[key].detach()), (layout, key)
            for what, kept in sharded.state[weight].items():
                assert torch.equal(local(kept), optimizer.state[reference[key]][what]), (layout, key, what)


def test_muon_batches_weights_of_a_shape_over_the_ranks_that_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks at a time own a matrix each; the odd one is left over, and other shapes come apart."""
    from benchmarks.shard_evenness import pretended
    from train.optim import muon

    with pretended(2):
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
        shapes = [(4, 6)] * 5 + [(6, 4)]
        named = [
            (
                f"blocks.{n}.mlp.down",
                nn.Parameter(distribute_tensor(torch.ones(shape), mesh, [Shard(0)], src_data_rank=None)),
            )
            for n, shape in enumerate(shapes)
        ]
        specs = {name: ParamSpec("matrix", tuple(weight.shape), 1.0) for name, weight in named}
        optimizer = make_optimizer(named, specs, MODEL, OptimConfig(name="muon", lr=0.1, weight_decay=0.0))
        seen: list[list[int]] = []

        def orthogonal(batch: list[Tensor], updates: list[Tensor], axis: int | None, shape: Any, group: Any) -> Any:
            assert axis == 0
            assert {tuple(weight.shape) for weight in batch} == {shape}
            seen.append([next(n for n, (_, own) in enumerate(named) if own is weight) for weight in batch])
            return [torch.ones_like(update) for update in updates]

        monkeypatch.setattr(muon, "_orthogonal", orthogonal)
        for _, weight in named:
            weight.grad = torch.zeros_like(weight)
        optimizer.step()
        assert seen == [[0, 1], [2, 3], [4], [5]]
        for _, weight in named:
            torch.testing.assert_close(local(weight.detach()), torch.full((*local(weight).shape,), 0.9))
