"""An append-only log, as lines of JSON and as a search's events, is whole whatever was killed or written at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from study.search.event_log import EventLog
from study.storage import locks
from study.storage.jsonl import Log, compact

Record = dict[str, Any]
Opened = Callable[[Path], Log[Record]]

values = st.recursive(st.none() | st.integers() | st.text(max_size=20), lambda inner: st.lists(inner, max_size=3))
records = st.lists(st.dictionaries(st.text(max_size=8), values, max_size=4), min_size=1, max_size=6)
quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
every_log = pytest.mark.parametrize("log", ["plain", "events"], indirect=True)


def plain(path: Path) -> Log[Record]:
    return Log(path, json.loads, compact, "a record", "remove it")


@pytest.fixture
def log(request: pytest.FixtureRequest) -> Opened:
    return {"plain": plain, "events": EventLog}[request.param]


@every_log
@quick
@given(made=records, more=records, data=st.data())
def test_a_log_cut_at_any_byte_has_its_whole_records_and_takes_more(
    log: Opened, tmp_path: Path, made: list[Record], more: list[Record], data: st.DataObject
) -> None:
    path = tmp_path / "log"
    path.unlink(missing_ok=True)
    written = log(path)
    written.append(made)
    whole = path.read_bytes()
    lines = [written.encode(record) for record in made]
    assert whole == b"".join(lines)
    assert log(path).read() == written.records == made
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])

    torn = log(path)
    kept = torn.read()
    assert kept == made[: len(kept)]
    assert torn.end == sum(map(len, lines[: len(kept)])) <= cut
    assert len(kept) == len(made) or cut < torn.end + len(lines[len(kept)])
    torn.append(more)
    assert torn.read() == [], "what was appended here has been read"
    assert log(path).read() == kept + more == torn.records


@every_log
def test_a_reader_gets_what_others_append_once_and_a_torn_end_not_before_it_is_whole(
    log: Opened, tmp_path: Path
) -> None:
    writer, reader = log(tmp_path / "log"), log(tmp_path / "log")
    assert reader.read() == []
    writer.append([{"a": 1}])
    assert reader.read() == [{"a": 1}]
    writer.append([{"b": 2}, {"c": 3}])
    line = writer.encode({"d": 4})
    with (tmp_path / "log").open("ab") as file:
        file.write(line[:-4])
        file.flush()
        assert reader.read() == [{"b": 2}, {"c": 3}]
        file.write(line[-4:])
    assert reader.read() == [{"d": 4}]
    assert len(reader.records) == 4


def test_a_writer_that_has_read_nothing_appends_behind_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "log"
    plain(path).append([{"a": 1}])
    path.write_bytes(path.read_bytes() + b'{"torn":')
    blind = plain(path)
    blind.append([{"b": 2}])
    assert blind.read() == [{"a": 1}, {"b": 2}]


def test_a_damaged_line_is_named_by_its_number_also_when_the_file_was_read_before(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = plain(path)
    log.append([{"a": 1}, {"b": 2}])
    with path.open("ab") as file:
        file.write(b'{"c": 3}\n}nonsense\n')
    for reader in (log, plain(path)):
        with pytest.raises(ValueError, match=r"log:4: '}nonsense' is not a record.*; remove it"):
            reader.read()


def test_a_number_that_json_has_no_word_for_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        plain(tmp_path / "log").append([{"a": 1}, {"b": float("nan")}])
    assert plain(tmp_path / "log").read() == []


APPENDING = """
import sys
from pathlib import Path
from study.storage.files import locked
from tests.study.storage.test_storage_jsonl import EventLog, plain
path, kind, worker = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
log = {"plain": plain, "events": EventLog}[kind](path)
for number in range(30):
    with locked(path.with_suffix(".lock")):
        if kind == "events":
            log.read()
        log.append([{"worker": worker, "number": number}])
"""


@pytest.mark.parametrize(("kind", "locking"), [("plain", "posix"), ("events", "posix"), ("events", "link")])
def test_many_writers_lose_nothing(tmp_path: Path, kind: str, locking: str) -> None:
    locks.choose(tmp_path, locking)
    path = tmp_path / "log"
    command = [sys.executable, "-c", APPENDING, str(path), kind]
    writers = [subprocess.Popen([*command, str(number)]) for number in range(3)]
    assert [writer.wait() for writer in writers] == [0] * 3
    found = (EventLog if kind == "events" else plain)(path).read()
    assert sorted((r["worker"], r["number"]) for r in found) == [(w, n) for w in range(3) for n in range(30)]
