"""Two-step training of real networks: residuals by width, the function it ends with, and refusals."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import foretrain as ft
from foretrain.compare.build import build, parameter_groups
from foretrain.support.errors import AccuracyWarning, InputError, NotSupportedError
from foretrain.theory.prediction.finite_width import OneNetwork
from foretrain.training.two_step import two_step

X = torch.tensor([(-0.1, -0.7), (2.1, 0.25)]).double()
X_TEST = torch.tensor([(-1.2, -0.95)]).double()
Y = torch.tensor([(-0.3, 0.8), (1.6, -0.5)]).double()


def network(width: int, seed: int, outputs: int = 2) -> tuple[ft.MLP, torch.nn.Module]:
    mlp = ft.MLP("sin", 2, width, n_in=2, n_out=outputs, C_b=0.1, C_W=1.3, lambda_b=0.5)
    return mlp, build(mlp, seed=seed)


def residuals(width: int, networks: int, *, mean_kernel: bool) -> np.ndarray:
    """Mean size after the leap and after the small step, over some networks."""
    found = []
    for seed in range(networks):
        mlp, model = network(width, seed)
        kernel = ft.flow(mlp, X.numpy(), ["Theta"])["Theta"].values[-1] if mean_kernel else None
        trained = two_step(model, X, Y, rates=parameter_groups(model, mlp, 1.0), kernel=kernel)
        found.append([float(residual.abs().mean()) for residual in trained.residuals[1:]])
    return np.mean(found, axis=0)


def test_wide_networks_fit_in_two_steps() -> None:
    before = float(Y.abs().mean())
    leap, step = residuals(2000, 3, mean_kernel=False)
    assert leap < before / 100
    assert step < leap / 20


@pytest.mark.statistical
def test_residuals_fall_with_the_width() -> None:
    """As 1/n after the leap; 1/n^2 after a step with the own kernel, 1/n^1.5 with the mean one, whose 1/sqrt(n)
    fluctuations it does not know. Sizes of 40 networks have a relative error of about 0.15, powers one of 0.08."""
    own, mean = ([residuals(width, 40, mean_kernel=kind) for width in (200, 3200)] for kind in (False, True))
    np.testing.assert_allclose(own[0][0], mean[0][0], rtol=1e-12)
    powers = [np.log(pair[0] / pair[1]) / np.log(16) for pair in (own, mean)]
    assert powers[0][0] == pytest.approx(1, abs=0.25)
    assert powers[0][1] == pytest.approx(2, abs=0.4)
    assert powers[1][1] == pytest.approx(1.5, abs=0.3)


def test_the_end_is_the_one_that_projectors_predict() -> None:
    """(∞.141) with (∞.148) for one wide network, closer than its frozen kernel by far."""
    mlp, model = network(1000, 1)
    groups, x = parameter_groups(model, mlp, 1.0), torch.cat([X, X_TEST])
    second = ft.ddntk(model, x, rates=groups)
    differentials = [ft.dntk(model, x, rates=groups), second.dd_I, second.dd_II]
    start, H = model(x).detach().numpy(), np.asarray(ft.ntk(model, x, rates=groups))
    one = OneNetwork.of(start, Y.numpy(), H, *(np.asarray(part) for part in differentials))
    expected = one.trained("two_step")
    found = two_step(model, X, Y, rates=groups).model(x).detach().numpy()
    assert np.abs(found - expected.outputs).max() < 0.2 * np.abs(found - expected.free_outputs).max()


def test_a_linear_model_is_done_after_the_leap() -> None:
    model = torch.nn.Linear(2, 2).double()
    trained = two_step(model, X, Y)
    assert trained.largest[1] < 1e-12
    assert trained.losses[0] > 0.1
    assert trained.losses[2] < 1e-20
    assert "after the leap" in repr(trained)


def test_the_model_itself_stays() -> None:
    _, model = network(20, 0)
    before = copy.deepcopy(model.state_dict())
    trained = two_step(model, X, Y, parameters="layers.1.*")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    after = trained.model.state_dict()
    assert torch.equal(after["layers.0.weight"], before["layers.0.weight"])
    assert not torch.equal(after["layers.1.weight"], before["layers.1.weight"])
    assert trained.largest[1] < 1e-10  # the last layer alone is linear in its parameters


def test_refusals() -> None:
    _, model = network(20, 0)
    with pytest.raises(InputError, match=r"y has shape \(2, 1\)"):
        two_step(model, X, Y[:, :1])
    with pytest.raises(NotSupportedError, match="leave out repeated samples"):
        two_step(model, torch.cat([X, X]), torch.cat([Y, Y]))
    with pytest.raises(InputError, match="mean tangent kernel"):
        two_step(model, X, Y, kernel=np.eye(3))
    with pytest.raises(InputError, match=r"nn\.Module"):
        two_step(lambda x: x, X, Y)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="not finite"):
        two_step(model, X, Y * float("nan"))
    with pytest.raises(InputError, match="samples first"):
        two_step(network(20, 0, outputs=1)[1], X, Y[:1, :])


def test_single_precision_does_not_trust_its_rounding() -> None:
    """A third sample so close to the first that float32 cannot tell their gradients apart."""
    _, model = network(50, 0)
    x, y = torch.cat([X, X[:1] + 1e-4]), torch.cat([Y, Y[:1]])
    assert two_step(model, x, y).condition_number > 1e7
    with pytest.raises(NotSupportedError, match="double precision"):
        two_step(copy.deepcopy(model).float(), x.float(), y.float())


def test_a_narrow_network_is_warned_of() -> None:
    _, model = network(4, 3)
    with pytest.warns(AccuracyWarning, match="largest residual") as warned:
        two_step(model, X, 5 * Y)
    assert warned[0].filename == __file__


def test_gradients_are_found_where_they_are_switched_off() -> None:
    _, model = network(500, 0)
    with torch.no_grad():
        found = two_step(model, X, Y)
    np.testing.assert_allclose(found.largest, two_step(model, X, Y).largest, rtol=1e-12)
