"""What a study may be called: its name is a folder's, a job's and an experiment's."""

from __future__ import annotations

from pathlib import Path

from study.storage.layout import AttemptFolder, RunFolder, StudyFolder

LONGEST = 100
"""Characters of a name: job names and files are made of it."""
OTHERS = ("mlflow.db", "mlruns", "mlartifacts")
"""What tracking stores make, perhaps beside studies."""


def check_study_name(name: str, begun: bool = False) -> None:
    """Raise ValueError where a study cannot be called so: it says why, and what can.

    begun: there is a study of that name. Earlier versions took more names; theirs go on, but for hidden folders.
    """
    why = _why_not(name)
    plain = all(c.isalnum() or c in "._-" for c in name) and name[:1] not in ("", ".", "-")
    if why and not (begun and plain):
        raise ValueError(
            f"study.name={name!r} is not a folder name that a study can have ({why}): use letters, digits, '.', '_' "
            f"and '-', a letter or digit first, at most {LONGEST} characters"
        )


def check_place(folder: StudyFolder) -> None:
    """Raise ValueError where a study would lie within another one, whose folders would be taken for its own."""
    for above in dict.fromkeys((*folder.path.parents, *folder.path.resolve().parents)):
        if StudyFolder(above).points.is_file():
            raise ValueError(
                f"paths.runs={folder.path.parent}: it lies within the study {above}, which has folders of its own "
                "there: name a folder outside every study"
            )


def reserved() -> frozenset[str]:
    """Return the names of our own files and folders, in lower case."""
    layouts = (StudyFolder(Path()), RunFolder(Path()), AttemptFolder(Path()))
    named = [(one, name) for one in layouts for name, value in vars(type(one)).items() if isinstance(value, property)]
    places = [getattr(one, name) for one, name in named]
    return frozenset({*OTHERS, *(place.name.lower() for place in places if isinstance(place, Path))})


def _why_not(name: str) -> str:
    if not name:
        return "it is empty"
    if len(name) > LONGEST or len(name.encode()) > 2 * LONGEST:
        return f"it has {len(name)} characters"
    strange = [c for c in name if not (c.isalnum() or c in "._-")]
    if strange:
        return f"it holds {strange[0]!r}"
    if not name[0].isalnum():
        return f"it begins with {name[0]!r}"
    if name.endswith("."):
        return "it ends with a dot"
    return "our own files and folders are called so" if name.lower() in reserved() else ""
