"""Tables that others wrote as columns under our names, every cell judged.

Nothing is guessed in silence. Names are matched exactly or but for case and blanks; what is not found is asked for with
a mapping that is ready to paste. Cells that are not numbers drop their row with the reason, not the file.
"""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.inputs.counts import cells, counted
from analysis.inputs.tables import GROUPS, cased
from analysis.text.numbers import listed, read

ALIASES: Mapping[str, tuple[str, ...]] = {
    "params": ("n", "nparams", "numparams", "parameters", "modelsize", "size", "numparameters", "modelparams",
               "paramcount", "paramstotal", "totalparams", "paramsnonembedding", "nonembeddingparams",
               "modelparameters"),
    "tokens": ("d", "ntokens", "numtokens", "trainingtokens", "traintokens", "tokensseen", "datasize", "data",
               "datasetsize", "totaltokens"),
    "flops": ("c", "flop", "compute", "trainingflop", "trainingflops", "trainflops", "totalflops", "budget",
              "flopsbudget", "computebudget"),
    "loss": ("l", "finalloss", "valloss", "validationloss", "testloss", "trainloss", "evalloss", "crossentropy",
             "lossfinal", "bpb", "valbpb", "bitsperbyte", "validationbpb"),
}  # fmt: skip
"""How others call the four quantities, without case, blanks and signs; for proposals in error messages only."""

KIND_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "params_kind": ("paramskind", "paramcount", "counting", "paramcounting", "parameterkind"),
    "flop_rule": ("floprule", "flopkind", "flopsrule", "flopsaccounting"),
    "loss_unit": ("lossunit", "lossunits"),
    "tokenizer": ("tokenizer", "vocabulary", "tokenizername"),
    "validation": ("validation", "validationset", "valset", "evalset", "validationdata", "evaldataset"),
}
"""Text columns that say what a number means: they are taken as kinds, so that a fit refuses to mix them."""

COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le, ">=": operator.ge, "!=": operator.ne, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
FRACTIONS = ("loss", "error", "bits_per_byte", "lr")
"""Quantities in which a comma before three digits is no sign of thousands."""
REPEATS = ("seed", "repeat", "replicate", "trial", "run", "fold", "row", "index", "id")
"""Words in the names of number columns that tell repeats apart, not settings."""
SHOWN = 30
_PAIRS = re.compile(r",(?=[^,:]+:)")


def pairs(key: str, text: str | Mapping[str, object], known: Sequence[str], what: str) -> dict[str, str]:
    """Return "ours:theirs,ours:theirs", or a mapping already, as one of texts; their names may hold commas and colons.

    Of `known` names none may stand on the right where the left is not one: that is a mapping the wrong way round.
    """
    if not text:
        return {}
    parts = text.items() if isinstance(text, Mapping) else (p.partition(":")[::2] for p in _PAIRS.split(text))
    found: dict[str, str] = {}
    for left, right in ((str(name).strip(), str(value).strip()) for name, value in parts):
        if not left or not right:
            raise ValueError(f"{key}={text}: write {key}=NAME:VALUE,NAME:VALUE ({what})")
        if known and left not in known and right in known:
            raise ValueError(f"{key}={text}: our name comes first: write {key}={right}:{left} ({what})")
        found[left] = right
    return found


def filtered(table: pd.DataFrame, where: Mapping[str, str], path: Path) -> pd.DataFrame:
    """Return the rows whose columns have these values; a value may be A|B, or begin with <, <=, >, >= or !=."""
    for name, text in where.items():
        column = table[_present(table, name, path)]
        sign = next((s for s in COMPARISONS if text.startswith(s)), "")
        if sign:
            value: Any = text.removeprefix(sign).strip()
            limit = read(value)
            if not math.isnan(limit):
                keep = COMPARISONS[sign](_numeric(column), limit)
            elif sign == "!=":
                keep = column.astype(str) != value
            else:
                raise ValueError(f"where={name}:{text}: {value!r} is not a number to compare with")
        else:
            keep = pd.Series(False, index=table.index)
            for option in text.split("|"):
                keep |= _equal(column, option.strip())
        if not bool(keep.any()):
            values = [str(v) for v in column.drop_duplicates().head(9)]
            raise ValueError(
                f"where={name}:{text} leaves no row, so there is no finished run; {path} has {name} = "
                f"{', '.join(values[:8])}{', ...' if len(values) > 8 else ''}"
            )
        table = table[keep]
    return table


def _equal(column: pd.Series[Any], text: str) -> pd.Series[bool]:
    same = column.astype(str).str.strip() == text
    if column.dtype == bool or set(column.dropna().astype(str).str.lower().unique()) <= {"true", "false"}:
        return column.astype(str).str.lower() == {"1": "true", "0": "false"}.get(text.lower(), text.lower())
    return same | (_numeric(column) == read(text))


