"""The optimizers' steps: torch's numbers where torch has them, skipped steps, decay, what Muon makes orthogonal."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from train.model.params import ParamSpec
from train.model.transformer import Transformer
from train.optim import adamw
from train.optim.build import make_optimizer
from train.optim.muon import direction, orthogonalise
from train.optim.optimizer import Optimizer, set_lr
from train.optim.param_groups import rule_of
from train.spec.config import ModelConfig, OptimConfig

MODEL = ModelConfig(width=16, layers=1, head_dim=4, kv_heads=2, mlp_width=24)
SHAPES = {
    "embedding.weight": (40, 16),
    "blocks.0.attention.qkv": (2 * (2 + 2) * 4, 16),
    "blocks.0.attention.out": (16, 16),
    "blocks.0.mlp.gate_up": (2, 24, 16),
    "blocks.0.mlp.down": (16, 24),
    "norm.weight": (16,),
    "output.weight": (40, 16),
}
with torch.device("meta"):
    SPECS = Transformer(MODEL, 40, 8).specs
NAMES = ("adamw", "muon", "sgd")


def weights(seed: int = 0) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return {name: nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in SHAPES.items()}


def give_gradients(named: dict[str, nn.Parameter], seed: int) -> None:
    for weight, drawn in zip(named.values(), weights(1000 + seed).values(), strict=True):
        weight.grad = drawn.detach()


def made(named: dict[str, nn.Parameter], **optim: Any) -> Optimizer:
    return make_optimizer(named.items(), SPECS, MODEL, OptimConfig(**{"lr": 0.01, **optim}))


def contents(optimizer: Optimizer) -> list[Tensor]:
    held = [weight for group in optimizer.param_groups for weight in group["params"]]
    return [*held, *(value for weight in held for value in optimizer.state[weight].values())]


def test_one_kernel_for_a_group_wants_one_step_count() -> None:
    assert adamw.common([torch.tensor(3.0), torch.tensor(3.0)]) == 3
    with pytest.raises(RuntimeError, match="different numbers of steps"):
        adamw.common([torch.tensor(3.0), torch.tensor(2.0)])


def test_adamw_is_torchs_bit_for_bit() -> None:
    ours, theirs = weights(), weights()
    optimizer = made(ours)
    decayed = [w for n, w in theirs.items() if w.dim() > 1 and n != "embedding.weight"]
    rest = [theirs["embedding.weight"], theirs["norm.weight"]]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    peer = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), eps=1e-8, fused=True)
    for step in range(5):
        give_gradients(ours, step)
        give_gradients(theirs, step)
        for each in (optimizer, peer):
            for group in each.param_groups:
                group["lr"] = 0.01 * (1 + step)
            each.step()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


@pytest.mark.parametrize("nesterov", [False, True])
def test_muon_is_torchs_on_a_matrix(nesterov: bool) -> None:
    ours, theirs = weights()["blocks.0.mlp.down"], weights()["blocks.0.mlp.down"]
    optim = OptimConfig(name="muon", lr=0.01, momentum=0.9, nesterov=nesterov)
    optimizer = make_optimizer([("blocks.0.mlp.down", ours)], SPECS, MODEL, optim, iteration_dtype=torch.bfloat16)
    peer = torch.optim.Muon(
        [theirs], lr=0.01, weight_decay=0.1, momentum=0.9, nesterov=nesterov, adjust_lr_fn="match_rms_adamw"
    )
    for step in range(4):
        ours.grad = weights(step)["blocks.0.mlp.down"].detach()
        theirs.grad = ours.grad.clone()
        optimizer.step()
        peer.step()  # type: ignore[no-untyped-call]
    moved = theirs.detach() - weights()["blocks.0.mlp.down"].detach()
    assert (ours - theirs).norm() < 0.05 * moved.norm()  # both iterate in bf16, which keeps 8 bits


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_is_torchs_without_decay(nesterov: bool) -> None:
    ours, theirs = weights(), weights()
    optimizer = made(ours, name="sgd", weight_decay=0.0, momentum=0.9, nesterov=nesterov)
    peer = torch.optim.SGD(theirs.values(), lr=0.01, momentum=0.9, nesterov=nesterov)
    for step in range(4):
        give_gradients(ours, step)
        give_gradients(theirs, step)
        optimizer.step()
        peer.step()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_each_kind_of_weight_moves_by_its_own_learning_rate(name: str) -> None:
    """Twice the scale of a kind is twice the step of its weights, and of no others."""
    kinds = {"embedding_lr_scale": "embedding.weight", "head_lr_scale": "output.weight", "norm_lr_scale": "norm.weight"}

    def moved(**optim: Any) -> dict[str, Tensor]:
        named, before = weights(), weights()
        optimizer = made(named, name=name, weight_decay=0.0, **optim)
        give_gradients(named, 0)
        optimizer.step()
        return {key: (named[key] - before[key]).detach() for key in named}

    plain = moved()
    for scale, own in kinds.items():
        for key, step in moved(**{scale: 2.0}).items():
            torch.testing.assert_close(step, plain[key] * (2.0 if key == own else 1.0), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_skipped_step_leaves_weights_and_state_bitwise_and_the_next_goes_on(name: str, ahead: bool) -> None:
    poisoned, plain = weights(), weights()
    ours, theirs = made(poisoned, name=name), made(plain, name=name)
    stop = ours.update if ahead else lambda skip: ours.step(skip=skip)
    for step in range(4):
        give_gradients(poisoned, step)
        give_gradients(plain, step)
        if step == 2:
            for weight in poisoned.values():
                assert weight.grad is not None
                weight.grad.view(-1)[0] = float("nan")
            before = [tensor.clone() for tensor in contents(ours)]
            stop(torch.ones(()))
            assert all(torch.equal(a, b) for a, b in zip(before, contents(ours), strict=True))
            continue
        stop(torch.zeros(()))
        theirs.step()
    assert all(torch.equal(a, b) for a, b in zip(contents(ours), contents(theirs), strict=True))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("independent", [False, True])
def test_with_zero_gradients_weights_shrink_by_their_groups_decay(name: str, independent: bool) -> None:
    named = weights()
    optimizer = made(named, name=name, lr=0.02, embedding_decay=0.3, head_decay=0.2, independent_decay=independent)
    before = {key: weight.detach().clone() for key, weight in named.items()}
    for weight in named.values():
        weight.grad = torch.zeros_like(weight)
    set_lr(optimizer, 0.02 * 0.5)
    optimizer.step()
    rate = 0.5 if independent else 0.01
    decays = {"embedding.weight": 0.3, "output.weight": 0.2, "norm.weight": 0.0}
    for key, weight in named.items():
        wanted = before[key] * (1 - rate * decays.get(key, 0.1))
        torch.testing.assert_close(weight.detach(), wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("tied", [False, True])
def test_an_embedding_that_is_the_head_decays_like_it(tied: bool) -> None:
    model = replace(MODEL, tied_embeddings=tied)
    spec = Transformer(model, 40, 8).specs["embedding.weight"]
    rule = rule_of(spec, model, OptimConfig(lr=1.0, head_lr_scale=2.0, embedding_lr_scale=3.0))
    assert (rule.decay, rule.lr_scale) == ((0.1, 2.0) if tied else (0.0, 3.0))


@pytest.mark.parametrize(("rows", "columns"), [(24, 24), (8, 40), (40, 8)])
def test_orthogonalised_it_has_the_same_singular_vectors_and_values_near_one(rows: int, columns: int) -> None:
    matrix = torch.randn(3, rows, columns, generator=torch.Generator().manual_seed(1))
    found = orthogonalise(matrix, 10)
    u, _, vt = torch.linalg.svd(matrix, full_matrices=False)
    inner = u.mT @ found @ vt.mT
    values = torch.diagonal(inner, dim1=-2, dim2=-1)
    assert 0.65 < values.min() <= values.max() < 1.25
    torch.testing.assert_close(inner, torch.diag_embed(values), rtol=0, atol=1e-4)


def test_matrices_within_a_weight_are_made_orthogonal_one_by_one() -> None:
    options: dict[str, Any] = {"iterations": 5, "scale": "match_rms"}
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(2, rows, 16, generator=generator) for rows in (8, 4, 4))  # 2 kv heads of 2 query heads
    fused = torch.cat([q, k, v], dim=1).reshape(-1, 16)
    together = direction(fused, {**options, "split": (8, 4, 4)}).view(2, 16, 16)
    for part, found in zip((q, k, v), torch.split(together, [8, 4, 4], dim=1), strict=True):
        alone = direction(part.reshape(-1, 16), {**options, "split": None})
        torch.testing.assert_close(found.reshape(-1, 16), alone, rtol=1e-5, atol=1e-6)
    gate, up = torch.randn(2, 24, 16, generator=generator)
    both = direction(torch.stack([gate, up]), {**options, "split": None})
    torch.testing.assert_close(both[1], direction(up, {**options, "split": None}), rtol=1e-5, atol=1e-6)


def test_muon_follows_the_config_by_kind() -> None:
    optimizer = made(weights(), name="muon")
    by_rule = {group["algorithm"]: 0 for group in optimizer.param_groups}
    for group in optimizer.param_groups:
        by_rule[group["algorithm"]] += len(group["params"])
    assert by_rule == {"muon": 4, "adamw": 3}


@pytest.mark.parametrize("scale", ["match_rms", "spectral"])
def test_the_size_of_muons_update_does_not_depend_on_the_shape(scale: str) -> None:
    def update(rows: int, columns: int) -> Tensor:
        drawn = torch.randn(rows, columns, generator=torch.Generator().manual_seed(3))
        return direction(drawn, {"iterations": 5, "scale": scale, "split": None})

    for rows, columns in ((32, 32), (32, 128), (128, 32)):
        found = update(rows, columns)
        if scale == "match_rms":
            assert found.square().mean().sqrt() == pytest.approx(0.2, rel=0.2)
        else:
            largest = torch.linalg.matrix_norm(found, ord=2)
            assert largest == pytest.approx(max(1, rows / columns) ** 0.5, rel=0.3)


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_state_goes_on_bitwise_under_the_settings_of_the_config(name: str) -> None:
    first, second = weights(), weights()
    ours, theirs = made(first, name=name), made(second, name=name)
    for step in range(2):
        give_gradients(first, step)
        ours.step()
    with torch.no_grad():
        for key, weight in second.items():
            weight.copy_(first[key])
    state = copy.deepcopy(ours.state_dict())
    state["param_groups"][0]["weight_decay"] = 99.0
    theirs.load_state_dict(state)
    for optimizer, named in ((ours, first), (theirs, second)):
        give_gradients(named, 7)
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(contents(ours), contents(theirs), strict=True))


def test_adamw_with_rounded_moments_stays_near_and_repeats() -> None:
    trained = []
    for state_dtype, shift in ((torch.float32, 0), (torch.bfloat16, 0), (torch.bfloat16, 0), (torch.bfloat16, 100)):
        named = weights()
        optimizer = make_optimizer(named.items(), SPECS, MODEL, OptimConfig(lr=0.01), state_dtype=state_dtype)
        for step in range(20):
            give_gradients(named, step)
            optimizer.seed(step + shift)
            if step == 7:
                before = [tensor.clone() for tensor in contents(optimizer)]
                optimizer.update(torch.ones(()))
                assert all(torch.equal(a, b) for a, b in zip(before, contents(optimizer), strict=True))
            else:
                optimizer.update(torch.zeros(()))
        trained.append(named["blocks.0.mlp.down"].detach())
    exact, rounded, again, otherwise = trained
    assert torch.equal(rounded, again)
    assert not torch.equal(rounded, otherwise)
    moved = exact - weights()["blocks.0.mlp.down"].detach()
    assert (rounded - exact).norm() < 0.02 * moved.norm()


def test_rounded_moments_of_copies_are_equal_whatever_weights_lie_beside_them() -> None:
    tied, matrix = replace(MODEL, tied_embeddings=True), ParamSpec("matrix", (40, 16), 1.0)
    specs = {"embedding.weight": replace(matrix, kind="head"), **{f"blocks.{n}.weight": matrix for n in range(4)}}
    # As on the ranks of an interleaved pipeline, where the last stage comes after another, and of one in a V.
    beside = (("blocks.0", "blocks.2"), ("blocks.1", "embedding", "blocks.3"), ("embedding", "blocks.0", "embedding"))
    copies = []
    for names in beside:
        named = [(f"{name}.weight", weights()["embedding.weight"]) for name in names]
        named.insert(len(names) // 2, ("embedding.weight", weights()["embedding.weight"]))
        optimizer = make_optimizer(named, specs, tied, OptimConfig(lr=0.01), state_dtype=torch.bfloat16)
        for step in range(3):
            for _, weight in named:
                weight.grad = weights(step)["embedding.weight"].detach()
            optimizer.seed(step)
            optimizer.step()
        copies += [[w, *optimizer.state[w].values()] for name, w in named if name == "embedding.weight"]
        others = [optimizer.state[w]["exp_avg"] for name, w in named if name != "embedding.weight"]
        assert not any(torch.equal(other, copies[-1][2]) for other in others)
    assert len(copies) == 6
    assert all(torch.equal(a, b) for copy in copies for a, b in zip(copy, copies[0], strict=True))


def test_moments_keep_the_format_that_the_config_gives_them() -> None:
    named = {"blocks.0.mlp.down": weights()["blocks.0.mlp.down"]}
    optim = OptimConfig(name="muon", lr=0.01)
    first = make_optimizer(named.items(), SPECS, MODEL, optim, state_dtype=torch.bfloat16)
    named["blocks.0.mlp.down"].grad = torch.ones(16, 24)
    first.step()
    second = make_optimizer(named.items(), SPECS, MODEL, optim, state_dtype=torch.bfloat16)
    second.load_state_dict(first.state_dict())
    assert [t.dtype for t in contents(second)] == [torch.float32, torch.bfloat16]
