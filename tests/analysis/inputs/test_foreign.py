"""Tables from elsewhere: odd names, units, cells and separators; what is refused, and what every message proposes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.inference import findings
from analysis.inputs import foreign, frame, tables
from analysis.inputs.columns import OPTIONAL, REQUIRED
from analysis.inputs.rows import from_csv
from tests.analysis import studies


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_one_mapping_reads_a_foreign_table_with_its_units(tmp_path: Path) -> None:
    table = studies.isoflop(0)
    out = pd.DataFrame({"Size (M)": table["params"] / 1e6, "D": table["tokens"] / 1e9, "val-loss": table["loss"]})
    out.to_csv(tmp_path / "a.csv", sep=";", index=False)
    text = "params:Size (M)*1e6,tokens:D*1e9,loss:val-loss"
    columns = foreign.pairs("columns", text, (*REQUIRED, *OPTIONAL), "")
    rows = frame.used(from_csv(tmp_path / "a.csv", columns=columns, flop_rule="6ND"))
    np.testing.assert_allclose(np.sort(rows.params), np.sort(table["params"]), rtol=1e-9)
    assert len(rows.labels) == 4


def test_names_are_taken_whatever_their_case_and_one_quantity_is_computed_when_told(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", " Params ,FLOPs,LOSS\n1e6,6e15,3.0\n2e6,1.2e16,2.9\n")
    with pytest.raises(ValueError, match=r"no column 'tokens'.*flop_rule=6ND"):
        from_csv(path)
    rows = frame.used(from_csv(path, flop_rule="6ND"))
    np.testing.assert_allclose(rows.tokens, [1e9, 1e9])


def test_what_is_missing_comes_with_a_mapping_to_paste(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "n_params,num_tokens,final_loss\n1e6,1e9,3\n")
    with pytest.raises(ValueError, match="columns=params:n_params,tokens:num_tokens,loss:final_loss"):
        from_csv(path)
    with pytest.raises(ValueError, match="our name comes first: write columns=params:n_params"):
        foreign.pairs("columns", "n_params:params", REQUIRED, "")
    with pytest.raises(ValueError, match="did you mean 'n_params'"):
        from_csv(path, columns={"params": "n_param"})


def test_every_row_that_cannot_be_used_is_listed_with_its_reason(tmp_path: Path) -> None:
    lines = ["params,tokens,flops,loss", '"1,000,000",1e9,6e15,3.0', "2e6,1e9,1.2e16,2.9", "2e6,1e9,1.2e16,2.9"]
    lines += ["3e6,1e9,1.8e16,oops", "4e6,1e9,2.4e16,", "5e6,-1,3e16,2.8"]
    found = from_csv(written(tmp_path / "a.csv", "\n".join(lines) + "\n")).set_index("key")
    codes = dict(found["drop_code"])
    assert codes == {
        "row1": "", "row2": "", "row3": "duplicate", "row4": "not_a_number", "row5": "missing",
        "row6": "not_positive",
    }  # fmt: skip
    assert "'oops'" in str(found.loc["row4", "drop_reason"])
    assert found.loc["row1", "params"] == 1e6


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "", "is empty: a header and one line per run are needed"),
        ("a.csv", "params,tokens,flops,loss\n", "holds no row"),
        ("a.csv", "params,tokens,flops,loss\n70M!,1e9,1,3\n1 bit,1e9,1,3\n", "'70M!' in row 1.*write plain"),
        ("a.pkl", "x", "is a pickle"),
        ("a.parquet", "x", "cannot be read as parquet"),
    ],
)
def test_files_that_cannot_be_read_say_why(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_csv(written(tmp_path / name, text))


def test_a_perplexity_is_no_loss_and_bits_per_byte_are_known_by_name(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "params,tokens,flops,ppl,val_bpb,tokenizer\n1,2,12,9,1.0,a\n2,2,24,8,0.9,b\n")
    with pytest.raises(ValueError, match="natural logarithm"):
        from_csv(path, columns={"loss": "ppl"})
    bits = from_csv(path, columns={"loss": "val_bpb"})
    assert set(bits["loss_unit"]) == {"bits per byte"}
    assert len(frame.used(bits)) == 2
    with pytest.raises(ValueError, match="losses in bits per byte can be compared"):
        frame.used(from_csv(path, columns={"loss": "val_bpb"}, loss_unit="nats per token"))


UNITS = "params,tokens,flops,loss,loss_unit,bits_per_byte,fingerprint\n1,2,12,3,{0},1.1,a\n2,2,24,2,{0},0.9,b\n"


def test_bits_per_byte_asked_for_are_the_loss_of_a_table_that_has_both(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", UNITS.format("nats per token"))
    assert list(from_csv(path)["loss"]) == [3.0, 2.0]
    for words in ({"loss_unit": "bits per byte"}, {"columns": {"loss": "bits_per_byte"}, "loss_unit": "bits per byte"}):
        bits = from_csv(path, **words)
        assert list(bits["loss"]) == [1.1, 0.9] and set(bits["loss_unit"]) == {"bits per byte"}
        assert len(frame.used(bits)) == 2  # of two corpora
    assert list(from_csv(path, loss_unit="nats per token")["loss"]) == [3.0, 2.0]


def test_the_unit_of_the_column_loss_is_not_that_of_another_column(tmp_path: Path) -> None:
    table = from_csv(written(tmp_path / "a.csv", UNITS.format("nats per token")), columns={"loss": "bits_per_byte"})
    assert list(table["loss"]) == [1.1, 0.9] and set(table["loss_unit"]) == {"bits per byte"}


def test_a_unit_that_the_table_contradicts_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", UNITS.format("bits per byte"))
    with pytest.raises(
        ValueError, match=r"loss_unit=nats per token: the column loss_unit of .*a\.csv says bits per byte"
    ):
        from_csv(path, loss_unit="nats per token")


def test_kinds_in_a_column_are_not_mixed_and_other_settings_are_named(tmp_path: Path) -> None:
    table = studies.isoflop(0).assign(counting=["a", "b"] * 10, optimizer=["adam"] * 10 + ["muon"] * 10)
    table.to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(ValueError, match="mix counts of parameters"):
        frame.used(from_csv(tmp_path / "a.csv"))
    one = from_csv(tmp_path / "a.csv", where={"counting": "a"})
    assert one.attrs["settings"] == {"optimizer": ["adam", "muon"]}


@pytest.mark.parametrize(
    ("where", "left"),
    [({"loss": "<3"}, 5), ({"name": "a|b"}, 4), ({"good": "1"}, 3), ({"name": "!=c"}, 4), ({"loss": ">=4"}, 2)],
)
def test_filters_compare(tmp_path: Path, where: dict[str, str], left: int) -> None:
    lines = [f"{2 + 0.5 * i},{'abc'[i % 3]},{i % 2 == 0}" for i in range(6)]
    table = tables.read(written(tmp_path / "a.csv", "loss,name,good\n" + "\n".join(lines) + "\n"))
    expected = {"loss": {"<3": 2, ">=4": 2}}
    wanted = expected.get(next(iter(where)), {}).get(next(iter(where.values())), left)
    assert len(foreign.filtered(table, where, tmp_path)) == wanted


def test_an_empty_filter_lists_what_there_is(tmp_path: Path) -> None:
    table = tables.read(written(tmp_path / "a.csv", "loss,name\n1,a\n2,b\n"))
    with pytest.raises(ValueError, match=r"leaves no row.*name = a, b"):
        foreign.filtered(table, {"name": "z"}, tmp_path)


def test_checkpoints_of_a_run_before_its_last_are_in_mid_schedule(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "run,params,tokens,flops,loss\nx,1,1,6,4\nx,1,2,12,3\ny,2,2,24,2\n")
    found = from_csv(path)
    assert sorted(found["drop_code"]) == ["", "", "mid_schedule"]
    assert len(frame.used(found)) == 2
    assert len(frame.checkpoints(found)) == 3


def test_rounded_labels_group_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "params,tokens,flops,flops_budget,loss\n1,1,2.15,2,3\n2,1,2.15,2,3.1\n")
    np.testing.assert_allclose(frame.used(from_csv(path)).labels, [2.15])


def test_names_that_look_like_numbers_stay_text(tmp_path: Path) -> None:
    rows = studies.isoflop().head(4)[["params", "tokens", "flops", "loss"]]
    names = ["8474e0692244", "0012", "12", "1e400"]
    rows.assign(Key=names, trial=names).to_csv(tmp_path / "t.csv", index=False)
    rows.assign(key=names, trial=names).to_json(tmp_path / "t.jsonl", orient="records", lines=True)
    for file in ("t.csv", "t.jsonl"):
        table = from_csv(tmp_path / file, columns={"run": "trial"})
        assert sorted(table["key"]) == sorted(names)
        assert sorted(table["run"]) == sorted(names)
        assert len(set(frame.used(table).run)) == 4  # type: ignore[arg-type]


SMALL = {"params": (81649658, 40824829), "tokens": (204124145, 408248290), "loss": (5.4104, 4.9113)}


def small(**cells: str) -> str:
    """Return two rows of a study as text, with columns replaced by the given text of both."""
    lines = [",".join((*SMALL, "flops"))]
    for i in (0, 1):
        row = {name: str(values[i]) for name, values in SMALL.items()} | {"flops": "1e17"}
        lines.append(",".join({**row, **{name: text.split("|")[i] for name, text in cells.items()}}.values()))
    return "\n".join(lines) + "\n"


PLAIN = small()
GERMAN = "params;tokens;flops;loss\n81.649.658;204.124.145;1e17;5,4104\n40.824.829;408.248.290;1e17;4,9113\n"


@pytest.mark.parametrize(
    ("text", "decimal"),
    [
        (PLAIN.encode(), "auto"),
        (b"\xef\xbb\xbf" + PLAIN.encode(), "auto"),
        (PLAIN.encode("utf-16"), "auto"),
        (PLAIN.replace("\n", "\r\n").encode(), "auto"),
        (("# made by hand\n\n" + PLAIN).encode(), "auto"),
        (("# " + PLAIN).encode(), "auto"),
        (PLAIN.replace(",", " ").encode(), "auto"),
        (PLAIN.replace(",", "\t").encode(), "auto"),
        (PLAIN.replace(",", ";").replace(".", ",").encode(), "auto"),
        (GERMAN.encode(), "auto"),
        (small(params='"81,649,658"|"40,824,829"').encode(), "auto"),
        (small(params="81'649'658|40'824'829").encode(), "auto"),
        (small(loss='"5,4104"|"4,9113"').encode(), "comma"),
        (("x" + PLAIN.replace("\n8", "\nr1,8").replace("\n4", "\nr2,4"))[1:].encode(), "auto"),
    ],
)
def test_the_same_table_however_it_is_written(tmp_path: Path, text: bytes, decimal: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(text)
    rows = frame.used(from_csv(path, decimal=decimal))
    np.testing.assert_allclose(np.sort(rows.params), sorted(SMALL["params"]))
    np.testing.assert_allclose(np.sort(rows.tokens), sorted(SMALL["tokens"]))
    np.testing.assert_allclose(np.sort(rows.loss), sorted(SMALL["loss"]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (small(loss='"5,4104"|"4,9113"'), r"column 'loss' holds.*'5,4104'.*decimal=comma"),
        (small(loss='"5,410"|"4,911"'), r"column 'loss' holds '5,410', which is 5\.410 \(decimal=comma\) or 5410"),
        (small(loss="5.41 nats|4.91 nats"), r"column 'loss'.*'5\.41 nats'.*write plain numbers"),
        (small(loss="5,4104|4,9113"), "the header has 4 names and the first row 5 cells.*decimal=comma"),
        (PLAIN + "1,2,3,4,5\n", r"Expected 4 fields.*quote cells"),
        (PLAIN.partition("\n")[2], "has no header"),
        (small(params="81.6|40.8"), r"flops are 1e\+06 times 6 x params x tokens.*columns=params:COLUMN\*1e6"),
        (small(flops="100|100"), r"one of them is in other units.*flops:COLUMN\*1e15 for PFLOPs"),
    ],
)
def test_what_may_mean_two_things_is_an_error_that_names_column_value_and_remedy(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        frame.used(from_csv(written(tmp_path / "a.csv", text)))


def test_an_error_calls_a_mapped_column_by_its_own_name_and_one_column_is_one_quantity(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", small(loss='"5,4104"|"4,9113"').replace("loss", "val"))
    with pytest.raises(ValueError, match=r"column 'val' \(loss\) holds"):
        from_csv(path, columns={"loss": "val"})
    with pytest.raises(ValueError, match="columns=params:n,tokens:n: one column cannot be both"):
        from_csv(path, columns={"params": "n", "tokens": "n"})


def test_cells_of_a_scaled_column_that_are_no_numbers_keep_their_reason(tmp_path: Path) -> None:
    text = small(params='"1,000"|2').replace("params", "m") + "oops,408248290,4.9,1e17\n"
    found = from_csv(written(tmp_path / "a.csv", text), columns={"params": "m*1e6"}).set_index("key")
    assert found.loc["row1", "params"] == 1e9
    assert "'oops'" in str(found.loc["row3", "drop_reason"])


def test_counts_too_small_to_be_counts_and_exchanged_columns_are_found() -> None:
    table = studies.isoflop(0)
    small = {name: table[name].to_numpy(float) for name in ("params", "tokens")}
    millions = findings.columns({**small, "params": small["params"] / 1e6})
    assert [(check.code, check.level) for check in millions] == [("units", "error")]
    assert "columns=params:COLUMN*1e6" in millions[0].advice
    exchanged = findings.columns({"params": small["tokens"], "tokens": small["params"]})
    assert [check.code for check in exchanged] == ["few_tokens"]
    assert findings.columns(small) == []


@pytest.mark.parametrize(
    ("start", "answer"),
    [
        (b"\x1f\x8b\x08\x00", "compressed with gzip: rename it to a.csv.gz"),
        (b"PK\x03\x04", "an Excel workbook or a zip archive"),
        (b"PAR1", "rename it to end in .parquet"),
    ],
)
def test_a_file_that_is_no_text_is_called_what_it_is(tmp_path: Path, start: bytes, answer: str) -> None:
    (tmp_path / "a.csv").write_bytes(start + b"\xff\xfe\x80,\n")
    with pytest.raises(ValueError, match=answer):
        tables.read(tmp_path / "a.csv")


@pytest.mark.parametrize("header", ["params,tokens,flops,loss,loss", "params;tokens;flops;loss; loss "])
def test_two_columns_of_one_name_are_refused_and_none_is_chosen(tmp_path: Path, header: str) -> None:
    path = written(tmp_path / "a.csv", f"# runs\n{header}\n" + "1,2,12,9,8\n".replace(",", header[6]))
    with pytest.raises(ValueError, match=r"a\.csv has 2 columns 'loss': rename or remove all but one of them"):
        from_csv(path)
    pytest.importorskip("pyarrow")
    from pyarrow import Table, array, parquet

    columns = [array([1.0, 2.0])] * 5
    parquet.write_table(
        Table.from_arrays(columns, ["params", "tokens", "flops", "loss", "loss"]), tmp_path / "a.parquet"
    )
    with pytest.raises(ValueError, match=r"a\.parquet has 2 columns 'loss': rename or remove all but one of them"):
        from_csv(tmp_path / "a.parquet")


def test_a_header_is_read_once_and_the_table_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large table of another separator costs no further pass; a decimal comma alone is read again, as text."""
    asked: list[Any] = []
    read_csv = pd.read_csv

    def counted(*given: Any, **options: Any) -> Any:
        asked.append(options.get("nrows"))
        return read_csv(*given, **options)

    monkeypatch.setattr(pd, "read_csv", counted)
    for text, calls in (("a,b\n1,2\n", [1, None]), ("a;b\n1;2\n", [1, 1, None]), ("a;b\n1,5;2\n", [1, 1, None, None])):
        (tmp_path / "t.csv").write_text(text)
        tables.read(tmp_path / "t.csv")
        assert asked == calls
        asked.clear()
