"""Extensions in their one form."""

from pathlib import Path

import pytest
import yaml

from train.spec.config import BudgetConfig, DataConfig, RunConfig, SourceConfig
from train.spec.extensions import DEFAULT, canonical, extension_of
from train.spec.manifest import settings_of
from train.spec.resolve import resolve


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ((), ()),
        ((".c", ".h"), (".c", ".h")),
        (("H", "c", ".C", " .h "), (".c", ".h")),
        (("jsonl.zst", ".c++", ".f90", ".3"), (".3", ".c++", ".f90", ".jsonl.zst")),
        (DEFAULT[::-1], ()),
        (DEFAULT[1:], tuple(sorted(DEFAULT[1:]))),
    ],
)
def test_one_form(given: tuple[str, ...], found: tuple[str, ...]) -> None:
    assert canonical(given, "/folder") == found
    assert canonical(found, "/folder") == found
    assert canonical(given, None) == ()


@pytest.mark.parametrize("given", ["", ".", "*.c", "a/b", "c h", ".c,.h", "..c"])
def test_no_extension(given: str) -> None:
    with pytest.raises(ValueError, match=r"data\.extensions: .* is no extension: write it as \.c, in a list"):
        canonical([".c", given], "/folder")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a/b.C", ".c"),
        ("b.jsonl.zst", ".jsonl.zst"),
        ("b.zst", ".zst"),
        ("b.cc", None),
        ("c", None),
        ("x.c.orig", None),
    ],
)
def test_the_longest_extension_counts(name: str, kind: str | None) -> None:
    assert extension_of(name, (".c", ".zst", ".jsonl.zst")) == kind


def test_a_run_has_them_in_their_one_form_and_only_of_a_folder() -> None:
    def resolved(**data: object) -> DataConfig:
        return resolve(RunConfig(data=DataConfig(**data), budget=BudgetConfig(tokens=2**20))).data  # type: ignore[arg-type]

    assert resolved(source="/x", extensions=("H", ".c")).extensions == (".c", ".h")
    assert resolved(source=None, extensions=(".c",)) == resolved(source=None)
    mixed = resolved(
        sources=(SourceConfig("a", source="/a", extensions=("rs",)), SourceConfig("b", extensions=(".c",)))
    )
    assert [one.extensions for one in mixed.sources] == [(".rs",), ()]
    assert [one.extensions for one in settings_of(mixed).sources] == [(".rs",), ()]
    with pytest.raises(ValueError, match=r"data\.sources\.0\.extensions: '\*' is no extension"):
        resolved(sources=(SourceConfig("a", source="/a", extensions=("*",)),))


def test_the_preset_of_code_reads_what_a_folder_of_text_has_as_well() -> None:
    configured = yaml.safe_load((Path(__file__).parents[3] / "conf/data/code_folder.yaml").read_text("utf-8"))
    extensions = configured["extensions"]
    assert len(canonical(extensions, "/folder")) == len(extensions)
    assert set(DEFAULT) | {".c", ".h", ".rs"} <= set(extensions)
