"""Whether the files of a prepared corpus are still what its manifest says. Standard library only."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from train.spec.manifest import OFFSET_BYTES, SPLITS, Manifest, prepare_again, read_manifest, token_bytes


def check_sizes(folder: str | Path, manifest: Manifest, splits: tuple[str, ...] = SPLITS) -> None:
    """Raise ValueError when a file of the corpus is missing or has another size than the manifest says (cheap)."""
    for path, size, _ in files_of(Path(folder), manifest, splits):
        try:
            found = path.stat().st_size
        except FileNotFoundError:
            raise ValueError(f"{path} is missing: {prepare_again(path.parent)}") from None
        if size is not None and found != size:
            raise ValueError(
                f"{path} was changed after preparation: it has {found} bytes, the manifest says {size}; "
                f"it begins with {beginning(path)}; {prepare_again(path.parent)}"
            )


def verify(
    folder: str | Path, progress: Callable[[str, float, int], None] = lambda stage, share, size: None
) -> Manifest:
    """Return the manifest after reading every file and comparing its SHA-256.

    Raises ValueError that names the first file that differs and how.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    check_sizes(folder, manifest)
    files = list(files_of(folder, manifest))
    total = sum(path.stat().st_size for path, _, _ in files) or 1
    done = 0
    progress("verifying", 0.0, total)
    for path, size, sha256 in files:
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != sha256:
            raise ValueError(
                f"{path} was changed after preparation: its sha256 is {found}, the manifest says {sha256}; "
                f"it begins with {beginning(path)}; {prepare_again(path.parent)}"
            )
        done += size or 0
        progress("verifying", done / total, total)
    return manifest


def files_of(
    folder: Path, manifest: Manifest, splits: tuple[str, ...] = SPLITS
) -> Iterator[tuple[Path, int | None, str]]:
    """Yield path, size [bytes] (None: not recorded) and sha256 of every file of these splits."""
    if manifest.tokenizer.file is not None:
        yield folder / manifest.tokenizer.file, None, manifest.tokenizer.sha256
    width = token_bytes(manifest.tokenizer.vocab_size)
    for name in splits:
        for shard in manifest.splits[name].shards:
            yield folder / shard.file, shard.tokens * width, shard.sha256
            yield folder / shard.index, (shard.documents + 1) * OFFSET_BYTES, shard.index_sha256
            if shard.mask is not None:
                yield folder / shard.mask.file, shard.mask.numbers * OFFSET_BYTES, shard.mask.sha256


def beginning(path: Path, count: int = 16) -> str:
    """Return the first `count` bytes of a file in hexadecimal, and what they look like where that is known."""
    try:
        with path.open("rb") as stream:
            found = stream.read(max(count, 64))
    except OSError as error:
        return f"(cannot be read: {error.strerror})"
    if not found:
        return "nothing (it is empty)"
    known = next((f" ({name})" for start, name in _BEGINNINGS.items() if found.startswith(start)), "")
    if not known and not any(found):
        known = " (zeros: a write that never reached the disk)"
    return found[:count].hex(" ") + known


_BEGINNINGS = {
    b"version https://git-lfs": "a Git LFS pointer, not the file itself",
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstandard",
    b"PAR1": "parquet",
    b"\x93NUMPY": "a .npy file",
    b"<": "a web page or XML",
    b"{": "JSON",
}
