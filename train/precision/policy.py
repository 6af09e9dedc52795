"""Which number format is used where, from one config: the same meaning in every layout of the run."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from train.spec.config import PrecisionConfig, RunConfig

_COMPUTE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}


@dataclass(frozen=True)
class Formats:
    """Formats of one run; weights and their gradients are fp32 wherever they are kept.

    compute: of matrix products' inputs and of the residual stream (fp8 narrows the blocks' products further).
    reduce: of sharded gradients while they are summed over ranks. state: of AdamW's moments. scaled: whether the loss
    is scaled. fp8: whether the blocks' products are narrowed.
    """

    compute: torch.dtype
    reduce: torch.dtype
    state: torch.dtype
    scaled: bool
    fp8: bool

    def autocast(self, device: str) -> torch.autocast:
        """The context of a forward pass over fp32 weights on this device type: products in `compute`.

        Its cache would keep the copies of all weights until the pass is through, also of blocks that are recomputed,
        and each weight is used once: attention's matrices of 8B take 2.5 GiB.
        """
        short = self.compute is not torch.float32
        return torch.autocast(device, dtype=self.compute if short else None, enabled=short, cache_enabled=False)


def formats(config: PrecisionConfig) -> Formats:
    """Return the formats that the config's name stands for."""
    return Formats(
        compute=_COMPUTE[config.name],
        reduce=torch.bfloat16 if config.reduce == "bf16" else torch.float32,
        state=torch.bfloat16 if config.optimizer_state == "bf16" else torch.float32,
        scaled=config.name == "fp16",
        fp8=config.name == "fp8",
    )


def check(config: RunConfig, device: torch.device) -> None:
    """Raise ValueError, with the reason and a way out, where this device cannot run the config's formats."""
    if config.precision.name == "fp8" and device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability < (8, 9):
            raise ValueError(
                f"precision.name='fp8' needs compute capability 8.9 or newer (Ada, Hopper), this device has "
                f"{capability[0]}.{capability[1]}: use precision=bf16"
            )
    if config.compile.cuda_graphs and device.type != "cuda":
        raise ValueError("compile.cuda_graphs=true needs a CUDA device: leave it false here")
