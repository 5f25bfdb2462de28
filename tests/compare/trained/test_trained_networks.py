from __future__ import annotations

import numpy as np
import pytest
import torch
from drawn_networks import loaded
from scipy.linalg import expm

import foretrain as ft
from foretrain.compare.build import Network, parameter_groups
from foretrain.compare.trained import Training, draw_ensemble, train_ensemble
from foretrain.support.errors import InputError, NotEnoughMemoryError

X = 1.3 * np.array([(1, 0.2, -0.5), (-0.4, 1.1, 0.3), (0.1, -0.6, 1.2), (0.8, 0.7, 0.1), (-0.9, 0.3, 0.8)])
A = 3
Y = np.array([(1, -0.5), (-0.7, 0.8), (0.4, 1.2)])
P = np.array([(0.7, 0.3), (0.2, 0.8), (0.5, 0.5)])
TANH = ft.MLP(
    "tanh",
    depth=3,
    width=16,
    n_in=3,
    n_out=2,
    C_b=(0.1, 0.1, 0.05),
    C_W=(1.2, 1.3, 1),
    lambda_b=(0.2, 0.3, 0.1),
    lambda_W=(0.6, 0.8, 0.5),
)
GELU = ft.MLP("gelu", depth=4, width=9, n_in=3, n_out=2, C_b=0.3, C_W=1.4, gamma=[0, 0.4, 0.5, 0])
RELU = ft.MLP("relu", depth=3, width=[6, 12], n_in=3, n_out=2, C_W=2.0)
LAST = TANH.replace(lambda_b=(0, 0, 0.1), lambda_W=(0, 0, 0.5))
UPPER = TANH.replace(lambda_b=(0, 0.2, 0.1), lambda_W=(0, 0, 0.5))


def trained_alone(network: Network, mlp: ft.MLP, eta: float, steps: int, loss: str) -> np.ndarray:
    """Outputs after training with torch's own optimizer and automatic derivatives."""
    optimizer = torch.optim.SGD(parameter_groups(network, mlp, eta))
    x = torch.tensor(X[:A])
    for _ in range(steps):
        optimizer.zero_grad()
        if loss == "squared_error":
            value = 0.5 * ((network(x) - torch.tensor(Y)) ** 2).sum()
        else:
            value = -(torch.tensor(P) * torch.log_softmax(network(x), dim=1)).sum()
        value.backward()
        optimizer.step()
    return np.asarray(network(torch.tensor(X)).detach())


@pytest.mark.parametrize(
    "mlp", [TANH, GELU, RELU, LAST, UPPER], ids=["tanh", "residual", "relu", "last", "upper"]
)
@pytest.mark.parametrize("loss", ["squared_error", "cross_entropy"])
def test_training_together_is_training_one_by_one(mlp: ft.MLP, loss: str) -> None:
    targets = Y if loss == "squared_error" else P
    how = Training(targets, 0.2, time=25, loss=loss)  # type: ignore[arg-type]
    found = train_ensemble(mlp, X[:A], X[A:], how, draws=3, seed=5)
    for place, network in enumerate(loaded(mlp, 3, seed=5)):
        np.testing.assert_allclose(found.start[place], network(torch.tensor(X)).detach(), atol=1e-12)
        alone = trained_alone(network, mlp, 0.2, 25, loss)
        np.testing.assert_allclose(found.end[place], alone, rtol=1e-10, atol=1e-10)


def test_a_seed_gives_the_same_networks_in_any_groups() -> None:
    how = Training(Y, 0.4, time=30)
    one, other = (
        train_ensemble(TANH, X[:A], X[A:], how, draws=14, seed=3, mirrored=True, group=group)
        for group in (14, 3)
    )
    np.testing.assert_allclose(one.end, other.end, rtol=1e-11, atol=1e-11)
    fewer = train_ensemble(TANH, X[:A], X[A:], how, draws=6, seed=3, mirrored=True)
    np.testing.assert_allclose(one.end[:6], fewer.end, rtol=1e-11, atol=1e-11)
    another = train_ensemble(TANH, X[:A], X[A:], how, draws=6, seed=4, mirrored=True)
    assert np.abs(another.start - fewer.start).min() > 0


def test_ends_do_not_depend_on_when_others_end() -> None:
    how = Training(Y, 0.4, tolerance=1e-5)
    together = train_ensemble(TANH, X[:A], X[A:], how, draws=8, group=8)
    alone = train_ensemble(TANH, X[:A], X[A:], how, draws=8, group=1)
    assert len(set(together.steps)) > 3
    np.testing.assert_array_equal(together.steps, alone.steps)
    np.testing.assert_allclose(together.end, alone.end, rtol=1e-11, atol=1e-11)
    first = np.abs(together.start[:, :A] - Y).max(axis=(1, 2))
    left = np.abs(together.end[:, :A] - Y).max(axis=(1, 2)) / first
    assert left.max() <= 1e-5 < 10 * left.max()


