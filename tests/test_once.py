"""A folder that is filled once for all who ask."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.once import folder_once


def test_who_asks_meanwhile_waits_for_the_first(tmp_path: Path) -> None:
    filled: list[Path] = []

    def fill(folder: Path) -> None:
        filled.append(folder)
        time.sleep(0.02)  # the others ask
        (folder / "found").write_text("42")

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: (folder_once(tmp_path / "one", fill) / "found").read_text(), range(4)))
    assert (found, filled) == (["42"] * 4, [tmp_path / "one"])


def test_what_failed_is_filled_anew(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise RuntimeError("no room")

    with pytest.raises(RuntimeError):
        folder_once(tmp_path / "one", fail)
    folder = folder_once(tmp_path / "one", lambda folder: (folder / "whole").touch())
    assert [path.name for path in folder.iterdir()] == ["whole"]
