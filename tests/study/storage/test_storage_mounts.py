"""What kind of file system a path lies on."""

import re
from pathlib import Path

import pytest

from study.__main__ import main
from study.storage.mounts import check_out, file_system, holding

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:40 / /home rw,nosuid shared:3 - nfs4 server:/home rw,vers=4.2
31 30 0:41 / /home/me/my\\040disk rw - xfs /dev/sdb rw
32 22 0:50 / /tmp rw - tmpfs tmpfs rw
33 22 0:51 / /tmp rw - lustre mds:/tmp rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/scratch/mlflow.db", "ext4"),
        ("/home/me/mlflow.db", "nfs4"),
        ("/home/me/my disk/mlflow.db", "xfs"),
        ("/homestead/x", "ext4"),
        ("/tmp/x", "lustre"),
    ],
)
def test_the_file_system_is_that_of_the_nearest_mount(path: str, kind: str) -> None:
    assert holding(Path(path), MOUNTS) == kind


def test_what_lies_on_no_mount_is_unknown_and_proc_is_of_its_own_kind() -> None:
    assert holding(Path("/scratch"), "") == "unknown"
    assert file_system(Path("/proc/self")) == "proc"


def test_a_folder_of_results_is_looked_at_before_anything_is_done(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    check_out(["pp=2", f"out={tmp_path}/new/below", "out="])
    assert not (tmp_path / "new").exists()
    for wrong, there in ((f"{file}/below", file), (str(file), file), ("/proc/x", Path("/proc"))):
        with pytest.raises(ValueError, match=re.escape(f"out={wrong}: {there} is no folder that can be written to")):
            check_out(["pp=2", f"out={wrong}"])


@pytest.mark.parametrize(
    "words", [["plan", "memory"], ["plan", "step"], ["plan", "parallel"], ["bench", "pipeline"], ["bench", "comm"]]
)
def test_commands_refuse_a_folder_that_cannot_be_made(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main([*words, f"out={tmp_path}/file/x"]) == 2
    said = capsys.readouterr()
    assert not said.out and said.err.count("\n") == 1
    assert f"out={tmp_path}/file/x: {tmp_path}/file is no folder" in said.err