def test_steps_are_those_that_it_took_to_the_end() -> None:
    found = train_ensemble(TANH, X[:A], None, Training(Y, 0.4, tolerance=1e-3), draws=4)
    assert len(set(found.steps)) > 1
    first = np.abs(found.start - Y).max(axis=(1, 2))
    for place, steps in enumerate(found.steps):
        before, there = (
            train_ensemble(TANH, X[:A], None, Training(Y, 0.4, time=steps - 1 + more), draws=4).end[place]
            for more in (0, 1)
        )
        assert np.abs(there - Y).max() <= 1e-3 * first[place] < np.abs(before - Y).max()


def test_mirrored_networks_start_with_opposite_outputs() -> None:
    found = train_ensemble(GELU, X[:A], X[A:], Training(Y, 0.1, time=1), draws=6, mirrored=True)
    np.testing.assert_allclose(found.start[::2], -found.start[1::2], atol=1e-14)
    assert np.abs(found.start[0] - found.start[2]).min() > 0


@pytest.mark.parametrize("mlp", [TANH, GELU, UPPER], ids=["tanh", "residual", "upper"])
def test_kernels_are_those_of_the_torch_networks(mlp: ft.MLP) -> None:
    how = Training(Y, 0.05, time=10)
    found = train_ensemble(mlp, X[:A], X[A:], how, 2, seed=1, keep=("kernel_before", "kernel_after", "free"))
    for place, network in enumerate(loaded(mlp, 2, seed=1)):
        groups = parameter_groups(network, mlp, eta=1.0)
        before = np.asarray(ft.ntk(network, torch.tensor(X), rates=groups)).transpose(2, 3, 0, 1)
        np.testing.assert_allclose(found.kernel_before[place], before, rtol=1e-10, atol=1e-12)
        trained_alone(network, mlp, 0.05, 10, "squared_error")
        groups = parameter_groups(network, mlp, eta=1.0)
        after = np.asarray(ft.ntk(network, torch.tensor(X), rates=groups)).transpose(2, 3, 0, 1)
        np.testing.assert_allclose(found.kernel_after[place], after, rtol=1e-9, atol=1e-12)
        flat = before.transpose(0, 2, 1, 3).reshape(10, 10)  # rows (output, sample)
        seen = [0, 1, 2, 5, 6, 7]
        z = found.start[place].T.reshape(10)
        for _ in range(10):
            z = z - 0.05 * flat[:, seen] @ (z[seen] - Y.T.reshape(6))
        np.testing.assert_allclose(found.free[place].T.reshape(10), z, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("time", [None, 3.0])
def test_the_free_outputs_of_the_flow_are_those_of_a_frozen_kernel(time: float | None) -> None:
    how = Training(Y, 1.0, "flow", time=time, stride=0.1)
    found = draw_ensemble(GELU, X[:A], X[A:], how, 2, keep=("kernel_before", "free"))
    kernel = found.kernel_before.transpose(0, 1, 3, 2, 4).reshape(2, 10, 10)
    seen = [0, 1, 2, 5, 6, 7]
    for H, z, free in zip(kernel, found.start.mT.reshape(2, 10), found.free.mT.reshape(2, 10)):
        own, error = H[np.ix_(seen, seen)], z[seen] - Y.T.reshape(6)
        left = np.zeros_like(own) if time is None else expm(-time * own)
        expected = z - H[:, seen] @ np.linalg.solve(own, error - left @ error)
        np.testing.assert_allclose(free, expected, rtol=1e-8, atol=1e-9)


def test_free_outputs_stay_finite_where_steps_with_a_fixed_kernel_run_away() -> None:
    found = draw_ensemble(TANH, X[:A], X[A:], Training(Y, 4.0, time=200), 4, keep=("free", "kernel_before"))
    kernel = found.kernel_before.transpose(0, 1, 3, 2, 4).reshape(4, 10, 10)
    assert 4.0 * np.linalg.eigvalsh(kernel[:, :3, :3]).max() > 2
    assert np.abs(found.free).max() < 100


def test_networks_that_train_the_last_layer_end_at_their_linearised_end() -> None:
    found = train_ensemble(LAST, X[:A], X[A:], Training(Y, 3.0, tolerance=1e-12), 6, keep=("free", "metric"))
    np.testing.assert_allclose(found.end, found.free, atol=1e-9)
    features = found.metric - 0.05  # C_b
    assert features.shape == (6, 5, 5)
    kernel = 0.1 + 0.5 * features  # λ_b + λ_W σσ / n, with C_W = 1
    change = np.linalg.solve(kernel[:, :A, :A], found.start[:, :A] - Y)
    np.testing.assert_allclose(found.end, found.start - kernel[:, :, :A] @ change, atol=1e-9)


def test_deep_linear_networks_interpolate_exactly_at_any_width() -> None:
    mlp = ft.MLP("linear", depth=3, width=4, n_in=2, C_W=1.0)
    ends, middle = np.array([[1.0, 0.3], [-0.2, 0.8]]), np.array([[0.4, 0.55], [2.2, -0.2]])
    y = np.array([[0.7], [-1.1]])
    found = train_ensemble(mlp, ends, middle, Training(y, 0.05, tolerance=1e-12), draws=5)
    shares = np.array([0.5, 2.0])  # (10.104): any point of the line through both training inputs
    expected = shares * y[0] + (1 - shares) * y[1]
    np.testing.assert_allclose(found.end[:, 2:, 0], np.tile(expected, (5, 1)), atol=1e-9)


def test_the_flow_is_the_limit_of_small_steps() -> None:
    flow = Training(Y, 1.0, "flow", time=2.0, stride=0.2)
    whole = train_ensemble(TANH, X[:A], X[A:], flow, draws=4).end
    coarse, fine = (
        train_ensemble(TANH, X[:A], X[A:], Training(Y, 2.0 / steps, time=steps), draws=4).end
        for steps in (400, 800)
    )
    np.testing.assert_allclose(whole, 2 * fine - coarse, atol=2e-5)
    assert np.abs(whole - fine).max() > 1e-4


def test_noise_makes_the_last_layer_a_sample_of_the_posterior() -> None:
    bayes = TANH.replace(lambda_b=(0, 0, 0.05), lambda_W=(0, 0, 1.0))
    how = Training(Y, 1.0, noise=0.3, tolerance=1e-12)
    found = train_ensemble(bayes, X[:A], X[A:], how, draws=6, mirrored=True, keep=("metric",))
    assert found.offsets is not None
    np.testing.assert_allclose(found.offsets[::2], -found.offsets[1::2])
    kernel, start = found.metric, found.start
    change = np.linalg.solve(kernel[:, :A, :A] + 0.3 * np.eye(A), start[:, :A] + found.offsets - Y)
    np.testing.assert_allclose(found.end, start - kernel[:, :, :A] @ change, atol=1e-9)
    flowing = train_ensemble(
        bayes, X[:A], X[A:], Training(Y, 1.0, "flow", noise=0.3, stride=0.4), draws=6, mirrored=True
    )
    np.testing.assert_allclose(flowing.end, found.end, atol=1e-5)


@pytest.mark.slow
def test_networks_that_run_away_are_told_apart() -> None:
    found = train_ensemble(RELU, X[:A], X[A:], Training(Y, 0.65, time=60), draws=40, seed=1)
    growth = (np.abs(each[:, :A] - Y).max(axis=(1, 2)) for each in (found.end, found.start))
    assert 0 < found.diverged.sum() < 40
    np.testing.assert_array_equal(found.diverged, np.divide(*growth) > 1e3)
    alone = train_ensemble(RELU, X[:A], X[A:], Training(Y, 0.65, time=60), draws=40, seed=1, group=1)
    np.testing.assert_array_equal(found.diverged, alone.diverged)
    assert f"{found.diverged.sum()} diverged" in repr(found)


def test_bad_input() -> None:
    how = Training(Y, 0.1, time=3)
    with pytest.raises(InputError, match="even"):
        train_ensemble(TANH, X[:A], X[A:], how, draws=5, mirrored=True)
    with pytest.raises(InputError, match="kernel_after"):
        train_ensemble(TANH, X[:A], X[A:], how, draws=4, keep=("kernel",))
    with pytest.raises(InputError, match="targets"):
        train_ensemble(TANH, X[:2], X[A:], how, draws=4)
    with pytest.raises(InputError, match="reached the end"):
        train_ensemble(TANH, X[:A], None, Training(Y, 0.1, most_steps=5), draws=2)
    with pytest.raises(InputError, match="unknown result 'kernel_after'"):
        draw_ensemble(TANH, X[:A], X[A:], how, draws=4, keep=("kernel_after",))
    with pytest.raises(InputError, match="squared errors"):
        draw_ensemble(TANH, X[:A], None, Training(P, 0.1, loss="cross_entropy"), draws=4, keep=("free",))
    with pytest.raises(NotEnoughMemoryError):
        train_ensemble(TANH, X[:A], X[A:], how, draws=10**12)
    with pytest.raises(InputError, match="stride"):
        Training(Y, 0.1, "flow", time=1.0)
    with pytest.raises(InputError, match="whole numbers"):
        Training(Y, 0.1, time=1.5)
    with pytest.raises(InputError, match="noise"):
        Training(P, 0.1, noise=0.2, loss="cross_entropy")
    with pytest.raises(InputError, match="unknown algorithm 'newton'"):
        Training(Y, 0.1, "newton")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="hinge"):
        Training(Y, 0.1, loss="hinge")  # type: ignore[arg-type]
