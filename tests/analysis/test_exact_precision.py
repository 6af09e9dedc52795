"""The table of number formats cell by cell, and what its figure is asked to draw."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from analysis import precision
from analysis.precision import Run, apart, rows
from analysis.report.figures import canvas, style


def run(name: str = "fp32", seed: int = 0, **series: Any) -> Run:
    """Return a run with these training metrics at tokens 10, 20, ...; `validation` and `statistics` are kinds."""
    records: dict[str, Any] = {}
    for metric, values in series.items():
        kind, _, own = metric.rpartition("__")
        for i, value in enumerate(values):
            records.setdefault(kind or "train", []).append((10 * (i + 1), {own: value}))
    return Run(name, seed, records)


def test_series_of_a_metric() -> None:
    one = Run("fp32", 0, {"train": [(10, {"a": 1.0}), (20, {"b": 5.0}), (30, {"a": 2.0})]})
    assert one.series("train", "a") == [(10, 1.0), (30, 2.0)]
    assert one.values("train", "a") == [1.0, 2.0]
    assert one.series("validation", "a") == []


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({}, "fp32"),
        ({"name": "bf16"}, "bf16"),
        ({"name": "fp8"}, "fp8 tensorwise"),
        ({"name": "fp8", "fp8_scaling": "rowwise"}, "fp8 rowwise"),
        ({"name": "fp8", "fp8_history": 16, "fp8_keep_blocks": 2, "fp8_gather": True},
         "fp8 tensorwise 16 steps 2 blocks kept gathered"),
        ({"name": "fp8", "fp8_history": 0, "fp8_gather": False}, "fp8 tensorwise"),
        ({"name": "bf16", "optimizer_state": "bf16", "reduce": "bf16"}, "bf16 bf16 moments bf16 sums"),
        ({"name": "bf16", "optimizer_state": "fp32", "reduce": "fp32"}, "bf16"),
    ],
)  # fmt: skip
def test_formats_in_words(config: Any, name: str) -> None:
    assert precision._format(config) == name


def test_a_row_cell_by_cell() -> None:
    losses = [9.0] * 18 + [3.0, 3.5]
    full = run(
        "fp16", 7, loss=losses, grad_norm=[1.0, 5.0, 2.0], skipped_steps=[0.0, 3.0], overflows=[2.0],
        loss_scale=[512.0, 256.0], loss_scale_smallest=[512.0, 128.0], validation__loss=[4.0, 3.25],
        statistics__gradient_zero=[0.01, 0.03], statistics__underflow_fp16=[0.5],
    )  # fmt: skip
    first = run(validation__loss=[4.0, 3.5])
    table = rows([first, full])
    assert table[1] == (
        "fp16", "7", "3.2500", "3.2500", "-0.2500", "2", "5", "3", "128 to 256", "2", "50", "",
    )  # fmt: skip
    assert table[0] == ("fp32", "0", "", "3.5000", "+0.0000", "", "", "0", "", "", "", "")
    assert rows([run(loss=[4.0]), full])[1][4] == "", "the first row has no validation"
    assert rows([run(loss=[4.0])])[0][2:5] == ("4.0000", "", "")
    assert rows([run(loss=[8.0] * 5 + [4.0])])[0][2] == "4.0000", "of six the last"
    assert rows([run(loss=[8.0] * 27 + [4.0, 5.0])])[0][2] == "4.5000", "of 29 the last two"
    assert rows([run(overflows=[4.0], skipped_steps=[1.0])])[0][7] == "4"
    assert rows([run(loss_scale=[2.0])])[0][8] == ""
    assert rows([run(loss_scale_smallest=[2.0])])[0][8] == ""
    assert len(table[0]) == len(precision.COLUMNS)
    assert precision.COLUMNS[-3:] == ("gradient_zero [%]", "underflow_fp16 [%]", "underflow_fp8 [%]")


def test_rows_as_markdown() -> None:
    lines = precision.markdown([("a",) * len(precision.COLUMNS)]).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("| format | seed | ")
    assert set(lines[1]) == {"|", "-", " "}
    assert lines[1].count("---") == len(precision.COLUMNS)
    assert lines[2] == "| " + " | ".join(["a"] * len(precision.COLUMNS)) + " |"


def test_differences_over_a_share_of_the_run() -> None:
    first = run(loss=[5.0, 4.0, 3.0, 2.0])
    other = Run(
        "x",
        0,
        {
            "train": [
                (10, {"loss": 5.5}),
                (15, {"loss": 9.0}),
                (20, {"loss": 4.0}),
                (30, {"loss": 4.0}),
                (40, {"loss": 2.5}),
            ]
        },
    )
    assert apart(other, first) == [(10, 0.5), (20, 0.0), (30, 1.0), (40, 0.5)]
    assert apart(other, first, share=0.5) == [(20, 0.25), (30, 0.5), (40, 0.75)]
    assert apart(other, first, share=0.7) == [(30, 0.5), (40, 0.5)]
    assert apart(other, first, share=1.0) == [(40, 0.5)]
    many = run(loss=[1.0] * 30)
    assert len(apart(many, many)) == 28, "a tenth of thirty is three"
    assert apart(run(loss=[]), first) == []


def test_runs_by_format_and_seed(tmp_path: Path) -> None:
    for number, (name, seed) in enumerate(
        (("fp8", 0), ("other", 0), ("fp16", 1), ("fp16", 0), ("bf16", 0), ("fp32", 0))
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "config.yaml").write_text(f"precision: {{name: {name}}}\nseed: {seed}\n")
        line = '{"kind": "train", "step": 1, "tokens": 5, "metrics": {"loss": 2.0}}\n'
        (folder / "metrics.jsonl").write_text(line)
    found = precision.read(tmp_path)
    assert [(one.format, one.seed) for one in found] == [
        ("fp32", 0), ("bf16", 0), ("fp16", 0), ("fp16", 1), ("fp8 tensorwise", 0), ("other", 0),
    ]  # fmt: skip
    assert found[0].records == {"train": [(5, {"loss": 2.0})]}
    (tmp_path / "5" / "config.yaml").write_text("model: {width: 8}\n")
    assert (precision.read(tmp_path)[0].format, precision.read(tmp_path)[0].seed) == ("fp32", 0)
    with pytest.raises(ValueError, match=r"holds no runs with metrics\.jsonl"):
        precision.read(tmp_path / "0")


class Axes:
    """Keeps what is drawn."""

    def __init__(self) -> None:
        self.lines: list[Any] = []
        self.legends: list[Any] = []
        self.yaxis = "y"

    def plot(self, x: Any, y: Any, **how: Any) -> None:
        self.lines.append((x, y, how["label"], how["linewidth"], how["color"]))

    def legend(self, **how: Any) -> None:
        self.legends.append(how)


def drawn(monkeypatch: pytest.MonkeyPatch, *runs: Run) -> dict[str, tuple[Any, Any, Any]]:
    """Return each panel's name with its axes, its label and whether it is logarithmic."""
    panels: list[Any] = []
    frames: list[Any] = []
    logs: list[Any] = []

    class Sheet:
        def __init__(self, given: Any) -> None:
            panels.extend(given)

        def svg(self, name: str, *, transparent: bool) -> str:
            assert (name, transparent) == ("precision", False)
            return "<svg/>"

    monkeypatch.setattr(canvas, "Sheet", Sheet)
    monkeypatch.setattr(canvas, "Panel", lambda name, text, draw: SimpleNamespace(name=name, text=text, draw=draw))
    monkeypatch.setattr(style, "frame", lambda ax, x, y: frames.append((x, y)))
    monkeypatch.setattr(style, "padded", lambda heights: (min(heights), max(heights)))
    monkeypatch.setattr(style, "log_axis", lambda axis, low, high, tick: logs.append((low, high, tick(0.5))))
    assert precision.figure(runs) == "<svg/>"
    found = {}
    for panel in panels:
        logs.clear()
        ax = Axes()
        assert panel.draw(ax) is ax
        found[panel.name] = (ax, frames[-1][1], tuple(logs))
        assert panel.text == f"{frames[-1][1]} against training tokens by number format"
        assert frames[-1][0] == "training tokens"
    return found


