"""The verdict follows from curves and baselines: with runs made up here, and with short real trainings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from planted_networks import default_mlp, digits, regression
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from foretrain.doctor.baselines import Baseline, Judge, Measure
from foretrain.doctor.examine import Training, make_setup
from foretrain.doctor.outcome import Outcome, Status, learned_by_heart, observe, outcome_of
from foretrain.doctor.setup import Case, Setup
from foretrain.doctor.short_training import (
    Bench,
    Run,
    bench_of,
    constant_loss,
    divide,
    extent_of,
    future_share,
    train,
)

SAMPLES = 200


def answers(share: float, seed: int) -> np.ndarray:
    """Scores of samples: this share is right."""
    return (np.random.default_rng(seed).permutation(SAMPLES) < share * SAMPLES).astype(float)


def made_up(
    *curve: float,
    best: float = 0.9,
    trained: float = 0.2,
    losses: tuple[float, ...] = (2.0, 1.0),
    longer: bool = False,
) -> Outcome:
    """A network with this accuracy at its records, beside a constant at 0.1 and one more baseline."""
    scores = np.array([answers(share, 1) for share in curve])
    run = Run(np.array(losses), np.arange(len(curve)), np.ones(len(curve)), scores, trained, nn.Identity())
    wanted = torch.zeros(SAMPLES, 1, dtype=torch.long)
    judge = Judge.of(Measure("labels"), wanted, wanted)
    baselines = (Baseline("a constant", answers(0.1, 2)), Baseline("a linear model", answers(best, 3)))
    return Outcome(run, Bench(judge, baselines), 2.0, "loss", True, 32, longer)


def rising(start: float, end: float, records: int = 24) -> list[float]:
    return list(np.linspace(start, end, records))


def test_a_network_near_the_best_baseline_learns() -> None:
    found = made_up(*rising(0.1, 0.85))
    assert found.status is Status.LEARNS
    assert found.at_ease
    assert found.sentence == "It learns: accuracy 0.818 after 2 steps, where a linear model has 0.9."


def test_a_network_that_stays_at_chance_stalls() -> None:
    found = made_up(*[0.1] * 24)
    assert found.status is Status.STALLS
    assert "does not learn" in found.sentence


def test_one_that_stops_far_below_the_best_baseline_learns_less() -> None:
    assert made_up(*rising(0.1, 0.4, 6), *[0.4] * 18).status is Status.LESS


def test_one_that_is_on_its_way_learns_but_not_at_ease() -> None:
    found = made_up(*rising(0.1, 0.6))
    assert found.status is Status.LEARNS
    assert not found.arrived
    assert not found.at_ease


def test_one_that_needed_the_longer_training_is_not_at_ease() -> None:
    assert not made_up(*rising(0.1, 0.9), longer=True).at_ease


def test_where_no_baseline_gains_there_is_nothing_to_learn_or_it_learns_by_heart() -> None:
    assert made_up(*[0.1] * 24, best=0.1).status is Status.NOTHING
    assert made_up(*[0.1] * 24, best=0.1, trained=0.95).status is Status.BY_HEART
    assert made_up(*rising(0.1, 0.5), best=0.1).status is Status.LEARNS


def test_what_is_learned_by_heart_is_not_called_learned() -> None:
    assert made_up(*[0.1] * 24, trained=0.99).status is Status.BY_HEART


def test_a_loss_that_leaves_all_bounds_diverges() -> None:
    found = made_up(*[0.1] * 4, losses=(2.0, math.inf))
    assert found.status is Status.DIVERGES
    assert "left all bounds" in found.sentence


def test_the_record_and_the_data_say_the_same() -> None:
    found = made_up(*rising(0.1, 0.85))
    assert found.to_dict()["learns"]
    data = found.to_dataset()
    assert data.attrs["status"] == "learns"
    assert float(data["baseline_score"].sel(baseline="a linear model")) == pytest.approx(0.9)


def setup_of(model: nn.Module, x: Tensor, y: Tensor, **options: Any) -> Setup:
    return make_setup(model, x, y, Training(**options))


def test_a_fifth_is_held_out_and_the_same_for_every_network_of_these_data() -> None:
    x, y = digits()
    setup = setup_of(default_mlp([64, 8, 10], nn.ReLU), x, y, optimizer=0.1)
    division = divide(setup)
    assert (len(division.training.x), len(division.held_out.x)) == (160, 40)
    together = torch.cat([division.training.x, division.held_out.x])
    assert len(torch.unique(together, dim=0)) == len(torch.unique(x, dim=0))


def test_few_samples_are_all_trained_on_and_that_is_said() -> None:
    x, y = regression(30)
    found = outcome_of(Case(setup_of(default_mlp([10, 32, 1], nn.Tanh), x, y, optimizer=0.1)))
    assert not found.apart
    assert "too few to hold any out" in found.evidence


def test_the_best_constant_answer_is_known_in_closed_form() -> None:
    x, y = regression()
    setup = setup_of(default_mlp([10, 8, 1], nn.Tanh), x, y, optimizer=0.1, loss=mse_loss)
    division = divide(setup)
    expected = float((division.held_out.y - division.training.y.mean(0)).square().mean())
    assert constant_loss(setup) == pytest.approx(expected, rel=1e-4)
    x, y = digits()
    setup = setup_of(default_mlp([64, 8, 10], nn.Tanh), x, y, optimizer=0.1, loss=cross_entropy)
    division = divide(setup)
    shares = torch.bincount(division.training.y, minlength=10) / len(division.training.y)
    expected = float(-shares.log()[division.held_out.y].mean())
    assert constant_loss(setup) == pytest.approx(expected, rel=1e-3)


def test_trainings_are_repeated_bit_by_bit_and_leave_the_model_alone() -> None:
    x, y = digits()
    model = nn.Sequential(nn.Linear(64, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 10))
    before = [p.clone() for p in model.parameters()]
    runs = [train(setup_of(model, x, y, optimizer=0.1, batch_size=32), 0.3) for _ in range(2)]
    assert np.array_equal(runs[0].losses, runs[1].losses)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))


def test_steps_are_counted_by_work_and_not_by_time() -> None:
    x, y = digits()
    small = extent_of(setup_of(default_mlp([64, 8, 10], nn.ReLU), x, y, optimizer=0.1), 2.5)
    large = extent_of(setup_of(default_mlp([64, 3000, 3000, 10], nn.ReLU), x, y, optimizer=0.1), 2.5)
    assert small.steps == 300
    assert large.steps * large.batch < small.steps * small.batch


def test_a_network_without_a_memory_of_later_positions_is_causal() -> None:
    x = torch.randn(16, 6, 3, generator=torch.Generator().manual_seed(0))
    both = nn.GRU(3, 4, batch_first=True, bidirectional=True)
    forward = nn.GRU(3, 4, batch_first=True)
    for rnn, sees in ((forward, False), (both, True)):
        model = nn.Sequential(rnn)
        model.forward = lambda x, rnn=rnn: rnn(x)[0]  # type: ignore[method-assign]
        assert (future_share(model, x, Measure("numbers")) > 1e-3) == sees


def test_baselines_and_their_readout_are_fitted_once_for_the_data() -> None:
    x, y = digits()
    setup = setup_of(default_mlp([64, 32, 10], nn.ReLU), x, y, optimizer=0.1)
    names = [one.name for one in bench_of(setup).baselines]
    assert names == [
        "a constant",
        "a linear model",
        "nearest neighbours",
        "a linear readout of the untrained network",
    ]
    assert bench_of(setup) is bench_of(setup)


@pytest.mark.slow
def test_a_network_that_fits_learns_and_one_without_a_rate_does_not() -> None:
    x, y = digits()
    model = default_mlp([64, 48, 10], nn.ReLU)
    assert observe(setup_of(model, x, y, optimizer=0.5)).status is Status.LEARNS
    stuck = Case(setup_of(model, x, y, optimizer=1e-9))
    assert outcome_of(stuck).status is Status.STALLS
    assert learned_by_heart(stuck) < 0.1
    assert learned_by_heart(Case(setup_of(model, x, y, optimizer=0.5))) > 0.9


@pytest.mark.slow
def test_labels_without_a_relation_have_nothing_to_learn() -> None:
    x = torch.randn(400, 8, generator=torch.Generator().manual_seed(0))
    y = torch.randint(4, (400,), generator=torch.Generator().manual_seed(1))
    model = default_mlp([8, 4, 4], nn.ReLU)
    found = outcome_of(Case(setup_of(model, x, y, optimizer=torch.optim.Adam(model.parameters(), 1e-3))))
    assert found.status is Status.NOTHING
    assert found.sentence.startswith("Neither the network nor any baseline found anything to learn")
