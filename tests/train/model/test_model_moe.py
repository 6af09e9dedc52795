"""Layers of experts: the loss that balances them, tokens that do not count, and what does not change a sequence."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.grouped.api import grouped_linear
from tests.train.model.reference import balance, reference_logits, router_scores
from train.model.init import initialise
from train.model.moe import MoE
from train.model.transformer import Part, Transformer
from train.parallel.mesh import Mesh
from train.parallel.routing import move_biases, routing_metrics
from train.runtime.distributed import World
from train.spec.config import ModelConfig
from train.spec.labels import IGNORED
from train.spec.mesh import Axes

CONFIG = ModelConfig(width=32, layers=2, head_dim=8, mlp_width=24, experts=5, experts_per_token=2, balance_weight=0.3)
LENGTH, VOCABULARY = 12, 40


def made(config: ModelConfig) -> Transformer:
    model = Transformer(config, VOCABULARY, LENGTH)
    initialise(model, 3)
    return model


def batch(sequences: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    tokens, targets = torch.randint(0, VOCABULARY, (2, sequences, LENGTH), generator=generator)
    targets[1, 3:8] = IGNORED
    targets[2] = IGNORED
    return tokens, targets


def gradients(model: Transformer, *batches: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    for tokens, targets in batches:
        torch.autograd.backward(model(tokens, targets))
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_what_is_trained_on_is_cross_entropy_and_balance(score: str) -> None:
    model = made(replace(CONFIG, router_score=score))
    tokens, targets = batch()
    loss, ours = model(tokens, targets), gradients(model, (tokens, targets))
    exact = {name: w.detach().double().requires_grad_() for name, w in model.named_parameters()}
    inputs: list[Tensor] = []
    wanted, balanced = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)

    def scores(weights: dict[str, Tensor], config: ModelConfig, x: Tensor) -> Tensor:
        inputs.append(router_scores(weights, config, x))
        return inputs[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.train.model.reference.router_scores", scores)
        for row in range(len(tokens)):
            logits = reference_logits(exact, model.config, tokens[row])
            wanted = wanted + F.cross_entropy(logits, targets[row], ignore_index=IGNORED, reduction="sum")
            counted = targets[row] != IGNORED
            while inputs:
                if (found := inputs.pop()) is not None and counted.any():
                    balanced = balanced + 0.3 * counted.sum() * balance(found, model.config, counted)
    theirs = torch.autograd.grad(wanted + balanced, list(exact.values()))
    assert float(loss) == pytest.approx(float(wanted), rel=1e-6), "the loss that is told is the cross-entropy"
    for name, grad in zip(exact, theirs, strict=True):
        assert float((ours[name].double() - grad).norm()) < 1e-5 * float(grad.norm()) + 1e-9, name
    sums = model.routing.take()
    assert sums is not None and model.routing.take() is None
    trained = int((targets != IGNORED).sum())
    assert sums[:-2].view(2, 5).sum(1).tolist() == [2 * 2 * trained] * 2, "of two passes, two experts of a token"
    assert float(sums[-2]) == pytest.approx(2 * float(balanced), rel=1e-6)
    assert int(sums[-1]) == 2 * trained


@pytest.mark.parametrize("factor", [0.25, torch.tensor(3.0, dtype=torch.float64)])
def test_parts_of_a_model_balance_their_own_experts(factor: Tensor | float) -> None:
    """As the whole does, where all losses have a factor: the part without the head begins with it by itself."""
    config = replace(CONFIG, layers=3)
    whole, alone = made(config), Mesh(Axes(), World())
    tokens, targets = batch()
    torch.autograd.backward(whole(tokens, targets) * factor)
    told = routing_metrics([whole], config, alone)
    first, last = (Transformer(config, VOCABULARY, LENGTH, Part(*cut)) for cut in ((0, 2, True, False), (2, 3, False)))
    weights = whole.state_dict()
    for part in (first, last):
        part.load_state_dict({name: weights[name] for name in part.state_dict()})
    first.routing.factor = factor
    loss = last(first(tokens, targets), targets)
    torch.autograd.backward(loss * factor)
    grads = {name: w.grad for name, w in whole.named_parameters()}
    for part in (first, last):
        for name, weight in part.named_parameters():
            torch.testing.assert_close(weight.grad, grads[name])
    found = routing_metrics([first, last], config, alone)
    assert {name: float(one) for name, one in found.items()} == pytest.approx(
        {name: float(one) for name, one in told.items()}, rel=1e-6
    )
    with torch.no_grad():
        first(tokens, targets)
    assert routing_metrics([first], config, alone) == {}


def test_micro_batches_add_up_to_the_batch() -> None:
    model = made(CONFIG)
    tokens, targets = batch()
    whole = gradients(model, (tokens, targets))
    cut = gradients(model, *((tokens[i : i + 1], targets[i : i + 1]) for i in range(4)))
    for name, grad in whole.items():
        assert float((cut[name] - grad).norm()) < 1e-5 * float(grad.norm()), name


def test_no_token_is_dropped_however_they_are_spread() -> None:
    """All tokens choose the same two experts, and the others have gradients of zero."""
    model = made(replace(CONFIG, layers=1, balance_weight=0.0))
    layer = model.blocks["0"].mlp
    assert isinstance(layer, MoE)
    with torch.no_grad():
        layer.router.zero_()
    x = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(1))
    mixed, routed = layer(x)
    first = int(routed.load.argmax())
    assert sorted(routed.load.tolist()) == [0.0, 0.0, 0.0, 6.0, 6.0]
    other = 4 - int(routed.load.flip(0).argmax())
    made_by = [
        (F.silu(x @ gate.t()) * (x @ up.t())) @ down.t()
        for (gate, up), down in ((layer.experts.gate_up[e], layer.experts.down[e]) for e in (first, other))
    ]
    torch.testing.assert_close(mixed, sum(made_by) / 2)
    mixed.sum().backward()
    idle = [e for e in range(5) if e not in (first, other)]
    assert layer.experts.gate_up.grad is not None and not layer.experts.gate_up.grad[idle].any()


def test_a_grouped_product_is_a_product_for_each_group() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 6, dtype=torch.float64, generator=generator, requires_grad=True)
    weight = torch.randn(4, 3, 6, dtype=torch.float64, generator=generator, requires_grad=True)
    ends = torch.tensor([2, 2, 6, 7], dtype=torch.int32)
    assert torch.autograd.gradcheck(lambda a, b: grouped_linear(a, b, ends), (x, weight))
    wanted = torch.cat([x[:2] @ weight[0].t(), x[2:6] @ weight[2].t(), x[6:] @ weight[3].t()])
    torch.testing.assert_close(grouped_linear(x, weight, ends), wanted)
    with pytest.raises(ValueError, match=r"x \(7, 6\), weight \(4, 3, 6\), ends \(3,\): must be \(rows, columns\)"):
        grouped_linear(x, weight, ends[:3])


def test_metrics_say_how_even_the_load_is() -> None:
    model = made(CONFIG)
    tokens, targets = batch()
    alone = Mesh(Axes(), World())
    assert routing_metrics([model], CONFIG, alone) == {}
    loads = []
    for block in model.blocks.values():
        block.register_forward_hook(lambda block, inputs, output: loads.append(output[1]))
    model(tokens, targets)
    found = routing_metrics([model], CONFIG, alone)
    most = max(5 * float(one.load.max() / one.load.sum()) for one in loads)
    assert float(found["expert_load_max"]) == pytest.approx(most, rel=1e-6)
    balanced = sum(float(one.balance.detach()) for one in loads) / int((targets != IGNORED).sum())
    assert float(found["balance_loss"]) == pytest.approx(balanced, rel=1e-6)
    with torch.no_grad():
        model(tokens, targets)
    assert routing_metrics([model], CONFIG, alone) == {}, "of evaluations there are none"


def test_a_bias_chooses_and_does_not_weight() -> None:
    """Beside one token and one expert at a time, in fp64."""
    model = made(replace(CONFIG, router_bias_speed=0.1, shared_experts=1))
    plain = made(replace(CONFIG, shared_experts=1))
    tokens, targets = batch()
    torch.testing.assert_close(model(tokens), plain(tokens))
    bias = torch.linspace(-0.4, 0.4, 5)
    for block in model.blocks.values():
        assert isinstance(block.mlp, MoE) and block.mlp.bias is not None
        block.mlp.bias.copy_(bias)
    exact = {name: value.detach().double() for name, value in model.state_dict().items()}
    for row in range(2):
        wanted = reference_logits(exact, model.config, tokens[row])
        torch.testing.assert_close(model(tokens)[row].double(), wanted, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(model(tokens), plain(tokens), atol=1e-3), "other experts are chosen"
    assert "blocks.0.mlp.bias" in exact and "blocks.0.mlp.bias" not in plain.state_dict()
    torch.autograd.backward(model(tokens, targets))


def test_biases_move_to_an_even_load_and_not_in_a_step_that_is_skipped() -> None:
    config = replace(CONFIG, router_bias_speed=0.05, balance_weight=0.0)
    model, alone = made(config), Mesh(Axes(), World())
    tokens, targets = batch()
    layers = [block.mlp.get_buffer("bias") for block in model.blocks.values() if isinstance(block.mlp, MoE)]
    uneven = []
    for _ in range(30):
        model.routing.begin_step()
        for part in (slice(0, 2), slice(2, 4)):
            model(tokens[part], targets[part])
        assert model.routing.of_step is not None
        loads = model.routing.of_step.view(2, 5).clone()
        uneven.append(float(loads.amax()))
        before = torch.stack(layers)
        move_biases([model], config, alone, torch.ones(()))
        assert torch.equal(torch.stack(layers), before)
        move_biases([model], config, alone, torch.zeros(()))
        moved = torch.stack(layers) - before
        expected = 0.05 * (loads.mean(1, keepdim=True) - loads).sign()
        torch.testing.assert_close(moved, expected)
    assert sum(uneven[-5:]) < sum(uneven[:5])
    move_biases([model], CONFIG, alone, torch.zeros(()))  # without biases nothing is asked for
