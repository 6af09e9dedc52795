"""Triton kernels, their torch registration, their references.

Every operation is one function that runs a Triton kernel on a GPU and a plain-torch reference everywhere else; see
`kernels.switch` for how to force either. Triton itself is imported when the first kernel is launched.
"""

from kernels.cross_entropy import cross_entropy
from kernels.linear_cross_entropy import linear_cross_entropy
from kernels.switch import use

__all__ = ["cross_entropy", "linear_cross_entropy", "use"]
