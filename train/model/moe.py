"""A feed-forward layer of experts, of which a router chooses a few for each token; no token is dropped.

Scores are a softmax over experts (Shazeer et al. 2017; Jiang et al. 2024, "Mixtral") or a sigmoid of each (DeepSeek-AI
2024, "DeepSeek-V3"). Those of the chosen experts, made to add up to 1, weigh what they put out. Experts that every
token goes through (`model.shared_experts`; Dai et al. 2024, "DeepSeekMoE") are one dense layer as wide as all of them.
Each expert may have a bias that is added to its score for choosing alone (Wang et al. 2024, "Auxiliary-loss-free load
balancing"); after a step it goes up where fewer tokens came than on average, else down (train.parallel.routing).

A token's rows lie one after the other by expert, so that there are as many rows as tokens times chosen experts, however
they are spread, and each weight takes one grouped product (kernels.grouped.api).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.grouped.api import grouped_linear
from kernels.swiglu.api import swiglu
from train.model import hub_experts
from train.model.mlp import MLP
from train.model.params import ParamSpec, parameter
from train.precision.product import shaped
from train.spec import mup
from train.spec.config import ModelConfig
from train.spec.counts import experts_per_token, mlp_width


class Routed(NamedTuple):
    """What a layer says of its routing: the loss that balances it, summed over trained tokens and with its weight (fp32
    scalar), and how many trained tokens went to each expert (experts,) fp32."""

    balance: Tensor
    load: Tensor


class Experts(nn.Module):
    """The experts' weights: gate and up, (experts, 2, hidden, width), and down, (experts, width, hidden)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        count, width, hidden = config.experts, config.width, mlp_width(config)
        std, out = mup.matrix_std(config), mup.residual_std(config)
        gate_up, down = hub_experts.gate_up(config), hub_experts.down(config)
        self.gate_up = parameter(ParamSpec("matrix", (count, 2, hidden, width), std, fsdp_dim=2, hub=gate_up))
        self.down = parameter(ParamSpec("matrix", (count, width, hidden), out, fsdp_dim=1, hub=down))
        self.count, self.hidden = count, hidden
        """Of the experts that are here; train.parallel.experts says fewer where ranks share them."""

    def forward(self, rows: Tensor, ends: Tensor) -> Tensor:
        """Return what each row's expert makes of it, (rows, width); ends (experts,) int32: where those of each end."""
        width = rows.shape[-1]
        gate_up = shaped(self.gate_up, self.count, 2, self.hidden, width)
        down = shaped(self.down, self.count, width, self.hidden)
        return grouped_linear(swiglu(grouped_linear(rows, gate_up.flatten(1, 2), ends), fuse=False), down, ends)


Exchange: TypeAlias = Callable[[Tensor, Tensor, Experts], Tensor]
"""Rows by expert and the tokens of each, (experts,), to what the experts make of the rows, in the same order."""


class MoE(nn.Module):
    """Router, experts, and the experts that every token goes through."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.count, self.chosen = config.experts, experts_per_token(config)
        self.softmax, self.balance_weight = config.router_score == "softmax", config.balance_weight
        shape, hub = (self.count, config.width), hub_experts.router(config)
        self.router = parameter(ParamSpec("matrix", shape, mup.matrix_std(config), hub=hub))
        self.experts = Experts(config)
        self.bias: Tensor | None
        self.register_buffer("bias", torch.zeros(self.count) if config.router_bias_speed else None)
        self.shared = MLP(config, config.shared_experts * mlp_width(config)) if config.shared_experts else None
        self.exchange: Exchange = _here
        """How rows come to their experts; set by train.parallel.experts."""
        self.over_sequence: Callable[[Tensor], Tensor] = lambda counts: counts
        """Adds up counts over the ranks that share a sequence; set by train.parallel.context."""

    def forward(self, x: Tensor, counted: Tensor | None = None) -> tuple[Tensor, Routed]:
        """Return the layer's output for x (batch, length, width), and what it says of its routing.

        counted: which tokens are trained on, (batch, length); None: all. The others are routed, but not balanced.
        """
        rows = x.reshape(-1, x.shape[-1])
        scores = F.linear(rows, shaped(self.router, self.count, -1)).float()
        scores = scores.softmax(-1) if self.softmax else scores.sigmoid()
        weights, chosen = self._choose(scores)
        picked = torch.zeros_like(scores).scatter(-1, chosen, 1.0)
        here = scores.new_ones(*x.shape[:2], 1) if counted is None else counted.to(scores.dtype).unsqueeze(-1)
        counts = (picked.view(*x.shape[:2], -1) * here).sum(1)
        balance = self._balance(scores, counts, here)
        weights = weights / weights.sum(-1, keepdim=True)
        order, back = _order(chosen)
        made = self.exchange(reordered(rows, order, back), picked.sum(0), self.experts)
        mixed: Tensor = _Combined.apply(made, weights, order, back)  # type: ignore[no-untyped-call]
        if self.shared is not None:
            mixed = mixed + self.shared(rows)
        return mixed.view_as(x), Routed(balance, counts.sum(0))

    def _choose(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores of each token's experts, and which they are, (tokens, chosen)."""
        if self.bias is None:
            weights, chosen = scores.topk(self.chosen, dim=-1)
            return weights, chosen
        chosen = (scores.detach() + self.bias).topk(self.chosen, dim=-1).indices
        return scores.gather(-1, chosen), chosen

    def _balance(self, scores: Tensor, counts: Tensor, here: Tensor) -> Tensor:
        """Return the loss that balances the load of each sequence, times its trained tokens, summed.

        DeepSeek-V3, equations 17 to 20: the share of a sequence's choices that went to each expert, times the number of
        experts, times its mean score. Over a sequence and not over a batch, so that neither micro-batches nor ranks
        change it. counts: choices of each sequence's trained tokens, (batch, experts); here: which those are, 1 or 0,
        (batch, length, 1).
        """
        if not self.balance_weight:
            return scores.new_zeros(())
        shares = scores if self.softmax else scores / scores.sum(-1, keepdim=True)
        counts = self.over_sequence(torch.cat((counts, here.sum(1)), -1))
        likely = (shares.view(*here.shape[:2], -1) * here).sum(1)
        frequent = counts[:, :-1] / counts[:, -1:].clamp(min=1.0)
        return (frequent * likely).sum() * (self.balance_weight * self.count / self.chosen)


