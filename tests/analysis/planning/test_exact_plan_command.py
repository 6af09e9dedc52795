"""The plan of published constants, word for word, and as the keys of the command set its budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.approaches.cost import Cost
from analysis.approaches.loss_laws import Closed, Fitted
from analysis.inference import resampling
from analysis.laws.registry import FORMS
from analysis.plan import Basis, Plan, from_constants, main, make, plan, text
from analysis.planning import scenarios
from analysis.planning.basis import Beside

BESIROGLU = {"E": 1.8172181, "A": 477.826, "B": 2143.417, "alpha": 0.347310, "beta": 0.367172}
QUOTED = "constants=" + ",".join(f"{name}:{value}" for name, value in BESIROGLU.items())
ROUNDED = {"E": 1.8, "A": 400.0, "B": 2000.0, "alpha": 0.34, "beta": 0.367}
SAID = """\
law       L = 1.81722 + 477.826/N^0.34731 + 2143.42/D^0.367172 nats per token
budget    5.76e23 FLOPs; 400K device-hours at 4e14 FLOP/s a device

training-only: all of the budget is training
  parameters            73.2B
  tokens                1.31T
  tokens per parameter  17.9
  loss [nats per token] 1.974
  device-hours          400K
  shape, deep           115 layers x 7296 channels, 57 heads: 73.5B
  shape, balanced       83 layers x 8576 channels, 67 heads: 73.3B
  shape, wide           66 layers x 9600 channels, 75 heads: 73.0B

over-trained: 4x the optimal tokens per parameter, the same budget
  parameters            36.6B
  tokens                2.62T
  tokens per parameter  71.7
  loss [nats per token] 1.979
  device-hours          400K
  shape, deep           92 layers x 5760 channels, 45 heads: 36.6B
  shape, balanced       66 layers x 6784 channels, 53 heads: 36.5B
  shape, wide           50 layers x 7808 channels, 61 heads: 36.6B

inference: the loss of training-only, and 10T tokens served
  parameters            34.4B
  tokens                3.70T
  tokens per parameter  107
  loss [nats per token] 1.974
  training and serving  7.6e23 FLOPs and 6.9e23 FLOPs
  device-hours          531K
  shape, deep           90 layers x 5632 channels, 44 heads: 34.3B
  shape, balanced       65 layers x 6656 channels, 52 heads: 34.6B
  shape, wide           50 layers x 7552 channels, 59 heads: 34.2B
  note: saves 29 % of training and serving together against training-only

limited data: 100B distinct tokens, repeated as often as it helps
  parameters            47.6B
  tokens                2.02T
  tokens per parameter  42.3
  loss [nats per token] 2.012
  epochs                20.2
  device-hours          400K
  shape, deep           97 layers x 6400 channels, 50 heads: 47.7B
  shape, balanced       72 layers x 7424 channels, 58 heads: 47.6B
  shape, wide           56 layers x 8448 channels, 66 heads: 48.0B
  note: repeats wear out as in Muennighoff et al. 2023 (R_D 15.4, R_N 5.31), whose R_D later fits leave unbounded \
above: treat the loss as a guess beyond 4 epochs
  note: 20 epochs: repeated tokens are worth next to nothing beyond 16, get more data

