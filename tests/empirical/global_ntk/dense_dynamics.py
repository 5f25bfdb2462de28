"""The operators of states as dense matrices: those of an engine, and those of the equations h = f(theta, h)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.func import jacrev

from foretrain.empirical.global_ntk.dynamics import Dynamics, Values

DOUBLE = torch.float64
States = dict[str, Tensor]
Step = Callable[
    [Mapping[str, Tensor], States], States
]  # the states that follow from the parameters and the states


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def assert_close(found: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    """Equal relative to the largest entry, which is not zero."""
    assert found.shape == expected.shape, f"{tuple(found.shape)} is not {tuple(expected.shape)}"
    scale = float(expected.abs().max())
    assert scale > 0, "nothing is compared"
    error = float((found.double() - expected).abs().max()) / scale
    assert error < tolerance, f"the largest error is {error:.2e} of the largest entry"


@dataclass(frozen=True)
class Dense:
    """P = (D_h F)^-1, D_theta f and J with the parameters' entries side by side, and the states."""

    states: Tensor
    propagator: Tensor
    local: Tensor
    jacobian: Tensor


def of_equations(
    step: Step, parameters: Values, counted: list[str], shapes: Mapping[str, tuple[int, ...]]
) -> Dense:
    """From the equations alone: P by inverting D_h F, J by differentiating repeated steps to their fixed point."""
    fixed = {name: value.detach() for name, value in parameters.items()}
    moving = {name: fixed[name] for name in counted}
    size = sum(prod(shape) for shape in shapes.values())

    def stepped(values: Values, flat: Tensor) -> Tensor:
        parts = flat.split([prod(shape) for shape in shapes.values()])
        states = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts)}
        found = step({**fixed, **values}, states)
        return torch.cat([found[name].reshape(-1) for name in shapes])

    def run(values: Values) -> Tensor:
        flat = torch.zeros(size, dtype=DOUBLE)
        for _ in range(12):
            flat = stepped(values, flat)
        return flat

    states = run(moving)
    torch.testing.assert_close(stepped(moving, states), states, rtol=0, atol=0)
    constraint = torch.eye(size, dtype=DOUBLE) - jacrev(stepped, 1)(moving, states)
    return Dense(
        states,
        torch.linalg.inv(constraint),
        _side_by_side(jacrev(stepped, 0)(moving, states)),
        _side_by_side(jacrev(run)(moving)),
    )


def _side_by_side(values: Values) -> Tensor:
    return torch.cat([value.reshape(len(value), -1) for value in values.values()], 1)


def tangents(dynamics: Dynamics, rows: Tensor) -> Values:
    """Rows over all parameters side by side, by name."""
    parts = rows.split([value.numel() for value in dynamics.parameters.values()], 1)
    return {
        name: part.reshape(-1, *value.shape)
        for (name, value), part in zip(dynamics.parameters.items(), parts)
    }


def check_operators(dynamics: Dynamics, expected: Dense) -> None:
    """Every operator of the contract is the dense one, and so is NTK_S in both its forms."""
    states, entries = expected.jacobian.shape
    units, directions = (torch.eye(n, dtype=DOUBLE) for n in (states, entries))
    assert_close(dynamics.values, expected.states)
    assert_close(dynamics.propagate(units).T, expected.propagator)
    assert_close(dynamics.propagate_adjoint(units), expected.propagator)
    constraint = torch.linalg.inv(expected.propagator)
    assert_close(dynamics.constrain(units).T, constraint)
    assert_close(dynamics.constrain_adjoint(units), constraint)
    assert_close(dynamics.local_push(tangents(dynamics, directions)).T, expected.local)
    assert_close(_side_by_side(dynamics.local_pull(units)), expected.local)
    assert_close(dynamics.push(tangents(dynamics, directions)).T, expected.jacobian)
    assert_close(_side_by_side(dynamics.pull(units)), expected.jacobian)
    kernel = expected.jacobian @ expected.jacobian.T
    assert_close(dynamics.product(units), kernel)
    local = expected.local @ expected.local.T
    assert_close(expected.propagator @ local @ expected.propagator.T, kernel)


def check_blocks(dynamics: Dynamics, tolerance: float = 1e-10) -> None:
    """Blocks of one and of three vectors are like single vectors, and all pairs of operators are adjoint."""
    size, like = dynamics.space.size, dynamics.values
    vectors, changes = normal(3, size, seed=1).to(like), normal(3, size, seed=2).to(like)
    entries = sum(value.numel() for value in dynamics.parameters.values())
    moves = tangents(dynamics, normal(3, entries, seed=3).to(like))
    for forth, back in (
        (dynamics.propagate, dynamics.propagate_adjoint),
        (dynamics.constrain, dynamics.constrain_adjoint),
        (dynamics.product, dynamics.product),
    ):
        pushed, pulled = forth(changes), back(vectors)
        for one in range(3):
            assert_close(forth(changes[one : one + 1])[0], pushed[one].double(), tolerance)
        assert_close(pushed.double() @ vectors.double().T, changes.double() @ pulled.double().T, tolerance)
    for push, pull in ((dynamics.push, dynamics.pull), (dynamics.local_push, dynamics.local_pull)):
        pushed, found = push(moves), pull(vectors)
        alone = pull(vectors[1:2])
        for name, value in found.items():
            torch.testing.assert_close(alone[name][0], value[1], rtol=10 * tolerance, atol=10 * tolerance)
        overlaps = sum(
            moves[name].double().reshape(3, -1) @ found[name].double().reshape(3, -1).T for name in moves
        )
        assert isinstance(overlaps, Tensor)
        assert_close(pushed.double() @ vectors.double().T, overlaps, tolerance)


def check_sites(dynamics: Dynamics, expected: Dense, without: tuple[str, ...] = ()) -> None:
    """The direct sum over sites and the terms of parameters without one is NTK_S; P_w* is adjoint to P_w."""
    units = torch.eye(len(expected.states), dtype=DOUBLE)
    rows = tangents(dynamics, expected.jacobian)
    total = sum(
        (rows[name].flatten(1) @ rows[name].flatten(1).T for name in without), torch.zeros_like(units)
    )
    for site in dynamics.sites:
        total = total + site.product(units)
        assert site.space.size == len(site.inputs) * site.space["feature"]
        forth = site.propagate(torch.eye(site.space.size, dtype=DOUBLE))
        assert_close(site.propagate_adjoint(units), forth.T, 1e-9)
    assert_close(total, expected.jacobian @ expected.jacobian.T)
