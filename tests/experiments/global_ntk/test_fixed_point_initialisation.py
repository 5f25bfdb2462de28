"""Added fixed points: the measurements on networks solved by hand, and the experiment on small ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from foretrain.experiments import Scale
from foretrain.experiments.global_ntk import fixed_point_initialisation as experiment
from foretrain.experiments.global_ntk.fixed_point_initialisation import (
    _sums,
    attractors_among,
    lyapunov_exponent,
    measured,
    predicted_loss,
    random_starts,
    run_to_rest,
    weights_of,
)

SEED = np.random.SeedSequence(3)


def test_a_network_of_single_units_rests_where_tanh_says() -> None:
    k = 1.2
    matrix = k / math.tanh(k) * torch.eye(2, dtype=torch.float64)
    ends, rests = run_to_rest(matrix, random_starts(40, 2, SEED), 2000)
    assert rests.all()
    torch.testing.assert_close(ends.abs(), torch.full((40, 2), k, dtype=torch.float64))
    assert len(attractors_among(ends)) == 4


def test_what_turns_for_ever_does_not_rest() -> None:
    turn = 1.5 * torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    _, rests = run_to_rest(turn, random_starts(5, 2, SEED), 300)
    assert not rests.any()


@pytest.mark.parametrize("factor", [0.5, 0.9])
def test_the_exponent_at_the_origin_is_the_logarithm_of_the_slope(factor: float) -> None:
    matrix = factor * torch.eye(3, dtype=torch.float64)
    found = lyapunov_exponent(matrix, torch.zeros(2, 3, dtype=torch.float64))
    assert found == pytest.approx(math.log(factor))


def test_sums_are_all_combinations_of_signs() -> None:
    points = weights_of("basis", 2, 0.5, 8, SEED, size=2.0).points
    found = {tuple(row[:2].tolist()) for row in _sums(points)}
    assert found == {(2.0, 2.0), (2.0, -2.0), (-2.0, 2.0), (-2.0, -2.0)}


@pytest.mark.parametrize(
    ("family", "added", "attractors"),
    [("basis", 0, 1), ("basis", 1, 2), ("basis", 2, 4), ("basis", 3, 8), ("signs", 1, 2), ("signs", 2, 4)],
)
def test_attractors_of_small_networks(family: str, added: int, attractors: int) -> None:
    found = measured(weights_of(family, added, 0.6, 64, SEED), 96, 300, SEED)
    assert found["attractors"] == attractors
    assert found["settled"] == 1
    assert found["lyapunov"] < 0
    if added == 2:
        near, far = ("to_sum", "to_point") if family == "basis" else ("to_point", "to_sum")
        assert found[near] < 1e-6
        assert found[far] > 0.1


def test_a_large_gain_never_rests() -> None:
    found = measured(weights_of("signs", 2, 3.0, 64, SEED), 16, 200, SEED)
    assert found["settled"] == 0
    assert found["attractors"] == 0
    assert found["lyapunov"] > 0
    assert math.isnan(found["to_point"])


def test_where_the_random_part_takes_over() -> None:
    assert predicted_loss("basis", 2.0) == 1
    assert predicted_loss("signs", 2.0) == pytest.approx(2.0746294414550963)


@pytest.mark.slow
def test_a_small_run_tells_and_draws() -> None:
    plan = experiment.Plan((0.9, 1.25, 2.5), (1.5,), 48, 2, 300, 3, units=64)
    result = experiment.fixed_point_initialisation(plan, 0)
    told = {row.quantity: row for row in result.table}
    assert told["largest |W tanh(h) - h| at the added points"].agrees
    assert told["points k × signs, gain 0.9, 2 added: attractors"].here == 4
    assert told["points k e_i, gain 1.25, 1 added: attractors"].agrees is None
    assert "one point gives 2 attractors" in result.verdict
    again = experiment.fixed_point_initialisation(plan, 0)
    assert result.data.identical(again.data)
    assert result.figure is not None
    result.plot()


@pytest.mark.statistical
def test_quick_run_agrees() -> None:
    assert experiment.fixed_point_initialisation(experiment.PLANS[Scale.QUICK], 0).agrees