note: constants as quoted have no interval
"""


def said(given: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(given) == 0
    return capsys.readouterr().out


def test_the_plan_of_published_constants_word_for_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Besiroglu et al. 2024 at Chinchilla's budget; 29 % saved is 1 - (7.64 + 6.89)/(5.76 + 14.64) of 1e23 FLOPs."""
    given = [QUOTED, "budget=5.76e23", "inference_tokens=1e13", "unique_tokens=1e11", "mfu=0.4", "peak=1e15"]
    assert said([*given, f"out={tmp_path}"], capsys) == f"{SAID}wrote {tmp_path}/plan.json\n"
    written = (tmp_path / "plan.json").read_text()
    found = json.loads(written)
    assert written == json.dumps(found, indent=1) + "\n"
    assert found["constants"] == BESIROGLU
    assert [one["training_flops"] for one in found["options"]] == pytest.approx(
        [5.76e23, 5.76e23, 7.639860e23, 5.76e23]
    )
    assert [one["inference_flops"] for one in found["options"]] == pytest.approx([0, 0, 6.885832e23, 0], rel=1e-6)
    assert [one["gpu_hours"] for one in found["options"]] == pytest.approx([4e5, 4e5, 530545.9, 4e5])
    assert [one["epochs"] for one in found["options"]] == [None, None, None, pytest.approx(20.1517, abs=1e-4)]
    assert found["options"][0]["intervals"] == dict.fromkeys(("params", "tokens", "tokens_per_param", "loss"))
    assert found["other_laws"] == []
    assert found["extrapolation_factor"] is None
    again = plan(BESIROGLU, 5.76e23, inference_tokens=1e13, unique_tokens=1e11)
    names = ("params", "tokens", "loss")
    for option, one in zip(again.options, found["options"], strict=True):
        assert [getattr(option, name) for name in names] == [one[name] for name in names]
        assert [vars(shape) for shape in option.shapes] == one["shapes"]
    assert said([*given, "overtrain=1"], capsys).count("tokens per parameter  ") == 3, "the optimum itself is not again"
    assert len(plan(BESIROGLU, 1e21, overtrain=2.0).options) == 2


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (["gpu_hours=2", "mfu=40%", "peak=1e15"], "budget    2.88e18 FLOPs; 2 device-hours at 4e14 FLOP/s a device"),
        (["gpu_hours=1", "mfu=0.5", "peak=6.1938e14"],
         "budget    1.11e18 FLOPs; 1 device-hours at 3.1e14 FLOP/s a device"),
        (["params_opt=73190499890"], "budget    5.76e23 FLOPs"),
        (["budget=3e20"], "budget    3e20 FLOPs"),
        (["gpu_hours=1000", "mfu=0.5", "peak=989e12"],
         "budget    1.78e21 FLOPs; 1K device-hours at 4.94e14 FLOP/s a device"),
    ],
)  # fmt: skip
def test_a_budget_is_set_in_three_ways(given: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said([QUOTED, *given], capsys).splitlines()[1] == line


def test_without_a_budget_there_is_no_plan_of_constants(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([QUOTED]) == 2
    assert "budget= is missing" in capsys.readouterr().err
    for lone, lacking in (("mfu=0.4", "peak"), ("peak=500.0", "mfu")):
        assert main([QUOTED, "budget=1e20", lone]) == 2
        assert f"{lone} needs {lacking}= beside it" in capsys.readouterr().err
    assert main([QUOTED, "budget=1e90"]) == 2
    assert "the law has no best size within" in capsys.readouterr().err


def test_exponents_of_few_digits_are_said() -> None:
    def notes(**changed: float) -> list[str]:
        return [note[:35] for note in from_constants({**BESIROGLU, **changed}).notes[1:]]

    assert notes() == []
    assert notes(alpha=0.3473) == []
    assert notes(alpha=0.347) == ["alpha have fewer than four digits: "]
    assert notes(alpha=0.34, beta=0.3) == ["alpha and beta have fewer than four"]
    tied = from_constants({"E": 1.7, "A": 400.0, "B": 900.0, "alpha": 0.34}, "chinchilla_tied")
    assert tied.notes[1].startswith("alpha have fewer")


@pytest.mark.parametrize(
    ("form", "changed", "message"),
    [
        ("chinchilla", {"A": 0.0}, "constants=A:0: a positive number is needed"),
        ("chinchilla", {"beta": 0.0}, "constants=beta:0: a positive number is needed"),
        ("chinchilla", {"E": 0.0}, ""), ("chinchilla", {"E": -0.5}, ""),
        ("chinchilla_interaction", {"G": 10.0, "gamma": -0.2}, ""),
        ("chinchilla", {"gamma": 2.0}, "has no such constant; it has E, A, B, alpha, beta"),
    ],
)  # fmt: skip
def test_which_constants_have_to_be_positive(form: str, changed: dict[str, float], message: str) -> None:
    names = {*FORMS[form].names, *changed}
    given = {name: changed.get(name, BESIROGLU.get(name, 1.0)) for name in names}
    if message:
        with pytest.raises(ValueError, match=message):
            from_constants(given, form)
    else:
        assert from_constants(given, form).constants == given


def test_constants_of_other_laws() -> None:
    tied = from_constants({"E": 1.7, "A": 400.0, "B": 900.0, "alpha": 0.3456}, "chinchilla_tied")
    assert tied.text == f"L = {FORMS['chinchilla_tied'].text}; E 1.70000, A 400.000, B 900.000, alpha 0.345600"
    assert isinstance(tied.law, Fitted)
    at = np.log(1e9), np.log(2e10)
    want = 1.7 + 400 / 1e9**0.3456 + 900 / 2e10**0.3456
    assert tied.law.loss(np.array([at[0]]), np.array([at[1]]))[0] == pytest.approx(want)
    assert isinstance(from_constants(BESIROGLU).law, Closed)
    assert tied.sizes == (1e6, 1e12)
    assert tied.speed is None
    moe = dict.fromkeys(FORMS["moe"].names, 0.5)
    assert from_constants(moe, "moe", {"experts": 1.0}).law.further == {"experts": 1.0}  # type: ignore[union-attr]
    for at_, message in (({}, "say for which with at=experts:NUMBER"), ({"experts": 0.0}, "at=experts:0: a positive"),
                         ({"experts": 8.0, "bits": 2.0}, "does not read it; it reads experts")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            from_constants(moe, "moe", at_)
    with pytest.raises(ValueError, match="gives no loss of N and D to plan with; use one of chinchilla, "):
        from_constants(dict.fromkeys(FORMS["compute"].names, 0.5), "compute")


def basis(**changed: Any) -> Basis:
    """Return a made-up basis: the constants, and two draws with 1.5 and 2 times the tokens' coefficient."""
    draws = np.array([list({**BESIROGLU, "B": BESIROGLU["B"] * k}.values()) for k in (1.0, 1.5, 2.0)])
    given: dict[str, Any] = {
        "law": Closed(draws), "form": "chinchilla", "constants": BESIROGLU, "text": "L", "price": Cost.six(),
        "sizes": (1e8, 1e11), "largest": 1e21, "kinds": {"params": "total", "flops": "6ND", "loss": "nats per token"},
        "source": "runs", "speed": 1e14, "notes": (), "tested": 10.0,
    }  # fmt: skip
    return Basis(**{**given, **changed})


def made(basis: Basis, budget: float = 1e22, **changed: Any) -> Plan:
    given: dict[str, Any] = {"overtrain": 1.0, "inference_tokens": None, "unique_tokens": None, "repeats": {}}
    return make(basis, scenarios.Asked(budget, **{**given, **changed}), basis.speed)


@pytest.mark.parametrize(
    ("factor", "tested", "notes"),
    [
        (30.0, 30.0, []), (30.5, 30.0, ["the budget is 30.5 times"]), (12.4, 10.0, []),
        (10.0, 8.0, []),
        (12.6, 10.0, ["backtests of this law reach 10× at most beyond their fits: nothing tests the 13× of this plan"]),
        (2.0, 0.0, ["backtests of this law are none beyond their fits: nothing tests the 2× of this plan"]),
        (2.0, None, []), (40.0, None, ["the budget is 40 times"]),
    ],
)  # fmt: skip
def test_what_is_said_of_far_budgets(factor: float, tested: float | None, notes: list[str]) -> None:
    found = made(basis(tested=tested), 1e21 * factor)
    assert found.extrapolation_factor == pytest.approx(factor)
    assert len(found.notes) == len(notes)
    assert all(note.startswith(start) for note, start in zip(found.notes, notes, strict=True))
    none = made(basis(tested=tested, largest=None), 1e21 * factor)
    assert none.extrapolation_factor is None
    assert none.notes == ()


def test_intervals_are_of_the_draws_and_points_of_the_first_row() -> None:
    found = made(basis(), inference_tokens=1e12, unique_tokens=1e10)
    point = plan(BESIROGLU, 1e22, overtrain=1.0, inference_tokens=1e12, unique_tokens=1e10)
    for option, same in zip(found.options, point.options, strict=True):
        assert (option.params, option.tokens, option.loss) == pytest.approx((same.params, same.tokens, same.loss))
        assert option.training_flops == pytest.approx(same.training_flops)
        assert option.inference_flops == pytest.approx(same.inference_flops)
        assert option.epochs == (None if same.epochs is None else pytest.approx(same.epochs))
        assert option.shapes[0].params / option.params == pytest.approx(1.0, abs=0.05)
    first = found.options[0]
    draws = [plan({**BESIROGLU, "B": BESIROGLU["B"] * k}, 1e22).options[0] for k in (1.5, 2.0)]
    for name in ("params", "tokens", "tokens_per_param"):  # in logs, as those of a fit's recommendation are
        logs = np.log([getattr(draw, name) for draw in draws])
        ends = np.exp(resampling.interval(logs, np.log(getattr(first, name))) or (np.nan, np.nan))
        assert first.intervals[name] == pytest.approx(tuple(ends), rel=1e-6)
    of_loss = resampling.interval(np.array([draw.loss for draw in draws]), first.loss)
    assert first.intervals["loss"] == pytest.approx(of_loss, rel=1e-6)
    alone, *_ = made(basis(law=Closed(np.array([list(BESIROGLU.values())])))).options
    assert alone.intervals["params"] is None
    shown = text(found).splitlines()
    assert shown[1].startswith("budget    1e22 FLOPs, 10x the largest run; 27.8K device-hours at 1e14 FLOP/s a device")
    assert shown[4] == f"  parameters            {shown[4].split()[1]}  ({shown[4].split('(')[1]}"
    assert " to " in shown[4]


def test_a_budget_that_only_the_law_itself_answers_is_planned() -> None:
    """Draws without a best size leave the point as it is; a point without one is an error."""
    none = {**BESIROGLU, "A": 0.0}
    law = np.array([list(BESIROGLU.values()), list(none.values())])
    assert made(basis(law=Closed(law))).options[0].params == pytest.approx(plan(BESIROGLU, 1e22).options[0].params)
    with pytest.raises(ValueError, match="no best size"):
        made(basis(law=Closed(law[::-1])))


@pytest.mark.parametrize(
    ("unique", "starts"),
    [(5.5e10, []), (5e10, ["4.4 epochs: beyond 4"]), (1.8e10, ["14.9 epochs: beyond"]), (1.4e10, ["20 epochs: rep"])],
)
def test_epochs_beyond_four_and_sixteen_are_said(unique: float, starts: list[str]) -> None:
    law = from_constants(BESIROGLU)
    found = made(law, unique_tokens=unique, repeats={"R_D": 15.4, "R_N": 5.31}).options[1]
    assert [note[: len(start)] for note, start in zip(found.notes, starts, strict=True)] == starts, found.notes


def others(*given: tuple[str, float, float, str]) -> tuple[Beside, ...]:
    """Return laws by name, factor of the coefficient of size, criterion behind, and what they lack."""
    return tuple(
        Beside(name, Closed(np.array([list({**BESIROGLU, "A": BESIROGLU["A"] * k}.values())])), behind, lacking)
        for name, k, behind, lacking in given
    )


@pytest.mark.parametrize(
    ("laws", "starts"),
    [
        ([("chinchilla", 1.0, 3.0, ""), ("farseer", 1.2, 0.0, "")], []),
        ([("chinchilla", 1.0, 0.0, ""), ("farseer", 5.0, 9.9, "")], ["laws that fit the runs about as well put N*"]),
        ([("chinchilla", 1.0, 0.0, ""), ("farseer", 5.0, 10.5, "")], []),
        ([("chinchilla", 1.0, 0.0, ""), ("farseer", 5.0, 0.0, "flat")], []),
        ([("chinchilla", 1.0, 12.0, ""), ("farseer", 1.1, 0.0, "")],
         ["farseer fits these runs clearly better than chinchilla (AICc 12 lower): see form=farseer"]),
        ([("chinchilla", 1.0, 12.0, ""), ("farseer", 1.1, 2.0, "flat")], []),
        ([("chinchilla", 1.0, 12.5, ""), ("farseer", 1.1, 2.0, "flat")],
         ["farseer fits these runs clearly better than chinchilla (AICc 10.5 lower), and no plan rests on it: flat"]),
        ([("farseer", 5.0, 0.0, "")], ["laws that fit"]), ([("farseer", 5.0, 10.5, "")], []),
        ([("chinchilla", 1.0, 0.0, ""), ("farseer", 2.0, 1.0, "")], ["laws that fit"]),
        ([("chinchilla", 1.0, 0.0, ""), ("farseer", 1.6, 1.0, "")], ["laws that fit"]),
        ([("chinchilla", 1.0, 0.0, ""), ("farseer", 1.3, 1.0, "")], []),
        ([("chinchilla", 1.0, 0.0, ""), ("farseer", 0.0, 1.0, "")], []),
    ],
)  # fmt: skip
def test_what_is_said_of_other_laws(laws: list[tuple[str, float, float, str]], starts: list[str]) -> None:
    found = made(basis(beside=others(*laws)))
    assert [note[: len(start)] for note, start in zip(found.notes, starts, strict=True)] == starts
    assert [one.form for one in found.other_laws] == [name for name, _, _, _ in sorted(laws, key=lambda one: one[2])]


def test_other_laws_as_lines() -> None:
    given = ("chinchilla", 1.0, 1.5, ""), ("farseer", 1.0, 0.0, "flat"), ("kaplan_floor", 0.0, 20.0, "")
    found = made(basis(beside=others(*given)))
    lines = text(found).splitlines()
    at = lines.index("training-only by other laws through the same runs (least squares), the best by AICc first:")
    same = "   9.12B parameters, 20.1 tokens per parameter, loss 2.140"
    assert [line for line in lines[at + 1 :] if line] == [
        f"  farseer                 {same}  (AICc 0 behind; does not qualify: flat)",
        f"  chinchilla              {same}  (AICc 1.50 behind)",
        "  kaplan_floor            no best size  (AICc 20.0 behind; does not qualify: no best size for this budget)",
    ]
    two = text(made(basis(beside=others(*given[:2])))).splitlines()
    assert len(two) == len(lines) - 1
    assert "other laws" not in text(made(basis(beside=others(given[0])))), "the law itself is no other"
