"""The part of a GPU that a process may take, by its environment, and what of it is left for tensors."""

from __future__ import annotations

import pytest

from train.spec.gpu_share import part, share

GIB = 2**30


@pytest.mark.parametrize(("said", "found"), [("1", 1.0), ("1.0", 1.0), ("0.25", 0.25), ("1e-9", 1e-9), (" 0.5 ", 0.5)])
def test_a_number_above_0_and_at_most_1_is_a_part(said: str, found: float) -> None:
    assert share({"STUDY_GPU_SHARE": said, "GPU_SHARE": "0.125"}) == found


def test_who_says_nothing_has_the_whole_gpu() -> None:
    assert share({}) == 1.0


@pytest.mark.parametrize("said", ["0", "0.0", "-0.5", "1.0000001", "2", "inf", "nan", "", "half", "1/4"])
def test_anything_else_is_refused_with_what_was_said(said: str) -> None:
    with pytest.raises(ValueError) as refused:
        share({"STUDY_GPU_SHARE": said})
    assert str(refused.value) == (
        f"STUDY_GPU_SHARE={said!r} is not allowed: a number above 0, at most 1, or leave it unset"
    )


@pytest.mark.parametrize(
    ("total", "of_it", "left"),
    [
        (80 * GIB, 1.0, 80 * GIB),
        (80 * GIB, 0.5, 39 * GIB),
        (80 * GIB, 0.25, 19 * GIB),
        (8 * GIB, 0.25, 1 * GIB),
        (4 * GIB, 0.25, 0),
        (2 * GIB, 0.25, 0),
        (10 * GIB + 1, 0.5, 4 * GIB),
    ],
)
def test_each_of_several_leaves_a_gibibyte_beside_its_tensors(total: int, of_it: float, left: int) -> None:
    assert part(total, of_it) == left
