"""Hugging Face datasets as `save_to_disk` leaves them: which Arrow files are theirs, read without their library.

A dataset is a folder with ``state.json`` (the names of its files), ``dataset_info.json`` and the files themselves; a
dictionary of datasets is a folder with ``dataset_dict.json`` (the names of the splits) and a dataset for each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from train.data.corpus.walk import LeaveOut, SourceFile
from train.spec.extensions import ARROW

DICTIONARY = "dataset_dict.json"
STATE = "state.json"
INFO = "dataset_info.json"
SPLIT = "train"


def is_saved(folder: Path) -> bool:
    """Whether a folder is a saved dataset, or a dictionary of them."""
    return (folder / DICTIONARY).is_file() or ((folder / STATE).is_file() and (folder / INFO).is_file())


def files_of(folder: Path, source: str) -> list[SourceFile]:
    """Return the files of a saved dataset in its own order of rows; of a dictionary those of its split `train`.

    source: as it was given, for messages. Raises ValueError where it has no such split, or is not whole.
    """
    if (folder / DICTIONARY).is_file():
        splits = _plain(folder / DICTIONARY, source).get("splits")
        names = [str(one) for one in splits] if isinstance(splits, list) else []
        if SPLIT not in names:
            which = f"as data.source={Path(source) / names[0]}" if names else "as data.source=/dataset/SPLIT"
            raise ValueError(
                f"data.source={source}: this dataset has the splits {', '.join(names) or 'none'} and no {SPLIT}: "
                f"name the folder of one, {which}"
            )
        return list(_named(folder / SPLIT, source, f"{SPLIT}/"))
    return list(_named(folder, source, ""))


def of_the_split(files: Sequence[SourceFile], leave_out: LeaveOut) -> Iterator[SourceFile]:
    """Yield files of a folder that has saved datasets in it, without other splits of theirs than `train`."""
    other: dict[Path, bool] = {}
    for file in files:
        folder = Path(file.path).parent
        if file.kind == ARROW and folder not in other:
            other[folder] = folder.name != SPLIT and (folder.parent / DICTIONARY).is_file()
        if file.kind == ARROW and other[folder]:
            leave_out(file.name, f"another split than {SPLIT}")
        else:
            yield file


def _named(folder: Path, source: str, prefix: str) -> Iterator[SourceFile]:
    state = _plain(folder / STATE, source)
    if state.get("_indices_data_files"):
        raise ValueError(
            f"data.source={source}: {folder} is a selection of rows of another dataset, as earlier versions saved it: "
            "save it again after dataset.flatten_indices()"
        )
    for one in state.get("_data_files") or ():
        name = str(one.get("filename")) if isinstance(one, dict) else str(one)
        path = folder / name
        if Path(name).name != name:
            raise ValueError(f"data.source={source}: {folder / STATE} names {name}, which is not in this folder")
        try:
            status = path.stat()
        except OSError as error:
            raise ValueError(
                f"data.source={source}: {path} cannot be read ({error.strerror}), which {folder / STATE} names: "
                "copy the dataset again"
            ) from None
        yield SourceFile(f"{prefix}{name}", str(path), status.st_size, status.st_mtime_ns, ARROW)


def _plain(path: Path, source: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"data.source={source}: {path} of a saved dataset cannot be read ({error})") from None
    return found if isinstance(found, dict) else {}
