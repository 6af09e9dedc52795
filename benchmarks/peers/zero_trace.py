"""What a recording says of a row: shares of the step by study.diagnosis, and every message between ranks."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from study.diagnosis.of_traces import diagnose, read_traces
from train.spec.communication.messages import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE_SCATTER, Message

_BYTES = {
    "Double": 8, "Float": 4, "BFloat16": 2, "Half": 2, "Long": 8, "Int": 4, "Byte": 1, "Bool": 1,
    "double": 8, "float": 4, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8, "long": 8, "int": 4, "bool": 1,
    "unsigned char": 1,
}  # fmt: skip
_OF_NCCL = {
    "allreduce": ALL_REDUCE, "all_reduce": ALL_REDUCE, "allgather": ALL_GATHER, "all_gather": ALL_GATHER,
    "reduce_scatter": REDUCE_SCATTER, "broadcast": BROADCAST, "reduce": ALL_REDUCE,
}  # fmt: skip
_OF_GLOO = {
    "c10d::allreduce_": ALL_REDUCE, "c10d::_allgather_base_": ALL_GATHER, "c10d::allgather_": ALL_GATHER,
    "c10d::_reduce_scatter_base_": REDUCE_SCATTER, "c10d::broadcast_": BROADCAST,
}  # fmt: skip
"""Operators by which ranks on a CPU talk. Which of them gloo makes of others (reduce-scatters of all-reduces) is left
out: what was asked for is counted."""
SMALL = 1024
"""Messages below this size [bytes] carry single numbers, losses and norms, and are not counted."""


def figures(folder: Path, ranks: int, steps: int) -> dict[str, float]:
    """Return what the traces of a recording say, for one step. ValueError where they do not say it.

    messages, sent_bytes: of rank 0. exposed, hidden: shares of the step and of communication; nan where there is none.
    """
    paths = sorted((folder / "profile").glob("*.json.gz"))
    found = diagnose(read_traces(paths))
    messages = list(messages_of(events_of(next(path for path in paths if "rank-0" in path.name)), ranks))
    counts = {f"{what}s": sum(one.collective == what for one in messages) / steps for what in _WHATS}
    return {
        **counts,
        "messages": len(messages) / steps,
        "sent_bytes": sum(one.sent for one in messages) / steps,
        "exposed_share": found.shares["communication"],
        "waiting_share": found.shares["waiting"],
        "host_share": found.shares["host"],
        "compute_share": found.shares["compute"],
        "hidden_share": math.nan if found.overlap is None else found.overlap,
        "traced_seconds": found.seconds_step,
    }


_WHATS = (ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, BROADCAST)


def events_of(path: Path) -> Sequence[Mapping[str, Any]]:
    """Return the events of a trace."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events: Sequence[Mapping[str, Any]] = json.load(file)["traceEvents"]
    return events


def messages_of(events: Sequence[Mapping[str, Any]], ranks: int) -> Iterator[Message]:
    """Yield each message of a trace that is large enough: NCCL's kernels, or without any what was asked of gloo."""
    kernels = [one for one in events if one.get("cat") == "kernel" and "Collective name" in one.get("args", {})]
    for what, size in _by_nccl(kernels) if kernels else _by_gloo(events):
        if size >= SMALL:
            yield Message(what, "fsdp", ranks, size, 1, "", "")


def _by_nccl(kernels: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, int]]:
    for one in kernels:
        args = one["args"]
        name = str(args["Collective name"]).lower().lstrip("_")
        what = next((found for start, found in _OF_NCCL.items() if name.startswith(start)), None)
        if what is not None:
            numbers = max(int(args["In msg nelems"]), int(args["Out msg nelems"]))
            yield what, numbers * _BYTES[str(args["dtype"])]


def _by_gloo(events: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, int]]:
    # Lists of tensors do not say of what kind they are; what gloo did with them does.
    known = {}
    for one in events:
        if str(one.get("name", "")).startswith("gloo:") and one.get("args", {}).get("Input type"):
            known[_numbers(one["args"]["Input Dims"][0])] = _BYTES.get(one["args"]["Input type"][0], 4)
    for one in events:
        what = _OF_GLOO.get(str(one.get("name", ""))) if one.get("ph") == "X" else None
        if what is None:
            continue
        place = 1 if what == REDUCE_SCATTER else 0
        dims, kind = one["args"]["Input Dims"][place], one["args"]["Input type"][place]
        numbers = _numbers(dims)
        yield what, numbers * (_BYTES[kind] if kind in _BYTES else known.get(numbers, 4))


def _numbers(dims: Sequence[Any]) -> int:
    """Return the numbers of a tensor of this shape, or of a list of them."""
    if dims and isinstance(dims[0], list):
        return sum(_numbers(one) for one in dims)
    return math.prod(dims)
