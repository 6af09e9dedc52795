"""Safetensors in files of bounded size with an index, and reading single tensors back from them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from train.spec.corpus_files import beginning

SHARD_BYTES = 4 << 30
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def write_shards(out: Path, tensors: Iterable[tuple[str, Tensor]], limit: int = SHARD_BYTES) -> int:
    """Write tensors into files of about `limit` bytes, one name each in an index; return the bytes of all tensors.

    OSError where the system does not let it.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    files: list[list[str]] = []
    held: dict[str, Tensor] = {}
    size = total = 0

    def flush() -> None:
        nonlocal held, size
        try:
            save_file(held, str(out / f"part-{len(files):05d}"), metadata={"format": "pt"})
        except SafetensorError as error:  # a full disk is one, too
            raise OSError(f"{out}: {error}") from None
        files.append(list(held))
        held, size = {}, 0

    for name, tensor in tensors:
        held[name] = tensor.contiguous()
        size += tensor.nbytes
        total += tensor.nbytes
        if size >= limit:
            flush()
    if held:
        flush()
    if len(files) == 1:
        (out / "part-00000").rename(out / SINGLE)
        return total
    places: dict[str, str] = {}
    for number, names in enumerate(files):
        file = f"model-{number + 1:05d}-of-{len(files):05d}.safetensors"
        (out / f"part-{number:05d}").rename(out / file)
        places |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (out / INDEX).write_text(json.dumps(index, indent=1) + "\n", "utf-8")
    return total


class Shards:
    """The tensors of a folder by name, read when asked for, whole or in part."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if (folder / INDEX).exists():
            self._places: dict[str, str] = _places(folder / INDEX)
        elif (folder / SINGLE).exists():
            with _opened(folder / SINGLE) as file:
                self._places = dict.fromkeys(file.keys(), SINGLE)
        else:
            raise ValueError(f"{folder} has neither {SINGLE} nor {INDEX}")

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def read(self, name: str, region: tuple[slice, ...] = ()) -> Tensor:
        """Return a tensor, or the region of it; ValueError that names it where there is none."""
        found: Tensor = self._open(name, lambda file: file.get_slice(name)[region] if region else file.get_tensor(name))
        return found

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape."""
        return tuple(self._open(name, lambda file: file.get_slice(name).get_shape()))

    def _open(self, name: str, use: Any) -> Any:
        if name not in self._places:
            raise ValueError(f"{self.folder} has no tensor {name!r}")
        with _opened(self.folder / self._places[name]) as file:
            return use(file)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Give a file of tensors; ValueError that names it where it is not there, or not whole."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: download that folder again") from None
    except SafetensorError as error:
        raise ValueError(
            f"{path} is no whole file of tensors ({error}); it begins with {beginning(path)}: download that folder "
            "again"
        ) from None


def _places(index: Path) -> dict[str, str]:
    """Return the file of each tensor; ValueError where the index is not one, or names files of other folders."""
    try:
        found = dict(json.loads(index.read_text("utf-8"))["weight_map"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{index} is no index of tensors ({error}): download that folder again") from None
    for name, file in found.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise ValueError(f"{index}: {name} lies in {file!r}, which is no .safetensors file of that folder")
    return found