def test_what_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    inf = float("inf")
    one = run("fp32", 0, loss=[5.0, -4.0, inf], grad_norm=[1.0, 0.0, 8.0])
    two = run("fp16", 3, loss=[6.0, 4.0, 3.0], grad_norm=[2.0, inf, 4.0], loss_scale=[512.0])
    found = drawn(monkeypatch, one, two)
    assert list(found) == ["loss", "apart", "grad_norm", "loss_scale"]
    loss, label, logs = found["loss"]
    assert label == "training loss [nats/token]"
    assert [line[:4] for line in loss.lines] == [
        ((10, 20), (5.0, -4.0), "fp32, 0", 1.2), ((10, 20, 30), (6.0, 4.0, 3.0), "fp16, 3", 1.2),
    ]  # fmt: skip
    assert len({line[4] for line in loss.lines}) == 2
    assert logs == ()
    assert loss.legends == [{"frameon": False}]
    assert found["apart"][1] == "loss above fp32's [nats/token]"
    assert found["apart"][0].lines[0][:2] == ((10, 20), (0.0, 0.0))
    assert found["apart"][2] == ()
    norm, _, logs = found["grad_norm"]
    assert [line[:2] for line in norm.lines] == [((10, 30), (1.0, 8.0)), ((10, 30), (2.0, 4.0))]
    assert logs == ((1.0, 8.0, "0.5"),)
    scale, label, logs = found["loss_scale"]
    assert ([line[:3] for line in scale.lines], label) == ([((10,), (512.0,), "fp16, 3")], "loss scale")
    assert logs == ((512.0, 512.0, "0.5"),)
    bare = drawn(monkeypatch, run(loss=[2.0]))
    assert list(bare) == ["loss", "apart", "grad_norm"]
    assert (bare["grad_norm"][0].lines, bare["grad_norm"][0].legends, bare["grad_norm"][2]) == ([], [], ())


def test_ticks() -> None:
    assert precision._tick(999.0) == "999"
    assert precision._tick(0.0125) == "0.0125"
    assert precision._tick(1000.0) == style.parameters(1000.0)
    assert precision._tick(65536.0) == style.parameters(65536.0)
