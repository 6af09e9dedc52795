"""Settings come back from YAML as they went in, whatever they look like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as some

from train.spec.yamlfile import dump, read_mapping


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


def _again(folder: Path, mapping: dict[str, Any]) -> dict[str, Any]:
    file = folder / "settings.yaml"
    file.write_text(dump(mapping), encoding="utf-8")
    return read_mapping(file)
