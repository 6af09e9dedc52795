"""From a search section to override lists: the bridge between configs and the pure designs of `sweeps.designs`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from study.config.compose import Composed
from study.config.schema import StudyConfig
from study.records import lineage
from study.text import scientific
from sweeps.designs import DESIGNS
from sweeps.designs.isoflop import Assignment, Shape, by_ratio, crossed, size, usable
from sweeps.designs.ladder import Rung, ladder, nearest
from sweeps.designs.random_nd import random_nd
from sweeps.designs.trunk_and_branch import Part, trunk_and_branch
from train.spec import scaling_rules
from train.spec.config import ModelConfig, ScheduleConfig
from train.spec.counts import flops_per_token, params
from train.spec.decoder import check_depth
from train.spec.manifest import BYTES_VOCABULARY


class Composes(Protocol):
    """What composes an override list: a `study.config.compose.Composer`."""

    def plain(self, overrides: Sequence[str]) -> dict[str, Any]:
        """Return the config as plain dicts, not yet checked."""

    def compose(self, overrides: Sequence[str]) -> Composed:
        """Return the checked config."""


def expand(jobs: Sequence[Sequence[str]], composer: Composes) -> list[tuple[str, ...]]:
    """Return the override lists of all points: each job multiplied with the design that its own search asks for."""
    expanded: list[tuple[str, ...]] = []
    for job in jobs:
        search = composer.plain(job).get("search")
        name = search.get("name") if isinstance(search, dict) else None
        if name not in DESIGNS or name == "grid":
            expanded.append(tuple(job))
            continue
        config = composer.compose(job).config
        if name == "trunk_and_branch":
            made = trunk_points(config, job, first=len(expanded))
        else:
            made = {"isoflop": isoflop, "ladder": ladder_points, "random_nd": random_points}[name](config, job)
        expanded += [(*job, *overrides) for overrides in made]
    return expanded


def isoflop(config: StudyConfig, given: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the isoFLOP design of one config as overrides of model.width, model.layers and budget.flops.

    What is given on the command line stays: a model.width replaces the choice of widths (each budget is crossed with
    it), model.layers fixes the depth of every shape, budget.flops replaces the budgets.
    """
    search = config.search
    keys = _keys(given)
    budgets = search.budgets
    if "budget.flops" in keys and config.budget.flops is not None:
        budgets = (config.budget.flops,)
    layers = _layers(config, given)
    if "model.width" in keys:
        design = crossed(budgets, [_shape(config, config.model.width, layers)])
    elif search.shapes:
        design = crossed(budgets, [_explicit(config, shape) for shape in search.shapes])
    else:
        usable("search.budgets", budgets)
        usable("search.ratios", search.ratios)
        # A token costs 6 N FLOPs or more, so sizes from this N on are at the smallest ratio or below it. Of those the
        # design takes at most one for each ratio, the smallest first.
        smallest = math.sqrt(max(budgets) / 6 / min(search.ratios))
        design = by_ratio(budgets, search.ratios, family(config, layers, smallest, len(search.ratios)))
    return [_overrides(run) for run in design]


