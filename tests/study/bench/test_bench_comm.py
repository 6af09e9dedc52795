"""`python -m study bench comm`: what it is asked for, what it makes of results, and one real measurement over gloo."""

from __future__ import annotations

import csv
import datetime
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from study.__main__ import main
from study.bench import comm, comm_ranks
from study.bench.comm_report import draw, in_words, profile_of, rate, rows, size, table, time
from study.bench.comm_results import Results, fits_of, results_of
from study.bench.comm_settings import BACKENDS, backend_of, gpu_count, sizes_of, wanted
from tests.study.commands.test_commands_shown import documented
from tests.study.support import warm_ranks
from train.spec.communication.cluster import Compute, Rate, read_profile, write_profile
from train.spec.communication.costs import Link, seconds

LINK = Link(2e-5, 5e9)
SIZES = (1024, 65536, 4194304)
COMPUTE = Compute((Rate("8 x 8 x 8", "bf16", 7e14),), copy=4e12, host_to_device=5e10, launch=3e-6, memory=1.4e11)


def written(path: Path, names: Sequence[str] = ("all_reduce", "send"), end: bool = True, **about: Any) -> Path:
    """Write what two ranks with such a link would; the last line is cut off."""
    said = {"machine": "2 ranks on 1 host: toy", "versions": "torch 0", "ranks": 2, "backend": "gloo", "wanted": 6}
    lines: list[dict[str, Any]] = [{"about": said | about}]
    for name in names:
        for count in SIZES:
            point = {"level": "node", "collective": name, "ranks": 2, "size": count, "spread": 0.1}
            lines.append({"point": point | {"seconds": seconds(name, 2, count, LINK, "ring")}})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + ('{"done": true}\n' if end else '{"poi'))
    return path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ranks=1"], "ranks=1 is not allowed: 2 to 64"),
        (["ranks=two"], "ranks='two' is not allowed: it takes a whole number"),
        (["rank=2"], "unknown key 'rank': did you mean 'ranks'?"),
        (["backend=mpi"], "backend='mpi' is not allowed: choose one of gloo, nccl"),
        (["backend=nccl"], "backend=nccl is not allowed here: this machine shows no GPU; use backend=gloo"),
        (["sizes=1Q"], "sizes=1Q is not allowed: '1Q' is no size of 4 bytes or more"),
        (["sizes=2"], "sizes=2 is not allowed: '2' is no size of 4 bytes or more"),
        (["sizes=1K:65G"], "sizes=1K:65G is not allowed: '65G' is no size of 4 bytes or more, 64G at most"),
        (["results="], "results= has no value: leave it out"),
        (["ranks=2", "ranks=3"], "ranks is given twice: ranks=2 and ranks=3"),
        (["sizes=4M:1K"], "sizes=4M:1K is not allowed: the range ends below its start"),
        (["collectives=gossip"], "collectives=gossip is not allowed: choose from all_reduce, all_gather"),
        (["seconds=0"], "seconds=0 is not allowed: more than 0, and 60 at most"),
        (["profile=me.txt"], "profile=me.txt is not allowed: a file that ends in .yaml"),
        (["gloo"], "'gloo' is no setting: write KEY=VALUE"),
    ],
)
def test_what_cannot_be_measured_is_told_by_key_and_value(words: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        wanted(words, gpus=0)


@pytest.mark.parametrize("word", ["out=/proc/x", "profile=/proc/x.yaml", "profile=file/x.yaml"])
def test_a_place_that_cannot_be_written_to_is_refused_before_anything_is_timed(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    monkeypatch.setattr("study.bench.comm._results", lambda asked: pytest.fail("it was measured"))
    with pytest.raises(ValueError, match=f"^{word}: .* is no folder that can be written to: name another$"):
        comm.run([word, "ranks=2", "backend=gloo"])
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_more_ranks_than_gpus_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^ranks=8 is not allowed with backend=nccl: this machine shows 4 GPUs; use ra"
    ):
        wanted(["ranks=8"], gpus=4)
    assert wanted(["ranks=4"], gpus=4).backend == "nccl"
    assert (wanted([], gpus=0).backend, wanted([], gpus=0).ranks) == ("gloo", 2)


def test_all_gpus_are_measured_and_one_alone_has_no_messages(tmp_path: Path) -> None:
    assert wanted([], gpus=4).ranks == 4
    assert (wanted([], gpus=1).ranks, wanted([], gpus=1).backend) == (1, "nccl")
    with pytest.raises(ValueError, match=r"^ranks=1 is not allowed: 2 to 64, as messages need two"):
        wanted(["ranks=1", "backend=gloo"], gpus=1)
    device = {"matmul": [{"of": "8 x 8 x 8", "format": "bf16", "per_second": 123456789.0}], "copy": 2e12}
    lines: list[dict[str, Any]] = [{"about": {"machine": "1 GPU", "ranks": 1}}, {"device": device}, {"done": True}]
    (tmp_path / "one.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    profile = tmp_path / "one.yaml"
    said, found = comm.run([f"results={tmp_path / 'one.jsonl'}", f"profile={profile}", f"out={tmp_path / 'out'}"])
    assert found["files"] == {"profile": str(profile)} and not (tmp_path / "out").exists()
    assert any("8 x 8 x 8" in line for line in said) and "nothing" not in " ".join(said)
    read = read_profile(profile)
    assert read.levels == () and read.compute.matmul_rate("bf16") == 1.2346e8
    with pytest.raises(ValueError, match="cluster profile one is of one device and has no levels: it joins no 2 ranks"):
        read.reaches(2, 1, "all_reduce")


@pytest.mark.parametrize(("gpus", "least", "backend"), [(0, 1, "gloo"), (1, 1, "nccl"), (1, 2, "gloo"), (4, 4, "nccl")])
def test_gpus_are_used_where_there_are_enough_of_them_unless_a_backend_is_given(
    gpus: int, least: int, backend: str
) -> None:
    assert backend_of(None, gpus, least) == backend
    assert [backend_of(given, gpus, least) for given in BACKENDS] == list(BACKENDS)


def test_sizes_are_ranges_or_lists() -> None:
    assert sizes_of("1K:16K") == (1024, 4096, 16384)
    assert sizes_of("[1M, 64KiB,4]") == (4, 65536, 1 << 20)


def test_gpus_are_those_that_can_be_seen(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert gpu_count({}, tmp_path) == 3
    assert gpu_count({"CUDA_VISIBLE_DEVICES": "1,2"}, tmp_path) == 2
    assert gpu_count({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == gpu_count({"CUDA_VISIBLE_DEVICES": "-1"}, tmp_path) == 0


def test_results_become_a_table_a_picture_and_a_profile(tmp_path: Path) -> None:
    found = results_of(written(tmp_path / "results.jsonl"))
    assert found.complete and len(found.points) == 6
    fits = fits_of(found.points)
    for fit in fits.found.values():
        assert (fit.link.alpha, fit.link.bandwidth) == pytest.approx((LINK.alpha, LINK.bandwidth), rel=1e-3)
    first = rows(found, fits)[2]
    assert first["bus_bandwidth"] == first["algorithm_bandwidth"] == pytest.approx(4194304 / first["seconds"])
    assert first["fitted_seconds"] == pytest.approx(first["seconds"], rel=1e-3)
    lines = table(Results(found.about, found.points, COMPUTE, True), fits)
    assert any(line.split()[:4] == ["node", "all_reduce", "1", "KiB"] for line in lines)
    assert "copy (read and written): 4 TB/s" in lines and "kernel launch: 3 us" in lines
    assert all(len(line) <= 80 for line in lines)
    draw(found, fits, tmp_path / "comm.png")
    assert (tmp_path / "comm.png").stat().st_size > 10_000
    profile = profile_of(found, fits, "toy", datetime.date(2026, 11, 24))
    (tmp_path / "toy.yaml").write_text(write_profile(profile))
    assert read_profile(tmp_path / "toy.yaml") == profile
    assert (profile.kind, profile.levels[0].ranks, profile.date) == ("measured", 2, "2026-11-24")


def test_what_shows_no_link_is_said_and_makes_no_profile(tmp_path: Path) -> None:
    found = results_of(written(tmp_path / "results.jsonl", names=["send"], end=False))
    assert not found.complete
    few = Results(found.about, found.points[:1], None, False)
    fits = fits_of(few.points)
    assert not fits.found and "two sizes at least" in fits.why["node", "send"]
    assert any(line.startswith("no link: send") for line in table(few, fits))
    with pytest.raises(ValueError, match=r"no link of level node could be fitted.*no profile is written"):
        profile_of(few, fits, "toy", datetime.date(2026, 11, 24))


def test_a_file_that_ranks_did_not_write_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"results=.*none.jsonl: there is no such file"):
        results_of(tmp_path / "none.jsonl")
    (tmp_path / "other.jsonl").write_text('{"loss": 3.0, "step": 1}\n')
    with pytest.raises(ValueError, match=r"other.jsonl: line 1 is not what `python -m train.measure` writes"):
        results_of(tmp_path / "other.jsonl")
    (tmp_path / "packed.gz").write_bytes(b"\x1f\x8b\x08")
    for name in ("packed.gz", "."):
        with pytest.raises(ValueError, match=r"^results=.* is not what `python -m train.measure` writes: it is no"):
            results_of(tmp_path / name)


@pytest.mark.parametrize("text", ["", '{"about": {"machine": "toy"}}\n'])
def test_results_without_a_measurement_are_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text(text)
    assert main(["bench", "comm", f"results={empty}", f"out={tmp_path / 'out'}"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert f"results={empty} holds no measurement" in said.err and not (tmp_path / "out").exists()


def test_an_interrupted_measurement_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pressed(asked: Any, out: Path, say: Callable[[str], None]) -> bool:
        written(out, end=False)
        return False

    monkeypatch.setattr(comm, "measure", pressed)
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "comm", "profile=mine.yaml"]) == 130
    told = capsys.readouterr()
    assert "interrupted: 6 of 6 messages were measured, and are kept, without the profile" in told.out + told.err
    assert (tmp_path / "reports/bench/comm/comm.csv").is_file() and not (tmp_path / "mine.yaml").exists()


def test_a_profile_is_not_replaced_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("name: mine\n")
    words = ["bench", "comm", f"results={written(tmp_path / 'results.jsonl')}", "profile=mine.yaml"]
    assert main(words) == 2
    assert "profile=mine.yaml is there already: force=true replaces it" in capsys.readouterr().err
    assert main([*words, "force=true"]) == 0
    assert read_profile(tmp_path / "mine.yaml").name == "mine"


def test_numbers_are_written_as_people_write_them() -> None:
    assert (size(4), size(65536), size(1 << 30)) == ("4 B", "64 KiB", "1 GiB")
    assert (time(2.1e-5), time(0.0042), time(1.5)) == ("21 us", "4.2 ms", "1.5 s")
    assert (rate(3.57e11), rate(4.27e12), rate(2e6)) == ("357 GB/s", "4.27 TB/s", "2 MB/s")


def test_two_ranks_are_measured_over_gloo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(comm_ranks, "spawn", warm_ranks.spawn)
    # On a busy machine only large messages take longer than small ones for certain, and show a bandwidth.
    words = ["sizes=4K,64K,1M,8M", "seconds=0.02", "out=made", "backend=gloo", "profile=gloo.yaml"]
    assert main(["bench", "comm", *words, "--json"]) == 0
    told = capsys.readouterr()
    said = json.loads(told.out)
    assert (said.pop("format"), said.pop("command")) == (1, "bench")
    fields = documented()["`bench` comm"]
    assert said.keys() == fields.keys() and said["complete"]
    assert said["points"][0].keys() == fields["points"] and len(said["points"]) == 6 * 4
    assert all(point["seconds"] > 0 and point["ranks"] == 2 for point in said["points"])
    assert {len(said["fits"]) + len(said["unfitted"])} == {6}
    assert "24 of 24  send 8 MiB: " in told.out + told.err
    with (tmp_path / "made" / "comm.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 24
    assert read_profile(tmp_path / "gloo.yaml").levels[0].name == "node"
    assert "all_reduce" in in_words(results_of(written(tmp_path / "x.jsonl")).points[0])
