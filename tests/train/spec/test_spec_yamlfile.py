"""Settings come back from YAML as they went in, whatever they look like."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as some

from train.spec.yamlfile import dump, read_mapping, value_of


@pytest.mark.parametrize("text", ["8474e0692244", "1e3", "-.5e+3", "123456789012", "0x1f", "1_000", "null", "yes", ""])
def test_text_that_looks_like_a_number_stays_text(tmp_path: Path, text: str) -> None:
    assert _again(tmp_path, {"data": {"fingerprint": text}}) == {"data": {"fingerprint": text}}
    assert yaml.safe_load(dump({"fingerprint": text})) == {"fingerprint": text}


@given(
    some.dictionaries(
        some.sampled_from(["a", "b", "c"]),
        some.one_of(
            some.from_regex(r"[0-9]{1,4}e[0-9]{1,9}", fullmatch=True),
            some.text(some.characters(min_codepoint=32, max_codepoint=126), max_size=12),
            some.floats(allow_nan=False, allow_infinity=False),
            some.integers(),
            some.none(),
            some.booleans(),
        ),
        min_size=1,
    )
)
def test_what_is_written_is_what_is_read(tmp_path_factory: pytest.TempPathFactory, mapping: dict[str, Any]) -> None:
    read = _again(tmp_path_factory.mktemp("yaml"), mapping)
    assert read == mapping
    assert [type(value) for value in read.values()] == [type(value) for value in mapping.values()]


def test_numbers_as_people_write_them(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("lr: 1e-3\nflops: 2E18\n", encoding="utf-8")
    assert read_mapping(tmp_path / "settings.yaml") == {"lr": 1e-3, "flops": 2e18}


def test_a_folder_is_not_read_as_a_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is a folder: name the file in it, as .*config\.yaml"):
        read_mapping(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n", "is not YAML: 'c' is given twice in line 5, column 3"),
        (b"a: 1\na: 1\n", "is not YAML: 'a' is given twice in line 2, column 1"),
        ("a: für".encode("latin-1"), "is not YAML: byte 0xfc at position 4 is not UTF-8 text"),
    ],
)
def test_a_key_given_twice_and_bytes_that_are_no_text_are_named(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_bytes(content)
    with pytest.raises(ValueError, match=f"{re.escape(said)}$"):
        read_mapping(tmp_path / "settings.yaml")


def test_values_may_be_merged_from_an_anchor(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}\n", encoding="utf-8")
    assert read_mapping(tmp_path / "settings.yaml")["b"] == {"x": 3, "y": 2}


def test_a_file_below_a_file_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"file/config.yaml: there is no such file$"):
        read_mapping(tmp_path / "file/config.yaml")


def _again(folder: Path, mapping: dict[str, Any]) -> dict[str, Any]:
    file = folder / "settings.yaml"
    file.write_text(dump(mapping), encoding="utf-8")
    return read_mapping(file)


def test_the_value_of_an_assignment_is_yaml() -> None:
    assert [value_of(text) for text in ("a.b=1e-3", "a=[1, b=2]", "a=", "a")] == [1e-3, [1, "b=2"], None, None]
    with pytest.raises(ValueError, match=r"^a=\[1: the value is not YAML: "):
        value_of("a=[1")
