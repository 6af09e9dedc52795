"""Collectives timed over message sizes, in the manner of nccl-tests, through torch.distributed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from kernels.cross_entropy.math import gather_into, scatter_sum_into
from train.runtime.distributed import World
from train.spec.communication.messages import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, REDUCE_SCATTER, SEND

WARM_UP, MOST, ROUNDS = 5, 100, 5
"""Calls before timing, calls of one round at most, rounds of which the median counts (nccl-tests: 5, 20 and 1)."""
ITEM = 4
"""Bytes of a number: messages are fp32, as those of nccl-tests are by default."""


@dataclass(frozen=True)
class Measured:
    """A collective of `size` [bytes, as nccl-tests count them] over `ranks` joined by links of `level`.

    seconds: of one call, the mean over ranks of the median round. spread: of the rounds, (longest - shortest) / median.
    """

    level: str
    collective: str
    ranks: int
    size: int
    seconds: float
    spread: float


@dataclass(frozen=True)
class LevelGroups:
    """The groups of ranks that links of one kind join; all of them talk at once, as hierarchical collectives do."""

    name: str
    groups: tuple[tuple[int, ...], ...]


def levels_of(hosts: Sequence[str]) -> tuple[LevelGroups, ...]:
    """Return the levels of ranks on these hosts, by rank: `node`, ranks of one host; `network`, one of each host.

    ValueError where hosts have different numbers of ranks.
    """
    by_host: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        by_host.setdefault(host, []).append(rank)
    counts = {len(ranks) for ranks in by_host.values()}
    if len(counts) > 1:
        said = ", ".join(f"{host} {len(ranks)}" for host, ranks in by_host.items())
        raise ValueError(f"hosts have different numbers of ranks ({said}): start as many on each")
    node = LevelGroups("node", tuple(map(tuple, by_host.values())))
    network = LevelGroups("network", tuple(zip(*by_host.values(), strict=True)))
    return tuple(level for level in (node, network) if len(level.groups[0]) > 1)


def measure(
    world: World,
    device: torch.device,
    level: LevelGroups,
    *,
    collectives: Sequence[str],
    sizes: Sequence[int],
    seconds: float,
) -> Iterator[Measured]:
    """Yield each collective at each size, which take about `seconds` each. On all ranks; those of rank 0 count."""
    groups = [dist.new_group(list(ranks)) for ranks in level.groups]
    place = next(i for i, ranks in enumerate(level.groups) if world.rank in ranks)
    group, ranks = groups[place], level.groups[place]
    for collective in collectives:
        for size in sizes:
            call, true_size = prepared(collective, size, group, ranks, device)
            took, spread = timed(call, world, device, seconds)
            yield Measured(level.name, collective, len(ranks), true_size, took, spread)


def prepared(
    collective: str, size: int, group: dist.ProcessGroup, ranks: Sequence[int], device: torch.device
) -> tuple[Callable[[], object], int]:
    """Return what runs a collective once, and its size [bytes]: the one wanted, rounded to what ranks can share."""
    count = len(ranks)
    shared = collective in (ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL)
    numbers = max(1, size // (ITEM * count)) * count if shared else max(1, size // ITEM)
    whole = torch.ones(numbers, device=device)
    other = torch.empty_like(whole) if collective in (ALL_TO_ALL, SEND) else whole.new_empty(numbers // count)
    me = ranks.index(dist.get_rank())

    def passed_on() -> None:
        operations = [
            dist.P2POp(dist.isend, whole, ranks[(me + 1) % count], group),
            dist.P2POp(dist.irecv, other, ranks[me - 1], group),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    calls: dict[str, Callable[[], object]] = {
        ALL_REDUCE: lambda: dist.all_reduce(whole, op=dist.ReduceOp.MAX, group=group),
        ALL_GATHER: lambda: gather_into(whole, other, group=group),
        REDUCE_SCATTER: lambda: scatter_sum_into(other, whole, group=group),
        ALL_TO_ALL: lambda: dist.all_to_all_single(other, whole, group=group),
        BROADCAST: lambda: dist.broadcast(whole, ranks[0], group=group),
        SEND: passed_on,
    }
    return calls[collective], numbers * ITEM


def timed(call: Callable[[], object], world: World, device: torch.device, seconds: float) -> tuple[float, float]:
    """Return the seconds of a call, the mean over ranks of the median round, and the rounds' relative spread."""
    call()  # the first one of a group joins its ranks
    _wait(device)
    began = time.perf_counter()
    for _ in range(WARM_UP):
        call()
    _wait(device)
    one = (time.perf_counter() - began) / WARM_UP
    # The first rank decides: all make as many calls.
    wanted = torch.tensor([max(1.0, min(float(MOST), seconds / ROUNDS / one))])
    dist.broadcast(wanted, 0)
    calls, rounds = int(wanted.item()), []
    for _ in range(ROUNDS):
        dist.barrier()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        _wait(device)
        rounds.append((time.perf_counter() - began) / calls)
    middle = statistics.median(rounds)
    both: Tensor = torch.tensor([middle, (max(rounds) - min(rounds)) / middle], dtype=torch.float64)
    dist.all_reduce(both)
    took, spread = (both / world.size).tolist()
    return took, spread


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