def _numeric(column: pd.Series[Any]) -> pd.Series[float]:
    """Return a column as numbers, with NaN for what is none."""
    if pd.api.types.is_numeric_dtype(column):
        return column
    return pd.to_numeric(pd.Series(cells(column), index=column.index), errors="coerce")


def mapped(table: pd.DataFrame, columns: Mapping[str, str], known: Sequence[str], path: Path) -> pd.DataFrame:
    """Return the table with our names added: `columns` maps ours to COLUMN or COLUMN*FACTOR, as params:size_m*1e6.

    The `known` names are taken from the file whatever their case. Counts in words (1.3B) are numbers then.
    """
    found = _recased(table, known)
    for ours, theirs in columns.items():
        if theirs in table.columns:
            found = found.assign(**{ours: table[theirs]})
            continue
        name, _, factor = theirs.rpartition("*")
        scale = read(factor)
        if not name or math.isnan(scale):
            _present(table, theirs, path)
            found = found.assign(**{ours: found[_present(table, theirs, path)]})
        else:
            values, bad = numbers(table, _present(table, name.strip(), path), path)
            # what is no number stays as it is written, for the row's reason
            scaled = [bad.get(i, value) for i, value in enumerate((scale * values).tolist())] if bad else scale * values
            found = found.assign(**{ours: scaled})
    for ours, aliases in KIND_COLUMNS.items():
        if ours not in found:
            alike = [c for c in table.columns if plain(c) in aliases and not pd.api.types.is_numeric_dtype(table[c])]
            if alike:
                found = found.assign(**{ours: table[alike[0]]})
    return counted(found)


def _recased(table: pd.DataFrame, known: Sequence[str]) -> pd.DataFrame:
    """Return the table with Params, LOSS and their like under the `known` lower-case names, where these are free."""
    lower: dict[str, list[str]] = {}
    for column in table.columns:
        lower.setdefault(cased(column), []).append(column)
    renamed = {names[0]: ours for ours, names in lower.items() if ours in known and len(names) == 1}
    return table.rename(columns=renamed)


def numbers(
    table: pd.DataFrame, name: str, path: Path, called: str = ""
) -> tuple[np.ndarray[Any, np.dtype[np.float64]], dict[int, str]]:
    """Return a column as floats, and the text of each cell that is not a number by row (read as NaN).

    Thousands separators are read, but in a loss, where a comma would more likely stand before decimals: that is asked
    for. A column of which more than half is not a number is an error, which calls it `called` (default: its name).
    """
    if name not in table:
        raise ValueError(missing(table, [name], path))
    column = table[name]
    if (pd.api.types.is_numeric_dtype(column) and column.dtype.kind != "c") or column.dtype == bool:
        return column.to_numpy(dtype=np.float64, na_value=np.nan), {}
    text = column.astype(object).where(column.notna(), "").map(lambda v: str(v).strip())
    said = f"{path}: column {called or name!r}" if called in ("", name) else f"{path}: column {called!r} ({name})"
    twofold = text[text.str.fullmatch(r"[-+]?\d{1,3},\d{3}")]
    if name in FRACTIONS and len(twofold):
        sample = str(twofold.iloc[0])
        either = f"{sample.replace(',', '.')} (decimal=comma) or {sample.replace(',', '')} (decimal=point)"
        raise ValueError(f"{said} holds {sample!r}, which is {either}: say which")
    cleaned = text.str.replace(rf"(?<=\d)[,{GROUPS}](?=\d{{3}}(\D|$))", "", regex=True)
    values = pd.to_numeric(cleaned, errors="coerce")
    empty = text.str.lower().isin(("", "nan", "none", "null", "na", "n/a", "-"))
    bad = values.isna() & ~empty
    if int(bad.sum()) * 2 > max(int((~empty).sum()), 1):
        first = int(np.flatnonzero(bad)[0])
        sample = str(text.iloc[first])
        raise ValueError(f"{said} holds what is not a number ({sample!r} in row {first + 1}){_mend(sample)}")
    return values.to_numpy(dtype=np.float64, na_value=np.nan), {int(i): str(text.iloc[i]) for i in np.flatnonzero(bad)}


def _mend(sample: str) -> str:
    """Return what to do about a cell that is not a number."""
    if not math.isnan(read(sample)):
        return "; K, M, B and T are read in params, tokens and flops, where columns= gives no factor: write it out, 7e7"
    if re.fullmatch(r"[-+]?[\d.]*,\d+([eE][-+]?\d+)?|\d{1,3}(\.\d{3})+", sample):
        return "; numbers with a decimal comma are read with decimal=comma"
    return "; write plain numbers, 3.14 or 7e7, or leave the cell empty"


