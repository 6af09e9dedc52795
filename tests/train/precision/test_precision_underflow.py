"""What short formats would lose of a gradient, against what they lose when it is cast to them."""

from __future__ import annotations

import torch

from train.precision.underflow import counts, shares


def test_shares_are_those_that_the_cast_loses() -> None:
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn(20_000, generator=generator) * 10.0 ** (torch.rand(20_000, generator=generator) * -14)
    gradient[:100] = 0.0
    scale = torch.tensor(1024.0)
    found = shares(counts([gradient[:9_000], gradient[9_000:]], scale).tolist())
    lost16 = ((gradient * scale).half() == 0).double().mean()
    parts = [p / p.abs().max() * 57344 for p in (gradient[:9_000], gradient[9_000:])]
    lost8 = torch.cat([p.to(torch.float8_e5m2).float() == 0 for p in parts]).double().mean()
    assert found["gradient_zero"] == 100 / 20_000
    assert abs(found["underflow_fp16"] - float(lost16)) < 1e-3
    assert abs(found["underflow_fp8"] - float(lost8)) < 1e-3
    assert found["underflow_fp16"] > 0.1 and found["underflow_fp8"] > 0.1


def test_a_larger_loss_scale_loses_less() -> None:
    gradient = torch.logspace(-12, 0, 1000)
    lost = [shares(counts([gradient], torch.tensor(s)).tolist())["underflow_fp16"] for s in (1.0, 65536.0)]
    assert lost[0] > lost[1]
