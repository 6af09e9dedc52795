"""Checkpoints: whole or absent."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.train.runs import REPOSITORY
from train import checkpoint


def save(root: Path, step: int, **options: Any) -> Path:
    state = {"weights": torch.full((1000,), float(step))}
    return checkpoint.save(
        root, step, state=state, progress={"step": step}, identity={"config": {"seed": 0}}, **options
    )


def test_the_newest_is_found_and_two_are_kept(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path) is None
    for step in (9, 10, 100):
        save(tmp_path, step)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000000010", "step-000000100"]
    found = checkpoint.newest(tmp_path)
    assert found is not None
    assert found.progress == {"step": 100}
    assert found.identity == {"config": {"seed": 0}}
    assert torch.equal(found.load()["weights"], torch.full((1000,), 100.0))
    save(tmp_path, 101, keep=1)
    assert [p.name for p in tmp_path.iterdir()] == ["step-000000101"]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    (save(tmp_path, 3) / "state.pt").write_bytes(b"torn")
    assert checkpoint.newest(tmp_path) is None
    save(tmp_path, 3)
    assert checkpoint.newest(tmp_path) is not None


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_torn_file_means_the_previous_checkpoint(tmp_path: Path, data: st.DataObject) -> None:
    root = tmp_path / "checkpoints"
    shutil.rmtree(root, ignore_errors=True)
    save(root, 1)
    victim = save(root, 2) / data.draw(st.sampled_from(["state.pt", "manifest.json"]))
    content = victim.read_bytes()
    kind = data.draw(st.sampled_from(["truncate", "flip", "remove", "zero"]))
    at = data.draw(st.integers(0, len(content) - 2))
    if kind == "truncate":
        victim.write_bytes(content[:at])
    elif kind == "flip":
        if victim.name == "manifest.json":
            at = content.index(b"sha256") + 10  # a flipped space would change nothing
        victim.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    elif kind == "zero":
        victim.write_bytes(bytes(len(content)))
    else:
        victim.unlink()
    found = checkpoint.newest(root)
    assert found is not None
    assert found.progress == {"step": 1}
    assert torch.equal(found.load()["weights"], torch.full((1000,), 1.0))


def test_another_format_is_passed_over_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = save(tmp_path, 2) / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 99}))
    assert checkpoint.newest(tmp_path) is None
    assert "99" in capsys.readouterr().err


SAVER = """
import sys, torch
from pathlib import Path
from train import checkpoint
step = int(sys.argv[2])
while True:
    step += 1
    state = {"weights": torch.full((200_000,), float(step))}
    checkpoint.save(Path(sys.argv[1]), step, state=state, progress={"step": step}, identity={})
    print(step, flush=True)
"""


def test_killed_while_saving_the_newest_is_whole_and_none_is_lost(tmp_path: Path) -> None:
    confirmed = 0
    for delay in (0.003, 0.011, 0.017, 0.031):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVER, str(tmp_path), str(confirmed)],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        for _ in range(3):
            confirmed = int(process.stdout.readline())
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        rest, _ = process.communicate()
        confirmed = max([confirmed, *(int(line) for line in rest.splitlines())])
        found = checkpoint.newest(tmp_path)
        assert found is not None
        step = found.progress["step"]
        assert step in (confirmed, confirmed + 1)
        assert torch.equal(found.load()["weights"], torch.full((200_000,), float(step)))
        confirmed = step
