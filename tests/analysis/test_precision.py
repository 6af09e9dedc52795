"""The stability report: what a study's folders say of number formats, in one table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.precision import COLUMNS, apart, main, read, rows


def write(folder: Path, precision: str, losses: list[float], **further: float) -> None:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"precision: {{name: {precision}}}\nseed: 3\n")
    lines = [
        {"kind": "train", "step": i, "tokens": 10 * i, "metrics": {"loss": loss, "grad_norm": 1.0 + i, **further}}
        for i, loss in enumerate(losses)
    ]
    lines.append({"kind": "validation", "step": 9, "tokens": 90, "metrics": {"loss": losses[-1] + 0.5}})
    lines.append({"kind": "statistics", "step": 9, "tokens": 90, "metrics": {"underflow_fp16": 0.25}})
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"kind": "tr')


@pytest.fixture
def study(tmp_path: Path) -> Path:
    write(tmp_path / "b", "fp16", [5.0, 4.0, 3.25], loss_scale=512.0, loss_scale_smallest=256.0, overflows=2.0)
    write(tmp_path / "a", "fp32", [5.0, 4.0, 3.0])
    return tmp_path


def test_formats_are_ordered_and_compared_with_the_first(study: Path) -> None:
    table = [dict(zip(COLUMNS, row, strict=True)) for row in rows(read(study))]
    assert [row["format"] for row in table] == ["fp32", "fp16"]
    assert table[1]["validation loss [nats]"] == "3.7500"
    assert table[1]["above the first row [nats]"] == "+0.2500"
    assert (table[0]["steps lost"], table[1]["steps lost"]) == ("0", "2")
    assert table[1]["loss scale, smallest to last"] == "256 to 512"
    assert table[0]["underflow_fp16 [%]"] == "25"
    assert (table[0]["gradient norm, median"], table[0]["largest"]) == ("2", "3")


def test_variants_of_a_format_have_names_of_their_own(tmp_path: Path) -> None:
    variants = (
        "fp8, fp8_history: 16",
        "fp8, fp8_gather: true",
        "fp8, fp8_scaling: rowwise",
        "fp8",
        "bf16, reduce: bf16",
    )
    for number, variant in enumerate(variants):
        write(tmp_path / str(number), variant, [3.0])
    assert [run.format for run in read(tmp_path)] == [
        "bf16 bf16 sums",
        "fp8 rowwise",
        "fp8 tensorwise",
        "fp8 tensorwise 16 steps",
        "fp8 tensorwise gathered",
    ]


def test_differences_from_the_first_run_are_means_over_a_share_of_the_run(study: Path) -> None:
    first, second = read(study)
    assert apart(second, first) == [(0, 0.0), (10, 0.0), (20, 0.25)]
    assert apart(second, first, share=0.6) == [(10, 0.0), (20, 0.125)]


def test_the_command_writes_table_and_figure(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(study)]) == 0
    assert "fp16" in capsys.readouterr().out
    drawn = (study / "precision.svg").read_text()
    assert drawn.count("<svg") == 1
    assert "mathdefault" not in drawn, "ticks are written out"
    assert "precision.svg" in (study / "precision.md").read_text()


def test_a_folder_without_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "no runs" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "said"), [([], "0 folders are given"), (["--fast"], "'--fast' is no folder")])
def test_other_words_than_a_folder_are_told_in_a_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err == f"analysis.precision: {said}: name that of one study, such as runs/precision\n"
