"""Files of tables read as their authors wrote them: CSV, TSV, Parquet and JSON lines; separators, decimals, encodings.

What is plain is read (a byte order mark, semicolons, tabs, comments before the header, a decimal comma between
semicolons); what may mean two things is asked for.
"""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

FILES = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".parquet", ".jsonl")
PICKLES = (".pkl", ".pickle", ".pkl.gz", ".pickle.gz", ".pkl.xz", ".pickle.xz", ".joblib", ".pt", ".pth", ".npy")
OTHERS = (".xlsx", ".xls", ".ods", ".json", ".h5", ".hdf5", ".feather", ".html", ".zip")
GROUPS = "'’_\u00a0\u202f "
"""Signs between thousands that are no decimal sign anywhere."""
MOST_COMMENTS = 1000


def is_file(path: str) -> bool:
    """Return whether the name is that of a table, readable or refused."""
    return path.lower().endswith((*FILES, *PICKLES, *OTHERS))


def read(path: Path, text: Sequence[str] = (), decimal: str = "auto") -> pd.DataFrame:
    """Return the file's table with trimmed column names; ValueError says why it cannot be read.

    Columns named in `text` stay as they are written: a run called 0012 or 8474e0692244 is no number. `decimal` says
    which sign stands before decimals: auto, comma or point; the other one and blanks then separate thousands. Pickles
    are refused: loading one runs whatever code its author put in.
    """
    name = path.name.lower()
    if name.endswith(PICKLES):
        raise ValueError(f"runs={path} is a pickle or an archive of arrays, which can run code when it is read: it is "
                         "not loaded. Write it as .csv or .parquet where you trust it, and give that")  # fmt: skip
    if path.is_dir():
        raise ValueError(f"runs={path} is a folder: name the table in it")
    if not path.is_file():
        raise ValueError(f"runs={path} does not exist; give runs/STUDY, mlflow:NAME or a file ({', '.join(FILES)})")
    if not path.stat().st_size:
        raise ValueError(f"runs={path} is empty: a header and one line per run are needed")
    if name.endswith(OTHERS):
        raise ValueError(
            f"runs={path}: {path.suffix} is not read; save the table as .csv, or one of {', '.join(FILES)}"
        )
    try:
        table = _load(path, name, frozenset(map(cased, text)), decimal)
    except UnicodeError:
        packed = _packed(path)
        if packed:
            raise ValueError(f"runs={path} is {packed}") from None
        raise ValueError(f"runs={path} is not UTF-8 text; save it as .csv in UTF-8") from None
    except ImportError:
        raise ValueError(
            f"runs={path}: reading .parquet needs pyarrow, which is not installed; pip install pyarrow, or save the "
            "table as .csv"
        ) from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, ValueError, OSError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if not name.endswith(FILES):
            raise ValueError(f"runs={path} is no table; give one as .csv, or one of {', '.join(FILES[1:])}") from None
        hint = "; quote cells that hold the separator, or separate columns by ;" if "Expected" in first else ""
        raise ValueError(f"runs={path} cannot be read as {path.suffix.lstrip('.')}: {first}{hint}") from None
    return tidied(table, path)


