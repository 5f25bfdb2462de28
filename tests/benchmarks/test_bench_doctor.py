from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bench.doctor.__main__ import main
from bench.doctor.case import TUNING, UNSEEN, Case, divide
from bench.doctor.cases import all_cases
from bench.doctor.examination import (
    CURED,
    FAILED,
    HARMED,
    HEALTHY,
    ILL,
    LATE,
    REFUSED,
    SAME,
    Result,
    compare,
    examine,
    hidden,
)
from bench.doctor.table import confusion, share, wilson
from bench.doctor.training import Outcome, Proof, outcome_of, prove, skill

CASES = all_cases()


def test_cases_are_unique_and_enough() -> None:
    names = [case.name for case in CASES]
    faults = [case for case in CASES if case.fault]
    assert len(set(names)) == len(names)
    assert len(faults) >= 66
    assert len(CASES) - len(faults) >= 62
    assert len({case.family for case in faults}) >= 12
    assert all(case.cause and case.twin for case in faults)


def test_families_have_their_share_of_both_splits_and_twins_stay_together() -> None:
    splits = {case.name: case.split for case in CASES}
    assert all(splits[name] == splits[name.removesuffix("_repaired")] for name in splits)
    for family in {case.family for case in CASES}:
        count = Counter(case.split for case in CASES if case.family == family)
        assert 0.25 <= count[TUNING] / (count[TUNING] + count[UNSEEN]) <= 0.55


def test_a_new_case_leaves_the_split_of_the_others() -> None:
    new = replace(CASES[0], name="new", twin=None)
    before = {case.name: case.split for case in CASES}
    assert {case.name: case.split for case in divide([*CASES, new]) if case.name != "new"} == before


