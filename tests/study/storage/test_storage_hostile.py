"""Files and names that somebody has made to run code or to have things removed: nothing runs, nothing is removed.

Every refusal names the file, or the key, and says what to do.
"""

import hashlib
import io
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex

from analysis.inputs.tables import read as read_table_file
from study.__main__ import main as study
from study.cleanup.code import collect
from study.records.settings import load_section
from study.storage.study_names import check_study_name
from study.sweep.__main__ import main as sweep
from sweeps.replay.curves import read_table
from tests.study.support.recorded import SAID, unpack
from train.branch import main as branch
from train.checkpoint.layout import Checkpoint, newest, read_manifest
from train.checkpoint.load import read_all
from train.checkpoint.metadata import read_index
from train.hub.convert import export
from train.hub.safetensors import Shards
from train.spec.frozen_run import load

RUN = "runs/recorded/46f2ae765da8"
STEP = f"{RUN}/checkpoints/step-000000324"


class Call:
    """What unpickles as a call."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recorded study, and a folder beside it that nobody may touch."""
    monkeypatch.chdir(unpack(tmp_path))
    (tmp_path / "treasure").mkdir()
    (tmp_path / "treasure" / "kept").write_text("kept")
    return tmp_path


def unharmed(here: Path) -> bool:
    return not (here / "canary").exists() and (here / "treasure" / "kept").read_text() == "kept"


def put(here: Path, data: bytes, name: str = ".metadata") -> Checkpoint:
    """Put bytes in the place of a file of the recorded checkpoint, whose manifest agrees with them."""
    step = here / STEP
    (step / name).write_bytes(data)
    manifest = json.loads((step / "manifest.json").read_text())
    manifest["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (step / "manifest.json").write_text(json.dumps(manifest))
    found = newest(step.parent)
    assert found is not None, "whole by size and hash: only its content is hostile"
    return found


def index(here: Path) -> Metadata:
    return FileSystemReader(here / STEP).read_metadata()


def calls(name: str, *arguments: str) -> bytes:
    """Return a pickle of protocol 0 that calls a function by its name."""
    module, _, function = name.rpartition(".")
    said = "".join(f"V{argument}\n" for argument in arguments)
    return f"c{module}\n{function}\n({said}tR.".encode()


TOUCH = "touch canary"
PICKLES: dict[str, Callable[[Path], bytes]] = {
    "os.system": lambda here: pickle.dumps(Call(os.system, TOUCH)),
    "eval": lambda here: pickle.dumps(Call(eval, "open('canary', 'w')")),
    "exec": lambda here: pickle.dumps(Call(exec, "open('canary', 'w')")),
    "protocol 0": lambda here: calls("os.system", TOUCH),
    "protocol 5": lambda here: pickle.dumps(Call(os.system, TOUCH), protocol=5),
    "subprocess": lambda here: calls("subprocess.getoutput", TOUCH),
    "INST": lambda here: f"(V{TOUCH}\nios\nsystem\n.".encode(),
    "OBJ": lambda here: f"(cos\nsystem\nV{TOUCH}\no.".encode(),
    "torch.load": lambda here: calls("torch.load", "hostile.pt"),
    "torch.hub": lambda here: calls("torch.hub.load", "a/b", "c"),
    "a dotted name": lambda here: b"\x80\x04\x8c\x07pathlib\x8c\nPath.touch\x93\x8c\x06canary\x85R.",
    "getattr": lambda here: calls("builtins.getattr", "canary", "upper"),
    "a path that is opened": lambda here: calls("io.open", "canary", "w"),
    "a function of ours": lambda here: calls("study.process.code_snapshot.remove_copy", "treasure"),
    "shutil": lambda here: calls("shutil.rmtree", "treasure"),
    "state of a class": lambda here: b"ctorch.distributed.checkpoint.metadata\nMetadata\n}V__init__\nVx\nsb.",
    "outside it": lambda here: b"Pcanary\n.",
    "inside an entry": lambda here: pickle.dumps(Metadata({"model.x": Call(os.system, TOUCH)}, storage_data={})),  # type: ignore[dict-item]
    "inside a key": lambda here: pickle.dumps({MetadataIndex("x"): Call(os.system, TOUCH)}),
    "cut off": lambda here: (here / STEP / ".metadata").read_bytes()[:-100],
    "empty": lambda here: b"",
    "a number": lambda here: pickle.dumps(7),
    "an archive": lambda here: archive(),
}


def archive() -> bytes:
    file = io.BytesIO()
    torch.save(Call(os.system, TOUCH), file)
    return file.getvalue()


@pytest.mark.parametrize("kind", PICKLES)
def test_a_pickle_as_index_of_a_checkpoint(here: Path, kind: str) -> None:
    found = put(here, PICKLES[kind](here))
    with pytest.raises(ValueError, match=r"step-000000324/\.metadata is no index .* remove"):
        read_index(found.folder)
    with pytest.raises(ValueError, match=r"\.metadata is no index"):
        export(here / RUN, here / "exported")
    assert unharmed(here) and not (here / "exported").exists()


def test_an_entry_that_torch_reads_as_a_pickle(here: Path) -> None:
    about = index(here)
    about.state_dict_metadata["model.embedding.weight"] = BytesStorageMetadata()
    put(here, pickle.dumps(Call(os.system, TOUCH)), "__0_0.distcp")
    found = put(here, pickle.dumps(about))
    with pytest.raises(ValueError, match="BytesStorageMetadata"):
        read_all(found)
    assert unharmed(here)


@pytest.mark.parametrize("path", ["../../../../../treasure/kept", "/etc/passwd", "..", "", "a/b"])
def test_an_index_that_names_files_elsewhere(here: Path, path: str) -> None:
    about = index(here)
    for place in about.storage_data.values():
        place.relative_path = path
    with pytest.raises(ValueError, match="is no file of its folder"):
        read_all(put(here, pickle.dumps(about)))


def test_an_index_that_asks_for_an_extension(here: Path) -> None:
    about = index(here)
    for place in about.storage_data.values():
        place.transform_descriptors = ["zstd"]
    with pytest.raises(ValueError, match="needs an extension"):
        read_all(put(here, pickle.dumps(about)))


def test_a_shard_that_is_a_pickle(here: Path) -> None:
    about = index(here)
    shard = archive()
    for place in about.storage_data.values():
        place.offset, place.length = 0, len(shard)
    put(here, shard, "__0_0.distcp")
    with pytest.raises(ValueError, match="contains something other than tensors"):
        read_all(put(here, pickle.dumps(about)))
    assert unharmed(here)


@pytest.mark.parametrize("name", ["../../../../../treasure/kept", "/etc/passwd", "..", "sub/file"])
def test_a_manifest_that_names_files_elsewhere(here: Path, name: str) -> None:
    path = here / STEP / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"][name] = {"bytes": 4, "sha256": ""}
    path.write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="is no file of its folder"):
        read_manifest(path.parent)
    assert newest(path.parent.parent) is None


