from pathlib import Path

import pytest

from study.search.event_log import EventLog


def test_damage_in_the_middle_is_named_not_repaired(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = EventLog(path)
    log.append([{"n": n} for n in range(3)])
    data = bytearray(path.read_bytes())
    second = len(log.encode({"n": 0}))
    data[second + 20] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(ValueError, match=f"byte {second} is damaged"):
        EventLog(path).read()
    assert path.read_bytes() == bytes(data)


def test_a_last_record_that_does_not_check_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "log"
    EventLog(path).append([{"n": 0}, {"n": 1}])
    data = bytearray(path.read_bytes())
    data[-4] ^= 1  # a block that never reached the disk: the line is whole, its content is not
    path.write_bytes(bytes(data))
    log = EventLog(path)
    assert log.read() == [{"n": 0}]
    log.append([{"n": 2}])
    assert EventLog(path).read() == [{"n": 0}, {"n": 2}]


def test_a_writer_that_was_taken_for_dead_does_not_write_over_others(tmp_path: Path) -> None:
    stood_still, other = EventLog(tmp_path / "log"), EventLog(tmp_path / "log")
    stood_still.append([{"a": 1}])
    other.read()
    other.append([{"b": 2}])
    with pytest.raises(TimeoutError, match="another process has appended to it"):
        stood_still.append([{"c": 3}])
    assert EventLog(tmp_path / "log").read() == [{"a": 1}, {"b": 2}]
