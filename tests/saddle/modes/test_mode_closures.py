"""Closures: first order against the exact flow, products of averages, the paper's dampings, closed solutions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import foretrain as ft
from foretrain.saddle import coupling
from foretrain.saddle.modes import (
    BlockField,
    Decoupled,
    Exact,
    LinearClosure,
    block_field,
    coefficients,
    duhamel,
    hermite_grid,
    printed_damping,
    product_coefficients,
)
from foretrain.support.errors import InputError, NotSupportedError

BETAS, BLOCK = (1.0, 0.3, 0.08), 20
SCALES = np.array([[0.3, 0.2, 0.25], [0.4, 0.3, 0.2], [0.2, 0.35, 0.3], [0.3, 0.25, 0.4]])
BETWEEN = ~np.eye(3, dtype=bool)


@pytest.fixture(scope="module")
def field() -> BlockField:
    return block_field("tanh", 4, BETAS, BLOCK, hermite_grid(ft.activation("tanh"), 3, 24))


def nearby(field: BlockField, size: float) -> np.ndarray:
    noise = np.random.default_rng(4).normal(size=field.layout.size)
    noise[field.layout.diagonal] = 0
    return field.layout.from_scales(SCALES) + size * noise


def test_the_augmented_state_has_24_variables(field: BlockField) -> None:
    assert len(LinearClosure(field, (1, 2)).between) + len(field.layout.diagonal) == 24


def test_all_layers_are_right_to_first_order(field: BlockField) -> None:
    closure = LinearClosure(field, (1, 2, 3))
    errors = [
        np.abs(closure.rates(x) - field.rates(x)).max() for x in (nearby(field, 1e-2), nearby(field, 1e-3))
    ]
    assert errors[0] / errors[1] == pytest.approx(100, rel=0.1)


def test_modes_by_themselves_are_the_diagonal_of_the_exact_flow(field: BlockField) -> None:
    """For odd activations the other modes do not act on the scales while nothing is between the modes."""
    state = field.layout.from_scales(SCALES)
    alone = Decoupled(field).rates(state)
    places = field.layout.diagonal
    np.testing.assert_allclose(alone[places], field.rates(state)[places], rtol=1e-4)
    assert np.abs(field.rates(state)[field.layout.off_diagonal(1)]).min() > 1e-3
    assert not alone[field.layout.off_diagonal(1)].any()


@pytest.mark.parametrize("layers", [(1,), (1, 2), (1, 2, 3)])
def test_pullbacks_against_differences(field: BlockField, layers: tuple[int, ...]) -> None:
    state, p = nearby(field, 0.1), np.random.default_rng(5).normal(size=field.layout.size)
    for each in (Exact(field), Decoupled(field), LinearClosure(field, layers)):
        step = 1e-5 * np.eye(len(state))
        slopes = (each.rates(state + step) - each.rates(state - step)) / 2e-5
        np.testing.assert_allclose(each.pullback(state, p), slopes @ p, atol=1e-6)


@pytest.mark.parametrize("layer", [1, 2, 3])
def test_products_of_averages_are_the_exact_coefficients(field: BlockField, layer: int) -> None:
    found = coefficients(field, SCALES, [layer])
    product = product_coefficients("tanh", SCALES, BETAS, BLOCK, layer)
    np.testing.assert_allclose(found.drive / BLOCK, product.drive[BETWEEN], rtol=1e-4)
    silent = block_field("tanh", 4, BETAS, BLOCK, field.grid)
    state = silent.layout.from_scales(SCALES)
    entries = silent.layout.off_diagonal(layer)
    slopes = _output_slopes(silent, state, entries)
    squares = slopes**2 @ silent.grid.weights
    np.testing.assert_allclose(squares / BLOCK, product.damping[BETWEEN], rtol=1e-4)


def test_drives_hold_the_teacher_at_the_order_of_growth() -> None:
    """As the scales shrink, the drive of rotation (k, m) tends to K_m prod_{l>1} X_{l,k}: as fast as X_1 grows."""
    for epsilon in (0.1, 0.01):
        X = np.full((4, 3), epsilon)
        drive = product_coefficients("tanh", X, BETAS, BLOCK, 1).drive
        expected = [coupling("tanh", 4, width=BLOCK, beta=beta) * epsilon**3 for beta in BETAS]
        np.testing.assert_allclose(drive[0, 1:], expected[1:], rtol=5 * epsilon**2 + 5 * epsilon**4 / 0.08)
        np.testing.assert_allclose(drive[2, :2], expected[:2], rtol=5 * epsilon**2)


def test_the_paper_s_dampings() -> None:
    """(64) is right at leading order; (62) has the wrong power of the scales."""
    ratios = {1: [], 2: []}
    for epsilon in (0.04, 0.02):
        X = epsilon * np.array([[1.0, 1.2, 0.8]] * 4)
        for layer, found in ratios.items():
            exact = product_coefficients("tanh", X, BETAS, BLOCK, layer).damping
            found.append(printed_damping("tanh", X, layer)[0, 1] / exact[0, 1])
    assert ratios[1][1] == pytest.approx(1, abs=5e-3)
    assert ratios[2][1] / ratios[2][0] == pytest.approx(8, rel=0.05)


def test_a_small_entry_follows_the_closure() -> None:
    """One rotation by Duhamel's formula along the exact path of the scales, at the start of an escape."""
    field = block_field("tanh", 3, (1.0, 0.5), 4)
    start = field.layout.from_scales(np.full((3, 2), 0.2))
    times = np.linspace(0, 0.1, 41)
    path = solve_ivp(lambda _, x: field.rates(x), (0, 0.1), start, t_eval=times, rtol=1e-10, atol=1e-13)
    place = int(field.layout.off_diagonal(1)[0])
    found = [coefficients(field, field.layout.scales(x), [1]) for x in path.y.T]
    drive, damping = (np.array([getattr(c, name)[0] for c in found]) for name in ("drive", "damping"))
    solved = duhamel(times, damping, drive)
    assert solved[-1] == pytest.approx(path.y[place, -1], rel=0.02)
    assert solved[-1] > 1e-3