TAGS = (
    "!!python/object/apply:os.system ['touch canary']",
    "!!python/object/new:os.system ['touch canary']",
    "!!python/object/apply:subprocess.getoutput ['touch canary']",
    "!!python/name:os.system",
    "!!python/module:os",
    "!!python/object:study.storage.layout.StudyFolder {path: x}",
    "[" * 1500,
)


@pytest.mark.parametrize("tag", TAGS)
def test_a_tag_in_yaml(here: Path, tag: str, capsys: pytest.CaptureFixture[str]) -> None:
    (here / RUN / "config.yaml").write_text(f"model: {tag}\n")
    (here / "runs/recorded/study.yaml").write_text(f"cluster: {tag}\n")
    with pytest.raises(ValueError, match=r"config\.yaml is not YAML"):
        load(here / RUN / "config.yaml")
    assert branch(["--parent", RUN, "--out", "branched", "--tokens", "256"]) == 2
    assert "config.yaml is not YAML" in capsys.readouterr().err
    folder = study_folder(here)
    with pytest.raises(ValueError, match=r"study\.yaml is not YAML .*run the study's command again"):
        load_section(folder, "cluster")
    assert unharmed(here)


def study_folder(here: Path) -> Any:
    from study.storage.layout import StudyFolder

    return StudyFolder(here / "runs/recorded")


def npz(path: Path, name: str, value: bytes) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(name, value)


