"""What a command says of raw text before anything is prepared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
from pyarrow.parquet import write_table

from study.config.schema import ClusterConfig
from study.executors import prepare_data
from train.spec.config import BudgetConfig, DataConfig, RunConfig, SourceConfig
from train.spec.resolve import resolve


def gather(tmp_path: Path, data: DataConfig) -> None:
    run = resolve(RunConfig(data=data, budget=BudgetConfig(tokens=1280)))
    run = replace(run, runtime=replace(run.runtime, data_root=str(tmp_path / "data")))
    prepare_data.gather([run], lambda text: None, True, ClusterConfig())


def test_a_folder_without_text_is_noticed_before_a_job_is_asked_for(tmp_path: Path) -> None:
    text = tmp_path / "text"
    (text / "deep" / "er").mkdir(parents=True)
    (text / "a.c").write_text("int main;")
    with pytest.raises(ValueError, match=r"data.source=.*: no file of \.txt, \.md, .*say in data.extensions"):
        gather(tmp_path, DataConfig(source=str(text)))
    gather(tmp_path, DataConfig(source=str(text), extensions=(".c",)))
    sources = (SourceConfig(name="a"), SourceConfig(name="b", source=str(text), weight=2.0))
    with pytest.raises(ValueError, match=r"data.sources.1.source=.* no file of"):
        gather(tmp_path, DataConfig(sources=sources))
    (text / "deep" / "er" / "B.TXT").write_text("words")
    gather(tmp_path, DataConfig(source=str(text)))
    with pytest.raises(ValueError, match="there is no such folder"):
        gather(tmp_path, DataConfig(source=str(text / "none")))


def test_columns_that_no_parquet_file_has_are_noticed_before_it_is_read(tmp_path: Path) -> None:
    write_table(pyarrow.table({"content": ["words"], "id": [1]}), tmp_path / "a.parquet")
    source = str(tmp_path)
    with pytest.raises(ValueError, match=r"^data.text_column=text: .*/a.parquet has no such column: name one of cont"):
        gather(tmp_path, DataConfig(source=source))
    gather(tmp_path, DataConfig(source=source, text_column="content"))
    with pytest.raises(ValueError, match=r"^data.prompt_column=ask: .*a.parquet has no such column"):
        gather(tmp_path, DataConfig(source=source, text_column="content", prompt_column="ask"))
    with pytest.raises(ValueError, match=r"^data.sources.0.text_column=text: "):
        gather(tmp_path, DataConfig(sources=(SourceConfig(name="a", source=source),)))
    write_table(pyarrow.table({"text": ["words"]}), tmp_path / "b.parquet")
    gather(tmp_path, DataConfig(source=source))
    (tmp_path / "b.parquet").write_text("cut off")
    gather(tmp_path, DataConfig(source=source))


def test_linked_folders_and_saved_datasets_count(tmp_path: Path) -> None:
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "a.md").write_text("words")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "link").symlink_to(tmp_path / "else")
    (tmp_path / "text" / "again").symlink_to(tmp_path / "text")
    gather(tmp_path, DataConfig(source=str(tmp_path / "text")))
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "data-00000.arrow").touch()
    gather(tmp_path, DataConfig(source=str(tmp_path / "saved")))


def test_many_files_are_left_to_who_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_data, "LOOKED_AT", 3)
    for name in "abc":
        (tmp_path / f"{name}.bin").touch()
    gather(tmp_path, DataConfig(source=str(tmp_path)))


def test_a_vocabulary_has_every_byte_and_the_separator(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words")
    with pytest.raises(ValueError, match=r"data.vocab_size=256 is not allowed .* at least 257"):
        gather(tmp_path, DataConfig(source=str(tmp_path), vocab_size=256))
    gather(tmp_path, DataConfig(source=str(tmp_path), vocab_size=257))
