"""The experiment on mutual information: its table is honest and its picture draws."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.experiments.effective_theory import neurons as room
from foretrain.experiments.registry import Result


@pytest.fixture(scope="module")
def result() -> Result:
    return room.mutual_information(room.InformationPlan(draws=300, tanh_draws=3000), 3)


def test_only_the_claims_of_the_truncated_series_fail(result: Result) -> None:
    failed = [row for row in result.table if row.agrees is False]
    assert all("(A.71)" in row.quantity or "(A.72)" in row.quantity for row in failed)
    assert all(row.note for row in failed)
    assert len(failed) == 3
    assert sum(row.agrees is True for row in result.table) == len(result.table) - 3
    assert "without a maximum" in result.verdict


def test_the_data_behind_the_table(result: Result) -> None:
    data = result.data
    assert (data.exact.diff("spread") > 0).all()
    linear = data.isel(network=data.activation.values == "linear")
    assert np.isfinite(linear.law).all()
    assert (data.tanh.diff("layer") > 0).all()


def test_a_row_against_the_wrong_law_would_fail(result: Result) -> None:
    data = result.data.copy(deep=True)
    data["law"] = data.law * 3
    assert room._linear_rows(data)[0].agrees is False
    data["tanh"] = data.tanh_reference * 1.3
    assert not all(row.agrees for row in room._tanh_rows(data))


def test_the_picture_draws(result: Result) -> None:
    assert result.figure is not None
    figure = result.plot()
    figure.canvas.draw()
    assert len(figure.axes) == 3
