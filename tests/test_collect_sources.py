"""The script that collects a corpus, with the real apt and a repository of Debian's layout in a folder."""

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "docs" / "flagship" / "collect_sources.sh"

pytestmark = pytest.mark.skipif(shutil.which("apt-get") is None, reason="no apt here: the script is for Debian")


CODE = ("main.c", "tool.h", "README")


class Mirror:
    """A mirror in a folder, whose index lists versions of the package `tool`, and a corpus collected from it."""

    def __init__(self, root: Path) -> None:
        self.root, self.corpus = root, root / "corpus"
        self.release, self.pool = root / "mirror" / "dists" / "stable", root / "mirror" / "pool"
        for folder in (self.release / "main" / "binary-all", self.release / "main" / "source", self.pool):
            folder.mkdir(parents=True)
        binary = (
            f"Package: other\nVersion: 1\nArchitecture: all\nFilename: pool/other.deb\nSize: 1\nSHA256: {'0' * 64}\n"
        )
        (self.release / "main" / "binary-all" / "Packages").write_text(binary)  # apt passes over an empty index
        (root / "lists" / "partial").mkdir(parents=True)
        (root / "cache" / "archives" / "partial").mkdir(parents=True)
        (root / "sources.list").write_text(f"deb [arch=all] file:{root}/mirror stable main\n")
        settings = {
            "Dir::Etc::SourceList": root / "sources.list",
            "Dir::Etc::SourceParts": "-",
            "Dir::State::Lists": root / "lists",
            "Dir::Cache": root / "cache",
            "APT::Architecture": "all",
            "APT::Sandbox::User": "root",
            "Acquire::AllowInsecureRepositories": "true",
            "APT::Get::AllowUnauthenticated": "true",
        }
        (root / "apt.conf").write_text("".join(f'{name} "{value}";\n' for name, value in settings.items()))

    def add(self, version: str, names: Sequence[str] = CODE, *, whole: bool = True) -> list[Path]:
        """Add a version to the index and its files to the pool, and return these.

        names: of the files in its archive. whole: whether it is all there.
        """
        plain = version.partition(":")[2] or version
        description, archive = self.pool / f"tool_{plain}.dsc", self.pool / f"tool_{plain.split('-')[0]}.orig.tar.gz"
        description.write_text(f"Version: {version}\n")
        with tarfile.open(archive, "w:gz") as tar:
            for name in names:
                text = f"{name} of {version}\n".encode()
                entry = tarfile.TarInfo(f"tool-1/{name}")
                entry.size = len(text)
                tar.addfile(entry, io.BytesIO(text))
        if not whole:
            archive.write_bytes(archive.read_bytes()[:-40])
        sums = "".join(f" {_line(path)} {path.name}\n" for path in (description, archive))
        with (self.release / "main" / "source" / "Sources").open("a") as index:
            index.write(
                f"Package: tool\nBinary: tool\nVersion: {version}\nArchitecture: any\nFormat: 3.0 (quilt)\n"
                f"Directory: pool\nChecksums-Sha256:\n{sums}\n"
            )
        indices = ("main/binary-all/Packages", "main/source/Sources")
        listed = "".join(f" {_line(self.release / name)} {name}\n" for name in indices)
        head = "Origin: Debian\nSuite: stable\nCodename: stable\nComponents: main\nArchitectures: all\n"
        head += "Date: Sat, 01 Nov 2025 00:00:00 UTC\n"
        (self.release / "Release").write_text(f"{head}SHA256:\n{listed}")
        return [description, archive]

    def collect(self, *packages: str) -> subprocess.CompletedProcess[str]:
        """Run the script on a system that has this mirror."""
        environment = {**os.environ, "APT_CONFIG": str(self.root / "apt.conf"), "LC_ALL": "C"}
        subprocess.run(["apt-get", "-qq", "update"], env=environment, capture_output=True, check=True)
        line = ["bash", str(SCRIPT), str(self.corpus), *packages]
        return subprocess.run(line, env=environment, capture_output=True, text=True, check=False)

    def taken(self) -> tuple[str, str]:
        """Return what packages.txt says, and the code that is there."""
        return (self.corpus / "packages.txt").read_text(), (self.corpus / "tool" / "main.c").read_text()


def _line(path: Path) -> str:
    return f"{hashlib.sha256(path.read_bytes()).hexdigest()} {path.stat().st_size}"


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    return Mirror(tmp_path)


def test_the_newest_version_is_taken_with_its_code_alone(mirror: Mirror) -> None:
    for version in ("1.9-1", "1.10-1", "1.10~rc1-1"):
        mirror.add(version)
    done = mirror.collect("tool")
    assert done.returncode == 0, done.stderr
    assert mirror.taken() == ("tool 1.10-1\n", "main.c of 1.10-1\n")
    assert sorted(path.name for path in (mirror.corpus / "tool").iterdir()) == ["main.c", "tool.h"]


