"""torch.compile for the blocks: one graph for all of them, no compilation after warm-up.

Blocks, not the model: they are alike, so one compilation serves all, in seconds and whatever the depth. What lies
between them (embedding, loss, messages of sharded weights) stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from train.spec.config import CompileConfig


def compile_blocks(blocks: Sequence[nn.Module], config: CompileConfig) -> None:
    """Compile each block's forward as one whole graph with fixed shapes; nothing is compiled before it first runs.

    The forward alone: what sharding hooks to a block's call stays outside, and parameters keep their names.
    """
    if not config.blocks:
        return
    options: dict[str, Any] = {}
    if config.cuda_graphs:
        options["triton.cudagraphs"] = True
    for block in blocks:
        block.forward = torch.compile(block.forward, fullgraph=True, dynamic=False, options=options or None)


class Compilation:
    """Watches that training steps after the warm-up run what is compiled already."""

    def __init__(self, config: CompileConfig) -> None:
        self.config = config
        self.steps = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Surround one training step; RuntimeError that says what changed where one past the warm-up would compile.

        Steps are counted from the start of this process. Evaluations, outside of steps, compile graphs of their own.
        """
        if not self.config.blocks:
            yield
            return
        if self.config.cuda_graphs:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        warm = self.config.warmup_steps < 0 or self.steps < self.config.warmup_steps
        try:
            with torch.compiler.set_stance("default" if warm else "fail_on_recompile"):
                yield
        except RuntimeError as error:
            if "recompile" not in str(error):
                raise
            raise RuntimeError(
                f"a training step needed a new graph after the {self.config.warmup_steps} steps of warmup "
                "(compile.warmup_steps; -1 allows it): shapes or types of a block's inputs changed\n" + str(error)
            ) from error
        self.steps += 1
