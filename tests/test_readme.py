"""Every command block of README and manual is run as it stands, in a checkout whose main study is made small."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.slurm.cluster import ThrowawayCluster
from tests.warm_trainer import trainer

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("start", "explanation", "tuning"))]
PAGES += sorted((ROOT / "docs" / "howto").glob("*.md"))
FOUND = (re.findall(r"^```bash\n(.*?)^```", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE) for page in PAGES)
BLOCKS = list(dict.fromkeys(block for blocks in FOUND for block in blocks))
"""Blocks to be copied into a shell, each once; what needs a cluster or a table of its own is a block of text."""
SMALL = {
    "budgets: [5.2e+11, 1.1e+12, 2.0e+12, 5.6e+12]": "budgets: [5.0e+8, 1.0e+9, 2.0e+9]",
    "ratios: [5, 10, 22, 46, 97]": "ratios: [1, 5, 25]",
    "  count: 4": "  count: 1\n  sequences: 64",
}
SMALL_FIT = "resamples=20 sensitivity=no"
"""What makes the fit of so few runs small as well: they identify nothing, which takes it longest."""


def block(first: str) -> str:
    """Return the one block that holds this text."""
    found = [text for text in BLOCKS if first in text]
    assert len(found) == 1, f"{first!r} is in {len(found)} blocks"
    return str(found[0])


def as_shown(first: str, said: str) -> bool:
    """Whether a command printed what stands below its block."""
    one = re.escape(f"```bash\n{block(first)}```\n\n```text\n")
    found = [re.search(rf"{one}(.*?)^```", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE) for page in PAGES]
    (output,) = {" ".join(match[1].split()) for match in found if match}
    return output in " ".join(said.split())


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what git would clone, with this environment as its .venv and a small main study."""
    path = tmp_path_factory.mktemp("readme") / "scaling study"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, path / name)
    subprocess.run(["git", "init", "-q", "."], cwd=path, check=True)
    (path / ".venv").symlink_to(Path(sys.executable).parents[1])
    for stamp in ("ready", "ready-dev"):
        os.utime(path / "pyproject.toml", (0, 0))
        os.utime(path / "constraints.txt", (0, 0))
        if not (path / ".venv" / stamp).exists():
            (path / ".venv" / stamp).touch()
    study = path / "conf" / "study" / "isoflop.yaml"
    text = study.read_text()
    for large, small in SMALL.items():
        assert large in text, f"conf/study/isoflop.yaml no longer says {large!r}"
        text = text.replace(large, small)
    study.write_text(text)
    data = path / "conf" / "data" / "bytes.yaml"
    data.write_text(data.read_text().replace("40000000", "1500000"))
    pipeline = path / "dvc.yaml"
    assert pipeline.read_text().count(" report=no ") == 1
    pipeline.write_text(pipeline.read_text().replace(" report=no ", f" report=no {SMALL_FIT} "))
    return path


def clean_environment(checkout: Path) -> dict[str, str]:
    """Return the environment of someone who has activated the checkout's .venv."""
    path = f"{checkout / '.venv' / 'bin'}:{os.environ['PATH']}"
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "SLURM", "COV"))}
    return {**clean, "PATH": path, "OMP_NUM_THREADS": "1"}


def quickly() -> dict[str, str]:
    """Return what has runs begin in a moment: dozens of trainers would do little else than import torch."""
    return {} if torch.cuda.is_available() else {"STUDY_TRAINER": trainer()}  # a process that was forked has no GPU


