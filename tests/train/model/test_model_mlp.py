"""The dense feed-forward layer: by which path it runs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.swiglu.gated_mlp import gated_mlp
from train.model.mlp import MLP
from train.spec.config import ModelConfig


def test_the_fused_layer_stays_where_another_library_replaces_torchs_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed's stage 3 does, after the module was made: the other path would keep more for the backward pass."""
    plain, fused, called = F.linear, gated_mlp, list[bool]()

    def seen(x: Tensor, gate_up: Tensor, down: Tensor, *, keep: bool = False) -> Tensor:
        called.append(keep)
        return fused(x, gate_up, down, keep=keep)

    monkeypatch.setattr("train.model.mlp.gated_mlp", seen)
    layer = MLP(ModelConfig(width=16, layers=1, head_dim=8, mlp_width=24))
    with torch.no_grad():
        for weight in layer.parameters():
            weight.normal_()
    x = torch.randn(3, 16)
    expected = layer(x)
    monkeypatch.setattr(F, "linear", lambda x, weight, bias=None: plain(x, weight, bias))
    assert torch.equal(layer(x), expected) and len(called) == 2
