"""A study done in several ways: the same points in the words of each, the fit that people write, and what is kept."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import study_peers
from benchmarks.fake_corpus import write_corpus
from benchmarks.peers import titan_point, ways
from benchmarks.peers.commands import Sampler, Shell, WayError, busy
from benchmarks.peers.parabolas import fit
from benchmarks.peers.plain import plain_model
from benchmarks.peers.points import StudyPoint, design, script_settings, titan_settings
from benchmarks.peers.script import Tokens, factor, initialise, train
from benchmarks.peers.titan import _hidden
from benchmarks.peers.ways import Done, Steps, Study, environment, law_of, titan_script
from train.model.transformer import Transformer
from train.spec import schedule
from train.spec.counts import params

TINY = (
    "study=isoflop_gpu", "data=bytes", "data.name=fake", "data.vocab_size=257", "data.sequence_length=16",
    "model.head_dim=4", "search.width_step=4", "precision=fp32", "eval.sequences=4", "eval.count=2",
    "search.budgets=[1e7,2e7]", "search.ratios=[10,40,160]", "runtime.device=cpu",
)  # fmt: skip


@pytest.fixture(scope="module")
def preset() -> list[StudyPoint]:
    """The points of the default command."""
    return design(study_peers.design_words(study_peers.Options(), Path("/out")))


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with a corpus of made-up tokens that data=bytes data.name=fake names."""
    root = tmp_path_factory.mktemp("data")
    write_corpus(root, 257, train_tokens=4000, validation_tokens=1000)
    (root / "fake-bpe257").rename(root / "fake-bytes257")
    return root


@pytest.fixture(scope="module")
def tiny(made_up: Path) -> list[StudyPoint]:
    """Six points of some steps over a corpus that is there."""
    return design((*TINY, f"runtime.data_root={made_up}"))


def study_of(points: list[StudyPoint], folder: Path, **given: Any) -> Study:
    usual = {"words": TINY, "environment": {}, "gpus": 1, "cpus": 4, "mem_gb": 14.0, "seconds": 60.0}
    return Study(**{**usual, "points": tuple(points), "folder": folder, **given})


def test_a_study_has_fifteen_points_whose_whole_steps_are_their_budgets(preset: list[StudyPoint]) -> None:
    assert len({point.name for point in preset}) == 15
    assert sorted({point.budget for point in preset}) == [1e15, 3e15, 1e16]
    for point in preset:
        assert point.tokens == pytest.approx(point.config.budget.tokens, rel=3e-4)
        assert point.config.data.vocab_size == 8192
        assert point.config.data.sequence_length == 1024
        assert point.config.precision.name == "bf16"


def test_all_ways_train_models_of_the_same_size(preset: list[StudyPoint]) -> None:
    for point in preset[:2]:
        model, vocabulary = point.config.model, point.config.data.vocab_size
        script = plain_model(point.shape)
        assert sum(weight.numel() for weight in script.parameters()) == params(model, vocabulary).total
    for point in preset:
        width = point.config.model.width
        rule = _hidden(width, point.config.model.mlp_width or 0)
        rounded = rule["multiple_of"] * math.ceil(int(2 * 4 * width / 3) / rule["multiple_of"])
        assert rounded == point.config.model.mlp_width


def test_the_script_draws_weights_as_the_project_does(preset: list[StudyPoint]) -> None:
    point, std = preset[0], preset[0].config.model.init_std
    assert std is not None
    script = plain_model(point.shape)
    initialise(script, std)
    ours = Transformer(point.config.model, 8192, 1024)
    wanted = sorted((math.prod(one.shape), one.init_std) for one in ours.specs.values() if one.init_std is not None)
    found = sorted((w.numel(), float(w.detach().std())) for w in script.parameters() if w.dim() > 1)
    assert [count for count, _ in found] == [count for count, _ in wanted]
    assert [one for _, one in found] == pytest.approx([one for _, one in wanted], rel=0.05)


def test_the_scripts_learning_rate_is_the_projects(preset: list[StudyPoint]) -> None:
    point = preset[0]
    for step in (0, 100, 251, 252, 253, 2000, point.steps - 1):
        tokens = (step + 1) * point.batch * 1024
        ours = schedule.factor(point.config.schedule, tokens, point.tokens)
        assert factor(step, point.steps, point.config.schedule.warmup_fraction) == pytest.approx(ours, abs=1e-12)


