"""The comparison with DeepSpeed, as far as it goes without it: rows, predictions, traces, tables, what is recorded."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import deepspeed_zero3 as command
from benchmarks.peers import zero_fetch, zero_rows
from benchmarks.peers.rows import SHAPES
from benchmarks.peers.zero_fetch import Limits, gathered
from benchmarks.peers.zero_report import (
    STYLES,
    Compared,
    Script,
    code_lines,
    draw,
    from_json,
    joined,
    kind,
    report,
    to_json,
)
from benchmarks.peers.zero_rows import BUCKET, EXACT, expected, find, rows
from benchmarks.peers.zero_trace import events_of, messages_of
from benchmarks.trainer_peers import _reason
from train.spec.accounting.step import Sheet, sheet
from train.spec.communication.cluster import read_profile
from train.spec.counts import params
from train.spec.mesh import axes
from train.spec.scaling_rules import peak_lr
from train.spec.schedule import learning_rate

GIB = 2**30
PROFILE = read_profile(command.PROFILE)
PAGE = command.ROOT / "docs" / "howto" / "deepspeed.md"
RECORD = Path(command.__file__).parent / "results" / "deepspeed_zero3.json"


def test_rows_differ_in_library_and_stage_alone() -> None:
    found = rows()
    assert len({row.name for row in found}) == len(found)
    for setup in zero_rows.SETUPS:
        pairs = [
            row for row in found if zero_rows.setup_of(row) == setup and row.name.count("-") == setup.count("-") + 2
        ]
        for row in pairs:
            assert row.name == f"{zero_rows.library_of(row)}-{zero_rows.stage_of(row)}-{setup}"
            other = find(row.name.replace("ours", "deepspeed") if "ours" in row.name else row.name)
            assert (other.settings, other.tokens, other.steps) == (row.settings, row.tokens, row.steps)
    assert {(zero_rows.library_of(row), zero_rows.stage_of(row)) for row in rows(["8b"])} == {
        (library, stage) for library in ("ours", "deepspeed") for stage in (1, 2, 3)
    }
    with pytest.raises(ValueError, match="no set-up 'x': there are tiny"):
        rows(["x"])
    with pytest.raises(ValueError, match="no row 'x'"):
        find("x")


def test_estimator_is_deepspeeds() -> None:
    """Hugging Face's page on DeepSpeed: bigscience/T0_3B, 2783M parameters, 65M in the largest layer, no offload."""
    assert zero_rows.estimated(2_783_000_000, 65_000_000, 1, 3) / GIB == pytest.approx(46.91, abs=0.03)
    assert zero_rows.estimated(1000, 10, 2, 2) == zero_rows.estimated(1000, 10, 2, 1) == 2000 + 9000


def test_formulas_are_those_of_our_sheet_and_of_a_hand_count() -> None:
    ours, theirs = expected(find("ours-3-1b"), PROFILE), expected(find("deepspeed-3-1b"), PROFILE)
    total = zero_rows.numbers(find("ours-3-1b"))
    update = next(one for one in _sheet("ours-3-1b").moments if one.name == "update")
    assert ours.states == update.parts["weights"] + update.parts["moments"] == 6 * total
    norms = (2 * 16 + 1) * 2048
    assert zero_rows.persistent(find("deepspeed-3-1b")) == norms
    assert theirs.states == 8 * total + 2 * (norms + BUCKET)
    assert theirs.estimate == zero_rows.estimated(total, 50304 * 2048, 2, 3) and ours.estimate is None
    assert ours.peak == _sheet("ours-3-1b").peak.total and theirs.peak is not None and theirs.peak > theirs.states
    assert ours.step is not None and theirs.step == ours.step
    peaks = [expected(find(f"deepspeed-{stage}-8b")).peak or 0 for stage in (3, 2, 1)]
    assert peaks == sorted(peaks) and peaks[-1] < 139 * GIB, "each stage holds more, and all fit an H200"
    assert command.sent_bytes(find("deepspeed-2-1b")) == 3 * total
    assert command.sent_bytes(find("deepspeed-3-8b")) == 3 * zero_rows.numbers(find("deepspeed-3-8b")) - 10**9
    assert command.sent_bytes(find("ours-2-1b")) == pytest.approx(3 * total, rel=0.001), "bf16 gathered, fp32 reduced"