class Routing:
    """What the routing of all layers was since it was last asked for."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None
        self._step: Tensor | None = None
        self.factor: Tensor | float = 1.0
        """What losses are multiplied by before their backward pass, for parts of a model that do not have them; set by
        train.parallel.pipeline."""

    def added(self, loss: Tensor, routed: Sequence[Routed], counted: Tensor | None) -> Tensor:
        """Return a summed loss whose gradient is that of balancing, too; its number stays. Notes what was routed.

        counted: which tokens the loss is of; None: not known, and nothing is noted.
        """
        balance = self._noted(routed, counted)
        return loss + (balance - balance.detach())

    def attached(self, x: Tensor, routed: Sequence[Routed], counted: Tensor | None) -> Tensor:
        """Return the residual stream x, whose backward pass begins that of balancing, too. Notes what was routed."""
        found: Tensor = _Attached.apply(x, self._noted(routed, counted), self.factor)  # type: ignore[no-untyped-call]
        return found

    def _noted(self, routed: Sequence[Routed], counted: Tensor | None) -> Tensor:
        """Return the balancing loss of all layers."""
        balance = torch.stack([one.balance for one in routed]).sum()
        if counted is not None:
            loads = torch.cat([one.load for one in routed])
            self._step = loads.detach() if self._step is None else self._step + loads
            sums = torch.cat((loads, balance.detach()[None], counted.sum()[None])).double()
            self._sums = sums if self._sums is None else self._sums + sums
        return balance

    def begin_step(self) -> None:
        """Count the tokens of each expert anew, for the biases."""
        self._step = None

    @property
    def of_step(self) -> Tensor | None:
        """Trained tokens of each layer's experts since the step began, (layers x experts,) fp32."""
        return self._step

    def take(self) -> Tensor | None:
        """Return the sums and begin anew: tokens of each layer's experts, the balancing loss, trained tokens; fp64."""
        sums, self._sums = self._sums, None
        return sums


class _Attached(torch.autograd.Function):
    """The stream as it is; its backward pass gives a loss of this part its gradient, a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, factor: Tensor | float) -> Tensor:
        ctx.factor, ctx.loss = factor, (loss.dtype, loss.device)
        return x.clone()  # a view could not be let go of between the halves of a split backward pass

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        dtype, device = ctx.loss
        return grads[0], torch.as_tensor(ctx.factor, dtype=dtype, device=device), None


def _here(rows: Tensor, load: Tensor, experts: Experts) -> Tensor:
    """Let all experts work here."""
    made: Tensor = experts(rows, load.cumsum(0).to(torch.int32))
    return made


def _order(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the order of all choices (tokens, chosen) by expert, and where each of them went."""
    order = chosen.flatten().argsort(stable=True)
    places = torch.arange(len(order), device=order.device)
    return order, torch.empty_like(order).scatter_(0, order, places)


def reordered(rows: Tensor, order: Tensor, back: Tensor) -> Tensor:
    """Return each row (tokens, width) once for each of its places in `order`; `back`: where each place went."""
    found: Tensor = _Spread.apply(rows, order, back)  # type: ignore[no-untyped-call]
    return found


class _Spread(torch.autograd.Function):
    """Rows (tokens, width) to one for each choice, in `order`; a token's gradients are added in its choices' order."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        ctx.tokens = len(rows)
        return rows[order // (len(order) // len(rows))]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (back,) = ctx.saved_tensors
        return grads[0][back].view(ctx.tokens, -1, grads[0].shape[-1]).sum(1), None, None


class _Combined(torch.autograd.Function):
    """What experts made (choices, width), in `order`, to each token's sum by its weights (tokens, chosen) fp32."""

    @staticmethod
    def forward(ctx: Any, made: Tensor, weights: Tensor, order: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(made, weights, order, back)
        each = made[back].view(*weights.shape, -1)
        mixed: Tensor = (each * weights.to(made.dtype).unsqueeze(-1)).sum(1)
        return mixed

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        made, weights, order, back = ctx.saved_tensors
        spread = grads[0][order // weights.shape[1]]
        of_weights = (spread * made).sum(-1, dtype=torch.float32)[back].view_as(weights)
        return spread * weights.flatten()[order].to(made.dtype).unsqueeze(-1), of_weights, None, None
