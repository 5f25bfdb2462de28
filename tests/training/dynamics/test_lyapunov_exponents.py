"""Lyapunov exponents: exact ones, the sum rule, models however their loops are written, and the onset of chaos."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import brentq
from torch import Tensor, nn

import foretrain as ft
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.training.dynamics import lyapunov
from foretrain.training.dynamics.lyapunov_exponents import error_of_mean
from foretrain.training.dynamics.recurrence import read_run
from foretrain.training.tasks.memory_pro import Recurrent


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_linear_map_grows_by_its_eigenvalues() -> None:
    basis, moduli = seeded(4, 4), torch.tensor([1.3, 0.9, 0.5, 0.2]).double()
    a = basis @ torch.diag(moduli) @ torch.linalg.inv(basis)
    found = lyapunov(lambda h: h @ a.t(), start=seeded(2, 4), steps=300, count=None, discard=100)
    np.testing.assert_allclose(found.values, moduli.log(), atol=1e-6)
    assert float(found.standard_error.max()) < 1e-6
    assert found.chaotic
    assert found.entropy == pytest.approx(math.log(1.3), abs=1e-6)
    # Kaplan and Yorke: two exponents sum to a positive number, three do not.
    two, three = math.log(1.3 * 0.9), math.log(0.5)
    assert found.dimension == pytest.approx(2 + two / abs(three), abs=1e-4)


def test_products_of_different_matrices_grow_by_their_singular_values_and_sum_to_the_determinant() -> None:
    """One factor: the singular values; many: the sum of all exponents is the mean of log |det|."""
    factors = seeded(40, 5, 5)
    x = torch.zeros(3, 40, 1).double() + torch.arange(40.0).double()[None, :, None]

    def step(h: Tensor, x: Tensor) -> Tensor:
        return torch.einsum("suv,sv->su", factors[x[:, 0].long()], h)

    found = lyapunov(step, x, start=seeded(3, 5), count=None, discard=0)
    assert float(found.values.sum()) == pytest.approx(
        float(torch.linalg.slogdet(factors)[1].mean()), abs=1e-12
    )
    product = torch.linalg.multi_dot(list(factors.flip(0)))
    drawn = found.by_trial.mean(0)[0] * 40
    # The largest growth of one random direction lies below the largest singular value, close to it.
    assert (
        math.log(float(torch.linalg.matrix_norm(product, 2))) - 6
        < drawn
        < math.log(float(torch.linalg.matrix_norm(product, 2)))
    )
    orthogonal = torch.linalg.qr(seeded(5, 5)).Q
    scaled = orthogonal @ torch.diag(torch.tensor([3.0, 2.0, 1.0, 0.5, 0.1]).double()) @ orthogonal.t()
    symmetric = lyapunov(lambda h: h @ scaled, start=seeded(1, 5), steps=200, count=None, discard=100)
    np.testing.assert_allclose(symmetric.values, torch.linalg.svdvals(scaled).log(), atol=1e-8)


def test_the_logistic_map_has_the_exponent_log_2() -> None:
    found = ft.lyapunov(
        lambda h: 4 * h * (1 - h),
        start=torch.rand(20, 1, generator=torch.Generator().manual_seed(1)).double(),
        steps=2000,
    )
    assert 0 < found.standard_error[0] < 1e-3
    assert abs(found.largest - math.log(2)) < 3.5 * found.standard_error[0]
    assert "close trajectories part" in repr(found)
    per_second = lyapunov(
        lambda h: 4 * h * (1 - h), start=torch.tensor([[0.3]]).double(), steps=2000, dt=0.01
    )
    assert per_second.largest == pytest.approx(100 * math.log(2), rel=0.01)


def test_the_henon_map_by_its_published_exponents() -> None:
    """a = 1.4, b = 0.3: 0.4192 and -1.6232 (sum log 0.3 exactly), dimension 1.258 (Sprott)."""
    step = lambda h: torch.stack([1 - 1.4 * h[:, 0] ** 2 + h[:, 1], 0.3 * h[:, 0]], 1)  # noqa: E731
    found = lyapunov(step, start=torch.tensor([[0.1, 0.1], [0.2, 0.0], [0.0, 0.1]]).double(), steps=4000)
    np.testing.assert_allclose(found.values, [0.4192, -1.6232], atol=4e-3)
    assert float(found.values.sum()) == pytest.approx(math.log(0.3), abs=1e-12)
    assert found.dimension == pytest.approx(1.258, abs=3e-3)


@pytest.mark.parametrize(("slope", "trials"), [(0.0, 1), (0.9, 1), (0.9, 4), (-0.5, 1)])
def test_standard_errors_hold_for_correlated_growth(slope: float, trials: int) -> None:
    """Autoregressive series, whose means spread as they should."""
    noise = np.random.default_rng(0).standard_normal((300 * trials, 600))
    series = np.zeros_like(noise)
    for time in range(1, 600):
        series[:, time] = slope * series[:, time - 1] + noise[:, time]
    runs = series[:, 200:].reshape(300, trials, 400, 1)
    errors = np.array([error_of_mean(run) for run in runs])
    assert errors.mean() == pytest.approx(runs.mean((1, 2)).std(), rel=0.2)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("layers", [1, 2])
def test_layers_by_the_framework_itself(kind: Any, layers: int) -> None:
    """All exponents without orthonormalisation: log of the singular values' product is log |det| of the whole."""
    torch.manual_seed(2)
    module, x = kind(2, 3, layers, batch_first=True).double(), seeded(2, 6, 2)
    run = read_run(module, x)
    assert run.samples == 2
    assert run.steps == 6
    several = kind is nn.LSTM

    def after(state: Tensor, time: int) -> Tensor:
        given = tuple(part.reshape(layers, 1, 3) for part in state.chunk(2 if several else 1))
        _, last = module(x[:1, time : time + 1], given if several else given[0])
        return torch.cat([part.flatten() for part in (last if several else (last,))])

    state = torch.zeros(run.units).double()
    determinants = []
    for time in range(run.steps):
        exact = torch.autograd.functional.jacobian(lambda h, now=time: after(h, now), state)
        torch.testing.assert_close(run.jacobian(time)[0], exact, atol=1e-12, rtol=1e-9)
        torch.testing.assert_close(run.states[0, time], state)
        determinants.append(float(torch.linalg.slogdet(exact)[1]))
        state = after(state, time).detach()
    found = lyapunov(module, x, count=None, discard=0)
    assert found.by_trial[0].sum() == pytest.approx(np.mean(determinants))


