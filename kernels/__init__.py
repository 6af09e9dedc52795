"""Triton kernels, their torch registration, their references.

Every operation is one function that runs a Triton kernel on a GPU and a plain-torch reference everywhere else; see
`kernels.switch` for how to force either. Triton itself is imported when the first kernel is launched.
"""

from kernels.adamw import adamw_step
from kernels.cross_entropy import Details, cross_entropy
from kernels.fp8 import Fp8, cast_fp8
from kernels.gated_mlp import gated_mlp
from kernels.gradient_norm import gradient_norm
from kernels.heads import split_heads
from kernels.linear_cross_entropy import linear_cross_entropy
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope import rope
from kernels.swiglu import swiglu
from kernels.switch import use

__all__ = [
    "Details",
    "Fp8",
    "adamw_step",
    "add_rms_norm",
    "cast_fp8",
    "cross_entropy",
    "gated_mlp",
    "gradient_norm",
    "linear_cross_entropy",
    "rms_norm",
    "rope",
    "split_heads",
    "swiglu",
    "use",
]
