"""On a disk that is full, a job can still write down how its attempt ended."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from study.storage.files import DiskReserve, write_json
from tests.study.support.stand_ins import mounted


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "256k") as disk:
        yield disk


def test_the_reserve_makes_room_for_the_last_words(small_disk: Path) -> None:
    reserve = DiskReserve(small_disk / "reserve")
    with pytest.raises(OSError, match="No space left"), (small_disk / "shard").open("wb", buffering=0) as shard:
        while True:
            shard.write(bytes(4096))
    with pytest.raises(OSError, match="No space left"):
        write_json(small_disk / "outcome.json", {"kind": "disk_full"})
    reserve.release()
    write_json(small_disk / "outcome.json", {"kind": "disk_full"})
    assert "disk_full" in (small_disk / "outcome.json").read_text()


def test_a_disk_that_is_full_already_takes_no_reserve_and_no_harm(small_disk: Path) -> None:
    with pytest.raises(OSError, match="No space left"), (small_disk / "shard").open("wb", buffering=0) as shard:
        while True:
            shard.write(bytes(4096))
    DiskReserve(small_disk / "reserve").release()
    assert [path.name for path in small_disk.iterdir()] == ["shard"]


@pytest.mark.parametrize("required", [False, True])
def test_a_reserve_is_written_once_and_one_that_is_required_says_where_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, required: bool
) -> None:
    path, written, write = tmp_path / "reserve", list[int](), Path.write_bytes
    problem: BaseException | None = None

    def noted(path: Path, data: bytes) -> int:
        written.append(len(data))
        if problem is not None:
            write(path, data[:10])
            raise problem
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", noted)
    DiskReserve(path, 100, required=required).release()
    assert written == [100] and not path.exists()
    problem = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if required:
        with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
            DiskReserve(path, 100, required=True)
    else:
        DiskReserve(path, 100).release()
    assert not path.exists()
    problem = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        DiskReserve(path, 100, required=required)
    assert not path.exists(), "nobody would ever release it"
