"""Networks trained in two updates: together, one by one, and by explicit Jacobians."""

from __future__ import annotations

import numpy as np
import torch
from drawn_networks import loaded
from torch.func import functional_call

import foretrain as ft
from foretrain.compare.build import Network, parameter_groups
from foretrain.compare.trained import Training, train_ensemble
from foretrain.compare.trained.ensemble import two_step_ensemble
from foretrain.training.two_step import two_step

TRAIN, TEST = np.array([(-0.1, -0.7), (2.1, 0.25)]), np.array([(-1.2, -0.95)])
TWO = np.array([(-0.3, 0.8), (1.6, -0.5)])
TINY = ft.MLP(
    "sin",
    depth=3,
    width=6,
    n_in=2,
    n_out=2,
    C_b=0.1,
    C_W=1.3,
    lambda_b=(0.2, 0.3, 0.1),
    lambda_W=(0.6, 0.8, 0.5),
)


def jacobian(net: Network, x: np.ndarray) -> np.ndarray:
    """dz / dθ by automatic differentiation, rows (sample, output)."""
    parameters = dict(net.named_parameters())

    def outputs(values: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional_call(net, values, torch.tensor(x)).reshape(-1)

    parts = torch.func.jacrev(outputs)(parameters)
    return np.concatenate(
        [part.reshape(part.shape[0], -1).detach().numpy() for part in parts.values()], axis=1
    )


def rates_of(net: Network, mlp: ft.MLP) -> np.ndarray:
    """λ of every parameter, in the order of the Jacobian."""
    rate = {id(p): group["lr"] for group in parameter_groups(net, mlp, 1.0) for p in group["params"]}
    return np.concatenate([np.full(p.numel(), rate[id(p)]) for p in net.parameters()])


def says(net: Network, x: np.ndarray) -> np.ndarray:
    return np.asarray(net(torch.tensor(x)).detach())


def by_hand(net: Network, mlp: ft.MLP) -> dict[str, np.ndarray]:
    """The two-step algorithm, its frozen-kernel end and both kernels, with explicit Jacobians."""
    everything, rates = np.concatenate([TRAIN, TEST]), rates_of(net, mlp)
    before, J = jacobian(net, everything), jacobian(net, TRAIN)
    kernel, error = J * rates @ J.T, (says(net, TRAIN) - TWO).reshape(-1)
    free = says(net, everything).reshape(-1) - before * rates @ J.T @ np.linalg.solve(kernel, error)
    for _ in range(2):
        error = (says(net, TRAIN) - TWO).reshape(-1)
        move = rates * (jacobian(net, TRAIN).T @ np.linalg.solve(kernel, error))
        parts = np.split(move, np.cumsum([p.numel() for p in net.parameters()])[:-1])
        with torch.no_grad():
            for parameter, part in zip(net.parameters(), parts):
                parameter -= torch.tensor(part).reshape(parameter.shape)
    after = jacobian(net, everything)
    return {
        "kernel_before": before * rates @ before.T,
        "kernel_after": after * rates @ after.T,
        "free": free,
        "end": says(net, everything).reshape(-1),
    }


def test_two_updates_together_are_two_updates_one_by_one() -> None:
    found = two_step_ensemble(TINY, TRAIN, TEST, TWO, range(4), seed=5)
    assert found.kernel_before is not None
    assert found.kernel_after is not None
    assert found.free is not None
    for place, net in enumerate(loaded(TINY, 4, seed=5, mirrored=True)):
        np.testing.assert_allclose(found.start[place], says(net, np.concatenate([TRAIN, TEST])), atol=1e-12)
        again = two_step(net, torch.tensor(TRAIN), torch.tensor(TWO), rates=parameter_groups(net, TINY, 1.0))
        assert isinstance(again.model, Network)
        np.testing.assert_allclose(found.end[place][2:], says(again.model, TEST), rtol=1e-9, atol=1e-9)
        hand = by_hand(net, TINY)
        for name in ("kernel_before", "kernel_after"):
            own = getattr(found, name)[place].transpose(2, 0, 3, 1).reshape(6, 6)
            np.testing.assert_allclose(own, hand[name], rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(found.free[place].reshape(-1), hand["free"], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(found.end[place].reshape(-1), hand["end"], rtol=1e-9, atol=1e-9)
    assert np.abs(found.end - found.free).max() > 1e-2


def test_two_step_networks_are_those_that_descent_trains() -> None:
    how = Training(TWO, 0.2, time=1)
    descent = train_ensemble(TINY, TRAIN, TEST, how, 30, seed=2, mirrored=True)
    leap = two_step_ensemble(TINY, TRAIN, TEST, TWO, range(30), seed=2)
    np.testing.assert_array_equal(descent.start, leap.start)
    later = two_step_ensemble(TINY, TRAIN, TEST, TWO, range(10, 30), seed=2)
    np.testing.assert_allclose(later.end, leap.end[10:], rtol=1e-11, atol=1e-11)