class Loop(nn.Module):
    """A loop over a cell, leaky if asked, with its state named ``state``."""

    def __init__(self, cell: nn.Module, leak: float = 1.0) -> None:
        super().__init__()
        self.cell, self.leak, self.state = cell, leak, nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(len(x), 4)
        shown = []
        for now in x.unbind(1):
            h = self.state((1 - self.leak) * h + self.leak * self.cell(now, h))
            shown.append(h)
        return torch.stack(shown, 1)


def test_loops_of_ones_own_agree_with_layers_and_step_functions() -> None:
    torch.manual_seed(0)
    cell, x = nn.GRUCell(2, 4).double(), seeded(3, 9, 2)
    layer = nn.GRU(2, 4, batch_first=True).double()
    for name, value in cell.named_parameters():
        getattr(layer, f"{name}_l0").data = value.data
    options: dict[str, Any] = {"count": None, "discard": 1}
    by_layer = lyapunov(layer, x, **options)
    np.testing.assert_allclose(lyapunov(cell, x, **options).values, by_layer.values)
    # A graph begins with the first state that a module returns.
    options["discard"] = 0
    later = lyapunov(cell, x[:, 1:], start=cell(x[:, 0]).detach(), **options)
    np.testing.assert_allclose(lyapunov(Loop(cell), x, states="state", **options).values, later.values)
    np.testing.assert_allclose(lyapunov(Loop(cell), x, **options).values, later.values)  # the only cell

    leaky = Loop(cell, leak=0.3)
    with pytest.raises(NotSupportedError, match="name all that the loop keeps"):
        lyapunov(leaky, x)  # the cell's results are not the states
    by_name = lyapunov(leaky, x, states="state", **options)

    def step(h: Tensor, x: Tensor) -> Tensor:
        return 0.7 * h + 0.3 * cell(x, h)

    first = step(torch.zeros(3, 4).double(), x[:, 0]).detach()
    np.testing.assert_allclose(by_name.values, lyapunov(step, x[:, 1:], start=first, **options).values)