def test_objects_in_an_archive_of_arrays(here: Path) -> None:
    np.savez(here / "table.npz", val_loss=np.array([[Call(os.system, TOUCH)]], dtype=object))
    with pytest.raises(ValueError, match=r"table\.npz cannot be read"):
        read_table(here / "table.npz")
    npz(here / "other.npz", "val_loss.npy", pickle.dumps(Call(os.system, TOUCH)))
    with pytest.raises(ValueError, match=r"other\.npz"):
        read_table(here / "other.npz")
    (here / "broken.npz").write_bytes(b"PK\x03\x04" + b"x" * 40)
    with pytest.raises(ValueError, match=r"broken\.npz cannot be read"):
        read_table(here / "broken.npz")
    assert unharmed(here)


@pytest.mark.parametrize("suffix", [".pkl", ".pickle.gz", ".joblib", ".pt", ".npy", ".zip"])
def test_pickles_as_tables(here: Path, suffix: str) -> None:
    path = here / f"runs{suffix}"
    path.write_bytes(pickle.dumps(Call(os.system, TOUCH)))
    with pytest.raises(ValueError, match=rf"runs=.*runs{suffix}"):
        read_table_file(path)
    assert unharmed(here)


@pytest.mark.parametrize("file", ["../treasure/kept", "/etc/passwd", "pytorch_model.bin", "a/b.safetensors"])
def test_weights_that_lie_elsewhere(here: Path, file: str) -> None:
    (here / "weights").mkdir()
    (here / "weights/model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": file}}))
    with pytest.raises(ValueError, match=r"index\.json: x lies in"):
        Shards(here / "weights")


def test_weights_in_a_pickle(here: Path) -> None:
    (here / "weights").mkdir()
    (here / "weights/pytorch_model.bin").write_bytes(archive())
    with pytest.raises(ValueError, match=r"weights has neither model\.safetensors"):
        Shards(here / "weights")
    assert unharmed(here)


def link(place: Path, target: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)


def hoard(here: Path) -> Path:
    """Return a folder that looks like a run's checkpoints, and is not the study's."""
    hoard = here / "hoard"
    shutil.copytree(here / STEP, hoard / "step-000000001")
    shutil.copytree(here / STEP, hoard / "step-000000324")
    shutil.copytree(here / STEP, hoard / ".staging-step-000000400")
    return hoard


