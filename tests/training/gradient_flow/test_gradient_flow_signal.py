"""Signal energy: its definitions against autograd, its bounds on real flows, and the power law they prove."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from foretrain.gaussian.nodes import gauss_hermite
from foretrain.support.errors import InputError
from foretrain.training.gradient_flow import (
    Integration,
    Problem,
    ansatz,
    escape,
    gaussian_sample,
    joined,
    product_sample,
    scaled_he,
    signal_energy,
    snapshots,
)


def by_autograd(problem, weights, sample):
    """Gamma, G_l and E[f δ h] from the definitions, one network."""
    leaves = [w.clone().requires_grad_() for w in weights]
    h = sample.points
    for matrix in leaves[:-1]:
        h = torch.tanh(matrix @ h)
    f = (leaves[-1] @ h)[0]
    gamma = (f * sample.points[0] * sample.weights).sum()
    G = torch.autograd.grad(gamma, leaves, retain_graph=True)
    by_output = torch.autograd.grad((0.5 * f.square() * sample.weights).sum(), leaves)
    return float(gamma.detach()), G, by_output


def test_the_quantities_are_what_they_are_called() -> None:
    problem = Problem("tanh", depth=4, width=7, inputs=3)
    networks = scaled_he(problem, 2, [0.3], np.int64(2))  # type: ignore[arg-type]
    sample = gaussian_sample(problem, 128)
    rates = (1.0, 0.5, 2.0, 1.0)
    found = signal_energy(problem, networks, metric=rates, sample=sample)
    assert found.sizes == {"network": 2, "snapshot": 1, "layer": 4}
    for number in range(2):
        weights = [w[number] for w in networks.weights]
        gamma, G, by_output = by_autograd(problem, weights, sample)
        one = found.isel(network=number, snapshot=0)
        assert float(one["gamma"]) == pytest.approx(gamma, rel=1e-11)
        assert float(one["T"]) == pytest.approx(
            sum(r * float((g * g).sum()) for r, g in zip(rates, G)), rel=1e-11
        )
        S = sum(r * float((g * b).sum()) for r, g, b in zip(rates, G, by_output))
        assert float(one["S"]) == pytest.approx(S, rel=1e-9)
        norms = [float(torch.linalg.matrix_norm(w, ord=2)) for w in weights[:2]]
        assert float(one["M"]) == pytest.approx(max(norms))
        assert float(one["nondegeneracy"]) == pytest.approx(abs(gamma) / 0.3**2)


def test_the_rate_of_gamma_is_its_change_along_the_flow() -> None:
    problem = Problem("tanh", depth=4, width=8, inputs=3)
    sample = gaussian_sample(problem, 128)
    seen = snapshots(
        problem,
        scaled_he(problem, 4, [0.5], 1),
        [1.0, 1.01, 1.02],
        sample=sample,
        integration=Integration(rtol=1e-9),
    )
    found = signal_energy(problem, seen, sample=sample)
    gamma = found["gamma"].values[0]
    assert (gamma[2] - gamma[0]) / 0.02 == pytest.approx(float(found["gamma_rate"][0, 1]), rel=1e-5)


def test_near_the_saddle_the_bounds_are_tight() -> None:
    problem = Problem("tanh", depth=5, width=16, inputs=4)
    sample = product_sample(problem, gauss_hermite(7))
    ratios = []
    for epsilon in (0.02, 0.01):
        found = signal_energy(problem, scaled_he(problem, 5, [epsilon], 4), sample=sample)
        np.testing.assert_allclose(found["growth_ratio"], 1, atol=0.02)
        assert float(found["S_ratio"].max()) < 10
        ratios.append(float(found["G_error"].max()))
    assert ratios[1] < 0.3 * ratios[0] < 0.03  # the correction is of second order in the first layer


def test_on_the_manifold_gamma_is_the_closed_form() -> None:
    problem = Problem("linear", depth=3, width=4, inputs=1)
    scales = [0.2, 0.5, 0.3]
    found = signal_energy(
        problem, ansatz(problem, scales), sample=product_sample(problem, gauss_hermite(20)), small_layers=1
    )
    assert float(found["gamma"][0, 0]) == pytest.approx(2 * 0.2 * 0.5 * 0.3)  # √N Π X
    np.testing.assert_allclose(found["G_error"], 0, atol=1e-12)
    assert float(found["growth_ratio"][0, 0]) == pytest.approx(1 - 2 * 0.2 * 0.5 * 0.3)


def test_the_bounds_hold_along_the_plateau() -> None:
    problem = Problem("tanh", depth=5, width=24, inputs=6)
    networks = scaled_he(problem, 3, [0.03], 4)
    sample = gaussian_sample(problem, 512)
    ends = escape(problem, networks, thresholds=[0.15], sample=sample)
    seen = snapshots(problem, networks, ends["time"].values * np.linspace(0, 0.9, 8), sample=sample)
    found = signal_energy(problem, seen, sample=sample)
    assert found.attrs["small_layers"] == 3
    assert float(found["growth_ratio"].min()) > 0.5  # (16)
    assert (np.diff(found["gamma"].values, axis=1) > 0).all()
    assert (found["speed_ratio"].isel(layer=slice(0, 3)).values < 10).all()  # (48)


@pytest.mark.statistical
def test_escape_slows_with_the_power_of_the_critical_depth() -> None:
    problem = Problem("tanh", depth=4, width=32, inputs=8)
    sample = gaussian_sample(problem, 512)
    epsilons = [0.01, 0.02, 0.04]
    for r in (3, 4):
        networks = scaled_he(problem, r, epsilons, 4)
        times = escape(problem, networks, thresholds=[0.05], sample=sample)["time"].values.reshape(3, 4)
        slopes = np.polyfit(np.log(epsilons), np.log(times), 1)[0]
        assert slopes.mean() == pytest.approx(-(r - 2), abs=0.12)


def test_networks_of_different_kinds_are_refused_together() -> None:
    problem = Problem("tanh", depth=3, width=4, inputs=2)
    both = joined([scaled_he(problem, 1, [0.1], 1), scaled_he(problem, 2, [0.1], 1)])
    with pytest.raises(InputError, match="differ in small_layers"):
        signal_energy(problem, both)
    with pytest.raises(InputError, match="from 1 to the depth"):
        signal_energy(problem, both, small_layers=4)
