"""The block-symmetric flow against whole networks, finite differences, single modes and other grids."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import foretrain as ft
from foretrain.gaussian.nodes import gauss_hermite
from foretrain.saddle import escape_time
from foretrain.saddle.modes import (
    BlockLayout,
    block_escape,
    block_field,
    block_flow,
    gaussian_grid,
    hermite_grid,
    midpoint_grid,
    sobol_grid,
)
from foretrain.support.errors import InputError
from foretrain.training.gradient_flow import (
    Integration,
    Problem,
    amplitude_observable,
    ansatz,
    escape,
    product_sample,
    snapshots,
    trajectory,
)
from foretrain.training.gradient_flow.networks import loss_and_gradients

BETAS = (1.0, 0.4)


def random_state(size: int, seed: int, scale: float = 0.5) -> np.ndarray:
    return scale * np.random.default_rng(seed).normal(size=size)


@pytest.mark.parametrize(("name", "depth", "modes"), [("tanh", 2, 1), ("tanh", 4, 3), ("gelu", 3, 2)])
def test_rates_and_tangent_against_differences(name: str, depth: int, modes: int) -> None:
    field = block_field(
        name, depth, np.linspace(1, 0.2, modes), 6, hermite_grid(ft.activation(name), modes, 12)
    )
    state, way = random_state(field.layout.size, 0), random_state(field.layout.size, 1)
    step = 1e-5
    slopes = [
        (field.loss(state - step * unit) - field.loss(state + step * unit)) / (2 * step)
        for unit in np.eye(len(state))
    ]
    np.testing.assert_allclose(field.rates(state), slopes, atol=1e-8)
    moved = (field.rates(state + step * way) - field.rates(state - step * way)) / (2 * step)
    np.testing.assert_allclose(field.tangent(state, way), moved, atol=1e-7)


@pytest.mark.parametrize(("name", "width"), [("tanh", 6), ("gelu", 4)])
def test_any_block_symmetric_network_moves_as_the_small_one(name: str, width: int) -> None:
    """All block entries at random: the gradients of the whole network keep the blocks, and give the rates."""
    problem = Problem(name, depth=4, width=width, inputs=2, betas=BETAS)
    block = problem.block_width
    field = block_field(name, 4, BETAS, block, hermite_grid(ft.activation(name), 2, 20))
    state = random_state(field.layout.size, 2)
    spread = np.kron(np.eye(2), np.ones((block, 1)))
    first, second, third, last = field.layout.matrices(state)
    weights = [spread @ first, *(spread @ m @ spread.T / block for m in (second, third))]
    weights.append(last @ spread.T / np.sqrt(block))
    loss, gradients = loss_and_gradients(
        problem, tuple(torch.from_numpy(w)[None] for w in weights), product_sample(problem, gauss_hermite(20))
    )
    assert float(loss) == pytest.approx(float(field.loss(state)), rel=1e-10)
    moves = field.layout.matrices(field.rates(state) / block)
    expected = [spread @ moves[0], *(spread @ m @ spread.T / block for m in moves[1:3])]
    expected.append(moves[3] @ spread.T / np.sqrt(block))
    for rate, gradient, move in zip(problem.rates("normalized"), gradients, expected):
        np.testing.assert_allclose(-rate * gradient[0].numpy(), move, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_the_whole_network_lies_on_the_block_flow() -> None:
    problem = Problem("tanh", depth=3, width=8, inputs=2, betas=BETAS)
    X, times = np.array([[0.2, 0.15], [0.3, 0.2], [0.25, 0.3]]), np.linspace(0, 40, 5)
    sample, rules = product_sample(problem, gauss_hermite(10)), Integration(rtol=1e-9)
    whole = snapshots(
        problem, ansatz(problem, X), times, metric="normalized", sample=sample, integration=rules
    )
    seen = trajectory(problem, whole, sample=sample).isel(network=0)
    grid = hermite_grid(ft.activation("tanh"), 2, 10)
    found = block_flow("tanh", X, BETAS, 4, times, grid=grid)
    assert float(found["alignment"][-1, 0]) > 0.4
    np.testing.assert_allclose(found["X"], seen["amplitude"], rtol=1e-7)
    np.testing.assert_allclose(found["loss"], seen["loss"], rtol=1e-7)
    escaped = block_escape("tanh", X, BETAS, 4, threshold=0.35, grid=grid)
    for mode in (0, 1):
        other = escape(
            problem,
            ansatz(problem, X),
            thresholds=[0.35],
            observable=amplitude_observable(mode),
            metric="normalized",
            sample=sample,
            integration=rules,
        )
        assert float(escaped[mode]) == pytest.approx(float(other["time"][0, 0]), rel=1e-7)


def test_one_mode_is_the_scalar_flow() -> None:
    X = np.array([0.1, 0.12, 0.15, 0.1])
    found = block_escape("tanh", X[:, None], (0.7,), 64, threshold=0.3)
    expected = escape_time("tanh", X, width=64, beta=0.7, threshold=0.3, method="reduced")
    assert float(found[0]) == pytest.approx(expected, rel=1e-8)


def test_other_modes_make_the_first_one_faster() -> None:
    """Their blocks turn towards v_1 too (the teacher drives every block along sum_k beta_k v_k)."""
    X = np.full((4, 2), 0.2)
    together = block_escape("tanh", X, BETAS, 20, threshold=0.4)
    alone = [escape_time("tanh", X[:, 0], width=20, beta=b, threshold=0.4, method="reduced") for b in BETAS]
    assert float(together[0]) < 0.9 * alone[0]
    assert float(together[0]) < float(together[1])


def test_modes_can_be_renamed() -> None:
    X = np.array([[0.3, 0.2], [0.3, 0.4], [0.2, 0.3]])
    first = block_escape("tanh", np.stack([X, X]), (1.0, 0.6), 9, threshold=0.45)
    second = block_escape("tanh", X[:, ::-1], (0.6, 1.0), 9, threshold=0.45)
    assert first.dims == ("flow", "mode")
    np.testing.assert_allclose(first[0], second[::-1], rtol=1e-8)
    np.testing.assert_array_equal(first[0], first[1])


def test_alignment_counts_all_blocks() -> None:
    found = block_flow("tanh", np.full((3, 2), 0.3), BETAS, 4, [0.0, 20.0])
    A = found["A"].sel(inner_layer=1)
    np.testing.assert_allclose(found["alignment"], np.sqrt((A**2).sum("block") / 2), rtol=1e-12)
    late = block_escape("tanh", np.full((3, 2), 0.3), BETAS, 4, observable="alignment", until=3.0)
    assert np.isnan(late).all()


def test_layout_round_trip() -> None:
    layout = BlockLayout(4, 3)
    state = random_state(layout.size, 5)
    np.testing.assert_array_equal(layout.joined(layout.matrices(state)), state)
    X = random_state(12, 6).reshape(4, 3)
    np.testing.assert_array_equal(layout.scales(layout.from_scales(X)), X)
    places = np.concatenate([layout.diagonal, *(layout.off_diagonal(layer) for layer in (1, 2, 3))])
    assert layout.size == 30
    np.testing.assert_array_equal(np.sort(places), np.arange(30))


@pytest.mark.parametrize(("name", "nodes"), [("tanh", 20), ("tanh", 21), ("gelu", 20)])
def test_grids_average_even_functions(name: str, nodes: int) -> None:
    grid = hermite_grid(ft.activation(name), 3, nodes)
    first, second, third = grid.points
    moments = [grid.weights.sum(), grid.weights @ first**4, grid.weights @ (first * second) ** 2]
    np.testing.assert_allclose(moments, [1, 3, 1], rtol=1e-10)
    assert grid.weights @ (first * third) == pytest.approx(0, abs=1e-12)


def test_midpoints_are_accurate() -> None:
    act, state = ft.activation("tanh"), random_state(BlockLayout(3, 2).size, 8, 0.3)
    found, finer, hermite = (
        block_field(act, 3, BETAS, 5, grid).rates(state)
        for grid in (midpoint_grid(act, 2), midpoint_grid(act, 2, 1), hermite_grid(act, 2, 160))
    )
    np.testing.assert_allclose(found, finer, atol=1e-9 * np.abs(finer).max())
    np.testing.assert_allclose(finer, hermite, atol=1e-11 * np.abs(finer).max())


def test_sobol_points_agree_with_the_product_rule() -> None:
    act = ft.activation("gelu")
    state = random_state(BlockLayout(3, 3).size, 7)
    fine, quasi = (
        block_field(act, 3, (1.0, 0.5, 0.2), 5, grid).rates(state)
        for grid in (hermite_grid(act, 3, 24), sobol_grid(act, 3, 2**13))
    )
    np.testing.assert_allclose(quasi, fine, atol=5e-3 * np.abs(fine).max())
    assert len(gaussian_grid(ft.activation("tanh"), 5).points) == 5


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="grid is for 2 modes"):
        block_field("tanh", 3, (1.0,), 4, hermite_grid(ft.activation("tanh"), 2, 8))
    with pytest.raises(InputError, match="at least one mode"):
        block_field("tanh", 3, (), 4)
    with pytest.raises(InputError, match="3 layers and 2 modes"):
        block_field("tanh", 3, BETAS, 4).layout.from_scales([1.0, 2.0])
    with pytest.raises(InputError, match="ascending"):
        block_flow("tanh", [[0.1], [0.1]], (1.0,), 4, [2.0, 1.0])
    with pytest.raises(InputError, match="observable"):
        block_escape("tanh", [[0.1], [0.1]], (1.0,), 4, observable="loss")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="layers 1 to 2"):
        BlockLayout(3, 2).off_diagonal(3)
    with pytest.raises(InputError, match="one or more"):
        block_flow("tanh", [[0.1], [0.1]], (1.0,), 4, [])
    with pytest.raises(InputError, match="no table of numbers"):
        block_escape("tanh", [[0.1, 0.2], [0.1]], BETAS, 4)
    for until in (-1.0, 0.0, float("nan")):
        with pytest.raises(InputError, match="positive time"):
            block_escape("tanh", [[0.1], [0.1]], (1.0,), 4, until=until)


def test_the_start_alone_can_be_asked_for() -> None:
    scales = np.array([[0.1, 0.2], [0.3, 0.4]])
    found = block_flow("tanh", scales, BETAS, 4, [0.0, 0.0])
    np.testing.assert_array_equal(found.X.values, [scales, scales])