def run(text: str, checkout: Path, **environment: str) -> str:
    """Run a block in bash, stopping at the first error; return what it printed."""
    done = subprocess.run(  # noqa: PLW1510 (its output says more than the exception would)
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=checkout,
        env=clean_environment(checkout) | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert done.returncode == 0, f"$ {text}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def test_every_block_is_run_here() -> None:
    """A block that a reader can copy and no test runs would rot."""
    run_here = re.findall(r'run\(block\("(.+?)"\)', Path(__file__).read_text())
    run_here += [target for target in ("make test",) if f'block("{target}").splitlines()' in Path(__file__).read_text()]
    for one in BLOCKS:
        assert any(text in one for text in run_here), f"no test runs this block:\n{one}"


def test_a_search_is_shown_before_it_runs(checkout: Path) -> None:
    assert "Search lr-search: asha over optim.lr, model.width, 27 trials" in run(block("search=asha"), checkout)


@pytest.mark.slow
def test_the_main_job_stopped_twice_run_again_and_with_a_changed_value(checkout: Path) -> None:
    shutil.rmtree(checkout / "runs", ignore_errors=True)
    stopped_at(checkout, 2, signal.SIGINT)
    stopped_at(checkout, 5, signal.SIGKILL)
    done = outcomes_of(checkout)
    said = run(block("make study"), checkout, **quickly())
    assert "train next" in said
    assert "report.html" in said
    assert "mlflow ui" in said
    assert "/runs?viewStateShareKey=study&workflowType=machine_learning" in said
    assert (checkout / "reports" / "isoflop" / "report.html").stat().st_size > 10_000
    assert len(outcomes_of(checkout)) == 9
    assert outcomes_of(checkout).items() > done.items(), "what was done was not done again"
    outcomes = checkout / "runs" / "isoflop" / "outcomes.jsonl"
    before = outcomes.read_text().splitlines()
    assert len(before) == 9

    again = run("dvc repro", checkout)
    assert "up to date" in again
    assert again.count("Running stage") == 0

    study = checkout / "conf" / "study" / "isoflop.yaml"
    small = study.read_text()
    assert "[5.0e+8, 1.0e+9, 2.0e+9]" in small
    study.write_text(small.replace("[5.0e+8, 1.0e+9, 2.0e+9]", "[5.0e+8, 1.0e+9, 2.0e+9, 2.5e+8]"))
    try:
        run(block("dvc repro"), checkout, **quickly())
    finally:
        study.write_text(small)
    after = outcomes.read_text().splitlines()
    assert len(after) == 12
    assert set(before) < set(after), "runs that were done are untouched, attempts and seconds included"


def stopped_at(checkout: Path, runs: int, number: signal.Signals) -> None:
    """Start the main job and send its processes a signal once so many runs have ended."""
    command = ["bash", "-c", block("make study")]
    environment = clean_environment(checkout) | quickly()
    started = subprocess.Popen(
        command, cwd=checkout, env=environment, start_new_session=True, stdout=subprocess.DEVNULL
    )
    while len(outcomes_of(checkout)) < runs:
        assert started.poll() is None, "it ended before it could be stopped"
        time.sleep(0.05)
    os.killpg(started.pid, number)
    assert started.wait(timeout=900) != 0
    assert runs <= len(outcomes_of(checkout)) < 9


def outcomes_of(checkout: Path) -> dict[Path, bytes]:
    """Return what the main study's runs that ended have written."""
    return {path: path.read_bytes() for path in (checkout / "runs").glob("isoflop/*/outcome.json")}


def test_the_other_make_targets_are_what_they_say(checkout: Path) -> None:
    for line in block("make test").splitlines():
        target = line.split("#")[0].strip()
        if target:
            run(f"{target} --dry-run", checkout)


def test_dry_run_prints_the_script(checkout: Path) -> None:
    name = "study.name=dry"  # the main study may have ended by now, with nothing left to submit
    said = run(block("python -m study.sweep study=isoflop cluster=slurm dry_run=true").strip() + f" {name}", checkout)
    assert "#SBATCH --array=0-" in said
    assert "nothing was submitted" in said
    assert not (checkout / "runs" / "dry").exists()


@pytest.mark.slow
@pytest.mark.slurm
def test_the_same_study_on_a_cluster(checkout: Path, cluster: ThrowawayCluster) -> None:
    shutil.rmtree(checkout / "runs", ignore_errors=True)
    said = run(block("python -m study watch isoflop"), checkout, **cluster.environment, **quickly())
    assert "completed" in said
    fit = "out=reports/isoflop\n"  # so small a study recommends nothing, which the fit's exit code 3 says
    run(block("python -m analysis.fit runs=runs/isoflop out=reports/isoflop").replace(
        fit, f"{fit.strip()} {SMALL_FIT} || test $? -eq 3\n", 1), checkout)  # fmt: skip


def test_sweep_anything(checkout: Path) -> None:
    said = run(block("python -m study.sweep study=smoke --cfg job"), checkout)
    assert "6 points" in said


def test_memory_is_planned(checkout: Path) -> None:
    assert as_shown("plan memory model=30b", run(block("plan memory model=30b"), checkout))
    assert as_shown("plan memory roles=rlhf", run(block("plan memory roles=rlhf"), checkout))
    assert "Fits: 123.11 of 141.00 GB" in run(block("plan memory +reference=405b_x512"), checkout)
    assert as_shown("generate=32", run(block("generate=32"), checkout))


def test_a_step_is_timed(checkout: Path) -> None:
    assert as_shown("plan step model=8b", run(block("plan step model=8b"), checkout))


def test_layouts_are_searched(checkout: Path) -> None:
    assert as_shown("plan parallel model=8b", run(block("plan parallel model=8b"), checkout))
    assert as_shown("parallel=auto", run(block("parallel=auto"), checkout))


def test_links_are_measured(checkout: Path) -> None:
    said = run(block("python -m study bench comm").strip() + " sizes=1K,64K seconds=0.02", checkout)
    assert "all_reduce" in said and "bandwidth" in said


def test_what_the_playbook_tunes_is_a_sweep(checkout: Path) -> None:
    def dry_run(text: str) -> str:
        """Return the dry run of a block, as of a corpus that is not there yet: that of other tests is smaller."""
        return run(text.replace("dry_run=true", "dry_run=true runtime.data_root=none"), checkout)

    assert "Study rates: 40 points" in dry_run(block("study.name=rates"))
    assert "Study batches: 18 points" in dry_run(block("study.name=batches"))
    assert "Study warmups: 18 points" in dry_run(block("study.name=warmups"))
    assert "Study decays: 12 points" in dry_run(block("study.name=decays"))
    assert "Study clips: 9 points" in dry_run(block("study.name=clips"))
    assert dry_run(block("study.name=lengths")).count("Study lengths: 3 points") == 3


def test_one_run_is_trained_cooled_down_and_exported(checkout: Path) -> None:
    run(block("train.run --config"), checkout)
    assert (checkout / "runs" / "one-cooled" / "config.yaml").is_file()
    assert (checkout / "runs" / "one-hf" / "config.json").is_file()


def test_layout_precision_and_memory_are_keys(checkout: Path) -> None:
    assert "checkpointing: selective" in run(block("parallel=fsdp_tp"), checkout)


def test_own_data(checkout: Path) -> None:
    run(block("train.prepare --set data.name=mine"), checkout)
    assert (checkout / "data" / "mine-bpe512" / "manifest.json").is_file()
    assert "Study mine: 12 points" in run(block("study.name=mine"), checkout)  # of the small main study


def test_runs_from_elsewhere(checkout: Path) -> None:
    said = run(block("runs=docs/example-runs.csv"), checkout)
    assert "train next" in said
