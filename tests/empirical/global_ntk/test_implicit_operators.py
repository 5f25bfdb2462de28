"""Equilibrium models: every operator against dense derivatives of the constraint, and of the solution found anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from dense_dynamics import DOUBLE, Dense, assert_close, check_blocks, check_operators, check_sites, normal
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from foretrain.empirical.global_ntk.implicit.dynamics import ImplicitDynamics
from foretrain.empirical.global_ntk.implicit.equilibrium import solve
from foretrain.empirical.global_ntk.implicit.linear import gmres
from foretrain.support.errors import AccuracyWarning, InputError, NotEnoughMemoryError, NotSupportedError

BATCH, UNITS, INPUTS = 3, 4, 2
X = normal(BATCH, INPUTS)


class Equilibrium(nn.Module):
    """h = tanh(W h + U x + b), with a scale that is no weight."""

    def __init__(self, gain: float = 0.5) -> None:
        super().__init__()
        self.recurrent, self.input = nn.Linear(UNITS, UNITS), nn.Linear(INPUTS, UNITS, bias=False)
        self.scale = nn.Parameter(torch.ones(UNITS))
        with torch.no_grad():
            self.recurrent.weight.copy_(gain * normal(UNITS, UNITS, seed=2))
            self.input.weight.copy_(normal(UNITS, INPUTS, seed=3))
            self.recurrent.bias.copy_(normal(UNITS, seed=4))
            self.scale.add_(0.1 * normal(UNITS, seed=5))

    def forward(self, h: Tensor, x: Tensor) -> Tensor:
        return h - self.scale * torch.tanh(self.recurrent(h) + self.input(x))


class Coupled(Equilibrium):
    """Every sample feels the mean of all."""

    def forward(self, h: Tensor, x: Tensor) -> Tensor:
        return super().forward(h, x) + 0.4 * (h.mean(0) ** 3)


class Images(nn.Module):
    """States (samples, channels, rows, columns)."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv2d(2, 2, 3, padding=1)
        with torch.no_grad():
            self.mix.weight.copy_(0.2 * normal(2, 2, 3, 3, seed=6))

    def forward(self, h: Tensor, x: Tensor) -> Tensor:
        return 2 * h - torch.tanh(self.mix(h) + x)


def as_function(parameters: Any, h: Tensor, x: Tensor) -> Tensor:
    return h**3 + h - torch.tanh(h @ parameters["w"][0]) - x @ parameters["u"]


def _function_parameters() -> dict[str, Any]:
    return {
        "w": [normal(UNITS, UNITS, seed=7).requires_grad_()],
        "u": normal(INPUTS, UNITS, seed=8).requires_grad_(),
        "frozen": normal(2),
    }


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    start: Tensor
    x: Tensor
    without: tuple[str, ...] = ()
    parameters: Any = None


CASES = {
    "tanh": Case(lambda: Equilibrium().double(), normal(BATCH, UNITS), X, ("scale",)),
    "far from a contraction": Case(lambda: Equilibrium(1.5).double(), normal(BATCH, UNITS), X, ("scale",)),
    "coupled samples": Case(lambda: Coupled().double(), normal(BATCH, UNITS), X, ("scale",)),
    "chosen parameters": Case(
        lambda: Equilibrium().double(), normal(BATCH, UNITS), X, parameters=["recurrent.*"]
    ),
    "images": Case(lambda: Images().double(), torch.zeros(2, 2, 3, 3, dtype=DOUBLE), normal(2, 2, 3, 3)),
}


def _dense(
    constraint: Callable[[Any, Tensor], Tensor], parameters: dict[str, Tensor], state: Tensor
) -> Dense:
    """P by inverting D_h F, and J by derivatives of three Newton steps from the solution, written out."""
    at = {name: value.detach() for name, value in parameters.items()}

    def flat(values: Any, h: Tensor) -> Tensor:
        return constraint(values, h.reshape(state.shape)).flatten()

    def refined(values: Any) -> Tensor:
        h = state.flatten()
        for _ in range(3):
            h = h - torch.linalg.solve(jacrev(flat, 1)(values, h), flat(values, h))
        return h

    propagator = torch.linalg.inv(jacrev(flat, 1)(at, state.flatten()))
    sides = [jacrev(flat, 0)(at, state.flatten()), jacrev(refined)(at)]
    local, jacobian = (torch.cat([values.flatten(1) for values in side.values()], 1) for side in sides)
    return Dense(state.flatten(), propagator.detach(), -local.detach(), jacobian.detach())


