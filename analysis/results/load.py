"""Where runs come from: the keys that every command of the analysis takes, and the frame that they name."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from analysis.text import commandline
from analysis.text.commandline import Key
from train.spec import calls

if TYPE_CHECKING:
    import pandas as pd

    class HasFrame(Protocol):
        """A fit that keeps the tidy frame of its runs, as `analysis.fit` returns it."""

        @property
        def frame(self) -> pd.DataFrame:
            """The runs."""

    Runs = str | Path | pd.DataFrame | HasFrame

TABLE = "table"
"""What errors call a data frame, and the name of its study."""
RUNS = Key("runs", "runs/STUDY, mlflow:EXPERIMENT, or a file: .csv, .tsv, .parquet, .jsonl (required)", required=True)
FURTHER = (
    Key("columns", "file: OURS:THEIRS,... for params, tokens, flops, loss and others; params:size_m*1e6 scales"),
    Key(
        "where",
        "COLUMN:VALUE,... keeps these rows; VALUE may be A|B, <X, >=X, !=X; a study has the columns of runs.csv",
    ),
    Key(
        "thin",
        "file: keep one checkpoint in K of every run, and its last one; without a run column, one row in K",
        1,
        commandline.whole,
    ),
    Key(
        "select",
        "best: of runs with equal N and D that differ in learning rate or batch, keep the lowest loss",
        "all",
        choices=("all", "best"),
    ),
    Key(
        "mid_schedule",
        "rows whose schedule was not finished: exclude, or correct by the bias measured on finished runs",
        "exclude",
        choices=("exclude", "correct"),
    ),
    Key(
        "decimal",
        "file: decimal separator; auto: point, or comma if columns are separated by semicolons",
        "auto",
        choices=("auto", "comma", "point"),
    ),
    Key(
        "params",
        "parameter count to use: matmul, total or non_embedding (default matmul); for a file a label of yours, the "
        "kind it holds",
    ),
    Key(
        "flop_rule",
        "file: how flops were counted, a label of yours; 6ND also computes a missing column of params, tokens, flops",
        "given",
    ),
    Key(
        "loss_unit",
        "nats per token (default), or bits per byte, which is comparable across tokenizers; for a file any label",
    ),
    Key("tokenizer", "file: the tokenizer, if there is no column of this name"),
    Key("validation", "file: the validation set, if there is no column of this name"),
    Key("points", "study: all points, or latest: those of its latest command", "all"),
    Key("uri", "MLflow server or database of mlflow:EXPERIMENT", "sqlite:///mlflow.db"),
)
KEYS = (RUNS, *FURTHER)


def load(options: Mapping[str, Any], need: tuple[str, ...] | None = None) -> pd.DataFrame:
    """Return the tidy frame (see :mod:`analysis.inputs.frame`) that these options name.

    `need` are the columns that a file has to have, by default params, tokens, flops and loss. The option `table` is a
    data frame in place of the file that `runs` would name.
    """
    from analysis.inputs import frame

    found = _load(options, need)
    found.attrs["words"] = _words(options)
    if options.get("mid_schedule") == "correct":
        from analysis.diagnostics.schedule import corrected

        found = corrected(found)
    return frame.best(found) if options.get("select") == "best" else found


def load_frame(options: Mapping[str, Any]) -> pd.DataFrame:
    """Return the tidy frame that `runs=` names; a file has to have the columns that the law `form=` reads."""
    from analysis.approaches.curves import NEEDS
    from analysis.inputs.columns import REQUIRED
    from analysis.laws.registry import CURVES, FORMS

    if options["form"] == CURVES:
        return load(options, need=NEEDS)
    form = FORMS[options["form"]]
    reads = (*form.inputs, form.target)
    surface = {"params", "tokens"} <= set(form.inputs) and form.target == "loss"
    return load(options, need=tuple(dict.fromkeys((*REQUIRED, *reads) if surface else reads)))


def source(runs: Any) -> dict[str, Any]:
    """Return the options that say where runs are; ValueError for what is neither a name nor a data frame."""
    if isinstance(runs, (str, Path)):
        return {"runs": str(runs)}
    import pandas as pd

    if not isinstance(runs, pd.DataFrame):
        raise ValueError(
            f"runs={calls.shown(runs)} is neither a name nor a data frame: give runs/STUDY, mlflow:NAME, a file, or a "
            "frame with the columns params, tokens, flops and loss"
        )
    return {"runs": TABLE, "table": runs}


def tidy(runs: Runs) -> pd.DataFrame:
    """Return the tidy frame of what a function is given: a name, a table, a frame that was loaded, or a fit."""
    import pandas as pd

    from analysis.inputs.dataset import is_tidy

    given = kept(runs)
    if is_tidy(given):
        assert isinstance(given, pd.DataFrame)
        return given
    return load({**{key.name: key.default for key in FURTHER}, **source(given)})


def kept(runs: Any) -> Any:
    """Return the frame of a fit's runs where a fit is given, and pandas' of a frame of polars or Arrow; else `runs`."""
    import pandas as pd

    from analysis.inputs.dataset import of_pandas

    frame = getattr(runs, "frame", None)
    return frame if isinstance(frame, pd.DataFrame) else of_pandas(runs)


def _load(options: Mapping[str, Any], need: tuple[str, ...] | None) -> pd.DataFrame:
    from analysis.inputs import columns, foreign, rows, study, tables

    runs = str(options["runs"])
    unit = options["loss_unit"]
    if runs.startswith("mlflow:"):
        given = (options["uri"], runs.removeprefix("mlflow:"), options["params"] or "matmul")
        return _kept(study.from_mlflow(*given, unit or columns.LOSS_UNIT), options)
    path = Path(runs)
    table = options.get("table")
    if table is not None or tables.is_file(runs) or path.is_file():
        what = "params, tokens, flops, loss or another column of ours on the left"
        return rows.from_csv(
            path,
            columns=foreign.pairs("columns", options["columns"], (*columns.REQUIRED, *columns.OPTIONAL), what),
            params_kind=options["params"] or "given",
            flop_rule=options["flop_rule"],
            loss_unit=unit,
            tokenizer=options["tokenizer"],
            validation=options["validation"],
            where=_where(options),
            need=need or columns.REQUIRED,
            decimal=options.get("decimal") or "auto",
            thin=max(1, int(options.get("thin") or 1)),
            table=table,
        )
    if options["columns"]:
        raise ValueError(f"columns={options['columns']} is for files, and runs={runs} is not a file; leave it out")
    if int(options.get("thin") or 1) > 1:
        raise ValueError(f"thin={options['thin']} is for files, and runs={runs} is not a file; leave it out")
    found = study.from_runs(path, options["params"] or "matmul", options["points"], unit or columns.LOSS_UNIT)
    return _kept(found, options)


def _words(options: Mapping[str, Any]) -> str:
    """Return the keys that name these runs on a command line, as they are typed; none of a data frame."""
    given = {key.name: (options.get(key.name) or key.default, key.default) for key in KEYS}
    if options.get("table") is not None:
        return ""
    return shlex.join(f"{name}={_typed(value)}" for name, (value, usual) in given.items() if value != usual)


def _typed(value: object) -> str:
    """Return a value as a command line has it: a mapping as OURS:THEIRS,OURS:THEIRS."""
    return ",".join(f"{ours}:{theirs}" for ours, theirs in value.items()) if isinstance(value, Mapping) else str(value)


def _where(options: Mapping[str, Any]) -> dict[str, str]:
    from analysis.inputs import foreign

    return foreign.pairs("where", options["where"], (), "COLUMN:VALUE")


def _kept(found: pd.DataFrame, options: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows that where= keeps."""
    from analysis.inputs import foreign

    kept = foreign.filtered(found, _where(options), Path(str(options["runs"]))).reset_index(drop=True)
    kept.attrs = dict(found.attrs)
    return kept
