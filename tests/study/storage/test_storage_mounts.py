"""What kind of file system a path lies on."""

from pathlib import Path

import pytest

from study.storage.mounts import file_system, holding

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
