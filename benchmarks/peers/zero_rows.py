"""The rows of benchmarks.deepspeed_zero3, and what is predicted of each before it runs; without DeepSpeed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.ours import config_of
from benchmarks.peers.rows import SHAPES, Row
from benchmarks.peers.zero_fetch import Gathered, Limits, Use, gathered, uses
from train.spec import mesh
from train.spec.accounting.parameters import parameters
from train.spec.accounting.step import Sheet, sheet
from train.spec.communication.cluster import ClusterProfile
from train.spec.config import RunConfig
from train.spec.counts import block_weights, end_weights
from train.spec.step_time import StepTime, step_time

LIBRARIES: Sequence[str] = ("ours", "deepspeed")
STAGES, RANKS = (3, 2, 1), 2
BUCKET = 500_000_000
"""Numbers of DeepSpeed's buckets: reduce_bucket_size and allgather_bucket_size, by default 5e8."""
LIMITS = Limits()
"""What decides which weights stage 3 gathers and keeps, at DeepSpeed's defaults."""
GROUP = 1_000_000_000
"""Numbers that DeepSpeed's stage 3 updates at once: sub_group_size, by default 1e9."""
REPLACED = ("weights", "moments", "gradients", "gathered", "gradient buffers", "casts", "update")
"""Components of our sheet that the library decides on; the others are the module's."""

_SHARDED = ("parallel.dp_replicate=1", f"parallel.dp_shard={RANKS}", "compile.blocks=false")
_STEADY = ("optim.lr=null", "schedule.warmup_fraction=0.125")
"""The trainer's rule for the learning rate, reached after half of a row's steps: budgets are of four times as many.

The other rows reach 3e-4 in 8 of 40 steps, at 1B three times the rule's, or in 3 of 16. Their losses go up and down, so
that differences of rounding grow.
"""
_BF16, _FP32 = ("precision.name=bf16", *_SHARDED), ("precision.name=fp32", *_SHARDED)


@dataclass(frozen=True)
class Setup:
    """What the rows of a set-up share. sequences: of a rank and step. warmup: steps that are not timed."""

    shape: str
    sequences: int
    steps: int
    warmup: int
    words: tuple[str, ...]
    cpu: bool = False
    stages: tuple[int, ...] = STAGES


SETUPS: Mapping[str, Setup] = {
    "tiny": Setup("tiny", 2, 60, 10, _FP32, cpu=True),
    "256x4": Setup("256x4", 1, 40, 8, _FP32, cpu=True),
    "tiny-bf16": Setup("tiny", 2, 60, 10, _BF16, cpu=True, stages=(3,)),
    "1b": Setup("1b", 8, 40, 10, _BF16),
    "8b": Setup("8b", 2, 16, 8, (*_BF16, "memory.checkpointing=full")),
    "1b-steady": Setup("1b", 8, 40, 10, (*_BF16, *_STEADY)),
}
EXACT = "-exact"
"""Ends the name of the row whose weights are not rounded to bf16 before training, as they are in all others in bf16."""


def rows(names: Sequence[str] = tuple(SETUPS)) -> list[Row]:
    """Return the rows of these set-ups, stage by stage, ours before DeepSpeed's; further ones of ours after them.

    ValueError for a name that no set-up has.
    """
    found = []
    for name in names:
        if name not in SETUPS:
            raise ValueError(f"no set-up {name!r}: there are {', '.join(SETUPS)}")
        setup = SETUPS[name]
        for stage in setup.stages:
            for library in LIBRARIES:
                words = (*setup.words, f"parallel.zero={stage}")
                found.append(_row(f"{library}-{stage}-{name}", library, setup, words))
        first = (*setup.words, "parallel.zero=3")
        if not setup.cpu:
            found.append(_row(f"ours-3-{name}-compiled", "ours", setup, (*first, "compile.blocks=true")))
        elif setup.words == _BF16:
            found.append(_row(f"ours-3-{name}{EXACT}", "ours", setup, first))
    return found


def _row(name: str, library: str, setup: Setup, words: tuple[str, ...]) -> Row:
    ranks, sequences = RANKS, setup.sequences
    return Row(
        name, f"zero_{library}", setup.shape, ranks, sequences, ranks, words, None, None, setup.steps, setup.warmup
    )


def find(name: str) -> Row:
    """Return the row of this name. ValueError for no row."""
    known = {row.name: row for row in rows()}
    if name not in known:
        raise ValueError(f"no row {name!r}: there are {', '.join(known)}")
    return known[name]