def tidied(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Return a table with trimmed column names and rows by number; ValueError if it has no row or no column names.

    Levels of a frame's index that have a name are columns, too.
    """
    table = table.reset_index([name for name in table.index.names if name is not None and name not in table])
    table = table.set_axis([str(column).strip() for column in table.columns], axis=1)
    table = table[_each_once(table.columns, path)]
    if not len(table) or not len(table.columns):
        raise ValueError(f"runs={path} holds no row: a header and one line per run are needed")
    if all(_is_number(column) for column in table.columns):
        held = ", ".join(table.columns[:6])
        raise ValueError(f"runs={path} has no header: its first line is {held}; name the columns in a first line")
    return table.reset_index(drop=True)


def _each_once(names: Iterable[object], path: Path) -> list[str]:
    """Return the names of a header's columns, trimmed; ValueError where one stands there twice."""
    named = [name for name in (str(one).strip() for one in names) if name and not name.startswith("Unnamed:")]
    for name, count in Counter(named).items():
        if count > 1:
            raise ValueError(f"runs={path} has {count} columns {name!r}: rename or remove all but one of them")
    return named


def cased(name: str) -> str:
    """Return a column's name as ours are written: Size Group is size_group."""
    return re.sub(r"[\s\-]+", "_", str(name).strip().lower())


def without_groups(text: str, decimal: str) -> str:
    """Return a number as Python writes it, where it has thousands separators or a decimal comma; else the text.

    >>> without_groups("1.234.567,8", "comma"), without_groups("1,234,567.8", "point"), without_groups("1,3B", "comma")
    ('1234567.8', '1234567.8', '1.3B')
    """
    sign, group = (",", "." + GROUPS) if decimal == "comma" else (".", "," + GROUPS)
    plain = text.strip()
    if re.fullmatch(rf"[-+]?\d{{1,3}}(?:[{group}]\d{{3}})+(?:[{sign}]\d*)?\s*[KMBT]?", plain, re.IGNORECASE):
        plain = re.sub(f"[{group}]", "", plain)
    elif "." in plain and "," in plain:
        return text
    if re.fullmatch(rf"[-+]?\d*[{sign}]?\d*(?:e[-+]?\d+|\s*[KMBT])?", plain, re.IGNORECASE):
        return plain.replace(sign, ".")
    return text


def _load(path: Path, name: str, text: frozenset[str], decimal: str) -> pd.DataFrame:
    if name.endswith(".parquet"):
        from pyarrow.parquet import read_schema

        _each_once(read_schema(path).names, path)
        return pd.read_parquet(path)
    if name.endswith(".jsonl"):
        return pd.read_json(path, lines=True, dtype=False, precise_float=True)
    encoding, skipped, marked = _start(path, name)
    how: dict[str, Any] = {"encoding": encoding, "skipinitialspace": True, "skiprows": skipped}
    names, separator = _header(path, "\t" if ".tsv" in name else ",", how)
    if marked:
        names[0] = names[0].lstrip("# ")
    _each_once(names, path)  # pandas would number them, and the first one would be taken

    def parsed(cells: type | None) -> pd.DataFrame:
        kinds = cells or {column: str for column in names if cased(column) in text}
        more: dict[str, Any] = {} if separator == r"\s+" else {"low_memory": False}
        found: pd.DataFrame = pd.read_csv(path, sep=separator, names=names, header=0, dtype=kinds, **how, **more)
        return _without_row_names(found)

    table = parsed(None)
    if decimal == "auto" and separator == ";" and any(_decimal_comma(table[column]) for column in table.columns):
        decimal = "comma"
    if decimal != "auto":
        table = parsed(str)
        for column in table.columns:
            if cased(column) not in text:
                table[column] = _numbers(table[column], decimal)
    return table


def _header(path: Path, separator: str, how: Mapping[str, Any]) -> tuple[list[str], str]:
    """Return the names of the columns, and the sign that separates them: the one expected, else one that is there."""

    def cells(sep: str) -> list[str]:
        line = pd.read_csv(path, sep=sep, header=None, nrows=1, dtype=str, keep_default_na=False, **how).iloc[0]
        return [str(cell) if str(cell).strip() else f"Unnamed: {i}" for i, cell in enumerate(line)]

    names = cells(separator)
    if len(names) > 1:
        return names, separator
    other = next((sign for sign in (";", "\t", ",", "|") if sign in names[0]), r"\s+" if " " in names[0] else separator)
    return cells(other), other


def _without_row_names(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table without the row names that R writes; ValueError where rows are longer than the header."""
    if not len(table) or table.index.equals(pd.RangeIndex(len(table))):
        return table
    first = table.index[0]
    if table.index.nlevels == 1 and (str(first) in ("0", "1") or not _is_number(first)):
        return table.reset_index(drop=True)
    extra = table.index.nlevels
    raise ValueError(
        f"the header has {len(table.columns)} names and the first row {len(table.columns) + extra} cells; decimal "
        "commas? Quote those cells or separate columns by ;, and give decimal=comma"
    )


def _numbers(column: pd.Series[Any], decimal: str) -> pd.Series[Any]:
    """Return a column of text as numbers where all of it is that, with `decimal` as the sign before decimals."""
    plain = column.map(lambda cell: without_groups(cell, decimal), na_action="ignore")
    values = pd.to_numeric(plain, errors="coerce")
    return values if bool((values.notna() == plain.notna()).all()) else plain


def _packed(path: Path) -> str | None:
    """Return what a file that its name calls text is by its first bytes, and the cure; None where they say nothing."""
    with path.open("rb") as file:
        mark = file.read(4)
    if mark.startswith(b"\x1f\x8b"):
        return f"compressed with gzip: rename it to {path.name}.gz"
    if mark == b"PK\x03\x04":
        return "an Excel workbook or a zip archive, not text; save the table as .csv"
    return "in Parquet, not text: rename it to end in .parquet" if mark == b"PAR1" else None


def _start(path: Path, name: str) -> tuple[str, int, bool]:
    """Return the encoding, the comment lines before the header, and whether the header itself begins with #."""
    with gzip.open(path, "rb") if name.endswith(".gz") else path.open("rb") as file:
        mark = file.read(2)
        encoding = "utf-16" if mark in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        if encoding == "utf-16":
            return encoding, 0, False
        file.seek(0)
        comments: list[str] = []
        line = ""
        for raw in file:
            line = raw.decode(encoding, errors="replace").strip()
            if (line and not line.startswith("#")) or len(comments) > MOST_COMMENTS:
                break
            comments.append(line)
    cells = [cell for cell in re.split(r"[,;\t|\s]+", line) if cell]
    last = comments[-1] if comments else ""
    marked = len(cells) > 1 and all(map(_is_number, cells)) and len(re.split(r"[,;\t|]|\s+", last.lstrip("# "))) > 1
    return encoding, len(comments) - marked, marked


def _is_number(cell: object) -> bool:
    try:
        float(str(cell))
    except ValueError:
        return False
    return True


def _decimal_comma(column: pd.Series[Any]) -> bool:
    """Return whether a column holds numbers as 3,14: a comma with other than three digits after it, and no point."""
    if pd.api.types.is_numeric_dtype(column):
        return False
    text = column.dropna().astype(str).str.strip()
    written = text.str.fullmatch(r"[-+]?\d+(,\d+)?([eE][-+]?\d+)?")
    return bool(len(text)) and bool(written.all()) and bool(text.str.contains(r",(?!\d{3}$)").any())
