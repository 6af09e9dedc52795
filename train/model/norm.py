"""Root-mean-square norm (Zhang and Sennrich 2019): x / rms(x) * weight over the last axis."""

from __future__ import annotations

from torch import Tensor, nn

from kernels.core.dtensor import local
from kernels.rms_norm.api import add_rms_norm, fork_rms_norm, rms_norm
from train.model.params import HubTensors, ParamSpec, parameter


class Norm(nn.Module):
    """A norm over the last axis of size `width`, with a gain per channel; a subclass says in `forward` which.

    Blocks call `fork` and `after`, which here follow from `forward`. A subclass may do either in one pass over memory.
    """

    def __init__(self, width: int, eps: float, hub: HubTensors | None = None) -> None:
        super().__init__()
        self.eps = eps
        self.weight = parameter(ParamSpec("norm", (width,), None, hub=hub))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normed x, of the same shape and format."""
        raise NotImplementedError

    def fork(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return x and its normed value, of the same shape."""
        return x, self.forward(x)

    def after(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Return x + residual and its normed value, of the same shape."""
        total = x + residual
        return total, self.forward(total)


class RMSNorm(Norm):
    """RMSNorm, computed in fp32 whatever comes in, returned as it came; `fork` and `after` take one pass."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the normed x, of the same shape."""
        return rms_norm(x, local(self.weight), self.eps)

    def fork(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return x and its normed value, of the same shape: one pass over memory for the gradients of both."""
        return fork_rms_norm(x, local(self.weight), self.eps)

    def after(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Return x + residual and its normed value, of the same shape: one pass over memory for both."""
        return add_rms_norm(x, residual, local(self.weight), self.eps, fuse=False)
