"""On a disk that is full, a job can still write down how its attempt ended."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from study.storage.files import DiskReserve, write_json


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


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
