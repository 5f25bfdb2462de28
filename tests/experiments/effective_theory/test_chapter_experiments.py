"""Experiments of single chapters: tables and pictures at a tiny size, the measurements themselves, refuted claims."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foretrain.compare.build import build, parameter_groups
from foretrain.compare.trained.networks import Networks, draw_networks
from foretrain.experiments import Result, get
from foretrain.experiments.effective_theory import (
    bayesian_learning,
    foundations,
    generalisation,
    gradients_by_layer,
    nearly_kernel_methods,
    neurons,
    one_step,
)
from foretrain.experiments.effective_theory import trained_networks as algorithms
from foretrain.experiments.effective_theory.width_limits import (
    MethodPlan,
    WidthPlan,
    infinite_width,
    limits_of_batches,
)
from foretrain.support.store import load, save
from foretrain.theory.architecture import MLP

TINY: dict[str, Any] = {
    "taylor-expansion": nearly_kernel_methods.TaylorPlan((8, 16, 32, 64), 6, 20),
    "weight-laws": foundations.LawPlan(2_000, {4: 500, 8: 500, 16: 500, 32: 500}),
    "neuron-observables": MethodPlan({16: 1_000, 32: 1_000, 64: 1_000}, "conditional"),
    "model-evidence": bayesian_learning.EvidencePlan(1_000, 7),
    "hebbian-association": MethodPlan({16: 1_000, 32: 1_000, 64: 1_000}, "conditional"),
    "exploding-gradients": WidthPlan({8: 40, 16: 40, 32: 40}),
    "hidden-updates": WidthPlan({8: 50, 16: 50, 32: 50}),
    "algorithm-independence": algorithms.AlgorithmPlan((16, 32, 64, 128), 3, 80, (24, 48, 96)),
    "interpolation": generalisation.BetweenPlan(80, 2, (24, 48, 96)),
}


@cache
def tiny_run(name: str) -> Result:
    """So few networks that only mechanics and computed rows can be tested."""
    return get(name).run(plan=TINY[name])


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", TINY)
def test_tables_are_plain_data_is_stored_and_pictures_draw(name: str, tmp_path: Path) -> None:
    result = tiny_run(name)
    assert all(type(row.agrees) in (bool, type(None)) for row in result.table)
    assert all(type(row.here) in (float, int, str) for row in result.table)
    sampled = ("z of", "|z|", "power of n", "in standard errors", "of the largest evidence")
    computed = [
        row
        for row in result.table
        if row.standard_error is None
        and not row.disputed
        and not any(word in row.quantity for word in sampled)
    ]
    assert [row.quantity for row in computed if row.agrees is False] == []
    assert result.figure is not None
    result.plot()
    save(result.data, tmp_path / "data.zarr")
    assert set(load(tmp_path / "data.zarr").data_vars) == set(result.data.data_vars)


def test_the_taylor_series_of_a_network_is_that_of_its_outputs() -> None:
    """Against a polynomial through outputs at many places of the way, for networks whose ends are close."""
    mlp = MLP("tanh", 3, 6, n_in=4)
    start, end = draw_networks(mlp, range(2), 0), draw_networks(mlp, range(2), 0)
    other = draw_networks(mlp, range(2), 1)
    for stack in ("weights", "biases"):
        moved = [a + 0.3 * b for a, b in zip(getattr(start, stack), getattr(other, stack), strict=True)]
        setattr(end, stack, moved)
    terms = nearly_kernel_methods.taylor_terms(start, end, nearly_kernel_methods._TAYLOR_TESTS, 4)
    places = np.cos(np.pi * (np.arange(24) + 0.5) / 24)
    outputs = [on_the_way(start, end, float(t)) for t in places]
    coefficients = np.polynomial.polynomial.polyfit(places, np.stack(outputs).reshape(24, -1), 20)
    np.testing.assert_allclose(terms.reshape(5, -1).numpy(), coefficients[:5], atol=1e-7)


def on_the_way(start: Networks, end: Networks, t: float) -> np.ndarray:
    moved = start.chosen(torch.arange(len(start)))
    for stack in ("weights", "biases"):
        pairs = zip(getattr(start, stack), getattr(end, stack), strict=True)
        setattr(moved, stack, [a + t * (b - a) for a, b in pairs])
    return np.asarray(moved.forward(moved.entry(nearly_kernel_methods._TAYLOR_TESTS)).output[:, 0].numpy())


def test_hidden_updates_are_those_of_real_steps() -> None:
    mlp = one_step._network("tanh + tanh²/2, L = 3", 5)
    found = one_step.updates(mlp, range(1), 0)[0]
    networks, eta = draw_networks(mlp, range(1), 0), 1e-6
    model = build(mlp, seed=0)
    with torch.no_grad():
        for linear, weights, biases in zip(model.layers, networks.weights, networks.biases, strict=True):
            linear.weight.copy_(weights[0])
            linear.bias.copy_(biases[0, :, 0])
    x, y = torch.from_numpy(one_step._INPUTS), torch.from_numpy(one_step._Y)
    before = model.preactivations(x)[-2].detach()
    (0.5 * (model(x[:3]) - y).square().sum()).backward()
    with torch.no_grad():
        for group in parameter_groups(model, mlp, eta=eta):
            for value in group["params"]:
                value -= group["lr"] * value.grad
    change = (model.preactivations(x)[-2].detach() - before) / eta
    np.testing.assert_allclose(found, change.T.numpy(), atol=1e-4 * np.abs(found).max())


def test_gradients_are_those_of_automatic_differentiation() -> None:
    mlp = gradients_by_layer._network("tanh, critical", 5)
    found = gradients_by_layer.gradient_squares(mlp, 1, 3)[0]
    networks = draw_networks(mlp, range(1), 3)
    biases = [value.clone().requires_grad_() for value in networks.biases]
    networks.biases = biases
    out = networks.forward(networks.entry(gradients_by_layer._X)).output.sum()
    gradients = torch.autograd.grad(out, biases)
    np.testing.assert_allclose(found, [float(each.square().sum()) for each in gradients], rtol=1e-10)


def test_what_one_neuron_tells_of_another() -> None:
    """Two metrics: the silent neuron speaks for the smaller one; without fluctuations nothing is told."""
    G = np.tile([0.5, 1.5], 50)
    found = neurons.shifts(G)
    weight = G**-0.5
    assert found[0] == pytest.approx((weight * G).mean() / weight.mean() - 1)
    assert found[0] < 0
    np.testing.assert_allclose(neurons.shifts(np.ones(10)), 0, atol=1e-15)


def test_functions_of_neurons_given_the_metric() -> None:
    """Two metrics, against samples of neurons; without fluctuations nothing changes."""
    G = np.tile([0.6, 1.4], 40_000)
    z = np.sqrt(G)[:, None] * np.random.default_rng(0).normal(size=(len(G), 2))
    found = dict(zip(neurons._labels(), neurons.changes(G, 1.0), strict=True))
    functions = {name: function for name, (function, _) in neurons._FUNCTIONS.items()}
    plain = np.sqrt(1.0) * np.random.default_rng(1).normal(size=len(G))
    for name, function in functions.items():
        expected = function(z[:, 0]).mean() - function(plain).mean()
        assert found[f"mean of {name}"] == pytest.approx(expected, abs=0.25 if name == "z⁴" else 0.01)
    pair = np.cov(functions["cos z"](z[:, 0]), functions["z⁴"](z[:, 1]))[0, 1]
    assert found["covariance of z⁴ and cos z of two neurons"] == pytest.approx(pair, abs=0.05)
    assert found["density of 2 neurons at zero, relative"] == pytest.approx((1 / 0.6 + 1 / 1.4) / 2 - 1)
    np.testing.assert_allclose(neurons.changes(np.full(10, 0.8), 0.8), 0, atol=1e-12)


def test_limits_of_batches_undo_a_quadratic_in_the_width() -> None:
    widths, source = [8, 16, 32], np.random.default_rng(0)
    truth = np.array([1.0, -2.0])

    def measure(n: int, count: int, _: object) -> np.ndarray:
        exact = truth + np.array([3.0, 1.0]) / n + np.array([5.0, -4.0]) / n**2
        return np.asarray(exact + 1e-6 * source.normal(size=(count, 2)))

    found = limits_of_batches(dict.fromkeys(widths, 40), 0, measure, truth, "entry", ["a", "b"])
    np.testing.assert_allclose(found.limit, truth, atol=1e-5)
    assert (np.abs(found.z) < 5).all()
    limit, error = infinite_width(widths, found.measured.values, found.measured_error.values)
    np.testing.assert_allclose(limit, found.limit, rtol=1e-9)
    np.testing.assert_allclose(error, found.standard_error, rtol=0.5)


def test_moments_of_outputs() -> None:
    z = np.random.default_rng(0).normal(size=(200_000, 3))
    G2, G4, D = foundations.moments_of(z)
    assert [pytest.approx(1, abs=0.01), pytest.approx(1, abs=0.01), pytest.approx(0, abs=0.05)] == [G2, G4, D]
    brute = np.mean([(z[:, i] ** 2 * z[:, j] ** 2).mean() for i, j in ((0, 1), (0, 2), (1, 2))])
    assert pytest.approx(brute, rel=1e-12) == G4


@pytest.mark.slow
def test_the_posterior_notices_a_wrong_recipe_for_noise() -> None:
    result = get("model-evidence").run(plan=bayesian_learning.EvidencePlan(10_000, 7))
    noise = [row for row in result.table if "random tanh networks" in row.quantity]
    assert [row.agrees for row in noise] == [True, False, True, False]
    assert all(abs(row.z or 0) > 10 for row in noise if row.disputed)


@pytest.mark.slow
def test_a_wrong_theory_of_hidden_updates_is_noticed() -> None:
    data = tiny_run("hidden-updates").data
    case = data.sel(case="relu, L = 3")
    wrong = case.assign(theory=case.theory + 20 * case.standard_error)
    wrong = wrong.assign(z=(wrong.limit - wrong.theory) / wrong.standard_error)
    rows = one_step._rows(wrong, "relu, L = 3")
    assert sum(row.agrees is False for row in rows) >= 5


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["taylor-expansion", "weight-laws", "hebbian-association", "interpolation"])
def test_networks_agree_with_theory_at_the_quick_size(name: str) -> None:
    result = get(name).run()
    assert [row.quantity for row in result.table if row.agrees is False and not row.disputed] == []