def setup_of(row: Row) -> str:
    """Return the name of the set-up that a row belongs to."""
    return next(name for name in SETUPS if row in rows([name]))


def library_of(row: Row) -> str:
    """Return whose row it is: ours or deepspeed."""
    return row.trainer.removeprefix("zero_")


def config(row: Row, device: str) -> RunConfig:
    """Return the row's config, for what needs no data."""
    return config_of(row, Path("nowhere"), device)


def stage_of(row: Row) -> int:
    """Return the row's stage of ZeRO."""
    return int(next(one for one in reversed(row.settings) if one.startswith("parallel.zero=")).partition("=")[2])


def numbers(row: Row) -> int:
    """Return how many parameters the row's model has."""
    shape = SHAPES[row.shape]
    return parameters(shape.model, shape.vocabulary).total


def largest(row: Row) -> int:
    """Return the numbers of the largest layer as DeepSpeed counts it: the weights of a module without its children."""
    shape, found = SHAPES[row.shape], Counter[str]()
    for name, weight in {**block_weights(shape.model), **end_weights(shape.model, shape.vocabulary)}.items():
        found[name.removesuffix(".weight").rpartition(".")[0] or name] += weight.numbers
    return max(found.values())


def estimated(total: int, biggest: int, ranks: int, stage: int) -> int:
    """Return the bytes of a GPU by DeepSpeed's own estimators, without offload (0.19.8).

    runtime/zero/stage3.py, estimate_zero3_model_states_mem_needs, and runtime/zero/stage_1_and_2.py,
    estimate_zero2_model_states_mem_needs, which is the only one that stages 1 and 2 have.
    """
    if stage == 3:
        return 4 * biggest + int(18 * total / ranks)
    return 2 * total + int(18 * total / ranks)


@dataclass(frozen=True)
class Expected:
    """What is predicted of a row on GPUs or CPUs, for its fullest rank [bytes].

    states: what stays between steps, weights, gradients and optimizer states. peak: of a GPU, None where that is not
    predicted. estimate: what DeepSpeed's estimator says of its own rows, else None. step: of our formulas, for the same
    module, layout and messages of ours; None without a profile. It knows nothing of what DeepSpeed adds.
    """

    states: int
    peak: int | None = None
    estimate: int | None = None
    step: StepTime | None = None


def expected(row: Row, cluster: ClusterProfile | None = None) -> Expected:
    """Return what is predicted of a row; cluster: of the GPUs that it is meant for."""
    library, stage, total = library_of(row), stage_of(row), numbers(row)
    states = states_of(row)
    estimate = None if library == "ours" else estimated(total, largest(row), row.gpus, stage)
    if SETUPS[setup_of(row)].cpu:
        return Expected(states, estimate=estimate)
    found = config(row, "cuda")
    axes = mesh.axes(found.parallel, row.gpus)
    ours = sheet(found, axes)
    peak = ours.peak.total if library == "ours" else max(deepspeed_moments(row, ours).values())
    step = None if cluster is None else step_time(found, axes, cluster)
    return Expected(states, peak, estimate, step)


def number_bytes(row: Row) -> int:
    """Return the bytes of a number in the format of the row's matrix products."""
    return 4 if "precision.name=fp32" in row.settings else 2


def states_of(row: Row) -> int:
    """Return the bytes that a rank holds between two steps: weights, gradients, moments, and buffers that stay.

    Ours: fp32 shards of weights and of two moments, at every stage; gradients are let go by the update. DeepSpeed's: a
    master copy and two moments in fp32, cut over the ranks, also where the weights are fp32; beside them at stages 1
    and 2 all weights, and at stage 3 their shards, the shards of gradients, the whole of small weights, and one bucket.
    """
    total, each = numbers(row), number_bytes(row)
    if library_of(row) == "ours":
        return 12 * total // row.gpus
    if stage_of(row) < 3:
        return each * total + 12 * total // row.gpus
    return (2 * each + 12) * total // row.gpus + each * (persistent(row) + BUCKET)


def persistent(row: Row) -> int:
    """Return how many numbers DeepSpeed's stage 3 never frees: weights of at most 1e5 (param_persistence_threshold)."""
    shape = SHAPES[row.shape]
    of_blocks = sum(one.numbers for one in block_weights(shape.model).values() if one.numbers <= LIMITS.small)
    ends = end_weights(shape.model, shape.vocabulary).values()
    return shape.model.layers * of_blocks + sum(one.numbers for one in ends if one.numbers <= LIMITS.small)


