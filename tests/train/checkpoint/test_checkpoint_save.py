"""Checkpoints: whole or absent, kept by policy, read back exactly."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from tests.train.runs import started
from train.checkpoint.layout import TORN, Checkpoint, Retention, abandon_from, mark_torn, newest, pin, recover, single
from train.checkpoint.load import read_all, restore
from train.checkpoint.save import SaveError, Saver
from train.checkpoint.state import collect
from train.runtime.files import describe


def write(root: Path, step: int, retention: Retention | None = None, **progress: int) -> Path:
    saver = Saver(root, retention=retention)
    state = {"weights": torch.full((1000,), float(step))}
    saver.save(step, state, {"progress": {"step": step, **progress}, "identity": {"config": {"seed": 0}}})
    saver.wait()
    return root / f"step-{step:09d}"


def whole(root: Path) -> Checkpoint:
    found = newest(root)
    assert found is not None
    return found


def names(root: Path) -> list[str]:
    return sorted(p.name for p in root.iterdir())


def test_the_newest_is_found_and_two_are_kept(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    for step in (9, 10, 100):
        write(tmp_path, step)
    assert names(tmp_path) == ["step-000000010", "step-000000100"]
    found = whole(tmp_path)
    assert found.progress == {"step": 100}
    assert found.identity == {"config": {"seed": 0}}
    assert torch.equal(read_all(found)["weights"], torch.full((1000,), 100.0))
    write(tmp_path, 101, Retention(newest=1))
    assert names(tmp_path) == ["step-000000101"]


def test_permanent_and_pinned_checkpoints_stay(tmp_path: Path) -> None:
    policy = Retention(newest=1, permanent_steps=10)
    pin(write(tmp_path, 7, policy))
    for step in (10, 15, 20, 21, 22):
        write(tmp_path, step, policy)
    assert names(tmp_path) == [f"step-{s:09d}" for s in (7, 10, 20, 22)]
    assert whole(tmp_path).progress == {"step": 22}
    pin(tmp_path / "step-000000007", pinned=False)
    write(tmp_path, 23, policy)
    assert names(tmp_path) == [f"step-{s:09d}" for s in (10, 20, 23)]


def test_going_back_removes_what_is_later_but_for_what_stays_for_good(tmp_path: Path) -> None:
    policy = Retention(newest=2, permanent_steps=10)
    write(tmp_path, 15, policy)
    pin(write(tmp_path, 17, policy))
    for step in (20, 21, 22):
        write(tmp_path, step, policy, tokens=0)
    abandon_from(tmp_path, 17, policy)
    assert names(tmp_path) == [f"step-{s:09d}" for s in (17, 20)], "step 15 had gone before"
    assert newest(tmp_path) is None
    for step in (16, 17, 18):  # the run takes the other path, and passes them
        write(tmp_path, step, policy, tokens=1)
        assert whole(tmp_path).progress["step"] == step
    aside = tmp_path / "abandoned-1-step-000000017"
    assert names(tmp_path) == [aside.name, *(f"step-{s:09d}" for s in (17, 18, 20))]
    found = single(aside)
    assert found is not None
    assert "tokens" not in found.progress, "whoever names its folder gets what was there"
    mark_torn(tmp_path, whole(tmp_path))
    assert not (tmp_path / "step-000000020" / TORN).exists()
    assert single(tmp_path / "step-000000016") is None


def test_who_looks_for_one_checkpoint_hashes_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Retention(newest=9)
    places = {step: write(tmp_path, step, policy, tokens=100 * step) for step in (1, 2, 3, 4)}
    hashed: list[Path] = []

    def counted(path: Path) -> object:
        hashed.append(path.parent)
        return describe(path)

    monkeypatch.setattr("train.checkpoint.layout.describe", counted)
    found = newest(tmp_path, at_tokens=200)
    assert found is not None
    assert found.folder == places[2]
    assert newest(tmp_path, at_tokens=250) is None
    assert set(hashed) == {places[2]}
    hashed.clear()
    found = single(places[1])
    assert found is not None
    assert (found.progress["tokens"], set(hashed)) == (100, {places[1]})


def test_torn_checkpoints_take_no_place_from_whole_ones(tmp_path: Path) -> None:
    for step in (10, 20):
        (write(tmp_path, step) / "manifest.json").write_text("torn")
    assert newest(tmp_path) is None
    for step in (4, 8):  # the run starts anew, and is not yet where it was
        write(tmp_path, step)
        assert whole(tmp_path).progress == {"step": step}
    assert names(tmp_path) == [f"step-{s:09d}" for s in (4, 8, 10, 20)]
    for step in (20, 40):
        write(tmp_path, step)
    assert names(tmp_path) == ["step-000000020", "step-000000040"]


def test_torn_checkpoints_that_the_run_has_passed_do_not_count_either(tmp_path: Path) -> None:
    policy = Retention(newest=3)
    for step in (4, 8, 12, 16):
        write(tmp_path, step, policy)
    (tmp_path / "step-000000012" / "__0_0.distcp").write_bytes(b"")  # as a crash of the machine leaves files
    rotten = tmp_path / "step-000000016" / "__0_0.distcp"
    rotten.write_bytes(bytes(len(rotten.read_bytes())))
    assert whole(tmp_path).progress == {"step": 8}
    mark_torn(tmp_path, newest(tmp_path))
    for step, stay in ((18, (8, 12, 16, 18)), (20, (8, 12, 16, 18, 20)), (22, (18, 20, 22))):
        write(tmp_path, step, policy)
        assert names(tmp_path) == [f"step-{s:09d}" for s in stay]


def test_a_checkpoint_that_can_be_read_again_loses_its_mark(tmp_path: Path) -> None:
    write(tmp_path, 1)
    away = write(tmp_path, 2).rename(tmp_path / "away")
    (tmp_path / "step-000000002").mkdir()
    mark_torn(tmp_path, newest(tmp_path))
    assert (tmp_path / "step-000000002" / TORN).exists()
    for file in away.iterdir():
        file.rename(tmp_path / "step-000000002" / file.name)
    mark_torn(tmp_path, whole(tmp_path))
    assert not list(tmp_path.glob(f"*/{TORN}"))


def test_file_systems_that_sync_no_folders_are_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = os.fsync

    def refusing(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(fd)

    monkeypatch.setattr(os, "fsync", refusing)
    write(tmp_path, 1)
    assert whole(tmp_path).progress == {"step": 1}


def test_a_checkpoint_whose_replacement_never_came_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed, or refused, between the two renames of a save that replaces the only checkpoint."""
    policy, rename, denied = Retention(newest=1), Path.rename, list[Path]()
    place = write(tmp_path, 3, policy)

    def refused(self: Path, target: Path) -> Path:
        if self.name == f".staging-{place.name}" and not denied:
            denied.append(self)
            raise OSError(errno.EIO, "Input/output error", str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(SaveError, match="Input/output error"):
        write(tmp_path, 3, policy)
    assert denied and whole(tmp_path).progress == {"step": 3}
    place.rename(tmp_path / f".staging-{place.name}.replaced")  # as a kill leaves it
    assert newest(tmp_path) is None
    recover(tmp_path)
    assert whole(tmp_path).progress == {"step": 3}
    assert names(tmp_path) == [place.name]


def test_a_checkpoint_that_cannot_be_removed_fails_no_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    policy, rename = Retention(newest=1), Path.rename
    old = write(tmp_path, 3, policy)

    def refused(self: Path, target: Path) -> Path:
        if self == old:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refused)
    write(tmp_path, 4, policy)
    assert f"{old} is not needed any more and cannot be removed" in capsys.readouterr().err
    assert whole(tmp_path).progress == {"step": 4}
    assert names(tmp_path) == [old.name, "step-000000004"]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    (write(tmp_path, 3) / "__0_0.distcp").write_bytes(b"torn")
    assert newest(tmp_path) is None
    write(tmp_path, 3)
    whole(tmp_path)


