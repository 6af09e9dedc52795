"""What DeepSpeed's stage 3 gathers in a step, and when: its rule, told again in pure Python for one of our models.

DeepSpeed 0.19.8, runtime/zero/partitioned_param_coordinator.py: `_fetch_sub_module_impl`, `release_sub_module` and
`__params_to_release`, for a step whose order of modules has been recorded, which is every one from the third.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from train.spec.config import ModelConfig
from train.spec.counts import block_weights, end_weights

VIEWED = ("attention.qkv", "attention.out", "mlp.gate_up")
"""Weights of which our blocks keep a view for the backward pass: transposed by torch's linear, or gate and up as one
matrix. Freeing a weight puts an empty tensor in its place, which a view does not see: it keeps the memory."""


@dataclass(frozen=True)
class Limits:
    """DeepSpeed's settings that decide [numbers], at their defaults.

    reuse: stage3_max_reuse_distance. live: stage3_max_live_parameters, beyond which nothing is gathered ahead.
    ahead: stage3_prefetch_bucket_size. small: stage3_param_persistence_threshold, up to which a weight stays whole.
    """

    reuse: int = 1_000_000_000
    live: int = 1_000_000_000
    ahead: int = 50_000_000
    small: int = 100_000


@dataclass(frozen=True)
class Use:
    """A module that is about to run, forward or backward, and its own weights, name and numbers, in the model's order.

    A module without weights of its own counts, too: as it begins, weights of later ones are gathered ahead. released:
    whether DeepSpeed hears of its end. It hears of that of a backward pass by the gradient of a module's input, and the
    embedding's are tokens, which have none: what was gathered for it stays to the end of the whole backward pass.
    """

    module: str
    weights: Sequence[tuple[str, int]]
    released: bool = True


@dataclass(frozen=True)
class Gathered:
    """A step's gathers. sizes: of each message [numbers]. again: names of weights that are gathered twice.

    held: what is whole while each use runs, without weights that always are [numbers]. left: what is freed by then and
    still in memory, as autograd keeps a view of it for the backward pass [numbers].
    """

    sizes: Sequence[int]
    again: Sequence[str]
    held: Sequence[int]
    left: Sequence[int]


def uses(model: ModelConfig, vocabulary: int) -> list[Use]:
    """Return the order in which a dense model's modules run forward and backward, without checkpointing.

    Hooks run with modules that are called: a block's two norms are not, and their weights are small anyway. The model
    itself asks whether its head has a weight, which makes that an external one of its own: gathered first, never freed.
    """
    assert not model.experts and not model.tied_embeddings, "another order of modules"
    ends = {name.partition(".")[0]: (name, one.numbers) for name, one in end_weights(model, vocabulary).items()}
    own: dict[str, list[tuple[str, int]]] = {"attention": [], "mlp": []}
    for name, weight in block_weights(model).items():
        if name.partition(".")[0] in own:
            own[name.partition(".")[0]].append((name, weight.numbers))
    first = Use("embedding", [ends["embedding"]])
    head = [ends["output"]]
    model_itself, last = (
        Use("", head, released=False),
        [Use("norm", [ends["norm"]]), Use("output", head, released=False)],
    )
    there, back = [model_itself, first], [model_itself, *last[::-1]]
    for number in range(model.layers):
        whole, *parts = (
            Use(f"blocks.{number}{part}", [(f"blocks.{number}.{name}", size) for name, size in own.get(part[1:], [])])
            for part in ("", ".attention", ".mlp")
        )
        there += [whole, *parts]
    for number in reversed(range(model.layers)):
        whole, *parts = there[2 + 3 * number : 5 + 3 * number]
        back += [whole, *parts[::-1]]
    return [*there, *last, *back, Use(first.module, first.weights, released=False)]


@dataclass
class _Step:
    """What the coordinator knows as a step goes on."""

    order: Sequence[Use]
    limits: Limits
    whole: set[str] = field(default_factory=set)
    numbers: int = 0
    planned: dict[str, int] = field(default_factory=dict)
    """For each weight the last place in the order that has been looked at when gathering ahead."""
    queue: deque[tuple[str, int, int]] = field(default_factory=deque)
    sizes: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def gather(self, weights: Sequence[tuple[str, int]]) -> None:
        missing = [(name, size) for name, size in weights if name not in self.whole]
        if missing:
            self.sizes.append(sum(size for _, size in missing))
            self.numbers += self.sizes[-1]
            self.names += [name for name, _ in missing]
            self.whole |= {name for name, _ in missing}

    def run(self, place: int) -> None:
        """Gather what this use needs, then what later ones need."""
        weights = self.order[place].weights
        self.gather(weights)
        new = {name for name, _ in weights if self.planned.get(name, -1) < place}
        taken: set[str] = set()
        while self.queue and len(taken) < len(new):
            name, _, where = self.queue.popleft()
            self.planned[name] = where
            taken.add(name)
        assert taken == new, "the order is not that of the queue"
        self.gather(self._ahead())

    def _ahead(self) -> list[tuple[str, int]]:
        most, found = min(self.limits.live - self.numbers, self.limits.ahead), dict[str, int]()
        while self.queue and sum(found.values()) < most:
            name, size, where = self.queue.popleft()
            self.planned[name] = max(self.planned.get(name, -1), where)
            if name not in self.whole:
                found[name] = size
        return list(found.items())

    def release(self, place: int) -> dict[str, int]:
        """Free what this use needed and no other needs soon, and return it."""
        after = place + 1
        free = {
            name: size
            for name, size in self.order[place].weights
            if size > self.limits.small and self.planned.get(name, -1) <= after
        }
        passed = 0
        for use in self.order[after:]:
            if passed >= self.limits.reuse:
                break
            for name, size in use.weights:
                free.pop(name, None)
                passed += size
        for name, size in free.items():
            self.whole.discard(name)
            self.numbers -= size
        return free


def gathered(order: Sequence[Use], limits: Limits, viewed: Sequence[str] = VIEWED) -> Gathered:
    """Return what a step with this order of uses gathers, without the small weights, which its update gathers."""
    small = {name for use in order for name, size in use.weights if size <= limits.small}
    queue = [(name, size, place) for place, use in enumerate(order) for name, size in use.weights]
    step, held, left = _Step(order, limits, small, queue=deque(queue)), [], []
    kept: dict[str, int] = {}
    for place, use in enumerate(order):
        step.run(place)
        held.append(step.numbers)
        left.append(sum(kept.values()))
        free = step.release(place) if use.released else {}
        for name, _ in use.weights:  # at a weight's second use, its backward pass has ended, and with it the view
            kept[name] = free.get(name, 0) if name not in kept and name.endswith(tuple(viewed)) else 0
    again = [name for place, name in enumerate(step.names) if name in step.names[:place]]
    return Gathered(step.sizes, again, held, left)