def test_the_script_trains_a_point_and_writes_its_result(tiny: list[StudyPoint], tmp_path: Path) -> None:
    point = tiny[0]
    loss = train(as_hydra_gives_it(point, tmp_path))
    result = json.loads((tmp_path / point.name / "result.json").read_text(encoding="utf-8"))
    log = (tmp_path / point.name / "log.csv").read_text(encoding="utf-8").splitlines()
    assert result["loss"] == loss
    assert result["tokens"] == point.tokens
    assert loss < float(log[1].split(",")[2])  # of the first step
    assert sum(line.split(",")[3] != "nan" for line in log[1:]) >= 2


def as_hydra_gives_it(point: StudyPoint, folder: Path, *, compiled: bool = False) -> SimpleNamespace:
    """Return the script's config for a point whose corpus is prepared."""
    settings, files = script_settings(point), titan_settings(point, folder)
    return SimpleNamespace(
        point=SimpleNamespace(**{**settings, "model": Model(**settings["model"])}),
        out=folder,
        compile=compiled,
        train=files["train"],
        validation=files["validation"],
    )


class Model(dict[str, Any]):
    """Settings as OmegaConf holds them: a mapping with attributes."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


def test_rows_of_several_shards_are_pieces_of_one(tmp_path: Path) -> None:
    for number, start in enumerate((0, 1000)):
        np.arange(start, start + 50, dtype=np.uint16).tofile(tmp_path / f"{number}.bin")
    tokens = Tokens([str(tmp_path / f"{number}.bin") for number in range(2)], 8)
    drawn = tokens.random(100)
    assert drawn.shape == (100, 9)
    assert (drawn.diff() == 1).all()
    assert {int(one) // 1000 for one in drawn[:, 0]} == {0, 1}
    assert tokens.spread(4)[:, 0].tolist() == [0, 24, 1000, 1024]


def law_rows(shift: float = 0.0) -> Iterator[dict[str, float]]:
    """Yield runs of parabolas whose minima lie at N = 0.1 C^0.45 and D = C / 6N."""
    for budget in (1e15, 1e16, 1e17):
        best = 0.1 * budget**0.45
        for ratio in (0.3, 0.7, 1.0, 2.0, 3.0):
            n = best * ratio * math.exp(shift)
            yield {"budget": budget, "params": n, "tokens": budget / 6 / n, "loss": 3 + 0.02 * math.log(n / best) ** 2}


def test_parabolas_find_the_exponents_of_the_law_that_made_the_runs() -> None:
    found = fit(law_rows())
    assert found["N"] == pytest.approx(0.45, abs=1e-9)
    assert found["D"] == pytest.approx(0.55, abs=1e-9)
    assert [n for _, n, _ in found["minima"]] == pytest.approx([0.1 * c**0.45 for c in (1e15, 1e16, 1e17)])


def test_parabolas_leave_out_budgets_without_a_minimum_among_the_sizes() -> None:
    assert fit(law_rows(shift=2.0)) == {"minima": [], "left_out": [1e15, 1e16, 1e17], "N": None, "D": None}
    upside_down = [{**row, "loss": -row["loss"]} if row["budget"] == 1e15 else row for row in law_rows()]
    found = fit(upside_down)
    assert found["left_out"] == [1e15]
    assert found["N"] == pytest.approx(0.45)


def test_torchtitan_is_told_the_points_batch_rate_and_steps(tiny: list[StudyPoint], tmp_path: Path) -> None:
    point = tiny[0]
    words = titan_point.arguments(titan_settings(point, tmp_path))
    said = dict(zip(words[:-1:2], words[1::2], strict=True))
    assert words[-1] == "--compile.enable"
    assert said["--training.steps"] == str(point.steps)
    assert said["--training.local-batch-size"] == str(point.batch)
    assert float(said["--optimizer.lr"]) == point.config.optim.lr
    assert said["--lr-scheduler.decay-type"] == "cosine"
    script = titan_script(study_of(tiny, tmp_path / "torchtitan-0"), tmp_path)
    for line in ("#SBATCH --gpus-per-node=1", "#SBATCH --mem=14336M", "#SBATCH --cpus-per-task=4"):
        assert line in script.splitlines()


def test_each_way_begins_with_empty_caches_where_it_looks_for_them(tiny: list[StudyPoint], tmp_path: Path) -> None:
    study = study_of(tiny, tmp_path, environment={"TORCHINDUCTOR_CACHE_DIR": "/elsewhere", "PATH": "/bin"})
    ours, theirs = environment(study, "ours"), environment(study, "torchtitan")
    assert "TORCHINDUCTOR_CACHE_DIR" not in ours  # which would take the place of the user's cache
    assert ours["XDG_CACHE_HOME"] == str(tmp_path / "cache")
    assert theirs["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "cache" / "inductor")
    assert ours["PATH"] == theirs["PATH"] == "/bin"


def write(path: Path, found: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found), encoding="utf-8")


def test_what_our_runs_left_is_read_with_what_was_retried(tiny: list[StudyPoint], tmp_path: Path) -> None:
    runs = tmp_path / "runs" / "isoflop_gpu"
    seconds, loss = {"train": 2.5}, {"validation_nats_per_token": 3.25}
    lines = []
    for number, point in enumerate(tiny[:2]):
        budget, model = {"flops": point.budget}, {"width": point.config.model.width, "layers": 2}
        lines.append(json.dumps({"key": f"k{number}", "config": {"budget": budget, "model": model}}))
    write(runs / "k0" / "outcome.json", {"state": "completed", "tokens": 64, "loss": loss, "seconds": seconds})
    write(runs / "k0" / "attempts" / "1" / "outcome.json", {"state": "failed", "kind": "node", "headline": "node down"})
    write(runs / "k0" / "attempts" / "2" / "outcome.json", {"state": "completed", "kind": "completed"})
    (runs / "points.jsonl").write_text("\n".join(lines), encoding="utf-8")
    found = ways.collect_ours(study_of(tiny, tmp_path))
    assert found.rows == [tiny[0].row(64, 3.25)]
    assert found.training == 2.5
    assert found.lost == (f"{tiny[0].name}: node, node down", f"{tiny[1].name}: no result")


def test_what_the_others_runs_left_is_read_with_the_last_line_of_those_that_died(
    tiny: list[StudyPoint], tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    write(runs / tiny[0].name / "result.json", {"loss": 3.0, "tokens": 64, "seconds": 1.5})
    write(runs / tiny[1].name / "result.json", {"loss": math.nan, "tokens": 64, "seconds": 1.0})
    (runs / tiny[2].name).mkdir()
    (runs / tiny[2].name / "log").write_text("…\nRuntimeError: out of memory\n", encoding="utf-8")
    found = ways.collect_results(study_of(tiny[:3], tmp_path))
    assert next(row["loss"] for row in found.rows) == 3.0
    assert found.training == 2.5
    assert found.lost == (f"{tiny[1].name}: loss nan", f"{tiny[2].name}: no result. RuntimeError: out of memory")


def test_a_way_that_fails_says_why_and_is_stopped(
    tiny: list[StudyPoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []

    def refused(study: Study, shell: Shell) -> None:
        raise WayError("sbatch ended with exit code 1: no such partition")

    def broken(study: Study, shell: Shell) -> None:
        raise OSError("disk full")

    for name, submit in (("ours", refused), ("torchtitan", broken)):
        steps = Steps(submit, ways.collect_results, lambda study, shell: stopped.append(study.folder.name))
        monkeypatch.setitem(ways.WAYS, name, steps)
    first = ways.do("ours", study_of(tiny, tmp_path / "ours-0"))
    second = ways.do("torchtitan", study_of(tiny, tmp_path / "torchtitan-0"))
    assert stopped == ["ours-0", "torchtitan-0"]
    assert first.failure == "sbatch ended with exit code 1: no such partition"
    assert second.failure == "OSError('disk full')"
    assert (first.returned, first.fitted, first.points) == (None, None, 0)


def test_a_command_that_fails_or_takes_too_long_says_so_with_its_last_lines(tmp_path: Path) -> None:
    shell = Shell(tmp_path, {"PATH": "/usr/bin:/bin"}, math.inf)
    with pytest.raises(WayError, match=r"broken ended with exit code 3: said / why$"):
        shell.run("broken", "sh", "-c", "echo said; echo why; exit 3")
    assert shell.run("fine", "sh", "-c", "exit 3", good=(3,)).is_file()
    with pytest.raises(WayError, match="slow had not ended when its time was over"):
        replace(shell, until=0.0).run("slow", "sleep", "60")


def test_gpu_seconds_are_the_mean_share_of_each_gpu(tmp_path: Path) -> None:
    assert busy("0, 100\n1, 0\n0, 50\n1, 50\n0, [N/A]\n", seconds=10.0) == pytest.approx(7.5 + 2.5)
    assert busy("", seconds=10.0) is None
    assert Sampler(tmp_path / "never").busy(10.0) is None


def test_settings_that_the_other_ways_do_not_know_are_refused() -> None:
    with pytest.raises(ValueError, match=r"schedule\.name=wsd is not allowed here: the other ways train with"):
        design((*TINY, "schedule=wsd"))
    with pytest.raises(ValueError, match="precision=fp16 is not allowed here: bf16 or fp32"):
        design((*TINY, "precision=fp16"))


def test_the_table_shows_ways_side_by_side_and_what_was_lost(tiny: list[StudyPoint], tmp_path: Path) -> None:
    first = Done("ours", 100.0, 104.0, 120.0, 80.0, 70.0, 6, (0.45, 0.55), (0.46, 0.54), losses={tiny[0].name: 3.0625})
    second = Done("torchtitan", failure="torchtitan trains on GPUs only: gpus=1", lost=("all points",))
    for done in (second, first):
        study_peers.keep(done, tmp_path)
    assert study_peers.kept(tmp_path) == [first, second]
    lines = study_peers.table([first, second], tiny).splitlines()
    assert lines[0].startswith("6 points, 9e+07 FLOPs, ")
    cells = {line[:32].strip(): line[32:].split() for line in lines if len(line) > 32}
    assert cells["until the fitted law"] == ["120", "-"]
    assert cells["GPU-seconds with a kernel"] == ["80", "-"]
    assert cells["N*, D* ~ C^: its law"] == ["0.450,", "0.550", "-"]
    assert cells[tiny[0].name] == ["3.0625", "-"]
    assert lines[-2:] == ["torchtitan failed: torchtitan trains on GPUs only: gpus=1", "torchtitan lost all points"]


def test_the_recommended_laws_exponents_are_read(tmp_path: Path) -> None:
    growth = {"params": {"exponent": 0.47}, "tokens": {"exponent": 0.53}}
    write(tmp_path / "fit.json", {"recommendation": {"growth": growth}})
    assert law_of(tmp_path / "fit.json") == (0.47, 0.53)
    write(tmp_path / "fit.json", {"recommendation": None})
    assert law_of(tmp_path / "fit.json") is None


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("ways=ours,ray", "there is no way 'ray', but ours, hydra_submitit, torchtitan"),
        ("budget=1e15", "'budget=1e15' is no option: there are ways=, budgets="),
        ("gpus=two", "gpus=two is not allowed: give a number"),
        ("slurm=cloud", "slurm=cloud is not allowed: auto, here or throwaway"),
    ],
)
def test_a_wrong_word_is_refused_by_name(word: str, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("'", "'")):
        study_peers.read_options([word])


def test_our_command_is_the_readmes_where_a_job_is_the_presets() -> None:
    options = study_peers.read_options(["source=/text"])
    assert study_peers.words_of_ours(options) == ()
    assert study_peers.design_words(options, Path("/out"))[:3] == (
        "study=isoflop_gpu",
        "data=text",
        "data.source=/text",
    )
    other = study_peers.read_options(["gpus=0", "mem_gb=14", "ours=tracking=none cluster.pack=2"])
    assert study_peers.words_of_ours(other) == (
        *("cluster.gpus_per_node=0", "cluster.mem_gb=14", "tracking=none", "cluster.pack=2"),
    )


def test_a_folder_holds_one_study(tiny: list[StudyPoint], tmp_path: Path) -> None:
    study_peers.same_study(tiny, tmp_path)
    study_peers.same_study(tiny, tmp_path)
    with pytest.raises(ValueError, match="holds a study of other points"):
        study_peers.same_study(tiny[1:], tmp_path)