def test_stage_3_gathers_again_what_was_freed_before_its_backward_use_was_planned() -> None:
    """As measured on two H200s, 2026-11-27: 57 all-gathers, 2,416,316,416 bytes sent by a rank."""
    row = find("deepspeed-3-1b")
    known = zero_rows.fetches(row)
    assert known is not None and zero_rows.fetches(find("deepspeed-3-8b")) is None
    order, found = known
    small = 2 * 16 + 1  # norms, of which each is a message after the update
    assert len(found.sizes) + small == 57 and command.sent_bytes(row) == 2_416_316_416
    parts = {name.rpartition(".")[0].removesuffix(".attention").removesuffix(".mlp") for name in found.again}
    assert parts == {"embedding", *(f"blocks.{number}" for number in range(5))}
    assert sum(found.sizes) + zero_rows.persistent(row) == zero_rows.numbers(row) + 5 * 51_380_224 + 50304 * 2048
    nothing_ahead = gathered(order, Limits(ahead=0))
    assert len(nothing_ahead.sizes) == 34 + 2 * 9 + 1, "each module's own message, and nine blocks beyond 1e9 numbers"
    whole = gathered(order, Limits(reuse=3 * 10**9, live=3 * 10**9))
    assert not whole.again and max(whole.held) == sum(whole.sizes) and not any(whole.left)


def test_gathers_are_those_of_deepspeed_itself() -> None:
    """DeepSpeed 0.19.8 on two gloo ranks: deepspeed-3-tiny with lowered limits, the fifth step [numbers]."""
    shape = SHAPES["tiny"]
    limits = Limits(reuse=450_000, live=450_000, ahead=25_000, small=1_000)
    found = gathered(zero_fetch.uses(shape.model, shape.vocabulary), limits)
    pair = (28672, 36864)
    recorded = (32768, 32768, *(40960, *pair) * 4, *(40960, *pair), 40960, 24576, 36864)
    assert tuple(found.sizes) == recorded and sum(recorded) == 700_416 and max(found.held) == 454_656


def test_the_peak_of_stage_3_is_as_measured_with_the_layer_that_ran_then() -> None:
    """45.88 GiB: feed-forward layers ran by torch's functions, and kept their product and a view of `down`."""
    row = find("deepspeed-3-1b")
    today = expected(row).peak
    product, down = 16 * 8 * 4096 * 5632, 5 * 2048 * 5632
    assert today is not None and (today + 2 * product + 2 * down) / GIB == pytest.approx(45.8805, rel=1e-3)


def _sheet(name: str) -> Sheet:
    row = find(name)
    config = zero_rows.config(row, "cuda")
    return sheet(config, axes(config.parallel, row.gpus))


def _kernel(name: str, given: int, taken: int, kind: str) -> dict[str, Any]:
    args = {"Collective name": name, "In msg nelems": given, "Out msg nelems": taken, "dtype": kind}
    return {"ph": "X", "cat": "kernel", "name": "ncclDevKernel", "args": args}


def _asked(name: str, dims: list[Any], kinds: list[str]) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "args": {"Input Dims": dims, "Input type": kinds}}