def test_the_only_checkpoint_is_there_until_its_replacement_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that evaluates where it has just saved saves that step again; it may be killed in the middle of it."""
    policy, remove, seen = Retention(newest=1), shutil.rmtree, list[bool]()
    write(tmp_path, 3, policy)

    def removed(folder: Path, ignore_errors: bool = False) -> None:
        remove(folder, ignore_errors=ignore_errors)
        seen.append(newest(tmp_path) is not None)

    monkeypatch.setattr(shutil, "rmtree", removed)
    write(tmp_path, 3, policy)
    assert seen and all(seen)
    assert names(tmp_path) == ["step-000000003"]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_torn_file_means_the_previous_checkpoint(tmp_path: Path, data: st.DataObject) -> None:
    root = tmp_path / "checkpoints"
    shutil.rmtree(root, ignore_errors=True)
    write(root, 1)
    victim = write(root, 2) / data.draw(st.sampled_from(["__0_0.distcp", ".metadata", "manifest.json"]))
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
    found = whole(root)
    assert found.progress == {"step": 1}
    assert torch.equal(read_all(found)["weights"], torch.full((1000,), 1.0))


def test_another_format_is_passed_over_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = write(tmp_path, 2) / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 99}))
    assert newest(tmp_path) is None
    assert "99" in capsys.readouterr().err


def test_what_is_saved_is_the_state_at_that_moment(tmp_path: Path) -> None:
    weights = torch.zeros(2_000_000)
    saver = Saver(tmp_path)
    saver.save(1, {"weights": weights}, {"progress": {}, "identity": {}})
    weights.fill_(7.0)  # training goes on while the thread writes
    saver.wait()
    assert not read_all(whole(tmp_path))["weights"].any()


def trained(optimizer: str, steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "fused": lambda w: torch.optim.AdamW(w, fused=True),
        "plain": lambda w: torch.optim.AdamW(w, foreach=False),
        "momentum": lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.9),
        "averaged": torch.optim.ASGD,
    }
    made = kinds[optimizer](model.parameters())
    for _ in range(steps):
        step(model, made)
    return model, made


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(model(torch.ones(2, 4)).square().sum())
    optimizer.step()


@pytest.mark.parametrize("optimizer", ["fused", "plain", "momentum", "averaged"])
def test_model_and_optimizer_go_on_bitwise(tmp_path: Path, optimizer: str) -> None:
    model, made = trained(optimizer, 3)
    saver = Saver(tmp_path)
    saver.save(3, collect([model], [made]), {"progress": {}, "identity": {}})
    saver.wait()
    other, fresh = trained(optimizer, 1)  # moments of its own, to be replaced
    restore(whole(tmp_path), [other], [fresh])
    for pair in ((model, made), (other, fresh)):
        step(*pair)
        step(*pair)
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_another_model_is_refused_by_the_weight_that_differs(tmp_path: Path) -> None:
    model, made = trained("plain", 1)
    saver = Saver(tmp_path)
    saver.save(1, collect([model], [made]), {"progress": {}, "identity": {}})
    saver.wait()
    wider = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 5))
    with pytest.raises(ValueError, match=r"1\.weight is \(3, 6\) in the checkpoint and \(5, 6\) here"):
        restore(whole(tmp_path), [wider], [])
    deeper = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(3, 3))
    with pytest.raises(ValueError, match=r"the checkpoint has no 2\.weight"):
        restore(whole(tmp_path), [deeper], [])


@contextmanager
def no_room(size: int) -> Iterator[None]:
    """Make the kernel refuse to let a file grow past `size` bytes, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_no_room_fails_the_save_and_keeps_the_last_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, 1)
    with no_room(1000), pytest.raises(SaveError, match=r"rank 0: .*File too large"):
        write(tmp_path, 2)
    assert names(tmp_path) == ["step-000000001"]
    assert "checkpoint of step 2 was not saved" in capfd.readouterr().err
    assert whole(tmp_path).progress == {"step": 1}
    write(tmp_path, 3)
    assert whole(tmp_path).progress == {"step": 3}


