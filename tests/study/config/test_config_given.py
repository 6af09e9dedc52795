"""Resources on the command line stand, though a study's file sizes them automatically."""

from __future__ import annotations

import pytest

from study.config.given import without_given
from study.config.schema import ClusterConfig

TIME, MEMORY, GPUS, AUTO = "cluster.time_minutes", "cluster.mem_gb", "cluster.gpus_per_node", "cluster.auto"


@pytest.mark.parametrize(
    ("auto", "typed", "left"),
    [
        ((), (TIME,), ()),
        (("time", "points_per_job"), (), ("time", "points_per_job")),
        (("time", "points_per_job"), (TIME,), ("points_per_job",)),
        (("time", "points_per_job"), (MEMORY, "cluster.margin"), ("time", "points_per_job")),
        (("all",), (TIME,), ("gpus", "memory")),
        (("all", "pack"), (MEMORY, GPUS), ("time", "pack")),
        (("time", "pack"), ("cluster.pack",), ("time",)),
        (("time", "pack"), ("cluster.pack_gpus", "cluster.pack"), ("time",)),
        (("all", "pack"), ("study.name",), ("all", "pack")),
        (("all",), ("study.name",), ("all",)),
        (("gpus",), (AUTO, GPUS), ("gpus",)),
        (("time",), (AUTO, MEMORY), ("time",)),
    ],
)
def test_what_was_typed_is_not_sized(auto: tuple[str, ...], typed: tuple[str, ...], left: tuple[str, ...]) -> None:
    assert without_given(ClusterConfig(auto=auto), typed).auto == left


@pytest.mark.parametrize(
    ("auto", "typed", "words"),
    [
        (("time",), (TIME, AUTO), r"cluster\.auto=\[time\] chooses cluster\.time_minutes, which is 40: leave out one"),
        (("all",), (AUTO, GPUS, MEMORY), r"cluster\.auto=\[memory\] chooses cluster\.mem_gb, which is 8\.0: leave out"),
    ],
)
def test_both_on_the_command_line_are_refused(auto: tuple[str, ...], typed: tuple[str, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        without_given(ClusterConfig(auto=auto, time_minutes=40, mem_gb=8.0), typed)
