"""Costs by alpha and beta: closed forms, what hierarchies and strides do, fits that come back, and the profiles."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train.spec.communication.cluster import Level, read_profile, stride_of, write_profile
from train.spec.communication.costs import Link, Reach, exposed, hierarchical, seconds, steps
from train.spec.communication.fit import LinkFit, Timed, fit_link
from train.spec.communication.messages import ALL_GATHER, ALL_REDUCE, COLLECTIVES, REDUCE_SCATTER, SEND, Message
from train.spec.mesh import Axes

MEASURED = Path(__file__).parents[4] / "conf" / "cluster" / "measured"
LINK = Link(1e-5, 1e9)
NVLINK, NETWORK = Link(3e-6, 4e11), Link(1.4e-5, 5e10)


def test_rings_and_trees_have_their_closed_forms() -> None:
    size, byte = 8e6, 1 / LINK.bandwidth
    assert seconds(ALL_REDUCE, 8, size, LINK, "ring") == pytest.approx(14 * 1e-5 + 1.75 * size * byte)
    assert seconds(ALL_GATHER, 8, size, LINK, "ring") == pytest.approx(7 * 1e-5 + 0.875 * size * byte)
    assert seconds("all_to_all", 8, size, LINK, "ring") == pytest.approx(7 * 1e-5 + 0.875 * size * byte)
    assert seconds("broadcast", 8, size, LINK, "ring") == pytest.approx(7 * 1e-5 + size * byte)
    assert seconds(ALL_REDUCE, 8, size, LINK, "tree") == pytest.approx(6 * 1e-5 + 2 * size * byte)
    assert seconds(ALL_GATHER, 8, size, LINK, "tree") == pytest.approx(3 * 1e-5 + 0.875 * size * byte)
    assert seconds("all_to_all", 8, size, LINK, "tree") == pytest.approx(3 * 1e-5 + 1.5 * size * byte)
    assert seconds(SEND, 8, size, LINK) == pytest.approx(1e-5 + size * byte)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_rank_waits_for_nobody(collective: str) -> None:
    assert seconds(collective, 1, 1e9, LINK) == 0.0
    assert hierarchical(collective, 1e9, [Reach(1, NVLINK), Reach(1, NETWORK)]) == 0.0


def test_a_send_takes_the_last_link_that_joins_several() -> None:
    near, far = (seconds(SEND, 2, 1e9, link) for link in (NVLINK, NETWORK))
    assert hierarchical(SEND, 1e9, [Reach(8, NVLINK), Reach(4, NETWORK)]) == far > near
    assert hierarchical(SEND, 1e9, [Reach(8, NVLINK), Reach(1, NETWORK)]) == near


def test_small_messages_take_the_tree_and_large_ones_the_ring() -> None:
    for size, faster in ((1e3, "tree"), (1e9, "ring")):
        best = seconds(ALL_REDUCE, 64, size, LINK)
        assert best == seconds(ALL_REDUCE, 64, size, LINK, faster)
        assert best < seconds(ALL_REDUCE, 64, size, LINK, "tree" if faster == "ring" else "ring")


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="algorithm 'star' is not known: choose one of ring, tree, best"):
        seconds(ALL_REDUCE, 2, 1, LINK, "star")
    with pytest.raises(ValueError, match="collective 'gossip' is not known"):
        steps("gossip", 2)
    with pytest.raises(ValueError, match="overlap=2"):
        exposed(1.0, 1.0, 2)


def test_messages_are_hidden_behind_compute_as_far_as_they_overlap() -> None:
    assert exposed(3.0, 4.0, 0.0) == 3.0 and exposed(3.0, 4.0, 0.5) == 1.0 and exposed(3.0, 4.0, 1.0) == 0.0


@given(st.sampled_from([ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER]), st.integers(1, 6), st.integers(1, 6))
def test_levels_of_equal_links_carry_the_bytes_of_one_ring(collective: str, inner: int, outer: int) -> None:
    free = Link(0.0, 1e9)
    reaches = [Reach(inner, free), Reach(outer, free)]
    whole = seconds(collective, inner * outer, 1e6, free, "ring")
    assert hierarchical(collective, 1e6, reaches, "ring") == pytest.approx(whole)


def test_the_network_carries_what_the_hosts_leave_of_a_message() -> None:
    size = 1e9
    found = hierarchical(ALL_REDUCE, size, [Reach(8, NVLINK), Reach(4, NETWORK)], "ring")
    inside = 2 * seconds(ALL_GATHER, 8, size, NVLINK, "ring")
    assert found == pytest.approx(inside + seconds(ALL_REDUCE, 4, size / 8, NETWORK, "ring"))
    flat = seconds(ALL_REDUCE, 32, size, NETWORK, "ring")
    assert found < flat / 4


def test_an_exchange_goes_to_each_peer_by_its_link() -> None:
    size = 1e9
    found = hierarchical("all_to_all", size, [Reach(8, NVLINK), Reach(4, NETWORK)])
    near = 7 * (NVLINK.alpha + size / 32 / NVLINK.bandwidth)
    far = 24 * (NETWORK.alpha + size / 32 / NETWORK.bandwidth)
    assert found == pytest.approx(near + far)


@given(
    st.sampled_from(COLLECTIVES),
    st.integers(2, 64),
    st.floats(1e-7, 1e-3),
    st.floats(1e6, 1e12),
)
@settings(max_examples=100, deadline=None)
def test_a_fit_finds_the_link_that_rings_were_timed_by(
    collective: str, ranks: int, alpha: float, bandwidth: float
) -> None:
    sizes = [2**power for power in range(10, 31, 2)]
    link = Link(alpha, bandwidth)
    found = fitted(collective, ranks, link, sizes)
    assert found.link.bandwidth == pytest.approx(bandwidth, rel=1e-3) or found.worst < 1e-3
    assert found.link.alpha == pytest.approx(alpha, rel=1e-2) or found.worst < 1e-3


def fitted(collective: str, ranks: int, link: Link, sizes: list[int], bad: dict[int, float] | None = None) -> LinkFit:
    times = [seconds(collective, ranks, size, link, "ring") for size in sizes]
    points = [
        Timed(collective, ranks, size, time * (bad or {}).get(place, 1.0))
        for place, (size, time) in enumerate(zip(sizes, times, strict=True))
    ]
    return fit_link(points)


def test_a_fit_is_not_moved_by_a_few_bad_points() -> None:
    sizes = [2**power for power in range(10, 31, 2)]
    found = fitted(ALL_REDUCE, 4, LINK, sizes, bad={2: 5.0, 7: 3.0})
    assert found.link.alpha == pytest.approx(LINK.alpha, rel=0.02)
    assert found.link.bandwidth == pytest.approx(LINK.bandwidth, rel=0.02)
    assert found.median < 0.01 and found.worst == pytest.approx(0.8, abs=0.02)


def test_a_fit_says_what_it_lacks() -> None:
    with pytest.raises(ValueError, match="two sizes at least, these are of 4 bytes"):
        fit_link([Timed(ALL_REDUCE, 2, 4, 1.0)])
    with pytest.raises(ValueError, match=r"up to 8 bytes take no longer than small ones.*sizes="):
        fit_link([Timed(ALL_REDUCE, 2, 4, 2.0), Timed(ALL_REDUCE, 2, 8, 1.0)])
    with pytest.raises(ValueError, match="points of 2 kinds"):
        fit_link([Timed(ALL_REDUCE, 2, 4, 2.0), Timed(ALL_GATHER, 2, 8, 1.0)])


# -- profiles


@pytest.mark.parametrize("path", sorted(MEASURED.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_profile_is_read_and_says_where_it_is_from(path: Path, tmp_path: Path) -> None:
    profile = read_profile(path)
    assert profile.name == path.stem and profile.source and profile.machine and profile.date
    copy = tmp_path / "copy.yaml"
    copy.write_text(write_profile(profile))
    assert read_profile(copy) == profile
    if profile.kind == "measured":
        assert profile.points or not profile.levels, "one device alone sends nothing"
    for level in profile.levels:
        for one in level.fitted:
            points = [
                point.timed
                for point in profile.points
                if (point.level, point.collective) == (level.name, one.collective)
            ]
            link = fit_link(points).link
            assert (one.alpha, one.bandwidth) == pytest.approx((link.alpha, link.bandwidth), rel=1e-3)


def test_four_h200s_are_as_they_were_seen() -> None:
    profile, gib = read_profile(MEASURED / "h200_x4.yaml"), 2**30
    for collective, bus in ((ALL_REDUCE, 357e9), (ALL_GATHER, 333e9), (REDUCE_SCATTER, 323e9)):
        found = profile.seconds(Message(collective, "fsdp", 4, gib, 1, "", ""), 1)
        assert Timed(collective, 4, gib, found).bus_bandwidth == pytest.approx(bus, rel=0.01)
    assert profile.seconds(Message(ALL_REDUCE, "tp", 4, 4096, 1, "", ""), 1) == pytest.approx(21e-6, rel=0.01)
    assert profile.compute.matmul_rate("bf16") == 694e12
    with pytest.raises(
        ValueError, match=r"no rate for fp16 \(it has bf16, fp32, fp8\): add {of: M x K x N, format: fp16"
    ):
        profile.compute.matmul_rate("fp16")


def test_ranks_of_a_group_lie_in_hosts_by_their_stride() -> None:
    profile = read_profile(MEASURED / "h200_x8_400g.yaml")

    def over(ranks: int, stride: int) -> list[int]:
        return [reach.ranks for reach, _ in profile.reaches(ranks, stride, ALL_REDUCE)]

    assert over(8, 1) == [8, 1] and over(32, 1) == [8, 4]
    assert over(16, 2) == [4, 4] and over(4, 8) == [1, 4] and over(4, 16) == [1, 4]
    near = profile.seconds(Message(ALL_GATHER, "fsdp", 8, 2**28, 1, "", ""), 1)
    far = profile.seconds(Message(ALL_GATHER, "fsdp", 8, 2**28, 1, "", ""), 8)
    assert far > 5 * near


def test_axes_are_apart_as_the_mesh_numbers_its_ranks() -> None:
    axes = Axes(dp_replicate=2, dp_shard=4, cp=2, tp=8, pp=4)
    found = {name: stride_of(name, axes) for name in ("tp", "cp", "fsdp", "tokens", "dp_replicate", "pp", "ends")}
    assert found == {"tp": 1, "cp": 8, "fsdp": 8, "tokens": 8, "dp_replicate": 64, "pp": 128, "ends": 384}


def test_a_step_is_the_sum_of_its_messages() -> None:
    profile = read_profile(MEASURED / "h200_x8_400g.yaml")
    message = Message(ALL_GATHER, "fsdp", 16, 2**28, 10, "weights of block", "forward")
    found = profile.step_seconds([message], Axes(dp_shard=16))
    assert found == {message: pytest.approx(10 * profile.seconds(message, 1))}
    assert math.isfinite(found[message]) and found[message] > 0


def test_a_level_that_is_missing_is_named() -> None:
    profile = read_profile(MEASURED / "h200_x4.yaml")
    with pytest.raises(ValueError, match=r"h200_x4 has the levels nvlink \(4 ranks\): they do not join 16 ranks"):
        profile.seconds(Message(ALL_REDUCE, "tokens", 16, 4, 1, "", ""), 1)
    with pytest.raises(
        ValueError,
        match=r"levels.nvlink.ranks=4 .*: 6 ranks do not fill such domains equally: take a divisor or a multiple of 4",
    ):
        replace(profile, levels=(*profile.levels, Level("net", 1e-5, 1e9))).reaches(6, 1, ALL_REDUCE)


GOOD = (MEASURED / "h200_x4.yaml").read_text()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("kind: measured", "kind: guessed", "kind='guessed' is not allowed: choose one of measured, datasheet"),
        ("kind: measured", "", "kind is missing: the file may be cut off; `python -m study bench comm profile=FILE`"),
        ("  ranks: 4\n", "  ranks: 1\n", "levels[0].ranks=1 is not allowed: 2 or more"),
        ("bandwidth: 3.586e+11\n  fitted", "bandwidth: 0\n  fitted", "levels[0].bandwidth=0 is not allowed"),
        ("alpha: 3.497e-06\n", "alpha: fast\n", "levels[0].alpha='fast' is not allowed: it takes a finite number"),
        ("alpha: 5.942e-05", "alpha: -1", "levels[0].fitted[1].alpha=-1.0 is not allowed: seconds, 0 or more"),
        ("collective: all_gather, alpha", "collective: gather, alpha", "collective='gather' is not allowed"),
        ("seconds: 2.1e-05", "second: 2.1e-05", "unknown key 'points[0].second': did you mean 'points[0].seconds'?"),
        ("seconds: 2.1e-05", "seconds: 2.1e-05, bus_bandwidth: 1e9", "points[0]: give one of seconds and bus_band"),
        ("{level: nvlink, collective: all_reduce, ranks: 4, size: 4096", "{level: net, collective: all_reduce, "
         "ranks: 4, size: 4096", "points[0].level='net' is not allowed: choose one of nvlink"),
        ("copy: 4.27e+12", "copy: -1", "compute.copy=-1 is not allowed: more than 0"),
        ("format: bf16, per_second: ", "format: bf16, per_second: -", "compute.matmul[0].per_second=-"),
        ("name: h200_x4\n", "name: h200_x4\nname: again\n", "is not YAML: 'name' is given twice in line "),
        ("levels:", "levels: [", "is not YAML"),
    ],
)  # fmt: skip
def test_a_broken_profile_is_told_by_key_and_value(old: str, new: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    assert old in GOOD
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(ValueError, match=rf"{re.escape(str(path))}.*{re.escape(said)}"):
        read_profile(path)


def test_a_level_between_has_to_say_its_ranks(tmp_path: Path) -> None:
    profile = read_profile(MEASURED / "h200_x4.yaml")
    wrong = replace(profile, levels=(Level("net", 1e-5, 1e9), *profile.levels))
    (tmp_path / "mine.yaml").write_text(write_profile(wrong))
    with pytest.raises(ValueError, match=r"levels\[0\].ranks=null is allowed for the last level alone"):
        read_profile(tmp_path / "mine.yaml")
