"""A folder that an export cannot make is said before the export, not after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from study.commands.export import _check_out


def test_a_folder_that_cannot_be_made_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot be made \\(Not a directory\\): name another folder"):
        _check_out(tmp_path / "file" / "out")
    with pytest.raises(ValueError, match="exists: name a folder that does not"):
        _check_out(tmp_path)
    _check_out(tmp_path / "new" / "out")
    assert not (tmp_path / "new" / "out").exists()
