"""Several modes together: the network lies on the block flow, the identity closes, what is wrong is noticed."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.experiments.registry import Result, Row
from foretrain.experiments.saddle_escape import modes as experiment
from foretrain.experiments.saddle_escape.modes import homotopy_rows, network_rows

TINY = experiment.Plan(
    width=6,
    betas=(1.0, 0.5),
    points=1024,
    until=1.4,
    snapshots=9,
    followed=1,
    samples=3,
    epsilons=(0.1,),
    nodes=(6, 12),
    grid_nodes=8,
    strengths=(0.3, 0.9),
    depths=(3.25,),
    epsilon=0.1,
)


@pytest.fixture(scope="module")
def result() -> Result:
    return experiment.saddle_modes(TINY, 0)


def rows(result: Result, words: str) -> list[Row]:
    return [row for row in result.table if words in row.quantity]


@pytest.mark.slow
def test_the_network_lies_on_the_block_flow(result: Result) -> None:
    data = result.data
    plateau = data.isel(time=slice(0, 3))
    np.testing.assert_allclose(plateau["network_alignment"], plateau["alignment"], rtol=5e-3)
    assert rows(result, "whole network")[0].agrees
    assert float(rows(result, "distance of the losses")[0].here) < 0.02  # fewer points than at the quick size
    assert float(data["loss"][-1]) < 0.5 * float(data["loss"][0])


@pytest.mark.slow
def test_the_identity_closes(result: Result) -> None:
    assert rows(result, "12 nodes")[0].agrees
    few, many = (abs(row.here / row.expected - 1) for row in rows(result, " nodes"))
    assert many < 1e-6 < few
    assert rows(result, "p · f")[0].agrees
    assert result.data.variables_kept.values.tolist() == [12, 14]
    exact = float(result.data["exact"][0])
    near, far = (abs(float(value) - exact) for value in result.data["closure"][::-1])
    assert near < far


@pytest.mark.slow
def test_the_modes_do_not_decouple(result: Result) -> None:
    row = rows(result, "as ε → 0")[0]
    assert row.agrees is False
    assert float(row.here) < 0.95
    assert float(result.data["exact"][0]) < float(result.data["alone"][0])


@pytest.mark.slow
def test_the_order_of_two_modes(result: Result) -> None:
    own = result.data.isel(critical_depth=0)
    assert (own["rate_ratio"] > 1).values.tolist() == [True, True]
    assert (own["time_ratio"] > 1).values.tolist() == [False, True]
    assert rows(result, "orders rightly")[0].here == "1 of 2"
    assert rows(result, "goes first")[0].agrees


@pytest.mark.slow
def test_wrong_numbers_are_noticed(result: Result) -> None:
    wrong = result.data.assign(network_escape=1.1 * result.data["network_escape"])
    assert network_rows(wrong)[0].agrees is False
    wrong = result.data.assign(predicted=1.001 * result.data["predicted"])
    assert [row.agrees for row in homotopy_rows(wrong)][-2] is False


@pytest.mark.slow
def test_it_draws(result: Result) -> None:
    assert result.figure is not None
    result.plot()
