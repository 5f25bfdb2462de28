"""Momentum and torch losses beside torch: autograd, linearised networks under torch.optim.SGD, wide networks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import foretrain as ft
from foretrain.compare.judging.ladder import extrapolation_weights
from foretrain.compare.prediction import torch_loss
from foretrain.support.errors import InputError
from foretrain.theory.prediction.algorithms import Descent
from foretrain.theory.prediction.infinite_width import GradientDescent, OutputKernels
from foretrain.theory.prediction.infinite_width.other_losses import error_sums

RNG = np.random.default_rng(0)
X, Y, TESTS = RNG.normal(size=(5, 3)), RNG.normal(size=(5, 2)), RNG.normal(size=(3, 3))
LABELS, SIGNS = np.array([0, 1, 1, 0, 1]), np.sign(Y)
MLP = ft.MLP("erf", depth=3, width=64, n_in=3, n_out=2, C_b=0.2, C_W=1.6, lambda_b=0.2, lambda_W=1.6)
FLOW: dict[str, Any] = {"algorithm": "flow", "time": 1.5, "draws": 30}
LOSSES: dict[str, tuple[Callable[..., Tensor], np.ndarray]] = {
    "huber": (F.huber_loss, Y),
    "sum of squares": (nn.MSELoss(reduction="sum"), Y),
    "binary": (nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 3.0])), (Y > 0) * 1.0),
    "poisson": (nn.PoissonNLLLoss(), np.round(Y**2)),
    "classes": (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]), label_smoothing=0.1), LABELS),
    "multi-margin": (F.multi_margin_loss, LABELS),
    "soft margin": (F.soft_margin_loss, SIGNS),
    "squared hinge": (lambda z, y: torch.relu(1 - y * z).square().sum(), SIGNS),
    "with a condition": (lambda z, y: (z - y).abs().sum() if z.sum() > 0 else (z - y).square().sum(), Y),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_many_networks_are_those_of_each_by_autograd(name: str) -> None:
    loss, targets = LOSSES[name]
    ours, outputs = torch_loss(loss), np.random.default_rng(1).normal(size=(7, 5, 2))
    values, slopes = ours.value(outputs, targets), ours.slope(outputs, targets)
    for z, value, slope in zip(outputs, values, slopes):
        one = torch.tensor(z, requires_grad=True)
        weighted = loss.double() if isinstance(loss, nn.Module) else loss
        expected = weighted(one, torch.tensor(targets))
        expected.backward()
        assert value == pytest.approx(float(expected.detach()), rel=1e-12)
        np.testing.assert_allclose(slope, one.grad, atol=1e-14)


def test_torch_losses_are_taken_as_they_are() -> None:
    """torch's mean over 10 numbers is 1/5 of half the sum of squares, whatever the number of networks."""
    mean = ft.predict(MLP, X, Y, TESTS, loss=F.mse_loss, **FLOW)
    pair = (lambda z, y: np.sum((z - y) ** 2) / 2, lambda z, y: z - y)
    half = ft.predict(MLP, X, Y, TESTS, loss=pair, algorithm="flow", time=1.5 / 5, draws=30)
    np.testing.assert_allclose(mean.samples, half.samples, atol=1e-6)  # type: ignore[attr-defined]
    summed = ft.predict(MLP, X, Y, TESTS, loss=nn.MSELoss(reduction="sum"), **{**FLOW, "time": 0.15})
    np.testing.assert_allclose(summed.samples, half.samples, atol=1e-6)  # type: ignore[attr-defined]
    assert "MSELoss, after flow time 0.15" in repr(summed)
    classes = ft.predict(MLP, X, LABELS, TESTS, loss=nn.CrossEntropyLoss(reduction="sum"), **FLOW)
    named = ft.predict(MLP, X, LABELS, TESTS, loss="cross_entropy", **FLOW)
    np.testing.assert_allclose(classes.mean, named.mean, atol=1e-6)
    known = classes.about(X, LABELS, TESTS, np.array([0, 1, 1]))
    assert "half the sum of squares" not in repr(known)
    assert "half the sum of squares" in repr(summed.about(X, Y, TESTS, Y[:3]))


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("asked", [{"momentum": 0.8, "eta": 0.1, "time": 6}, {"loss": F.huber_loss, **FLOW}])
def test_a_module_is_predicted_as_the_mlp_it_is(asked: dict[str, Any]) -> None:
    layers = nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
    module, mlp = nn.Sequential(*layers).double(), MLP.replace(activation="relu", lambda_b=0.3, lambda_W=0.8)
    options: dict[str, Any] = {"init": {"*": (1.6, 0.2)}, "rates": {"*": (0.8, 0.3)}}
    for spread in ("covariance", "none"):
        expected = ft.predict(mlp, X, Y, TESTS, **asked, spread=spread)
        found = ft.predict(module, X, Y, TESTS, **asked, **options, spread=spread)
        np.testing.assert_allclose(found.mean, expected.mean, atol=1e-6)
        assert (found.variance is None) == (expected.variance is None)
        if expected.variance is not None:
            np.testing.assert_allclose(found.variance, expected.variance, atol=1e-6)


