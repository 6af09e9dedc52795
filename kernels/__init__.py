"""Triton kernels, their torch registration, their references.

Every operation is one function that runs a Triton kernel on a GPU and a plain-torch reference everywhere else; see
`kernels.core.dispatch` for how to force either. Triton itself is imported when the first kernel is launched.
"""

from kernels.adamw.api import adamw_step
from kernels.adamw.gradient_norm import gradient_norm
from kernels.core.dispatch import use
from kernels.cross_entropy.linear import linear_cross_entropy
from kernels.cross_entropy.logits import Details, cross_entropy
from kernels.float8.api import Fp8, cast_fp8
from kernels.grouped.api import grouped_linear
from kernels.heads.api import split_heads
from kernels.rms_norm.api import add_rms_norm, fork_rms_norm, rms_norm
from kernels.rope.api import rope
from kernels.swiglu.api import swiglu
from kernels.swiglu.gated_mlp import gated_mlp

__all__ = [
    "Details",
    "Fp8",
    "adamw_step",
    "add_rms_norm",
    "cast_fp8",
    "cross_entropy",
    "fork_rms_norm",
    "gated_mlp",
    "gradient_norm",
    "grouped_linear",
    "linear_cross_entropy",
    "rms_norm",
    "rope",
    "split_heads",
    "swiglu",
    "use",
]
