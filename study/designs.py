"""From a search section to override lists: the bridge between configs and the pure designs of `sweeps.designs`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from study.compose import Composed
from study.config import StudyConfig
from sweeps.designs.isoflop import Assignment, Shape, by_ratio, crossed
from train.spec.counts import flops_per_token, params
from train.spec.manifest import BYTES_VOCABULARY


class Composes(Protocol):
    """What composes an override list: a `study.compose.Composer`."""

    def plain(self, overrides: Sequence[str]) -> dict[str, Any]:
        """Return the config as plain dicts, not yet checked."""

    def compose(self, overrides: Sequence[str]) -> Composed:
        """Return the checked config."""


def expand(jobs: Sequence[Sequence[str]], composer: Composes) -> list[tuple[str, ...]]:
    """Return the override lists of all points: each job multiplied with the design that its own search asks for."""
    expanded: list[tuple[str, ...]] = []
    for job in jobs:
        search = composer.plain(job).get("search")
        if isinstance(search, dict) and search.get("name") == "isoflop":
            config = composer.compose(job).config
            expanded += [(*job, *overrides) for overrides in isoflop(config, job)]
        else:
            expanded.append(tuple(job))
    return expanded


def isoflop(config: StudyConfig, given: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the isoFLOP design of one config as overrides of model.width, model.layers and budget.flops.

    What is given on the command line stays: a model.width replaces the choice of widths (each budget is crossed with
    it), model.layers fixes the depth of every shape, budget.flops replaces the budgets.
    """
    search = config.search
    keys = {line.partition("=")[0].lstrip("+") for line in given}
    budgets = search.budgets
    if "budget.flops" in keys and config.budget.flops is not None:
        budgets = (config.budget.flops,)
    layers = config.model.layers if "model.layers" in keys else None
    if "model.width" in keys:
        design = crossed(budgets, [_shape(config, config.model.width, layers)])
    elif search.shapes:
        design = crossed(budgets, [_explicit(config, shape) for shape in search.shapes])
    else:
        design = by_ratio(budgets, search.ratios, family(config, layers))
    return [_overrides(run) for run in design]


def family(config: StudyConfig, layers: int | None = None) -> list[Shape]:
    """Return the shapes that the search may pick: multiples of the width step, depth by aspect ratio."""
    step, head = config.search.width_step, config.model.head_dim
    if head is None:
        head = 2
    if step <= 0 or step % head:
        raise ValueError(
            f"search.width_step={step} is not a multiple of model.head_dim={head}: "
            f"take search.width_step={max(1, step // head) * head} or another model.head_dim"
        )
    widths = range(step, config.search.width_max + 1, step)
    if not widths:
        raise ValueError(f"search.width_max={config.search.width_max} is below search.width_step={step}")
    return [_shape(config, width, layers) for width in widths]


def _explicit(config: StudyConfig, shape: dict[str, int]) -> Shape:
    unknown = set(shape) - {"width", "layers"}
    if unknown or "width" not in shape:
        raise ValueError(f"search.shapes holds {shape}: each one is {{width: …, layers: …}}")
    return _shape(config, shape["width"], shape.get("layers"))


def _shape(config: StudyConfig, width: int, layers: int | None) -> Shape:
    search = config.search
    if search.aspect_ratio <= 0:
        raise ValueError(f"search.aspect_ratio={search.aspect_ratio} is not allowed: it must be positive")
    depth = layers if layers is not None else max(search.min_layers, 1, round(width / search.aspect_ratio))
    model = replace(config.model, width=width, layers=depth)
    vocab_size = BYTES_VOCABULARY if config.data.tokenizer == "bytes" else config.data.vocab_size
    return Shape(
        width=width,
        layers=depth,
        params=params(model, vocab_size).matmul,
        flops_per_token=flops_per_token(model, vocab_size, config.data.sequence_length),
    )


def _overrides(run: Assignment) -> tuple[str, ...]:
    return (
        f"model.width={run.shape.width}",
        f"model.layers={run.shape.layers}",
        f"budget.flops={run.budget!r}",
    )