@pytest.mark.parametrize(("m", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
@pytest.mark.parametrize("name", ["squared_error", "huber"])
def test_linearised_networks_move_as_torch_steps_them(m: float, nesterov: bool, name: str) -> None:
    """f(theta_0) + J (theta - theta_0) of a real network, whose parameters torch.optim.SGD changes."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 1)).double()
    both, y, steps, eta = torch.tensor(np.concatenate([X, TESTS])), torch.tensor(Y[:, :1]), 13, 0.04
    weights = {key: value.detach() for key, value in network.named_parameters()}
    parts = torch.func.jacrev(lambda w: torch.func.functional_call(network, w, (both,))[:, 0])(weights)
    J = torch.cat([parts[key].reshape(8, -1) for key in weights], dim=1)
    start, theta = network(both).detach(), torch.zeros(J.shape[1], dtype=torch.float64, requires_grad=True)
    losses: dict[str, Callable[..., Tensor]] = {
        "squared_error": lambda z, y: (z - y).square().sum() / 2,
        "huber": nn.HuberLoss(reduction="sum", delta=0.3),
    }
    optimizer = torch.optim.SGD([theta], lr=eta, momentum=m, nesterov=nesterov)
    for _ in range(steps):
        optimizer.zero_grad()
        losses[name](start[:5] + (J[:5] @ theta)[:, None], y).backward()
        optimizer.step()
    end = (start + (J @ theta)[:, None]).detach().numpy()

    Theta, z = (J @ J.T).numpy(), start.numpy()
    way, ours = Descent(eta, steps, m, nesterov), torch_loss(losses[name])
    sums = error_sums(Theta[:5, :5], lambda outputs: ours.slope(outputs, Y[:, :1]), z[None, :5], way)
    np.testing.assert_allclose(z - Theta[:, :5] @ sums[0], end, atol=1e-12)
    if name == "squared_error":
        kernels = OutputKernels.from_matrices(np.zeros((8, 8)), Theta, 5)
        moved = GradientDescent(kernels, Y[:, :1] - z[:5]).after(way).mean.values
        np.testing.assert_allclose(z[5:] + moved, end[5:], atol=1e-12)


def trained_means(width: int, pairs: int, loss: Callable[..., Tensor], way: Descent, seed: int) -> np.ndarray:
    """Test outputs (pairs, tests, outputs) of real networks after training, averaged with those that start at -f.

    Weights are normal numbers times (C_W / fan-in)^(1/2), so that unit rates are lambda_W = C_W, lambda_b = C_b.
    """
    source, sizes = torch.Generator().manual_seed(seed), (3, width, width, 2)

    def normal(*shape: int) -> Tensor:
        drawn = torch.randn(pairs, *shape, generator=source, dtype=torch.float64)
        flip = -1 if shape[0] == 2 else 1  # the same network with its last layer reversed
        return torch.cat([drawn, flip * drawn]).requires_grad_()

    weights = [normal(n, m) for m, n in pairwise(sizes)]
    biases = [normal(n, 1) for n in sizes[1:]]

    def forward(x: np.ndarray) -> Tensor:
        z = torch.tensor(x).T.expand(2 * pairs, -1, -1)
        for place, (w, b) in enumerate(zip(weights, biases)):
            z = torch.erf(z) if place else z
            z = (1.6 / z.shape[1]) ** 0.5 * torch.bmm(w, z) + 0.2**0.5 * b
        return z.mT

    assert way.eta is not None
    optimizer = torch.optim.SGD([*weights, *biases], lr=way.eta, momentum=way.momentum, nesterov=way.nesterov)
    targets = torch.tensor(Y).expand(2 * pairs, -1, -1)
    for _ in range(way.steps or 0):
        optimizer.zero_grad()
        loss(forward(X), targets).backward()  # a sum over networks too, each of which sees its own part
        optimizer.step()
    with torch.no_grad():
        return forward(TESTS).reshape(2, pairs, len(TESTS), 2).mean(dim=0).numpy()


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["momentum", "nesterov", "huber"])
def test_wide_trained_networks_have_the_predicted_mean(name: str) -> None:
    """Means over networks of widths 64, 128, 256, extrapolated in 1/n, within their standard errors."""
    huber = nn.HuberLoss(reduction="sum", delta=0.4)
    loss = huber if name == "huber" else lambda z, y: (z - y).square().sum() / 2
    way = Descent(0.03, 12, 0.8, name == "nesterov") if name != "huber" else Descent(0.05, 40)
    widths, counts = np.array([64, 128, 256]), (1600, 800, 400)
    runs = [
        trained_means(width, pairs, loss, way, seed)
        for seed, (width, pairs) in enumerate(zip(widths, counts))
    ]
    means = np.stack([run.mean(axis=0).ravel() for run in runs])
    errors = np.stack([run.std(axis=0, ddof=1).ravel() / len(run) ** 0.5 for run in runs])
    shares = extrapolation_weights(1 / widths, errors)
    limit, error = np.sum(shares * means, axis=0), np.sqrt(np.sum((shares * errors) ** 2, axis=0))
    if name == "huber":
        found = ft.predict(MLP, X, Y, TESTS, loss=huber, algorithm=way, draws=40_000, spread="none")
        law, doubt = found.mean.values.ravel(), found.mean_standard_error.values.ravel()  # type: ignore[attr-defined]
    else:
        law, doubt = ft.predict(MLP, X, Y, TESTS, algorithm=way).mean.values.ravel(), np.zeros(6)
    z = (limit - law) / np.hypot(error, doubt)
    assert np.abs(z).max() < 3.5
    assert np.sqrt(np.mean(z**2)) < 1.6
    plain = ft.predict(MLP, X, Y, TESTS, algorithm=Descent(way.eta, way.steps)).mean.values.ravel()
    assert (
        np.abs((plain - limit) / error).max() > 10
    )  # what is predicted without momentum, or for squared errors


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (nn.HuberLoss(reduction="none"), "HuberLoss does not give one number .* reduction='sum' or 'mean'"),
        (nn.HuberLoss, "HuberLoss cannot be taken of outputs"),
        (lambda z, y: torch.tensor(float((z - y).sum())), "depends on the outputs"),
        (
            lambda z, y: np.sum(z - y),
            "cannot be taken of outputs .* a pair .value, gradient. of numpy functions",
        ),
        (nn.CrossEntropyLoss(weight=torch.ones(3)), r"outputs \(5, 2\) and targets \(5, 2\)"),
        (lambda z, y: (z - y).sum().log(), "give one finite number"),
        ("huber", "unknown loss 'huber'"),
    ],
)
def test_bad_losses(loss: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ft.predict(MLP, X, Y, TESTS, loss=loss, **FLOW)


def test_labels_out_of_range() -> None:
    with pytest.raises(InputError, match="out of bounds"):
        ft.predict(MLP, X, LABELS + 1, TESTS, loss=F.cross_entropy, **FLOW)