def test_a_layer_that_is_called_step_by_step_and_one_inside_a_model() -> None:
    class Stepwise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(2, 3).double()

        def forward(self, x: Tensor) -> Tensor:
            state = None
            for now in x.unbind(1):
                out, state = self.lstm(now[None], state)
            return out

    model, x = Stepwise(), seeded(2, 7, 2)
    whole = nn.LSTM(2, 3, batch_first=True).double()
    whole.load_state_dict(model.lstm.state_dict())
    run, expected = read_run(model, x), read_run(whole, x)
    torch.testing.assert_close(run.states, expected.states[:, 1:])
    for time in range(run.steps):
        torch.testing.assert_close(run.jacobian(time), expected.jacobian(time + 1))

    inside = Recurrent(2, 5, 3, dtype=torch.float64)
    np.testing.assert_allclose(lyapunov(inside, x).values, lyapunov(inside.recurrent, x).values)


def test_directions_that_die_at_once_have_minus_infinity() -> None:
    a = torch.outer(torch.tensor([0.5, 0.2, 0.1]), torch.tensor([1.0, 2.0, 0.0])).double()
    found = lyapunov(lambda h: h @ a.t(), start=seeded(2, 3), steps=30)
    assert found.values[0] == pytest.approx(math.log(0.9))
    assert np.isneginf(found.values[1:]).all()
    assert found.to_dict()
    found.plot()


def test_blocks_of_steps_change_nothing() -> None:
    model, x = nn.RNN(2, 6, batch_first=True).double(), seeded(2, 40, 2)
    often, seldom = (lyapunov(model, x, every=every, discard=20, count=3) for every in (1, 5))
    np.testing.assert_allclose(often.values, seldom.values, atol=2e-3)
    assert seldom.steps == often.steps == 20


@pytest.mark.statistical
@pytest.mark.parametrize("gain", [2.0, 3.0])
def test_chaos_of_random_networks_by_the_theory_of_large_ones(gain: float) -> None:
    """h -> tanh(g J h): lambda = log(g^2 <tanh'^2>) / 2 with q = g^2 <tanh^2> (Molgedey et al. 1992), up to 1/N."""

    def mean(function: Any) -> float:
        return float(quad(lambda z: function(z) * math.exp(-z * z / 2) / math.sqrt(2 * math.pi), -10, 10)[0])

    q = brentq(lambda q: gain**2 * mean(lambda z: math.tanh(math.sqrt(q) * z) ** 2) - q, 1e-3, 50)
    theory = 0.5 * math.log(gain**2 * mean(lambda z: (1 - math.tanh(math.sqrt(q) * z) ** 2) ** 2))
    sizes, means, errors = [100, 200, 400], [], []
    for size in sizes:
        found = [lyapunov(random_network(size, gain, seed), steps=300, count=1).largest for seed in range(6)]
        means.append(np.mean(found))
        errors.append(np.std(found, ddof=1) / math.sqrt(6))
    design = np.stack([np.ones(3), 1 / np.array(sizes)], 1) / np.array(errors)[:, None]
    limit = np.linalg.lstsq(design, np.array(means) / errors, rcond=None)[0][0]
    error = math.sqrt(np.linalg.inv(design.T @ design)[0, 0])
    assert abs(limit - theory) < 3.5 * error
    assert error < 0.1 * theory


def random_network(size: int, gain: float, seed: int) -> nn.RNN:
    with torch.device("meta"):
        made = nn.RNN(1, size, bias=False, batch_first=True)
    made = made.to_empty(device="cpu").double()
    made.weight_ih_l0.data.zero_()
    made.weight_hh_l0.data = gain / math.sqrt(size) * seeded(size, size, seed=seed)
    return made


def test_random_networks_become_chaotic_at_gain_one() -> None:
    """Below, the origin attracts and the exponent is the log of the spectral radius."""
    for seed in range(3):
        calm, wild = (lyapunov(random_network(150, gain, seed), steps=400, count=2) for gain in (0.8, 1.5))
        radius = ft.spectral_radius(random_network(150, 0.8, seed)).weight
        assert calm.chaotic is False
        assert calm.largest == pytest.approx(math.log(radius), abs=0.02)
        assert wild.chaotic is True
    whole = lyapunov(random_network(30, 1.5, 0), steps=50, count=None, discard=0)
    run = read_run(random_network(30, 1.5, 0), steps=50)
    determinants = torch.stack([torch.linalg.slogdet(run.jacobian(time))[1] for time in range(50)])
    assert float(whole.values.sum()) == pytest.approx(float(determinants.mean()))


