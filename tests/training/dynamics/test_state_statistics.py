"""Participation ratios and spectral radii."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import foretrain as ft
from foretrain.support.errors import InputError
from foretrain.training.tasks.memory_pro import Recurrent

SOURCE = np.random.default_rng(0)


def test_ratio_by_the_covariance_and_its_centres() -> None:
    """Brute force for every centre."""
    states = SOURCE.standard_normal((6, 9, 4)) * [3.0, 1.0, 0.5, 0.1] + [1.0, -2.0, 0.0, 0.0]
    centred = {
        "mean": states - states.mean((0, 1)),
        "trials": states - states.mean(0, keepdims=True),
        "time": states - states.mean(1, keepdims=True),
        "none": states,
    }
    for centre, rows in centred.items():
        covariance = np.einsum("stu,stv->uv", rows, rows)
        expected = np.trace(covariance) ** 2 / np.trace(covariance @ covariance)
        found = ft.participation_ratio(states, centre=centre)  # type: ignore[arg-type]
        assert float(found) == pytest.approx(expected)
        assert 1 <= float(found) <= 4
    assert float(ft.participation_ratio(states.reshape(54, 4))) == pytest.approx(
        float(ft.participation_ratio(states))
    )
    turned = states @ np.linalg.qr(SOURCE.standard_normal((4, 4)))[0]
    assert float(ft.participation_ratio(7 * turned)) == pytest.approx(float(ft.participation_ratio(states)))


def test_equal_directions_and_one_direction() -> None:
    circle = torch.linspace(0, 2 * torch.pi, 101)[:-1]
    assert float(ft.participation_ratio(torch.stack([circle.cos(), circle.sin()], 1))) == pytest.approx(2)
    line = torch.outer(torch.randn(30), torch.randn(5))
    found = ft.participation_ratio(line)
    assert found.value == pytest.approx(1)
    assert "Participation ratio 1" in repr(found)
    found.plot()
    assert np.isnan(ft.participation_ratio(torch.ones(4, 3, 2)).value)  # nothing varies


def test_the_standard_error_is_the_spread_over_repetitions() -> None:
    draws = [ft.participation_ratio(SOURCE.standard_normal((40, 3, 8)) * np.arange(1, 9)) for _ in range(200)]
    spread = np.std([found.value for found in draws], ddof=1)
    assert np.mean([found.standard_error for found in draws]) == pytest.approx(spread, rel=0.25)


def test_states_of_a_model_are_its_hidden_ones() -> None:
    model, x = Recurrent(3, 6, 2, "gru"), torch.randn(5, 8, 3)
    by_states = ft.participation_ratio(model.recurrent(x)[0])
    assert float(ft.participation_ratio(model, x)) == pytest.approx(float(by_states), rel=1e-4)
    memory = nn.LSTM(3, 6, batch_first=True)
    by_states = ft.participation_ratio(memory(x)[0])
    assert float(ft.participation_ratio(memory, x)) == pytest.approx(float(by_states), rel=1e-4)

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTMCell(3, 6)

        def forward(self, x: Tensor) -> Tensor:
            state, shown = None, []
            for now in x.unbind(1):
                state = self.cell(now, state)
                shown.append(state[0])
            return torch.stack(shown, 1)

    loop = Loop()
    by_states = ft.participation_ratio(loop(x)[:, 1:])  # a graph begins with the first state
    assert float(ft.participation_ratio(loop, x)) == pytest.approx(float(by_states), rel=1e-4)


def test_radii_of_weights_and_jacobians() -> None:
    gru, x = nn.GRU(3, 5, 2, batch_first=True), torch.randn(4, 6, 3)
    found = ft.spectral_radius(gru, x, draws=1000)
    assert [*found.weights] == [f"weight_hh_l{k}[{gate}]" for k in (0, 1) for gate in "rzn"]
    for k in (0, 1):
        for place, block in enumerate(getattr(gru, f"weight_hh_l{k}").detach().double().split(5)):
            largest = float(torch.linalg.eigvals(block).abs().max())
            assert found.weights[f"weight_hh_l{k}[{'rzn'[place]}]"] == pytest.approx(largest)
    assert len(found.jacobians) == 24  # every trial and time once
    rnn = nn.RNN(3, 5, batch_first=True).double()
    x = x.double()
    states = torch.cat([torch.zeros(4, 1, 5).double(), rnn(x)[0].detach()], 1)[:, 1:]
    slopes = 1 - states**2
    expected = torch.linalg.eigvals(slopes[..., None] * rnn.weight_hh_l0.detach()).abs().amax(2).t().flatten()
    np.testing.assert_allclose(ft.spectral_radius(rnn, x, draws=1000).jacobians, expected)
    some = ft.spectral_radius(rnn, x, draws=7)
    assert set(np.round(some.jacobians, 9)) <= set(np.round(expected.numpy(), 9))
    assert some.jacobian == pytest.approx(some.jacobians.mean())
    data = found.to_dataset()
    assert data.weight_radius.dims == ("weight",)
    some.plot()


def test_a_linear_step_and_a_matrix() -> None:
    a = torch.tensor([[0.0, 2.0], [-2.0, 0.0]]).double()
    assert ft.spectral_radius(a).weight == pytest.approx(2)
    found = ft.spectral_radius(lambda h: h @ a.t() / 4, start=torch.ones(2, 2).double(), steps=5)
    np.testing.assert_allclose(found.jacobians, 0.5)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="centre"):
        ft.participation_ratio(torch.ones(3, 2), centre="middle")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="both axes"):
        ft.participation_ratio(torch.randn(3, 2), centre="time")
    with pytest.raises(InputError, match="states come alone"):
        ft.participation_ratio(torch.randn(3, 2), torch.ones(2))
    with pytest.raises(InputError, match="not finite"):
        ft.participation_ratio(torch.full((3, 2), torch.nan))
    with pytest.raises(InputError, match="square matrix"):
        ft.spectral_radius(torch.ones(2, 3))
    with pytest.raises(InputError, match="no recurrent weight"):
        ft.spectral_radius(nn.Linear(2, 2))