def ladder_points(config: StudyConfig, given: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the ladder of one config: each of its sizes at each of `search.ratios`."""
    return [_of_rung(rung) for rung in ladder(_sizes(config, given), config.search.ratios)]


def random_points(config: StudyConfig, given: Sequence[str]) -> list[tuple[str, ...]]:
    """Return `search.points` runs spread over the ranges of `search.params` and `search.ratios`."""
    search, layers = config.search, _layers(config, given)
    runs = random_nd(
        search.params, search.ratios, family(config, layers, max(search.params, default=1)), search.points, search.seed
    )
    return [_of_rung(rung) for rung in runs]


def trunk_points(config: StudyConfig, given: Sequence[str], first: int) -> list[tuple[str, ...]]:
    """Return trunk and branches of each size, as overrides; `first`: how many points come before them.

    Budgets are `search.tokens`, else `search.budgets` over what a token costs, else `search.ratios` times N. Where the
    config does not say them, learning rate and batch are the rule's for the geometric mean of smallest and largest
    budget: all branches share the trunk's. The warm-up is `schedule.warmup_fraction` of the smallest budget.
    """
    if config.batch.ramp_from is not None:
        raise ValueError(
            f"batch.ramp_from={config.batch.ramp_from} is not allowed with search=trunk_and_branch: the ramp is a "
            "share of one budget, and a trunk serves several: set batch.ramp_from=null"
        )
    made: list[tuple[str, ...]] = []
    for shape in _sizes(config, given):
        budgets = _token_budgets(config, shape)
        middle = round((min(budgets) * max(budgets)) ** 0.5)
        length = config.data.sequence_length
        batch = config.batch.tokens or scaling_rules.batch_tokens(middle, length)
        counts = params(_model(config, shape.width, shape.layers), _vocabulary(config))
        lr = config.optim.lr
        lr = scaling_rules.peak_lr_of(counts, middle, config.optim.lr_rule) if lr is None else lr
        schedule = (
            config.schedule if config.schedule.name == "wsd" else ScheduleConfig(name="wsd", final_lr_fraction=0.0)
        )
        warmup = round(config.schedule.warmup_fraction * min(budgets))
        fixed = (
            f"model.width={shape.width}",
            f"model.layers={shape.layers}",
            f"batch.tokens={batch}",
            f"optim.lr={lr!r}",
        )
        start = first + len(made)
        for part in trunk_and_branch(list(budgets), schedule.decay_fraction, batch, warmup):
            made.append((*fixed, *_of_part(part, budgets, schedule, warmup, start)))
    return made


def _of_part(part: Part, budgets: dict[int, str], schedule: ScheduleConfig, warmup: int, start: int) -> tuple[str, ...]:
    said = [
        budgets[part.end] if part.cooldown else f"budget.tokens={part.end}",
        f"schedule.name={'wsd' if part.cooldown else 'constant'}",
        f"schedule.warmup_fraction={warmup / part.end!r}",
    ]
    if part.cooldown:
        said += [
            f"schedule.decay_fraction={(part.end - part.begin) / part.end!r}",
            f"schedule.final_lr_fraction={schedule.final_lr_fraction!r}",
            f"schedule.decay_shape={schedule.decay_shape}",
        ]
    if part.parent is not None:
        said.append(f"schedule.parent={lineage.reference(start + part.parent, part.begin)}")
    return tuple(said)


def _token_budgets(config: StudyConfig, shape: Shape) -> dict[int, str]:
    """Return the budgets of one size [tokens, whole sequences], each with the override that says it."""
    search, length = config.search, config.data.sequence_length

    def whole(tokens: float) -> int:
        return max(1, round(tokens / length)) * length

    if search.tokens:
        return {whole(tokens): f"budget.tokens={whole(tokens)}" for tokens in sorted(search.tokens)}
    if search.budgets:
        return {whole(c / shape.flops_per_token): f"budget.flops={scientific(c)}" for c in sorted(search.budgets)}
    if search.ratios:
        return {whole(r * shape.params): f"budget.tokens={whole(r * shape.params)}" for r in sorted(search.ratios)}
    raise ValueError(
        "search=trunk_and_branch has no budgets: give search.tokens, search.ratios [tokens per matmul parameter] or "
        "search.budgets [FLOPs]"
    )


def _sizes(config: StudyConfig, given: Sequence[str]) -> list[Shape]:
    """Return the sizes of a design: model.width if given, else search.shapes, search.params, or the config's model."""
    search, layers = config.search, _layers(config, given)
    if "model.width" in _keys(given) or not (search.shapes or search.params):
        fixed = layers if "model.width" in _keys(given) else config.model.layers
        return [_shape(config, config.model.width, fixed)]
    if search.shapes:
        return sorted({_explicit(config, shape) for shape in search.shapes}, key=size)
    return nearest(search.params, family(config, layers, max(search.params)))


def _layers(config: StudyConfig, given: Sequence[str]) -> int | None:
    return config.model.layers if "model.layers" in _keys(given) else None


def _keys(given: Sequence[str]) -> set[str]:
    return {line.partition("=")[0].lstrip("+") for line in given}


def family(config: StudyConfig, layers: int | None = None, largest: float | None = None, count: int = 1) -> list[Shape]:
    """Return the shapes that the search may pick: multiples of the width step, depth by aspect ratio.

    `largest`: no more are needed once so many shapes (`count`) have this many matmul parameters.
    """
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
    shapes: list[Shape] = []
    for width in widths:
        shapes.append(_shape(config, width, layers))
        if largest is not None and len(shapes) >= count and shapes[-count].params >= largest:
            break
    return shapes


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
    check_depth(depth)
    model, vocab_size = _model(config, width, depth), _vocabulary(config)
    return Shape(
        width=width,
        layers=depth,
        params=params(model, vocab_size).matmul,
        flops_per_token=flops_per_token(model, vocab_size, config.data.sequence_length),
    )


def _model(config: StudyConfig, width: int, layers: int) -> ModelConfig:
    return replace(config.model, width=width, layers=layers)


def _vocabulary(config: StudyConfig) -> int:
    return BYTES_VOCABULARY if config.data.tokenizer == "bytes" else config.data.vocab_size


def _overrides(run: Assignment) -> tuple[str, ...]:
    return (
        f"model.width={run.shape.width}",
        f"model.layers={run.shape.layers}",
        f"budget.flops={scientific(run.budget)}",
    )


def _of_rung(rung: Rung) -> tuple[str, ...]:
    return (
        f"model.width={rung.shape.width}",
        f"model.layers={rung.shape.layers}",
        f"budget.tokens_per_param={rung.ratio!r}",
    )