def test_what_cannot_be_is_refused() -> None:
    layer, x = nn.GRU(2, 4, batch_first=True), torch.randn(2, 5, 2)
    for call, said in (
        (lambda: lyapunov(layer), "how long"),
        (lambda: lyapunov(layer, x, steps=5), "leave it out"),
        (lambda: lyapunov(lambda h: h, steps=5), "some to start from"),
        (lambda: lyapunov(3, x), "step as a function"),
        (lambda: lyapunov(nn.Linear(2, 2), x), "no recurrent layers"),
        (lambda: lyapunov(layer, x, discard=5), "leave none"),
        (lambda: lyapunov(layer, x, start=torch.zeros(2, 3)), "4 units"),
        (lambda: lyapunov(lambda h: h[:, :1], start=torch.zeros(2, 3), steps=4), "in the form of h"),
        (lambda: lyapunov(lambda h: h - h.mean(0), start=torch.randn(3, 3), steps=4), "mixes the samples"),
        (lambda: lyapunov(lambda h: 3 * h, start=torch.ones(2, 3), steps=400), "beyond all bounds"),
        (lambda: lyapunov(lambda h: h.detach(), start=torch.ones(2, 3), steps=4), "differentiably"),
        (lambda: lyapunov(Loop(nn.GRUCell(2, 4)), x, states="nothing"), "no module"),
        (lambda: lyapunov(nn.GRU(2, 4, bidirectional=True, batch_first=True), x), "bidirectional"),
    ):
        with pytest.raises((InputError, NotSupportedError), match=said):
            call()


class Odd(nn.GRU):
    def forward(self, *given: Any) -> Any:
        out, state = super().forward(*given)
        return 2 * out, 2 * state


def test_a_layer_that_computes_something_else_is_refused() -> None:
    with pytest.raises(NotSupportedError, match="does not compute what its weights say"):
        lyapunov(Odd(2, 4, batch_first=True), torch.randn(2, 5, 2))


HOSTILE: list[Any] = [
    None, -1, 1.5, True, "a", b"3", [], {}, object(), math.nan, lambda: 1, np.ones((2, 3)),
    torch.zeros(0, 3), torch.full((2, 3), torch.nan), torch.ones(2, 3, dtype=torch.int64),
    torch.ones(2, 3, dtype=torch.complex64), torch.randn(2, 0, 2), torch.randn(0, 6, 2), torch.randn(2, 6, 5),
    torch.ones(2, 3).to_sparse(), torch.empty(2, 3, device="meta"),
]  # fmt: skip


@pytest.mark.parametrize(
    "value", HOSTILE, ids=lambda value: f"{type(value).__name__} {getattr(value, 'shape', '')}"
)
def test_whatever_is_given_is_answered_or_refused_in_a_sentence(value: Any) -> None:
    layer, x, step = nn.GRU(2, 3, batch_first=True), torch.randn(2, 6, 2), torch.tanh
    calls = [
        lambda: ft.lyapunov(value, x),
        lambda: ft.lyapunov(layer, value),
        lambda: ft.lyapunov(step, start=value, steps=3),
        *(
            lambda name=name: ft.lyapunov(layer, x, **{name: value})
            for name in ("start", "count", "discard", "every", "dt", "states", "seed", "steps")
        ),
        lambda: ft.fixed_points(value),
        lambda: ft.fixed_points(step, starts=value),
        *(
            lambda name=name: ft.fixed_points(layer, **{"starts": 2, "steps": 3, name: value})
            for name in ("x", "starts", "trials", "states", "steps", "slow", "tolerance", "distance", "dt")
        ),
        lambda: ft.participation_ratio(value),
        lambda: ft.participation_ratio(layer, value),
        lambda: ft.participation_ratio(torch.randn(3, 4, 2), centre=value),
        lambda: ft.spectral_radius(value),
        lambda: ft.spectral_radius(layer, value),
        lambda: ft.spectral_radius(layer, x, draws=value),
    ]
    for call in calls:
        with suppress(ft.ForetrainError):
            assert repr(call())
