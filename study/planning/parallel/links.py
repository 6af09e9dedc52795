"""What a rank sends over each kind of link in a step, by hierarchical collectives as train.spec.communication.costs."""

from __future__ import annotations

from collections.abc import Sequence

from train.spec.communication.cluster import ClusterProfile, stride_of
from train.spec.communication.messages import ALL_TO_ALL, BROADCAST, SEND, Message, bus_factor
from train.spec.communication.step import step_messages
from train.spec.config import RunConfig
from train.spec.mesh import Axes


def by_level(profile: ClusterProfile, messages: Sequence[Message], axes: Axes) -> dict[str, float]:
    """Return the bytes that one rank sends in a step over each level of a profile, the innermost first."""
    found = {level.name: 0.0 for level in profile.levels}
    for one in messages:
        reaches = [reach for reach, _ in profile.reaches(one.ranks, stride_of(one.axis, axes), one.collective)]
        sizes = [reach.ranks for reach in reaches]
        for name, sent in zip(found, _sent(one, sizes), strict=True):
            found[name] += one.count * sent
    return found


def fullest(profile: ClusterProfile, config: RunConfig, axes: Axes) -> dict[str, float]:
    """Return the same of the rank of the pipeline that sends most over each level."""
    each = [by_level(profile, step_messages(config, axes, rank, profile.device), axes) for rank in range(axes.pp)]
    return {level.name: max(one[level.name] for one in each) for level in profile.levels}


def _sent(message: Message, sizes: Sequence[int]) -> list[float]:
    """Return what a rank sends for one message over each level, which joins so many of the group's ranks."""
    outermost = max((place for place, size in enumerate(sizes) if size > 1), default=-1)
    sent, inside = [], 1
    for place, size in enumerate(sizes):
        if message.collective == SEND:
            sent.append(float(message.size) if place == outermost else 0.0)
        elif message.collective == BROADCAST:
            sent.append(float(message.size) if size > 1 else 0.0)
        elif message.collective == ALL_TO_ALL:
            sent.append(message.size * inside * (size - 1) / message.ranks)
        else:
            sent.append(bus_factor(message.collective, max(1, size)) * message.size / inside)
        inside *= size
    return sent
