"""muP's coordinate check: activations move alike at every width, and not so under the standard parametrisation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from train import coordinate_check
from train.health.coordinates import Scale, slopes


def test_slopes_are_those_of_power_laws() -> None:
    scales = [Scale("a", w, 1.0, 3.0 * w**0.5) for w in (8, 16, 64)] + [Scale("b", w, 1.0, 2.0) for w in (8, 64)]
    assert slopes(scales) == {"a": pytest.approx(0.5), "b": pytest.approx(0.0)}


@pytest.mark.parametrize("optim", ["adamw", "muon"])
def test_under_mup_changes_do_not_grow_with_the_width(tmp_path: Path, optim: str) -> None:
    found = {}
    for name in ("mup", "standard"):
        place = tmp_path / f"{name}.json"
        flags = ["--standard"] if name == "standard" else ["--plot", str(tmp_path / "plot.svg")]
        arguments = ["--widths", "32,128", "--optim", optim, "--out", str(place), *flags]
        assert coordinate_check.main(arguments) == 0
        found[name] = json.loads(place.read_text())["slopes"]
    blocks = [layer for layer in found["mup"] if layer.startswith("blocks.")]
    assert len(blocks) == 6
    for layer in blocks:
        assert abs(found["mup"][layer]) < 0.3
    assert sum(found["standard"][layer] - found["mup"][layer] for layer in blocks) / 6 > 0.3
    assert (tmp_path / "plot.svg").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--widths 32,33", "error: model.head_dim=33 is odd: rotary embedding turns pairs"),
        ("--widths 32,48 --head-dim 32", "error: model.width=48 is not a multiple of model.head_dim=32"),
        ("--lr nan", "error: --lr=nan: a positive number is needed"),
        ("--steps 0", "--steps: '0' is not allowed: a whole number from 1 on is needed"),
        ("--layers -1", "--layers"),
        ("--plot a.gif", "error: --plot a.gif: the suffix is none of .png, .svg, .pdf"),
        ("--out /proc/a.json", "error: --out /proc/a.json: No such file or directory: name a file that can be written"),
        (
            "--plot nowhere/a.png",
            "error: --plot nowhere/a.png: No such file or directory: name a file that can be written",
        ),
        ("--out /tmp", "error: --out /tmp: Is a directory: name a file that can be written"),
    ],
)
def test_what_cannot_be_checked_is_said_in_a_line(
    arguments: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code: object = None
    try:
        code = coordinate_check.main(arguments.split())
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert words in (said := capsys.readouterr().err) and said.count("\n") == 1
