"""The GPUs that the points of one packed job see."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from study.job import packed
from study.job.lanes import LaneShare
from study.process.children import Signals
from study.records.ledger import Batch
from study.storage.layout import StudyFolder


def ended(seen: list[Any]) -> type:
    """Return a lane whose points have ended at once; `seen` notes the GPUs of each and whether it knows the service."""

    class Ended:
        returncode = 0

        def __init__(self, _study: object, _batch: object, _index: object, share: LaneShare) -> None:
            self.share = share

        def start(self, _slot: int) -> Ended:
            environment = self.share.environment
            seen.append((environment[packed.DEVICES], "CUDA_MPS_PIPE_DIRECTORY" in environment))
            return self

        def poll(self) -> int:
            return self.returncode

        def retire(self) -> None: ...

        def close(self) -> None: ...

    return Ended


@pytest.mark.parametrize(("starts", "expected"), [(True, ["0", "1", "0"]), (False, ["2", "3", "2"])])
def test_points_behind_the_service_see_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: bool, expected: list[str]
) -> None:
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text(f"#!{sys.executable}\nraise SystemExit({0 if starts else 1})\n", encoding="utf-8")
    control.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv(packed.DEVICES, "2,3")
    seen: list[Any] = []

    monkeypatch.setattr(packed, "FreshLane", ended(seen))
    shape = {"pack": 3, "gpus_per_node": 1, "pack_gpus": "mps"}
    batch = Batch("b0", "slurm", ("one", "two", "three"), 0.0, shape)
    assert packed.run_packed(StudyFolder(tmp_path), batch, 0, Signals()) == 0
    assert seen == [(device, starts) for device in expected]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [], "its folder is removed"


@pytest.mark.parametrize(
    ("mode", "service", "lanes"),
    [
        ("Default", "fails", 4),
        ("Exclusive_Process", "fails", 2),
        ("Exclusive_Process", "starts", 4),
        ("Exclusive_Process", "not wanted", 2),
        (None, "not wanted", 4),
    ],
)
def test_a_gpu_that_takes_one_process_at_a_time_has_one_lane(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    mode: str | None,
    service: str,
    lanes: int,
) -> None:
    how = "slices" if service == "not wanted" else "mps"
    programs = {"nvidia-cuda-mps-control": f"raise SystemExit({int(service == 'fails')})"}
    if mode is not None:
        programs["nvidia-smi"] = f"print('Default\\n{mode}')"
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!{sys.executable}\n{text}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv(packed.DEVICES, "2,3")
    seen: list[Any] = []
    made: list[LaneShare] = []
    lane = ended(seen)

    def new(*given: Any) -> Any:
        made.append(given[-1])
        return lane(*given)

    monkeypatch.setattr(packed, "FreshLane", new)
    keys = ("one", "two", "three", "four")
    batch = Batch("b0", "slurm", keys, 0.0, {"pack": 4, "gpus_per_node": 1, "pack_gpus": how})
    assert packed.run_packed(StudyFolder(tmp_path), batch, 0, Signals()) == 0
    assert len(made) == lanes and len(seen) == 4, "all points had their turn"
    assert len({part.environment[packed.DEVICES] for part in made}) == 2, "both GPUs"
    assert ("takes one process at a time" in capsys.readouterr().err) == (lanes == 2)


@pytest.mark.parametrize("lasting", [False, True])
def test_a_service_that_does_not_end_fails_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lasting: bool
) -> None:
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text(f"#!{sys.executable}\nimport sys, time\nif not sys.argv[1:]: time.sleep(30)\n", encoding="utf-8")
    control.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(packed, "QUIT_SECONDS", 0.2)
    with packed.multi_process_service(wanted=True) as variables:
        assert variables
        if not lasting:
            control.unlink()
    assert "the multi-process service did not end" in capsys.readouterr().err
    assert not list(tmp_path.glob("mps-*"))


@pytest.mark.parametrize(
    ("visible", "expected"), [("3", "0"), ("2,3", "0,1"), ("GPU-a,GPU-b", "0,1"), ("", None), (None, None)]
)
def test_the_service_counts_its_gpus_from_0(visible: str | None, expected: str | None) -> None:
    assert packed.numbered(visible) == expected
