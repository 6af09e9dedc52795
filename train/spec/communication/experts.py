"""What expert parallelism would send, for planning: the trainer has no mixture of experts."""

from __future__ import annotations

from collections.abc import Iterator

from train.spec.communication.messages import ALL_TO_ALL, Message


def expert_parallel(
    *, tokens: int, width: int, chosen: int, itemsize: int, ranks: int, layers: int, micro_batches: int,
    capacity: float = 1.0,
) -> Iterator[Message]:  # fmt: skip
    """Yield what one rank of `ranks` that share experts sends in a step (Lepikhin et al. 2020, "GShard").

    tokens: of a micro-batch on the rank. chosen: experts of a token. itemsize: bytes of a number of the stream. layers:
    with experts. capacity: room of an expert over its even share, all of which is sent where buffers are of one size.
    Each layer sends tokens to their experts and takes them back, and does so with their gradients.
    """
    if chosen < 1 or ranks < 1 or capacity <= 0:
        raise ValueError(f"chosen={chosen}, ranks={ranks}, capacity={capacity}: each has to be positive")
    size = int(tokens * chosen * width * itemsize * capacity)
    for phase, suffix in (("forward", ""), ("backward", ", gradients")):
        for of in ("tokens to experts", "tokens from experts"):
            yield Message(ALL_TO_ALL, "ep", ranks, size, layers * micro_batches, of + suffix, phase)