def missing(table: pd.DataFrame, names: Sequence[str], path: Path) -> str:
    """Return what to say where columns are not there: with the mapping that looks right, ready to paste."""
    proposal = []
    table = counted(table, table.columns)
    for name in names:
        near = [c for c in table.columns if plain(c) in ALIASES.get(name, ())]
        near += [c for c in table.columns if (name if name == "loss" else name.rstrip("s")) in plain(c)]
        near += difflib.get_close_matches(name, list(table.columns), n=1, cutoff=0.8)
        usable = [c for c in near if pd.api.types.is_numeric_dtype(table[c])]
        if name == "params":
            usable.sort(key=lambda column: _off_6nd(table, column))
        proposal.append((name, usable[0] if usable else "COLUMN"))
    computed = [name for name, column in proposal if column == "COLUMN" and name in ("params", "tokens", "flops")]
    if len(computed) == 1 and "flops" in computed and len(proposal) > 1:
        proposal = [pair for pair in proposal if pair[0] != "flops"]
    option = "columns=" + ",".join(f"{name}:{column}" for name, column in proposal)
    quoted = f"'{option}'" if re.search(r"[\s()*]", option) else option
    hint = "; flop_rule=6ND computes the one of params, tokens, flops that is not there" if {
        "flops", "params", "tokens"} & set(names) else ""  # fmt: skip
    held = listed(map(str, table.columns), most=SHOWN)
    which = f"no column {names[0]!r}" if len(names) == 1 else f"no columns {', '.join(map(repr, names))}"
    guess = "perhaps " if any(c != "COLUMN" for _, c in proposal) else ""
    return f"{path} has {which}; map with {guess}{quoted}{hint}. It has {held}"


def _off_6nd(table: pd.DataFrame, column: str) -> float:
    """Return how far 6 N D with a column as N lies from the FLOPs, as a factor's log to one digit; 0 without these.

    Of total and active parameters of sparse models it is the active ones that compute goes by.
    """
    if not all(name in table and pd.api.types.is_numeric_dtype(table[name]) for name in ("tokens", "flops")):
        return 0.0
    with np.errstate(all="ignore"):
        ratio = table["flops"] / (6.0 * table[column] * table["tokens"])
        off = float(np.abs(np.log(ratio.where(ratio > 0))).median())
    return round(off, 1) if np.isfinite(off) else 1e9


def settings(table: pd.DataFrame, taken: Sequence[str]) -> dict[str, list[str]]:
    """Return columns with 2 to 12 values that no name of ours covers: settings that a fit would mix.

    Text is one; numbers are where they differ between rows of equal params and tokens, as a number of experts does,
    and a seed may.
    """
    found = {}
    for name in table.columns:
        column = table[name]
        if name in taken or pd.api.types.is_bool_dtype(column):
            continue
        values = [str(value) for value in sorted(column.dropna().unique(), key=_order)]
        if not 2 <= len(values) <= 12 or len(values) * 2 > len(table):
            continue
        if pd.api.types.is_numeric_dtype(column):
            if _of_repeats(str(name)) or not _crossed(table, str(name)):
                continue
            values = [value.removesuffix(".0") for value in values]
        elif "params" in table and bool((table.groupby(column)["params"].nunique() <= 1).all()):
            continue  # a name for the size
        found[str(name)] = values
    return found


def _order(value: object) -> tuple[float, str]:
    """Return what sorts cells: numbers by their size, then text."""
    return (float(value), "") if isinstance(value, (int, float, np.number)) else (float("inf"), str(value))


def _of_repeats(name: str) -> bool:
    """Return whether a column numbers repeats of a setting, which are fitted together on purpose."""
    return any(word.rstrip("0123456789") in REPEATS for word in re.split(r"[^a-z0-9]+", name.lower()))


def _crossed(table: pd.DataFrame, name: str) -> bool:
    """Return whether several rows of equal params and tokens differ in a column: sizes do not decide it."""
    if not {"params", "tokens"} <= set(table.columns):
        return False
    each = table.groupby(["params", "tokens"], dropna=True)[name].nunique()
    return bool((each > 1).sum() >= 2)


def plain(name: str) -> str:
    """Return a column's name without case, blanks and signs: "N params (B)" is nparamsb."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _present(table: pd.DataFrame, name: str, path: Path) -> str:
    """Return the column's name; ValueError with the nearest where there is none."""
    if name in table.columns:
        return name
    near = difflib.get_close_matches(name, list(table.columns), n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    held = listed(map(str, table.columns), most=SHOWN)
    raise ValueError(f"{path} has no column {name!r}{hint}; it has {held}")
