"""What a plan says of its corpora."""

import json
from dataclasses import replace
from pathlib import Path

from study.records.corpus import corpus_of, remarks
from tests.train.data.loss_masks import bytes_config, dialogues
from train.data.corpus.prepare import prepare
from train.spec.config import BudgetConfig, RunConfig, RuntimeConfig
from train.spec.manifest import Manifest, read_manifest


def _prepared(root: Path, column: str | None) -> tuple[RunConfig, Manifest]:
    (root / "raw").mkdir(parents=True)
    records = [{"prompt": prompt, "completion": completion} for prompt, completion in dialogues(0, 60)]
    (root / "raw" / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records), "utf-8")
    data = bytes_config(root / "raw", prompt_column=column)
    run = RunConfig(data=data, budget=BudgetConfig(tokens=1000), runtime=RuntimeConfig(data_root=str(root)))
    return run, read_manifest(prepare(data, root, workers=1))


def test_a_plan_says_how_many_tokens_the_loss_counts(tmp_path: Path) -> None:
    run, manifest = _prepared(tmp_path / "masked", "prompt")
    train = manifest.splits["train"]
    (line,) = remarks([run], {corpus_of(run): manifest})
    share = f"{100 * train.counted / train.tokens:.0f} %"
    assert line == f"The loss counts {share} of the training tokens of talk; D and FLOPs count them all."
    longer = replace(run, budget=BudgetConfig(tokens=3 * train.tokens))
    assert remarks([run, longer], {corpus_of(run): manifest}) == [
        "The longest run reads the training text 3.0 times.",
        line,
    ]
    often = replace(run, budget=BudgetConfig(tokens=5 * train.tokens))
    assert remarks([often], {corpus_of(run): manifest})[0] == (
        "The longest run reads the training text 5.0 times. "
        "Beyond 4 times repeated text is worth less than new (Muennighoff et al. 2023)."
    )
    plain, manifest = _prepared(tmp_path / "plain", None)
    assert remarks([plain], {corpus_of(plain): manifest}) == []
    assert remarks([run, longer], {}) == []
