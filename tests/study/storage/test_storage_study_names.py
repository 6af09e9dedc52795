"""Which names a study can have, at the very edge of what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from study.storage.layout import StudyFolder
from study.storage.study_names import LONGEST, check_place, check_study_name, reserved


@pytest.mark.parametrize("name", ["a", "7", "width-2_3.x", "x" * LONGEST, "é" * LONGEST, "Ärger"])
def test_names_that_are_allowed(name: str) -> None:
    check_study_name(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "it is empty"),
        ("x" * (LONGEST + 1), f"it has {LONGEST + 1} characters"),
        ("漢" * (LONGEST * 2 // 3 + 1), "it has 67 characters"),
        ("a b", "it holds ' '"),
        ("a/b", "it holds '/'"),
        (".a", "it begins with '.'"),
        ("_a", "it begins with '_'"),
        ("-a", "it begins with '-'"),
        ("a.", "it ends with a dot"),
        ("MLflow.db", "our own files and folders are called so"),
        ("outcomes.jsonl", "our own files and folders are called so"),
    ],
)
def test_names_that_are_not_say_why(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"study\.name=") as caught:
        check_study_name(name)
    assert f"({said})" in str(caught.value)


@pytest.mark.parametrize("name", ["a.", "_a", "x" * (LONGEST + 1), "mlruns"])
def test_a_study_that_there_is_goes_on_under_a_name_of_before(name: str) -> None:
    check_study_name(name, begun=True)


@pytest.mark.parametrize("name", ["", ".a", "-a", "a b", "a/b"])
def test_hidden_folders_and_paths_are_no_study_even_where_one_is(name: str) -> None:
    with pytest.raises(ValueError, match=r"study\.name="):
        check_study_name(name, begun=True)


def test_what_the_folders_hold_is_reserved() -> None:
    assert {"mlflow.db", "points", "points.jsonl", "outcome.json", "outcomes.jsonl"} & reserved() >= {
        "mlflow.db",
        "outcome.json",
        "outcomes.jsonl",
    }
    assert all(name == name.lower() for name in reserved())


def test_a_study_within_a_study_is_refused_however_deep(tmp_path: Path) -> None:
    outer = StudyFolder(tmp_path / "outer")
    check_place(StudyFolder(outer.path / "deep" / "inner"))
    outer.points.parent.mkdir(parents=True, exist_ok=True)
    outer.points.write_text("", encoding="utf-8")
    check_place(outer)
    check_place(StudyFolder(tmp_path / "beside"))
    for inner in ("inner", "deep/inner"):
        with pytest.raises(ValueError, match=r"lies within the study .*outer"):
            check_place(StudyFolder(outer.path / inner))
    (tmp_path / "link").symlink_to(outer.path / "deep", target_is_directory=True)
    (outer.path / "deep").mkdir()
    with pytest.raises(ValueError, match=r"lies within the study .*outer"):
        check_place(StudyFolder(tmp_path / "link" / "inner"))