def test_gc_removes_nothing_through_links(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoints, treasure = here / RUN / "checkpoints", here / "treasure"
    link(checkpoints / "step-000000001", treasure)
    link(checkpoints / "step-000000002", here / STEP)
    link(checkpoints / ".staging-step-000000003", treasure)
    shutil.copytree(here / STEP, checkpoints / "step-000000004")
    (checkpoints / "step-000000004/notes").symlink_to(treasure)
    (checkpoints / "step-000000005").mkdir()
    (checkpoints / "step-000000005/mine.txt").write_text("mine")
    (checkpoints / "step-000000006").write_text("a file")
    (checkpoints / ".staging-mine").mkdir()
    (checkpoints / ".staging-mine/mine.txt").write_text("mine")
    before = sorted(path.name for path in checkpoints.iterdir())
    assert study(["gc", "recorded", "--keep", "last=1", "--yes"]) == 0
    assert sorted(path.name for path in checkpoints.iterdir()) == before
    assert "not all ours" in capsys.readouterr().out
    assert unharmed(here) and (checkpoints / "step-000000004/notes").is_symlink()


@pytest.mark.parametrize("place", [RUN, f"{RUN}/checkpoints"])
def test_gc_leaves_a_run_that_is_a_link(here: Path, place: str) -> None:
    found = hoard(here)
    if place == RUN:
        (here / "other").mkdir()
        found = found.rename(here / "other/checkpoints").parent
    link(here / place, found)
    before = sorted(found.rglob("*"))
    assert study(["gc", "recorded", "--keep", "last=0", "--yes"]) == 0
    assert sorted(found.rglob("*")) == before


def test_gc_of_a_study_through_a_link_knows_who_needs_its_checkpoints(here: Path) -> None:
    shutil.copytree(here / STEP, here / f"{RUN}/checkpoints/step-000000325")
    entry = json.loads((here / "runs/recorded/points.jsonl").read_text().splitlines()[0])
    entry["config"]["schedule"]["parent"] = str(here / STEP)
    (here / "runs/neighbour").mkdir()
    (here / "runs/neighbour/points.jsonl").write_text(json.dumps(entry, separators=(",", ":")) + "\n")
    link(here / "elsewhere/alias", here / "runs/recorded")
    assert study(["gc", "alias", "--runs", "elsewhere", "--keep", "last=1", "--yes"]) == 0
    assert (here / STEP / "manifest.json").exists()


def test_gc_leaves_what_is_no_copy_of_the_code(here: Path) -> None:
    shelf = here / "runs/.code"
    link(shelf / "linked", here / "treasure")
    link(shelf / ".staging-linked", here / "treasure")
    for name in ("0123456789ab", "code", "recorded", ".staging-mine"):
        (shelf / name).mkdir()
        (shelf / name / "points.jsonl").write_text("{}\n")
    (shelf / "other").mkdir()
    (shelf / "other/.frozen.json").write_text(json.dumps({"id": "../../treasure"}))
    before = sorted(shelf.rglob("*"))
    assert collect(here / "runs", 0.0, really=True) == []
    assert [path for path in sorted(shelf.rglob("*")) if path.name != "lock"] == before
    assert unharmed(here)


NAMES = (
    ".code",
    ".git",
    "..",
    ".",
    "",
    "a/b",
    "../up",
    "/etc",
    "a\\b",
    "a\nb",
    "a\x00b",
    "a b",
    "-rf",
    "_",
    "a.",
    "code",
    "Jobs",
    "points.jsonl",
    "checkpoints",
    "mlruns",
    "x" * 101,
    "a$(touch canary)",
    "a;b",
    "a\u202eb",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_study_is_not_called_so(name: str) -> None:
    with pytest.raises(ValueError, match=r"study\.name=.* is not a folder name .*use letters, digits"):
        check_study_name(name)


@pytest.mark.parametrize("name", ["smoke", "isoflop-2", "a.b_c", "Größe", "7", "2026-01-01", "lr", "default"])
def test_a_study_may_be_called_so(name: str) -> None:
    check_study_name(name)


@pytest.mark.parametrize("name", ["_pilot", "jobs", "x" * 101])
def test_a_study_of_an_earlier_version_goes_on_under_its_name(name: str) -> None:
    check_study_name(name, begun=True)


@pytest.mark.parametrize("name", ["", ".", "..", ".code", "a/b", "-rf", "a;b", "a\nb"])
def test_but_for_names_that_lead_elsewhere(name: str) -> None:
    with pytest.raises(ValueError, match=r"study\.name="):
        check_study_name(name, begun=True)


def test_a_study_does_not_lie_within_another_by_way_of_a_link(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "elsewhere").symlink_to(here / "runs/recorded")
    assert sweep([*SAID, "budget.tokens=8192", "study.name=new", f"paths.runs={here}/elsewhere"]) == 2
    assert "lies within the study" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["study.name=.code"], ["study.name=jobs"], ["paths.runs=runs/recorded"]])
def test_the_command_refuses_it_before_anything_is_made(
    here: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(here.rglob("*"))
    assert sweep([*SAID, "budget.tokens=8192", *words]) == 2
    assert words[0].partition("=")[0] in capsys.readouterr().err
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize("key", ["../../../treasure", "/etc", "..", "a/b", "", "a\\u0000b"])
def test_a_point_whose_key_is_a_path(here: Path, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = here / "runs/recorded/points.jsonl"
    first, *others = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first.replace(json.loads(first)["key"], key), *others]))
    shutil.copytree(here / STEP, here / "treasure/checkpoints/step-000000001")
    assert study(["gc", "recorded", "--keep", "last=0", "--yes"]) != 0
    assert "points.jsonl:1" in capsys.readouterr().err
    assert unharmed(here) and (here / "treasure/checkpoints/step-000000001").exists()


@pytest.mark.parametrize("job_id", ["--user=me", "-u me", "7 8", "7;touch canary", "$(touch canary)", "../7", ""])
def test_a_job_id_that_is_an_option_or_a_command(here: Path, job_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    event = {"time": 1.0, "event": "submitted", "name": "local.a", "job_id": job_id}
    with (here / "runs/recorded/ledger.jsonl").open("a") as file:
        file.write(json.dumps(event) + "\n")
    for command in ("status", "cancel"):
        assert study([command, "recorded"]) == 2
        said = capsys.readouterr().err
        assert "ledger.jsonl:" in said and "is not an event" in said and "restore it" in said
    assert unharmed(here)