def fetches(row: Row) -> tuple[Sequence[Use], Gathered] | None:
    """Return the order of a step's modules and what DeepSpeed's stage 3 gathers for it; None under checkpointing, whose
    order, with modules that run forward again, is not told here."""
    if any(one.startswith("memory.checkpointing=") for one in row.settings):
        return None
    order = uses(SHAPES[row.shape].model, SHAPES[row.shape].vocabulary)
    return order, gathered(order, LIMITS)


def deepspeed_moments(row: Row, ours: Sheet) -> dict[str, int]:
    """Return what DeepSpeed's fullest rank holds at each moment of a step [bytes], from reading its code (0.19.8).

    The module's own part, activations, logits and workspaces, is that of our sheet. At stage 3 there are the weights
    that are gathered then (zero_fetch), a full bucket is packed once more to be sent, and the update has gradients of
    1e9 numbers at most as one tensor, in the format of the products and in fp32. At stages 1 and 2 backward passes fill
    one bucket, which is made as the first begins, and gradients stay cut (2) or whole (1); the update has this rank's
    share of them three times: as it was reduced, as one tensor, and that in fp32.
    """
    total, each, stage, share = numbers(row), number_bytes(row), stage_of(row), numbers(row) // row.gpus
    states, whole = states_of(row), {}
    narrow = each if each < 4 else 0  # fp32 gradients are no copy in another format
    if stage == 3:
        whole = {moment.name: min(total, LIMITS.live) - persistent(row) for moment in ours.moments} | _whole(row)
        update = states + (4 + narrow) * min(share, GROUP)
    else:
        update = states + (each + narrow + 4) * share
    found = {}
    for moment in ours.moments:
        module = sum(size for name, size in moment.parts.items() if name not in REPLACED)
        made = 0 if moment.name == "loss" else _made(row, moment.name)
        packed = made > (BUCKET if stage == 3 else 0)
        during = states + each * whole.get(moment.name, 0) + (each * min(total, BUCKET) if packed else 0)
        during += {1: each * made, 2: each * made // row.gpus, 3: 0}[stage]
        found[moment.name] = module + (update if moment.name == "update" else during)
    return found


def _whole(row: Row) -> dict[str, int]:
    """Return the numbers of weights that are in memory as a whole at moments of our sheet, without the small ones."""
    known = fetches(row)
    if known is None:
        return {}
    order, found = known
    both = [held + left for held, left in zip(found.held, found.left, strict=True)]
    layers, half = SHAPES[row.shape].model.layers, len(order) // 2
    whole = {"loss": max(both[place] for place, use in enumerate(order[:half]) if use.module == "output")}
    for number in range(layers):
        names = (f"blocks.{number}", f"blocks.{number}.attention", f"blocks.{number}.mlp")
        most = max(both[half + place] for place, use in enumerate(order[half:]) if use.module in names)
        whole[f"backward of block {number + 1} of {layers}"] = most
    return whole | {"backward of the embedding": both[-1]}


def _made(row: Row, moment: str) -> int:
    """Return how many numbers of gradients there have been by the end of a moment of the backward pass."""
    shape, total = SHAPES[row.shape], numbers(row)
    if not moment.startswith("backward of block "):
        return total
    below = int(moment.split()[3]) - 1
    block = sum(one.numbers for one in block_weights(shape.model).values())
    return total - end_weights(shape.model, shape.vocabulary)["embedding.weight"].numbers - below * block


def deepspeed_sends(row: Row) -> float:
    """Return what a rank of DeepSpeed's puts on its links in a step [bytes], from reading its code (0.19.8).

    Stage 3: every weight is gathered once, some again for their backward pass (zero_fetch; under checkpointing taken to
    be all beyond 1e9 numbers), and gradients are reduce-scattered, in the format of the products. Stages 1 and 2:
    gradients are all-reduced as buckets and cut afterwards (use_multi_rank_bucket_allreduce), and the updated weights
    are gathered.
    """
    total, each, share = numbers(row), number_bytes(row), (row.gpus - 1) / row.gpus
    if stage_of(row) < 3:
        return each * share * 3 * total
    known = fetches(row)
    once = total + max(0, total - LIMITS.live) if known is None else sum(known[1].sizes) + persistent(row)
    return each * share * (once + total)
