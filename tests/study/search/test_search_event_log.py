import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from study.search.event_log import EventLog, encode, parse
from study.storage import locks
from study.storage.files import locked

values = st.recursive(st.none() | st.integers() | st.text(max_size=20), lambda inner: st.lists(inner, max_size=3))
records = st.lists(st.dictionaries(st.text(max_size=8), values, max_size=4), min_size=1, max_size=6)
quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(records)
def test_what_is_written_is_read(made: list[dict[str, object]]) -> None:
    data = b"".join(encode(record) for record in made)
    assert parse(data, Path("log")) == (made, len(data))


@quick
@given(records, st.data())
def test_a_log_torn_at_any_byte_loses_the_torn_record_only(made: list[dict[str, object]], data: st.DataObject) -> None:
    lines = [encode(record) for record in made]
    whole = b"".join(lines)
    cut = data.draw(st.integers(0, len(whole)))
    found, length = parse(whole[:cut], Path("log"))
    assert found == made[: len(found)]
    assert length == sum(map(len, lines[: len(found)])) <= cut
    assert len(found) == len(made) or cut < length + len(lines[len(found)])


@quick
@given(made=records, more=records, data=st.data())
def test_an_append_after_a_torn_one_leaves_a_whole_log(
    tmp_path: Path, made: list[dict[str, object]], more: list[dict[str, object]], data: st.DataObject
) -> None:
    path = tmp_path / "log"
    whole = b"".join(encode(record) for record in made)
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    log = EventLog(path)
    kept = log.read()
    log.append(more)
    assert EventLog(path).read() == kept + more == log.records


def test_damage_in_the_middle_is_named_not_repaired(tmp_path: Path) -> None:
    path = tmp_path / "log"
    data = bytearray(b"".join(encode({"n": n}) for n in range(3)))
    second = len(encode({"n": 0}))
    data[second + 20] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(ValueError, match=f"byte {second} is damaged"):
        EventLog(path).read()
    assert path.read_bytes() == bytes(data)


def test_a_reader_sees_what_others_append(tmp_path: Path) -> None:
    writer, reader = EventLog(tmp_path / "log"), EventLog(tmp_path / "log")
    assert reader.read() == []
    writer.append([{"a": 1}])
    assert reader.read() == [{"a": 1}]
    writer.append([{"b": 2}, {"c": 3}])
    assert reader.read() == [{"b": 2}, {"c": 3}]


APPENDING = """
import sys
from pathlib import Path
from study.storage.files import locked
from study.search.event_log import EventLog
path, worker = Path(sys.argv[1]), int(sys.argv[2])
log = EventLog(path)
for number in range(30):
    with locked(path.with_suffix(".lock")):
        log.read()
        log.append([{"worker": worker, "number": number}])
"""


@pytest.mark.parametrize("kind", ["posix", "link"])
def test_many_writers_lose_no_event(tmp_path: Path, kind: str) -> None:
    locks.choose(tmp_path, kind)
    path = tmp_path / "log"
    writers = [subprocess.Popen([sys.executable, "-c", APPENDING, str(path), str(number)]) for number in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    found = EventLog(path).read()
    assert sorted((r["worker"], r["number"]) for r in found) == [(w, n) for w in range(4) for n in range(30)]


def test_a_writer_that_was_taken_for_dead_does_not_write_over_others(tmp_path: Path) -> None:
    stood_still, other = EventLog(tmp_path / "log"), EventLog(tmp_path / "log")
    stood_still.append([{"a": 1}])
    other.read()
    other.append([{"b": 2}])
    with pytest.raises(TimeoutError, match="taken for dead"):
        stood_still.append([{"c": 3}])
    assert EventLog(tmp_path / "log").read() == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize("timeout", [0.0, 0.01])
def test_a_lock_that_is_held_is_given_up_after_its_time_and_free_after_its_holder(
    tmp_path: Path, timeout: float
) -> None:
    locks.choose(tmp_path, "posix")
    held = pytest.raises(TimeoutError, match="is held by another process")
    with locked(tmp_path / "lock"), held, locked(tmp_path / "lock", timeout):
        pass
    with locked(tmp_path / "lock", timeout) as holds:
        assert holds()