def test_saves_that_fail_in_a_row_leave_nothing_behind_and_a_later_one_succeeds(tmp_path: Path) -> None:
    saver, weights = Saver(tmp_path), torch.zeros(100_000)

    def save(step: int) -> None:
        saver.save(step, {"weights": weights.fill_(float(step))}, {"progress": {"step": step}, "identity": {}})
        saver.wait()

    def held() -> tuple[list[int], list[str], list[str]]:
        """Return its copies, its threads, and its open files."""
        files = [fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
        return (
            [buffer.data_ptr() for buffer in saver._staging._buffers.values()],
            [thread.name for thread in threading.enumerate() if thread.name == "checkpoint"],
            [str(file) for file in files if tmp_path in file.parents],
        )

    save(1)
    before = held()
    for step in range(2, 6):
        # Once there is room for a part of the weights, once not even for the manifest of all.
        with no_room((1000, 0)[step % 2]), pytest.raises(SaveError, match="File too large") as failed:
            save(step)
        assert str(tmp_path) in str(failed.value), "which disk it is"
        assert saver.failure is not None
        assert names(tmp_path) == ["step-000000001"]
        assert held() == before
    save(6)
    assert saver.failure is None and held() == before
    assert torch.equal(read_all(whole(tmp_path))["weights"], torch.full((100_000,), 6.0))


@pytest.mark.parametrize("kind", ["no right", "no folder", "read-only"])
def test_a_folder_that_cannot_be_written_to_fails_the_save_with_its_path(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "checkpoints"
    write(root, 1)
    if kind == "no right":
        with another_user(), pytest.raises(SaveError, match=rf"rank 0: .*{tmp_path}.*let this user write there again"):
            write(root, 2)
    elif kind == "no folder":
        root.rename(tmp_path / "away")
        root.write_text("")
        with pytest.raises(SaveError, match=rf"rank 0: .*{root}"):
            write(root, 2)
        root.unlink()
        (tmp_path / "away").rename(root)
    else:

        def refused(*_: object, **__: object) -> None:
            raise OSError(errno.EROFS, "Read-only file system", str(root))

        with monkeypatch.context() as patch, pytest.raises(SaveError, match=rf"{root}.*let this user write there"):
            patch.setattr(Path, "mkdir", refused)
            write(root, 2)
    assert whole(root).progress == {"step": 1}
    write(root, 3)
    assert whole(root).progress == {"step": 3}


@contextmanager
def another_user() -> Iterator[None]:
    """Let this process own none of its files: what was this user's folder is not any more."""
    if os.geteuid():
        pytest.skip("only root can be somebody else for a while")
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_killed_while_saving_the_newest_is_whole_and_none_is_lost(tmp_path: Path) -> None:
    confirmed = 0
    for delay in (0.003, 0.011, 0.017, 0.031):
        process = started("tests.train.checkpoint.savers", str(tmp_path), str(confirmed))
        assert process.stdout is not None
        for _ in range(3):
            confirmed = int(process.stdout.readline())
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        rest, _ = process.communicate()
        confirmed = max([confirmed, *(int(line) for line in rest.splitlines())])
        found = whole(tmp_path)
        step = found.progress["step"]
        assert step in (confirmed, confirmed + 1)
        assert torch.equal(read_all(found)["weights"], torch.full((200_000,), float(step)))
        confirmed = step


@pytest.mark.parametrize(
    ("text", "why"), [(b"", "is empty"), (b'{"form', "is cut off or damaged"), (b"\xff{", "is cut")]
)
def test_a_manifest_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes, why: str
) -> None:
    (tmp_path / "step-000000008").mkdir()
    (tmp_path / "step-000000008" / "manifest.json").write_bytes(text)
    assert newest(tmp_path) is None
    assert f"step-000000008 is incomplete (manifest.json {why}" in capsys.readouterr().err


def test_a_save_does_not_make_a_run_anew_that_was_moved(tmp_path: Path) -> None:
    saver = Saver(tmp_path / "moved" / "checkpoints", background=False)
    saver.save(1, collect([nn.Linear(2, 2)], []), {})
    with pytest.raises(SaveError, match="No such file or directory"):
        saver.wait()
    assert list(tmp_path.iterdir()) == []