def _is_deterministic_and_has_a_gradient(case: Case) -> None:
    (model, x, y, options), (again, x_again, y_again, _) = case.make(3), case.make(3)
    state, state_again = model.state_dict(), again.state_dict()
    assert all(torch.equal(state[name], state_again[name]) for name in state)
    assert torch.equal(x, x_again)
    assert torch.equal(y, y_again)
    other = case.make(4)
    assert not torch.equal(other[1], x) or not torch.equal(other[2], y)
    assert len(x) == len(y)
    options["loss"](model(x[:16]), y[:16]).backward()
    assert any(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    "name", ["softmax_before_cross_entropy", "broadcast_in_mse_loss", "no_positions", "rezero"]
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_some_cases_run(name: str) -> None:
    _is_deterministic_and_has_a_gradient(next(case for case in CASES if case.name == name))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_all_cases_run(case: Case) -> None:
    _is_deterministic_and_has_a_gradient(case)


@pytest.mark.parametrize("name", ["all_weights_zero", "one_sample_at_a_large_rate"])
def test_a_fault_is_worse_than_its_twin_and_its_twin_is_healthy(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    assert case.twin is not None
    assert prove(case, 0).holds
    assert prove(case.twin, 0).holds
    # The proof can fail: the twin is not worse than itself.
    same = replace(case, build=case.twin.build)
    assert not prove(same, 0).holds


def test_a_proof_asks_for_a_clear_difference() -> None:
    fault, good = replace(CASES[0], by_loss=False), Outcome(0.9, 0.1)
    assert Proof(fault, Outcome(0.7, 0.3), good).holds
    assert not Proof(fault, Outcome(0.82, 0.3), good).holds
    assert Proof(replace(fault, by_loss=True), Outcome(0.9, 0.2), good).holds
    assert not Proof(replace(fault, by_loss=True), Outcome(0.1, 0.12), good).holds
    assert not Proof(replace(fault, fault=None, least=0.5), Outcome(0.4, 0.1), None).holds


def test_training_leaves_the_generator_of_torch_as_it_was() -> None:
    case = next(case for case in CASES if case.name == "linear_regression")
    before = torch.get_rng_state()
    first, second = (outcome_of(case.make(0), case, 0) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert first == second


class Answers(torch.nn.Module):
    def __init__(self, outputs: torch.Tensor) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outputs


def test_skill_is_one_for_perfect_and_zero_for_a_constant() -> None:
    x, labels = torch.zeros(6, 1), torch.tensor([0, 0, 0, 1, 1, 2])
    perfect = torch.nn.functional.one_hot(labels, 3).float()
    assert skill(Answers(perfect), x, labels) == 1
    assert skill(Answers(torch.tensor([[1.0, 0, 0]]).expand(6, 3)), x, labels) == pytest.approx(0, abs=1e-6)
    numbers = torch.tensor([[1.0], [2.0], [4.0]])
    assert skill(Answers(numbers), x[:3], numbers) == 1
    assert skill(Answers(numbers.mean().expand(3, 1)), x[:3], numbers) == pytest.approx(0, abs=1e-6)
    binary = torch.tensor([[0.0], [1.0], [1.0], [0.0]])
    assert skill(Answers(2 * binary - 1), x[:4], binary) == 1
    tokens = torch.tensor([[0, 1], [2, 1], [0, 1]])
    assert skill(Answers(torch.nn.functional.one_hot(tokens, 4).float()), x[:3], tokens) == 1


def test_wilson_agrees_with_the_quadratic_that_defines_it() -> None:
    low, high = wilson(8, 10)
    for bound in (low, high):
        assert (0.8 - bound) ** 2 == pytest.approx(1.96**2 * bound * (1 - bound) / 10)
    assert wilson(0, 10)[0] == 0
    assert wilson(10, 10)[1] == 1
    assert wilson(0, 0) == (0, 1)


def _result(faulty: bool, outcome: str, **more: object) -> Result:
    return Result("name", "family", TUNING, 0, faulty, outcome, **more)  # type: ignore[arg-type]


def test_rates_count_what_they_say() -> None:
    results = [
        _result(True, ILL, complaint=True, first=True, anywhere=True, cure=CURED),
        _result(True, REFUSED, complaint=True, anywhere=True),
        _result(True, HEALTHY, cure=HARMED),
        _result(True, FAILED),
        _result(False, HEALTHY),
        _result(False, ILL, complaint=True, cure=SAME),
        _result(False, LATE),
    ]
    assert share(results, "faults not called healthy") == (2, 4)
    assert share(results, "cause in the first finding") == (1, 4)
    assert share(results, "cause in any finding") == (2, 4)
    assert share(results, "healthy with a complaint") == (1, 3)
    assert share(results, "healthy not called healthy") == (2, 3)
    assert share(results, "cures that are better") == (1, 3)
    assert share(results, "cures that are worse") == (1, 3)
    assert share(results, "faults that are cured") == (1, 2)
    table = confusion(results).splitlines()
    assert table[1].split() == ["faults", "1", "1", "1", "1", "0"]
    assert table[2].split() == ["healthy", "setups", "1", "1", "0", "0", "1"]


def test_cures_are_judged_by_the_loss_and_else_by_the_score() -> None:
    given = Outcome(0.5, 1.0)
    assert compare(given, Outcome(0.5, 0.5), True) == CURED
    assert compare(given, Outcome(0.5, 0.99), True) == SAME
    assert compare(given, Outcome(0.9, float("nan")), True) == HARMED
    assert compare(Outcome(0.5, float("inf")), Outcome(0.5, 0.5), True) == CURED
    assert compare(Outcome(0.5, -1.0), Outcome(0.5, -2.0), True) == CURED
    assert compare(given, Outcome(0.9, 5.0), False) == CURED
    assert compare(given, Outcome(0.2, 0.1), False) == HARMED


def test_a_case_that_breaks_off_or_takes_too_long_is_a_class_of_its_own() -> None:
    def broken() -> tuple:
        raise ZeroDivisionError("no")

    case = replace(CASES[0], build=broken)
    assert examine(case, 0, cures=False, limit=60).outcome == FAILED

    def slow() -> tuple:
        time.sleep(30)

    assert examine(replace(CASES[0], build=slow), 0, cures=False, limit=0.05).outcome == LATE


def test_a_refusal_names_the_cause_by_its_message() -> None:
    case = next(case for case in CASES if case.name == "optimizer_of_an_earlier_model")
    result = examine(case, 0, cures=False, limit=60)
    assert (result.outcome, result.first) == (REFUSED, True)
    deaf = examine(replace(case, cause=("no such word",)), 0, cures=False, limit=60)
    assert (deaf.outcome, deaf.first) == (REFUSED, False)


@pytest.mark.slow
def test_a_run_is_kept_and_taken_up_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "run.jsonl"
    arguments = ["--only", "linear_regression", "--record", str(record)]
    assert main(arguments) == 0
    line = json.loads(record.read_text())
    assert line["name"] == "linear_regression"
    assert main(arguments) == 0
    assert len(record.read_text().splitlines()) == 1
    assert main(["--only", "no such case"]) == 2
    assert "no such case" in capsys.readouterr().err


@pytest.mark.slow
def test_unseen_cases_stay_unseen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = next(case for case in CASES if case.split == UNSEEN and case.family == "unusual")
    record = tmp_path / "run.jsonl"
    assert main(["--unseen", "--only", case.name, "--record", str(record)]) == 0
    line = json.loads(record.read_text())
    assert (line["name"], line["finding"]) == (hidden(case.name), "")
    assert case.name not in capsys.readouterr().out
    assert main(["--unseen", "--source", "--only", case.name]) == 0
    assert case.name not in capsys.readouterr().out