def test_where_the_mirror_lacks_files_the_next_older_version_is_taken_and_said(mirror: Mirror) -> None:
    mirror.add("1.8-1")
    mirror.add("1.9-1")
    _, archive = mirror.add("1.10-1")
    archive.unlink()
    description, _ = mirror.add("1.11-1")
    description.unlink()
    done = mirror.collect("tool")
    assert done.returncode == 0, done.stderr
    assert "tool: took 1.9-1, as the mirror does not have the files of 1.11-1 1.10-1\n" in done.stdout
    assert mirror.taken() == ("tool 1.9-1\n", "main.c of 1.9-1\n")


def test_where_the_mirror_has_none_of_them_the_script_fails(mirror: Mirror) -> None:
    for path in (*mirror.add("1.9-1"), *mirror.add("1.10-1")):
        path.unlink()
    done = mirror.collect("tool")
    assert done.returncode == 1
    assert done.stderr.endswith("the mirror lists tool 1.10-1 1.9-1 but does not have the files\n")
    assert not (mirror.corpus / "tool").exists()


def test_an_error_that_is_no_missing_file_is_shown_and_ends_the_script(mirror: Mirror) -> None:
    mirror.add("1.9-1")
    _, archive = mirror.add("1.10-1")
    size = archive.stat().st_size
    fillers = (f"{number}".ljust(size, "x").encode() for number in range(10_000))
    archive.write_bytes(next(one for one in fillers if "404" in hashlib.sha256(one).hexdigest()))
    done = mirror.collect("tool")
    assert done.returncode == 1, "the hash that apt tells has 404 in it, and no file is missing"
    assert "Hash Sum mismatch" in done.stderr
    assert not (mirror.corpus / "tool").exists()


def test_the_versions_of_a_collection_are_collected_again(mirror: Mirror) -> None:
    mirror.add("1:1.9-1")
    mirror.collect("tool")
    pins = mirror.taken()[0].replace(" ", "=").split()
    assert pins == ["tool=1:1.9-1"], "with the epoch, which names of files lack"
    shutil.rmtree(mirror.corpus)
    mirror.add("1:1.10-1")
    for pin in (*pins, "tool=1.9-1"):
        done = mirror.collect(pin)
        assert done.returncode == 0, done.stderr
        assert mirror.taken() == ("tool 1:1.9-1\n", "main.c of 1:1.9-1\n")
        assert mirror.collect(pin).returncode == 0, "there already"
        other = mirror.collect("tool=1:1.10-1")
        assert other.returncode == 1
        assert "tool is version 1:1.9-1, not 1:1.10-1: remove it to fetch 1:1.10-1" in other.stderr
        shutil.rmtree(mirror.corpus)


def test_a_version_that_the_mirror_does_not_list_is_refused_with_those_that_it_does(mirror: Mirror) -> None:
    mirror.add("1.9-1")
    mirror.add("1.10-1")
    for pin in ("1.8-1", "1.9.1"):
        done = mirror.collect(f"tool={pin}")
        assert done.returncode == 1
        assert done.stderr.endswith(f"the mirrors list no tool {pin}, only: 1.10-1 1.9-1\n")
    done = mirror.collect("absent")
    assert done.stderr.endswith("the mirrors list no source package absent\n")


@pytest.mark.parametrize("names", [("main.c", "README"), ("tool.h", "data.bin")])
def test_an_archive_may_have_no_headers_or_nothing_but_headers(mirror: Mirror, names: tuple[str, str]) -> None:
    mirror.add("1.10-1", names)
    done = mirror.collect("tool")
    assert done.returncode == 0 and "tar:" not in done.stderr, done.stderr
    assert [path.name for path in (mirror.corpus / "tool").iterdir()] == [names[0]]


def test_a_package_without_any_code_is_refused(mirror: Mirror) -> None:
    mirror.add("1.10-1", ("README", "manual.txt"))
    done = mirror.collect("tool")
    assert done.returncode == 1
    assert done.stderr.endswith("tool 1.10-1 has no C code\n")
    assert not (mirror.corpus / "tool").exists()


def test_an_archive_that_cannot_be_unpacked_ends_the_script_with_what_tar_says(mirror: Mirror) -> None:
    mirror.add("1.10-1", whole=False)
    done = mirror.collect("tool")
    assert done.returncode == 1
    assert "unexpected end of file" in done.stderr and "Not found" not in done.stderr
    assert not (mirror.corpus / "tool").exists()
