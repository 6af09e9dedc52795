"""The curve of tokens a second: what is measured stays so, and everything else says that it is not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import throughput_curve as curve
from benchmarks.throughput_curve import Point
from study.config.single import composed
from train.spec.resolve import resolve

RECORD = json.loads(curve.RECORD.read_text())


@pytest.fixture(scope="module")
def found() -> list[Point]:
    return curve.points(RECORD)


def test_what_was_measured_is_of_up_to_four_gpus(found: list[Point]) -> None:
    real = [point for point in found if point.measured]
    assert [(point.model, point.gpus) for point in real] == [("1B", 1), ("1B", 2), ("1B", 4), ("8B", 2), ("8B", 4)]
    rows = {row["row"]: row for row in RECORD["rows"]}
    assert real[0].rate == rows["ours-1b"]["tokens_per_second_per_gpu"]
    assert real[1].rate == 2 * rows["ours-1b-fsdp-x2"]["tokens_per_second_per_gpu"]


def test_simulations_reach_1024_gpus_and_stand_beside_each_measurement(found: list[Point]) -> None:
    simulated = {(point.model, point.layout, point.gpus): point for point in found if not point.measured}
    assert {gpus for _, _, gpus in simulated} == set(curve.GPUS)
    for point in found:
        beside = simulated[point.model, point.layout, point.gpus]
        assert beside.rate == pytest.approx(point.rate, rel=0.1)
        assert beside.limit and 0.2 < beside.mfu < 0.7
    alone, hosts = (simulated["1B", layout, 1024].mfu for layout in curve.LAYOUTS)
    assert alone < hosts < simulated["1B", "FSDP2 over all", 8].mfu, "messages over the network cost"


def test_pipelines_of_presets_gain_from_weights_that_stay_gathered() -> None:
    """As docs/howto/reference.md says of parallel.zero."""
    config = composed(["+reference=405b_x512"])
    run = resolve(config.run())
    freed = replace(run, parallel=replace(run.parallel, zero=3))
    kept, again = (curve.step(one, 512, curve.BEYOND).seconds for one in (run, freed))
    assert again / kept == pytest.approx(1.2, abs=0.1)


def test_the_page_says_which_rows_are_simulated(found: list[Point]) -> None:
    page = curve.page(found, RECORD)
    assert "simulated, not measured" in page
    rows = [line for line in page.splitlines() if line.startswith(("| 1B", "| 8B"))]
    assert len(rows) == len(found)
    for row in rows:
        gpus = int(row.split("|")[2])
        assert ("| simulated |" in row) != ("| measured |" in row)
        assert gpus <= 4 or "| simulated |" in row
    assert [line.split(" ")[1] for line in page.splitlines() if "_x8_400g |" in line] == [
        "7b_x8", "70b_x64", "70b_x256", "1t_x1024", "405b_x512", "405b_x1024", "405b_x2048"
    ]  # fmt: skip


def test_the_figure_says_so_too(found: list[Point], tmp_path: Path) -> None:
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none"}):
        curve.draw(found, tmp_path / "curve.svg")
    drawn = (tmp_path / "curve.svg").read_text()
    assert "Measured on 1, 2 and 4 H200s; beyond, simulated" in drawn
    assert "grey: simulated only" in drawn
