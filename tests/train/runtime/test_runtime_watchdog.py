"""What a rank leaves behind when it ends because training does not move."""

from __future__ import annotations

from pathlib import Path

import pytest

from train.runtime.watchdog import FAILED, Watchdog, flight_record


class Notes:
    """A store of one process."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def set(self, key: str, value: str, /) -> None:
        self.held[key] = value.encode()

    def get(self, key: str, /) -> bytes:
        return self.held[key]

    def check(self, keys: list[str], /) -> bool:
        return all(key in self.held for key in keys)


@pytest.mark.parametrize("there", [True, False])
def test_a_rank_that_does_not_move_ends_also_where_nothing_can_be_written(
    tmp_path: Path, there: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path if there else tmp_path / "gone"
    left: list[int] = []
    dog = Watchdog(Notes(), 0, 1, folder, seconds=0.2, first_seconds=0.2, leave=left.append)
    dog.start()
    dog._thread.join(timeout=900)
    dog.close()
    assert left == [FAILED]
    said = capfd.readouterr().err
    assert "TIMEOUT: rank 0 has not moved" in said
    assert "rank 0: step 0, in " in said
    assert ("could not be written" in said) is not there
    assert (tmp_path / "flight-rank-0.json").exists() is there


def test_messages_of_all_recorders_are_in_one_list() -> None:
    assert isinstance(flight_record()["entries"], list)