def _of_module(case: Case, dynamics: ImplicitDynamics, model: nn.Module, state: Tensor) -> Dense:
    def constraint(values: Any, h: Tensor) -> Tensor:
        return functional_call(model, values, (h, case.x))

    return _dense(constraint, dict(dynamics.parameters), state)


@pytest.mark.slow(after=3)
@pytest.mark.parametrize("solver", ["direct", "krylov"])
@pytest.mark.parametrize("name", CASES)
def test_all_operators_and_sites_are_dense_derivatives(name: str, solver: Any) -> None:
    case, model = CASES[name], CASES[name].make()
    state = solve(model, case.start, case.x)
    dynamics = ImplicitDynamics(model, state, case.x, case.parameters, solver=solver)
    expected = _of_module(case, dynamics, model, state)
    check_operators(dynamics, expected)
    check_blocks(dynamics)
    check_sites(dynamics, expected, case.without)
    assert dynamics.without_site == case.without


def test_a_function_of_parameters() -> None:
    parameters = _function_parameters()
    state = solve(as_function, normal(BATCH, UNITS), X, parameters=parameters)
    dynamics = ImplicitDynamics(as_function, state, X, parameters)
    assert list(dynamics.parameters) == ["w.0", "u"]

    def constraint(values: Any, h: Tensor) -> Tensor:
        return as_function({"w": [values["w.0"]], "u": values["u"]}, h, X)

    expected = _dense(constraint, dict(dynamics.parameters), state)
    check_operators(dynamics, expected)
    check_sites(dynamics, expected)


def test_a_linear_model_has_the_inverse_as_its_propagator() -> None:
    """F = (I - W) h - x: P = (I - W)^-1 for every sample, and dh = P dW h."""
    weight = 0.3 * normal(UNITS, UNITS, seed=9)
    layer = nn.Linear(UNITS, UNITS, bias=False).double()
    layer.weight.data = weight

    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, h: Tensor, x: Tensor) -> Tensor:
            return h - self.layer(h) - x

    x = normal(BATCH, UNITS)
    inverted = torch.linalg.inv(torch.eye(UNITS, dtype=DOUBLE) - weight)
    state = x @ inverted.T
    dynamics = ImplicitDynamics(Linear(), state, x)
    units = torch.eye(dynamics.space.size, dtype=DOUBLE)
    assert_close(dynamics.propagate(units).T, torch.block_diag(*[inverted] * BATCH))
    kernel = torch.kron(state @ state.T, inverted @ inverted.T)
    assert_close(dynamics.product(units), kernel)
    (site,) = dynamics.sites
    assert_close(site.inputs, state)


def test_single_precision() -> None:
    model = Equilibrium().float()
    state = solve(model, torch.zeros(BATCH, UNITS), X.float())
    for solver in ("direct", "krylov"):
        check_blocks(ImplicitDynamics(model, state, X.float(), solver=solver), 1e-4)  # type: ignore[arg-type]


def test_solve_agrees_with_the_models_own_iteration() -> None:
    model = Equilibrium().double()
    h = torch.zeros(BATCH, UNITS, dtype=DOUBLE)
    with torch.no_grad():
        for _ in range(500):
            h = h - model(h, X)
    assert_close(solve(model, torch.zeros_like(h), X), h, 1e-12)
    assert_close(solve(model, torch.zeros_like(h), X, solver="krylov"), h, 1e-12)


def test_the_engine_says_how_it_solves() -> None:
    model = Equilibrium().double()
    state = solve(model, torch.zeros(BATCH, UNITS, dtype=DOUBLE), X)
    assert "LU factors of 3 x (4, 4), condition number" in ImplicitDynamics(model, state, X).structure
    assert (
        "GMRES to a relative residual of 1e-11"
        in ImplicitDynamics(model, state, X, solver="krylov").structure
    )
    coupled = Coupled().double()
    state = solve(coupled, torch.zeros(BATCH, UNITS, dtype=DOUBLE), X)
    assert "1 x (12, 12)" in ImplicitDynamics(coupled, state, X).structure


def test_little_memory_leads_to_krylov_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Equilibrium().double()
    state = solve(model, torch.zeros(BATCH, UNITS, dtype=DOUBLE), X)
    monkeypatch.setenv("FORETRAIN_MEMORY", "1kB")
    assert "GMRES" in ImplicitDynamics(model, state, X).structure
    with pytest.raises(NotEnoughMemoryError, match="krylov"):
        ImplicitDynamics(model, state, X, solver="direct")
    with pytest.raises(InputError, match="unknown solver"):
        ImplicitDynamics(model, state, X, solver="exact")  # type: ignore[arg-type]