def test_duhamel_against_closed_solutions() -> None:
    times = np.linspace(0, 2, 201)
    constant = duhamel(times, np.full(201, 1.5), np.full(201, 0.6), start=1.0)
    np.testing.assert_allclose(constant, 0.4 + 0.6 * np.exp(-1.5 * times), rtol=1e-10)
    growing = duhamel(times, 2 * times, 2 * times)
    np.testing.assert_allclose(growing, 1 - np.exp(-(times**2)), atol=1e-10)


def test_steady_entries_are_at_rest(field: BlockField) -> None:
    found = coefficients(field, SCALES, [1, 2])
    np.testing.assert_allclose(found.drive + found.response @ found.steady, 0, atol=1e-10)
    np.testing.assert_allclose(found.response, found.response.T, atol=1e-12)
    assert found.feedback.shape == (12, 12)


def test_bad_input_is_refused() -> None:
    with pytest.raises(NotSupportedError, match="not odd"):
        product_coefficients("gelu", SCALES, BETAS, BLOCK, 1)
    with pytest.raises(InputError, match="below the last"):
        product_coefficients("tanh", SCALES, BETAS, BLOCK, 4)
    with pytest.raises(InputError, match="layers 1 and 2"):
        printed_damping("tanh", SCALES, 3)
    with pytest.raises(InputError, match="at every time"):
        duhamel(np.arange(3.0), np.ones(2), np.ones(3))
    with pytest.raises(InputError, match="ascending"):
        duhamel(np.array([0.0, 2.0, 1.0]), np.ones(3), np.ones(3))


def _output_slopes(field: BlockField, state: np.ndarray, entries: np.ndarray) -> np.ndarray:
    """df/do at every point of the grid, by central differences of the output."""
    step = 1e-5

    def output(x: np.ndarray) -> np.ndarray:
        return np.asarray(
            field.passage(x).error[..., 0, :] / field.grid.weights / math.sqrt(field.block_width)
        )

    units = step * np.eye(field.layout.size)[entries]
    return (output(state + units) - output(state - units)) / (2 * step)
