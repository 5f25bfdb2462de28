"""The flow of whole networks against the reduced flow, an independent integrator, autograd and real descent."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from foretrain.gaussian.nodes import gauss_hermite
from foretrain.support.errors import InputError, NotEnoughMemoryError
from foretrain.training.gradient_flow import (
    Integration,
    Problem,
    alignment_observable,
    amplitudes,
    ansatz,
    escape,
    gaussian_sample,
    given_networks,
    given_sample,
    joined,
    product_sample,
    scaled_he,
    snapshots,
    stochastic_escape,
    trajectory,
)
from foretrain.training.gradient_flow.integration import population_field
from foretrain.training.gradient_flow.networks import loss_and_gradients

FINE = Integration(rtol=1e-9)


def reduced_flow(scales, sigma, slope, width, time, nodes=128):
    """Equation (4) in matrix time s = N t, written from (5) with numpy alone."""
    g, weights = np.polynomial.hermite_e.hermegauss(nodes)
    weights = weights / weights.sum()

    def velocity(_, X):
        c = [X[0] * g]
        for x in X[1:-1]:
            c.append(x * sigma(c[-1]))
        below = [g, *(sigma(value) for value in c)]
        error = np.sqrt(width) * X[-1] * below[-1] - sigma(g)
        found, above = np.empty(len(X)), np.sqrt(width) * np.ones_like(g)
        for layer in reversed(range(len(X))):
            found[layer] = -(weights * error * above * below[layer]).sum() / width
            if layer:
                above = above * X[layer] * slope(c[layer - 1])
        return found

    solved = solve_ivp(velocity, (0, time[-1]), scales, t_eval=time, method="DOP853", rtol=1e-12, atol=1e-14)
    return solved.y.T


def sech2(z):
    return 1 / np.cosh(z) ** 2


def swish(z):
    return z / (1 + np.exp(-z))


def swish_slope(z):
    s = 1 / (1 + np.exp(-z))
    return s + z * s * (1 - s)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("depth", "epsilon", "time"),
    [(3, 0.1, 101.465), (3, 0.01, 1292.63), (4, 0.1, 616.103), (4, 0.01, 66031.8), (5, 0.1, 4359.38)],
)
def test_the_published_escape_times_of_the_symmetric_manifold(depth, epsilon, time) -> None:
    problem = Problem("tanh", depth=depth, width=64, inputs=1)
    found = escape(
        problem,
        ansatz(problem, [epsilon] * depth),
        thresholds=[0.3],
        observable="amplitude",
        metric="normalized",
        sample=product_sample(problem, gauss_hermite(128)),
        integration=Integration(rtol=1e-8),
    )
    assert float(found["time"][0, 0]) == pytest.approx(time, rel=5e-6)
    assert str(found["status"].values[0]) == "reached"


def test_one_zero_scale_escapes_and_two_never_do() -> None:
    problem = Problem("tanh", depth=4, width=64, inputs=1)
    found = escape(
        problem,
        ansatz(problem, [[0, 0.1, 0.1, 0.1], [0, 0, 0.1, 0.1]]),
        thresholds=[0.3, 0.2],
        observable="amplitude",
        metric="normalized",
        sample=product_sample(problem, gauss_hermite(128)),
        integration=Integration(rtol=1e-7),
    )
    assert float(found["time"][0, 0]) == pytest.approx(1280.2, rel=5e-5)
    assert np.isinf(found["time"].values[1]).all()
    assert found["status"].values.tolist() == ["reached", "at rest"]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("name", "sigma", "slope"), [("tanh", np.tanh, sech2), ("swish", swish, swish_slope)]
)
def test_the_ansatz_is_invariant_and_follows_the_reduced_flow(name, sigma, slope) -> None:
    problem = Problem(name, depth=4, width=9, inputs=3)
    scales = np.array([0.2, 0.35, 0.3, 0.4])
    time = np.linspace(0, 60, 7)
    line = product_sample(Problem(name, depth=4, width=9, inputs=1), gauss_hermite(100))
    points = np.concatenate([line.points.numpy().T, np.zeros((100, 2))], axis=1)
    sample = given_sample(problem, points, line.weights.numpy())
    rules = {"metric": "normalized", "sample": sample, "integration": FINE}
    seen = snapshots(problem, ansatz(problem, scales), time, **rules)
    expected = reduced_flow(scales, sigma, slope, 9, time)
    found = trajectory(problem, seen, sample=sample)
    np.testing.assert_allclose(found["amplitude"].values[0, :, :, 0], expected, rtol=1e-7)
    np.testing.assert_allclose(found["time"][0], time)
    assert (np.diff(found["loss"].values[0]) < 0).all()
    assert expected[-1, 0] > 1.3 * expected[0, 0]
    rebuilt = ansatz(problem, expected[-1])
    for moved, wanted in zip(seen.at(-1).weights, rebuilt.weights):
        np.testing.assert_allclose(moved, wanted, atol=1e-7)


def test_blocks_of_several_modes_flow_apart_from_each_other_at_first_order() -> None:
    problem = Problem("tanh", depth=3, width=8, inputs=2, betas=(1.0, 0.5))
    scales = [[[0.2, 0.1], [0.3, 0.2], [0.25, 0.3]]]
    networks = ansatz(problem, scales)
    np.testing.assert_allclose(amplitudes(problem, networks.weights)[0], scales[0], rtol=1e-12)
    assert float(networks.weights[1][0, :4, 4:].abs().max()) == 0
    made = population_field(problem, product_sample(problem, gauss_hermite(40)), "normalized")(
        networks.weights
    )
    single = Problem("tanh", depth=3, width=4, inputs=1)
    alone = population_field(single, product_sample(single, gauss_hermite(40)), "normalized")(
        ansatz(single, [0.2, 0.3, 0.25]).weights
    )
    assert float(made.rates[0][0, 0, 0]) == pytest.approx(float(alone.rates[0][0, 0, 0]), rel=0.05)


def small_network(seed=1):
    problem = Problem("gelu", depth=3, width=3, inputs=2, betas=(1.0, 0.4))
    return problem, scaled_he(problem, 2, [0.6], [seed])


def scipy_flow(problem, networks, sample, rates, levels):
    """The same flow by an independent integrator, its gradients by autograd, its events by scipy."""
    shapes = problem.shapes
    sizes = [a * b for a, b in shapes]

    def loss_of(leaf):
        weights = [part.reshape(shape) for part, shape in zip(leaf.split(sizes), shapes)]
        h = sample.points
        for matrix in weights[:-1]:
            h = torch.nn.functional.gelu(matrix @ h)
        return 0.5 * ((weights[-1] @ h - sample.targets) ** 2 * sample.weights).sum()

    def velocity(_, vector):
        leaf = torch.tensor(vector, requires_grad=True)
        return -scale * torch.autograd.grad(loss_of(leaf), leaf)[0].numpy()

    scale = np.concatenate([np.full(size, rate) for size, rate in zip(sizes, rates)])
    events = [lambda t, v, level=level: float(loss_of(torch.tensor(v))) - level for level in levels]
    start = np.concatenate([w[0].numpy().ravel() for w in networks.weights])
    solved = solve_ivp(velocity, (0, 12), start, method="DOP853", rtol=1e-10, atol=1e-13, events=events)
    return [float(times[0]) for times in solved.t_events]


@pytest.mark.slow
def test_escape_times_agree_with_an_independent_integrator() -> None:
    problem, networks = small_network()
    sample = product_sample(problem, gauss_hermite(12))
    levels, rates = [0.25, 0.1, 0.03], [1.0, 0.5, 2.0]
    expected = scipy_flow(problem, networks, sample, rates, levels)
    for rules, tolerance in (
        (FINE, 1e-7),
        (Integration(), 1e-3),
        (Integration(method="bogacki_shampine"), 1e-3),
    ):
        found = escape(problem, networks, thresholds=levels, metric=rates, sample=sample, integration=rules)
        np.testing.assert_allclose(found["time"].values[0], expected, rtol=tolerance)


def test_gradients_are_those_of_autograd() -> None:
    problem = Problem(torch.nn.Softplus(), depth=4, width=5, inputs=3, betas=(1.0, 0.3))
    networks = scaled_he(problem, 0, [1.0], 2)
    sample = gaussian_sample(problem, 64)
    leaves = [w.clone().requires_grad_() for w in networks.weights]
    h = sample.points
    for matrix in leaves[:-1]:
        h = torch.nn.functional.softplus(matrix @ h)
    losses = 0.5 * ((leaves[-1] @ h - sample.targets).square() * sample.weights).sum(dim=(1, 2))
    losses.sum().backward()
    found, gradients = loss_and_gradients(problem, networks.weights, sample)
    torch.testing.assert_close(found, losses.detach(), rtol=1e-12, atol=0)
    for leaf, gradient in zip(leaves, gradients):
        torch.testing.assert_close(gradient, leaf.grad, rtol=1e-10, atol=1e-14)


def test_networks_do_not_feel_that_others_flow_beside_them() -> None:
    problem = Problem("tanh", depth=3, width=12, inputs=4)
    sample = gaussian_sample(problem, 128)
    networks = joined([scaled_he(problem, 3, [0.2, 0.5], 2), scaled_he(problem, 2, [0.1], 1)])
    together = escape(problem, networks, thresholds=[0.1, 0.05], sample=sample)
    assert together["small_layers"].values.tolist() == [3, 3, 3, 3, 2]
    for number in range(len(networks)):
        alone = escape(problem, networks[number : number + 1], thresholds=[0.05], sample=sample)
        assert float(alone["time"][0, 0]) == pytest.approx(float(together["time"][number, 1]), rel=1e-9)
        assert int(alone["steps"][0]) == int(together["steps"][number])


def test_float32_keeps_four_digits() -> None:
    problem = Problem("tanh", depth=5, width=24, inputs=6)
    networks = scaled_he(problem, 5, [0.4], 3)
    double = escape(problem, networks, thresholds=[0.05])
    single = escape(problem, networks, thresholds=[0.05], integration=Integration(dtype=torch.float32))
    np.testing.assert_allclose(single["time"], double["time"], rtol=2e-4)


def test_the_alignment_of_a_mode_can_be_the_threshold() -> None:
    problem = Problem("tanh", depth=3, width=12, inputs=4)
    networks = scaled_he(problem, 3, [0.2], 2)
    rules = {"sample": gaussian_sample(problem, 128), "integration": Integration(rtol=1e-7)}
    found = escape(problem, networks, thresholds=[0.2], observable=alignment_observable(0), **rules)
    seen = snapshots(problem, networks, found["time"].values, **rules)
    size = seen.weights[0][:, 0, :, 0].norm(dim=1) / 12**0.5
    np.testing.assert_allclose(size, 0.2, rtol=1e-6)


def test_limits_end_a_flow_and_say_so() -> None:
    problem = Problem("tanh", depth=3, width=6, inputs=2)
    networks = scaled_he(problem, 3, [0.01], 1)
    early = escape(problem, networks, integration=Integration(max_time=1.0))
    assert str(early["status"].values[0]) == "time limit"
    assert np.isnan(early["time"].values).all()
    cheap = escape(problem, networks, integration=Integration(max_evaluations=10))
    assert str(cheap["status"].values[0]) == "evaluation limit"
    assert escape(problem, networks, thresholds=[1.0])["time"].values.tolist() == [[0.0]]


def test_a_flow_that_does_not_fit_into_memory_is_refused(monkeypatch) -> None:
    problem = Problem("tanh", depth=3, width=64, inputs=2)
    networks = scaled_he(problem, 3, [0.1], 1)
    monkeypatch.setenv("FORETRAIN_MEMORY", "1MB")
    with pytest.raises(NotEnoughMemoryError, match="fewer points"):
        escape(problem, networks)
    with pytest.raises(NotEnoughMemoryError, match="fewer times"):
        snapshots(problem, networks, np.linspace(0, 1, 1000))


@pytest.mark.statistical
def test_stochastic_descent_with_small_steps_escapes_at_the_flow_s_time() -> None:
    problem = Problem("tanh", depth=4, width=32, inputs=8)
    networks = joined([scaled_he(problem, 4, [0.5], [1])] * 8)
    flow = escape(problem, networks[:1], thresholds=[0.05], sample=gaussian_sample(problem, 4096))
    descent = stochastic_escape(
        problem, networks, lr=0.01, batch_size=256, steps=20_000, thresholds=[0.05], seed=4
    )
    times = descent["time"].values[:, 0]
    error = times.std(ddof=1) / len(times) ** 0.5
    expected = float(flow["time"][0, 0])
    assert error < 0.02 * expected
    assert abs(times.mean() - expected) < 3.5 * error + 0.01 * expected  # the last: first order in the rate


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Problem("tahn", 3, 4, 2), "did you mean 'tanh'"),
        (lambda: Problem("tanh", 1, 4, 2), "depth"),
        (lambda: Problem("tanh", 3, 4, 2, betas=(1, 1, 1)), "betas"),
        (lambda: Problem(lambda z: z.softmax(-1), 3, 4, 2), "mixes entries"),
        (lambda: Problem(torch.nn.PReLU(), 3, 4, 2), "parameters of its own"),
        (lambda: Problem("tanh", 3, 4, 2).rates("natural"), "metric"),
        (lambda: Problem("tanh", 3, 4, 2).rates([1.0]), "one number"),
        (lambda: gaussian_sample(Problem("tanh", 3, 4, 2), 7), "at least 8"),
        (lambda: product_sample(Problem("tanh", 3, 4, 16), gauss_hermite(64)), "gaussian_sample"),
        (lambda: ansatz(Problem("tanh", 3, 4, 2), [0.1, 0.1]), "scales"),
        (lambda: ansatz(Problem("tanh", 3, 5, 2, betas=(1, 0.5)), np.ones((3, 2))), "blocks"),
        (lambda: given_networks(Problem("tanh", 2, 4, 2), [np.ones((4, 3)), np.ones((1, 4))]), "W_1"),
        (lambda: Integration(rtol=1e-8, dtype=torch.float32), "too fine"),
        (lambda: Integration(method="euler"), "method"),
    ],
)
def test_bad_input_is_named(call, message) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_the_sample_has_the_symmetries_and_moments_of_the_gaussian_law() -> None:
    odd = Problem("tanh", 3, 4, 5, betas=(1.0, 0.5))
    sample = gaussian_sample(odd, 256)
    assert sample.size == 256
    x, y = sample.points.numpy(), sample.targets.numpy()[0]
    np.testing.assert_allclose(x @ x.T / 256, np.eye(5), atol=1e-12)
    np.testing.assert_allclose(x[2:] @ y / 256, 0, atol=1e-12)
    assert np.mean(np.tanh(x[0]) * x[0]) == pytest.approx(0.605705510, rel=1e-3)
    even = gaussian_sample(Problem("gelu", 3, 4, 5), 256).points.numpy()
    np.testing.assert_allclose(np.sort(even[0]), np.sort(-even[0]), atol=1e-12)
    grid = product_sample(Problem("gelu", 3, 4, 2), gauss_hermite(40))
    g = grid.points[0].numpy()
    assert float(
        (torch.nn.functional.gelu(grid.points[0]) * grid.points[0] * grid.weights).sum()
    ) == pytest.approx(0.5)
    assert float(grid.weights @ torch.from_numpy(g**4)) == pytest.approx(3, rel=1e-10)


@pytest.mark.slow
def test_larger_samples_give_the_same_escape_time() -> None:
    problem = Problem("tanh", depth=4, width=16, inputs=6)
    networks = scaled_he(problem, 4, [0.5], 2)
    times = [
        escape(problem, networks, sample=gaussian_sample(problem, size, seed), thresholds=[0.05])[
            "time"
        ].values
        for size, seed in ((512, 1), (4096, 2))
    ]
    np.testing.assert_allclose(times[0], times[1], rtol=0.01)