def test_minimal_residuals_with_restarts_and_easy_systems_beside_hard_ones() -> None:
    size = 150
    matrices = torch.stack(
        [torch.eye(size, dtype=DOUBLE), torch.eye(size, dtype=DOUBLE) + 0.07 * normal(size, size)]
    )
    right = torch.stack([normal(size), normal(size, seed=1)])
    right[0, 1:] = 0
    products = 0

    def apply(vectors: Tensor) -> Tensor:
        nonlocal products
        products += 1
        return torch.einsum("sij,sj->si", matrices, vectors)

    found = gmres(apply, right, 1e-11)
    assert products > 61
    assert_close(found, torch.linalg.solve(matrices, right), 1e-9)
    assert not gmres(apply, torch.zeros(2, size, dtype=DOUBLE), 1e-11).any()


def test_a_state_that_is_no_solution_is_refused() -> None:
    model = Equilibrium().double()
    state = solve(model, torch.zeros(BATCH, UNITS, dtype=DOUBLE), X)
    with pytest.raises(InputError, match="constraint"):
        ImplicitDynamics(model, state + 1e-3, X)
    ImplicitDynamics(model, state + 1e-3, X, tolerance=0.1)


class Fold(nn.Module):
    """h^2 = a x: at a = 0 two solutions meet."""

    def __init__(self, a: float) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(a, dtype=DOUBLE))

    def forward(self, h: Tensor, x: Tensor) -> Tensor:
        return h**2 - self.a * x


@pytest.mark.parametrize("solver", ["direct", "krylov"])
def test_a_bifurcation_is_refused_with_the_condition_number(solver: Any) -> None:
    ones = torch.ones(2, 3, dtype=DOUBLE)
    with pytest.raises(NotSupportedError, match="condition number"):
        ImplicitDynamics(Fold(0.0), 0 * ones, ones, solver=solver)
    flat = ones.clone()
    flat[1, 2] = 0
    with pytest.raises(NotSupportedError, match="condition number"):
        ImplicitDynamics(Fold(1.0), flat, flat, solver=solver)
    half = ImplicitDynamics(Fold(4.0), 2 * ones, ones, solver=solver)
    assert_close(half.push({"a": torch.ones(1, dtype=DOUBLE)}), torch.full((1, 6), 0.25, dtype=DOUBLE))


def test_near_a_bifurcation_the_loss_of_digits_is_said() -> None:
    x = torch.tensor([[1.0, 1e-13]], dtype=DOUBLE) ** 2
    with pytest.warns(AccuracyWarning, match="condition number 1e") as warned:
        ImplicitDynamics(Fold(1.0), x.sqrt(), x, tolerance=1.0)
    assert warned[0].filename == __file__


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((3, X, X), "nn.Module"),
        ((lambda p, h, x: h, X, X), "needs parameters="),
        ((Equilibrium().double(), X[:, 0], X), "real numbers"),
        ((Equilibrium().double(), normal(BATCH, UNITS) / 0, X), "nan or infinite"),
        ((nn.Bilinear(UNITS, INPUTS, 1).double(), normal(BATCH, UNITS), X), "equation"),
    ],
)
def test_what_is_no_equilibrium_model(arguments: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        ImplicitDynamics(*arguments)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("sign", [1, -1])
def test_solve_gets_through_where_newtons_method_is_caught(sign: int) -> None:
    """Strong random weights, from zero, where fifty Newton steps leave some samples unsolved."""
    weight = 2.5 * normal(30, 30, seed=3) / 30**0.5

    class Strong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(weight)

        def forward(self, h: Tensor, x: Tensor) -> Tensor:
            return sign * (h - torch.tanh(h @ self.weight + x))

    x = normal(10, 30, seed=4)
    newton = torch.zeros_like(x)
    for _ in range(50):
        hidden = torch.tanh(newton @ weight + x)
        jacobian = torch.eye(30, dtype=DOUBLE) - (1 - hidden**2)[:, :, None] * weight.T
        newton = newton - torch.linalg.solve(jacobian, newton - hidden)
    assert (torch.tanh(newton @ weight + x) - newton).abs().max() > 0.1
    state = solve(Strong(), torch.zeros_like(x), x)
    assert_close(torch.tanh(state @ weight + x), state, 1e-11)


def test_solve_says_when_it_fails() -> None:
    class Never(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.ones((), dtype=DOUBLE))

        def forward(self, h: Tensor, x: Tensor) -> Tensor:
            return h**2 + self.a

    with pytest.raises((InputError, NotSupportedError)):
        solve(Never(), normal(2, 2), None)
    with pytest.raises(InputError, match="in 1 steps"):
        solve(Equilibrium().double(), 5 * normal(BATCH, UNITS), X, iterations=1)
