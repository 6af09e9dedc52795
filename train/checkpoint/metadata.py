"""Reading a checkpoint's index without running anything that it says.

torch writes the index (`.metadata`) as a pickle, and a pickle may name any function to be called. Here it may name only
the dozen classes of which an index consists, and gets stand-ins for them that hold values and do nothing; torch's own
are then made from what was checked: names, shapes, dtypes, and files that lie in the checkpoint's own folder. An entry
of any other kind, which torch would read as a pickle too, is refused.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

INDEX = ".metadata"
_CHECKPOINT = "torch.distributed.checkpoint"
_NAMES = {
    f"{_CHECKPOINT}.metadata": (
        "Metadata",
        "TensorStorageMetadata",
        "TensorProperties",
        "ChunkStorageMetadata",
        "MetadataIndex",
        "StorageMeta",
        "_MEM_FORMAT_ENCODING",
    ),
    f"{_CHECKPOINT}.filesystem": ("_StorageInfo",),
    "torch.serialization": ("_get_layout",),
    "torch": ("Size",),
    "pathlib": ("PosixPath", "PurePosixPath", "Path", "WindowsPath"),
}
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


class Reader(FileSystemReader):
    """Reads a checkpoint's shards by an index that was read as data."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the index; ValueError that names the file where it is not one of ours."""
        found = read_index(Path(self.path))
        assert found.storage_meta is not None
        found.storage_meta.load_id = self.load_id
        return found


def read_index(folder: Path) -> Metadata:
    """Return the index of a checkpoint; ValueError that names the file and what to do where it is not one of ours."""
    path = folder / INDEX
    try:
        return _metadata(_Unpickler(io.BytesIO(path.read_bytes())).load())
    except Exception as error:  # whatever a file that somebody has made may bring about
        if isinstance(error, OSError):
            raise
        raise ValueError(
            f"{path} is no index of a checkpoint ({error or type(error).__name__}), so nothing of it was read: remove "
            f"{folder}, and the checkpoint before it is used"
        ) from None


class _Unpickler(pickle.Unpickler):
    """Gives stand-ins for the classes of an index, new ones for every file, and dtypes; refuses every other name."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._given: dict[tuple[str, str], Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Return what a name stands for; UnpicklingError where an index has no such thing."""
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        if name not in _NAMES.get(module, ()):
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        if (module, name) not in self._given:
            self._given[module, name] = type(name, (_Standin,), {})
        return self._given[module, name]

    def persistent_load(self, pid: Any) -> Any:
        """Refuse: an index refers to nothing outside it."""
        raise pickle.UnpicklingError("it refers to something outside it")


class _Standin:
    """Holds what a pickle gives an object: the arguments that make it, and its state."""

    arguments: tuple[Any, ...]
    state: Any

    def __new__(cls, *arguments: Any) -> _Standin:
        made = super().__new__(cls)
        made.arguments, made.state = arguments, None
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _metadata(found: Any) -> Metadata:
    said = _state(found, "Metadata")
    tensors: dict[str, Any] = {_text(name): _tensor(name, about) for name, about in _pairs(said["state_dict_metadata"])}
    storage = {_index(index): _place(about) for index, about in _pairs(said["storage_data"])}
    unknown = {index.fqn for index in storage} - set(tensors)
    if unknown:
        raise ValueError(f"it stores {min(unknown)!r}, of which it says nothing")
    return Metadata(tensors, None, storage, StorageMeta())


def _tensor(name: str, found: Any) -> TensorStorageMetadata:
    if type(found).__name__ != "TensorStorageMetadata":
        raise ValueError(f"{name!r} is no tensor")
    said = _state(found, "TensorStorageMetadata")
    dtype = _state(said["properties"], "TensorProperties", tuple)[0]
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} has no dtype")
    chunks = [_state(chunk, "ChunkStorageMetadata") for chunk in said["chunks"]]
    return TensorStorageMetadata(
        TensorProperties(dtype=dtype),
        _size(said["size"]),
        [ChunkStorageMetadata(_size(chunk["offsets"]), _size(chunk["sizes"])) for chunk in chunks],
    )


def _index(found: Any) -> MetadataIndex:
    said = _state(found, "MetadataIndex")
    offset, index = said.get("offset"), said.get("index")
    return MetadataIndex(_text(said["fqn"]), None if offset is None else _size(offset), index and int(index))


def _place(found: Any) -> _StorageInfo:
    said = _state(found, "_StorageInfo")
    name = _text(said["relative_path"])
    if Path(name).name != name or name in ("", ".", ".."):
        raise ValueError(f"{name!r} is no file of its folder")
    if said.get("transform_descriptors"):
        raise ValueError(f"{name!r} is stored in a form that needs an extension")
    return _StorageInfo(name, int(said["offset"]), int(said["length"]))


def _state(found: Any, kind: str, form: type = dict) -> Any:
    """Return the state of a stand-in of this kind; ValueError for anything else."""
    if not isinstance(found, _Standin) or type(found).__name__ != kind or not isinstance(found.state, form):
        raise ValueError(f"{type(found).__name__} stands where {kind} should")
    return found.state


def _size(found: Any) -> torch.Size:
    if not isinstance(found, _Standin) or type(found).__name__ != "Size":
        raise ValueError(f"{type(found).__name__} stands where a shape should")
    return torch.Size(int(length) for length in (found.arguments[0] if found.arguments else ()))


def _pairs(found: Any) -> list[tuple[Any, Any]]:
    if not isinstance(found, Mapping):
        raise ValueError(f"{type(found).__name__} stands where a table should")
    return list(found.items())


def _text(found: Any) -> str:
    if not isinstance(found, str):
        raise ValueError(f"{type(found).__name__} stands where a name should")
    return found