def test_messages_are_read_from_nccl_and_from_gloo(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    nccl = [
        _kernel("_allgather_base", 500, 1000, "BFloat16"),
        _kernel("reduce_scatter_tensor_coalesced", 2000, 1000, "Float"),
        _kernel("allreduce", 1, 1, "Double"),
    ]
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": nccl}, file)
    found = [(one.collective, one.size, one.sent) for one in messages_of(events_of(path), 2)]
    assert found == [("all_gather", 2000, 1000.0), ("reduce_scatter", 8000, 4000.0)], "and no single numbers"
    gloo = [
        _asked("c10d::_allgather_base_", [[1000], [500]], ["c10::BFloat16", "c10::BFloat16"]),
        _asked("c10d::_reduce_scatter_base_", [[500], [1000]], ["float", "float"]),
        _asked("c10d::allreduce_", [[[600]]], ["TensorList"]),
        _asked("gloo:all_reduce", [[600]], ["double"]),
    ]
    found = [(one.collective, one.size, one.sent) for one in messages_of(gloo, 2)]
    assert found == [("all_gather", 2000, 1000.0), ("reduce_scatter", 4000, 2000.0), ("all_reduce", 4800, 4800.0)]


def _row(name: str, **more: Any) -> Compared:
    return replace(command.compare(find(name), PROFILE), **more)


def _figures(losses: list[float]) -> dict[str, Any]:
    norms = [1.0 for _ in losses]
    return {"losses": losses, "grad_norms": norms, "held_bytes": 2.0**21, "tokens_per_second_per_gpu": 50.0}


def test_results_survive_and_are_told_from_predictions() -> None:
    old = [_row("ours-3-tiny", measured=_figures([6.0, 5.0]), about="then"), _row("ours-2-tiny", measured={"x": 1})]
    new = [_row("ours-3-tiny"), _row("ours-2-tiny", settings=["other"]), _row("ours-1-tiny", failure="broke")]
    first, second, third = joined(new, from_json(json.loads(json.dumps(to_json(old, []))))[0])
    assert (first.measured, first.about) == (old[0].measured, "then")
    assert not second.measured, "measured with other settings"
    assert third.failure == "broke" and not third.measured
    theirs = _row("deepspeed-3-tiny", measured=_figures([6.0, 5.25]), about="then")
    text = report([first, theirs, third], [Script("way", 7, [6.0, 5.0])])
    assert "Measured: then." in text and "| way | 7 | 6.000000, 5.000000 |" in text
    assert "| deepspeed-3-tiny | 2 | 6.000000 | 5.250000 | 2.5e-01 | 2.5e-01 | 0.0e+00 |" in text
    assert "Not measured, predicted before any measurement: ours-1-tiny." in text
    assert "ours-1-tiny: broke" in text and "100" in text


def test_lines_of_code_leave_out_what_is_none(tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text(
        '"""A module."""\n\n# why\nimport os\n\n\ndef f() -> str:\n    """Return\n    it."""\n    return """a\nb"""\n'
    )
    assert code_lines(path) == 4
    assert code_lines(command.PEERS / "zero_script_deepspeed.py") < code_lines(command.PEERS / "zero_script_fsdp2.py")


def test_what_is_recorded_is_of_todays_rows_and_keeps_the_bounds() -> None:
    found, scripts = from_json(json.loads(RECORD.read_text(encoding="utf-8")))
    assert [row.name for row in found] == [row.name for row in rows()]
    known = {row.name: row for row in found if row.measured}
    assert {row.setup for row in known.values()} >= {"tiny", "256x4", "tiny-bf16"}
    for name, row in known.items():
        assert row.about and not row.failure
        if not zero_rows.SETUPS[row.setup].cpu:
            checkpointed = zero_rows.fetches(find(name)) is None  # the rule of stage 3 has not been followed there
            bound = 0.002 if checkpointed and zero_rows.stage_of(find(name)) == 3 else 0.0
            assert row.measured["sent_bytes"] == pytest.approx(command.sent_bytes(find(name)), rel=bound, abs=1)
            assert row.measured["gib_allocated"] * GIB == pytest.approx(expected(find(name)).peak, rel=0.011)
            continue
        today = command.predictions(find(name), PROFILE)
        assert row.measured["held_bytes"] == pytest.approx(today["states"], rel=0.01)
        assert row.measured["sent_bytes"] == pytest.approx(today["sent_bytes"], rel=0.01)
        if row.library == "deepspeed":
            assert row.measured["estimated_bytes"] == today["estimate"]
        losses, ours = row.measured["losses"], known[f"ours-3-{row.setup}"].measured["losses"]
        apart = max(abs(a - b) for a, b in zip(losses, ours, strict=True))
        bound = 1e-5 if not row.setup.endswith("bf16") else 0.1 if name.endswith(EXACT) else 0.005
        assert apart <= bound, name
    assert scripts[1].losses == pytest.approx(scripts[2].losses, abs=1e-6)


def test_the_page_shows_what_is_recorded() -> None:
    found, scripts = from_json(json.loads(RECORD.read_text(encoding="utf-8")))
    kept = RECORD.with_suffix(".md").read_text(encoding="utf-8")
    assert kept == report(found, scripts) + "\n"
    shown = [
        line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(("| ours-", "| deepspeed-"))
    ]
    assert len(shown) >= 20
    assert not [line for line in shown if line not in kept.splitlines()]


def test_without_deepspeed_it_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert command.main(["--write", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "deepspeed is not installed" in said and "--predict" in said
    assert command.main(["--setups", "x"]) == 2
    assert "no set-up 'x'" in capsys.readouterr().err
    assert command.main(["--predict", "--write", str(tmp_path)]) == 0
    kept, scripts = from_json(json.loads((tmp_path / "deepspeed_zero3.json").read_text()))
    assert not any(row.measured for row in kept) and scripts[0].lines == 0
    assert "not measured" in (tmp_path / "deepspeed_zero3.md").read_text()


def test_losses_of_other_numbers_of_steps_are_shown_and_not_compared() -> None:
    ours = _row("ours-3-1b", measured=_figures([11.0, 9.0, 8.0]), about="then")
    theirs = _row("deepspeed-3-1b", measured=_figures([11.0, 9.0]), about="now")
    same = _row("ours-2-1b", measured=_figures([11.0, 9.0, 8.5]), about="then")
    text = report([ours, theirs, same], [])
    assert "| deepspeed-3-1b | 2 | 11.000000 | 9.000000 | of other steps than ours-3 |  |  |" in text
    assert "| ours-2-1b | 3 | 11.000000 | 8.500000 | 5.0e-01 | 5.0e-01 | 0.0e+00 |" in text


def test_a_row_that_was_stopped_says_how_far_it_was(tmp_path: Path) -> None:
    log = tmp_path / "row.log"
    log.write_text(
        "[   9.1 s] weights drawn\n[  30.2 s] step 11 of 40\nW1124 Sending process 71 closing signal SIGTERM\n"
        "Traceback (most recent call last):\ntorch.distributed.elastic.SignalException: Process 58 got signal: 15\n"
    )
    assert _reason(log) == "[  30.2 s] step 11 of 40"
    log.write_text("[   9.1 s] weights drawn\nValueError: broken\nW1124 Sending process 71 closing signal SIGTERM\n")
    assert _reason(log) == "ValueError: broken"


@pytest.mark.parametrize(("words", "run"), [(["--setups", "1b", "8b"], False), (["--setups", "1b", "tiny"], True)])
def test_scripts_run_with_the_rows_of_a_cpu(
    words: list[str], run: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Path | None] = []

    def scripts(limit: float, logs: Path | None) -> list[Script]:
        asked.append(logs)
        return [Script("way", 7)]

    monkeypatch.setattr(command, "find_spec", lambda name: object())
    monkeypatch.setattr(command, "due", lambda row, options: False)
    monkeypatch.setattr(command, "scripts", scripts)
    assert command.main([*words, "--write", str(tmp_path), "--logs", str(tmp_path)]) == 0
    assert asked == [tmp_path if run else None]
    assert command.main([*words, "--write", str(tmp_path), "--logs", str(tmp_path)]) == 0
    assert asked[1:] == ([tmp_path] if run else []), "what is known of them stays"


def test_no_two_rows_of_a_panel_are_drawn_alike(tmp_path: Path) -> None:
    found = from_json(json.loads(RECORD.read_text("utf-8")))[0]
    assert {kind(row) for row in found} == set(STYLES)
    assert len(set(STYLES.values())) == len(STYLES)
    draw(found, tmp_path / "losses.svg")
    said = (tmp_path / "losses.svg").read_text("utf-8")
    assert "2.5</text>" not in said, "steps are whole numbers"
    assert all(f">{setup}: loss</text>" in said for setup in {row.setup for row in found if row.measured})


def test_both_sides_of_the_steady_set_up_have_the_same_warmed_up_learning_rate() -> None:
    rates = {}
    for row in rows(["1b-steady"]):
        config = zero_rows.config(row, "cuda")
        rates[row.name] = [learning_rate(config, row.tokens * step) for step in range(1, row.steps + 1)]
    (first,) = {tuple(one) for one in rates.values()}
    assert len(rates) == 7
    half = len(first) // 2
    assert list(first[:half]) == sorted(first[:half]) and first[0] == pytest.approx(first[half - 1] / half)
    counts = params(zero_rows.config(find("ours-3-1b-steady"), "cuda").model, 32_768)
    assert first[half - 1] == pytest.approx(peak_lr(counts.non_embedding, 4 * 40 * 65_536), rel=1e-3)
    assert first[half - 1] < 1.2e-4


def test_losses_stand_side_by_side_with_the_difference_of_the_last_ones() -> None:
    losses = [11.0, 10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0]
    ours = _row("ours-3-1b-steady", measured=_figures(losses), about="now")
    theirs = _row("deepspeed-3-1b-steady", measured=_figures([*losses[:6], 5.0, 4.09]), about="now")
    short = _row("ours-2-1b-steady", measured=_figures(losses[:5]), about="now")
    lines = report([ours, theirs, short], []).splitlines()
    assert (
        "| row | step 1 | step 2 | step 4 | step 6 | step 8 | last quarter, relative difference from ours-3 |" in lines
    )
    assert "| ours-3-1b-steady | 11.0000 | 10.0000 | 8.0000 | 6.0000 | 4.0000 | 0.0e+00 |" in lines
    assert "| deepspeed-3-1b-steady | 11.0000 | 10.0000 | 8.0000 | 6.0000 | 4.0900 | 1.0e-02 |" in lines
    assert "| ours-2-1b-steady | 11.0000 | 10.0000 | 8.0000 |  |  | of other steps |" in lines
