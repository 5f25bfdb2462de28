from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from foretrain.doctor.examine import Training, make_setup
from foretrain.doctor.output_kernel import (
    OutputKernel,
    crossing,
    loss_matrix,
    output_kernel,
    reference,
)
from foretrain.doctor.setup import Case
from foretrain.support.errors import NotSupportedError


def case_of(model, x, y, loss=None, optimizer=0.01):
    return Case(make_setup(model, x, y, Training(loss=loss, optimizer=optimizer, batch_size=None, seed=0)))


def network(outputs=2):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, outputs)).double()


def inputs(samples=30):
    return torch.randn(samples, 4, generator=torch.Generator().manual_seed(1)).double()


def test_the_matrix_is_the_sum_of_rates_and_gradients_with_momentum():
    model, x = network(), inputs(6)
    groups = [{"params": model[0].parameters(), "lr": 0.3}, {"params": model[2].parameters(), "lr": 0.1}]
    case = case_of(model, x, x[:, :2], optimizer=torch.optim.SGD(groups, momentum=0.5))
    rows = []
    for value in model(x).flatten():
        gradients = torch.autograd.grad(value, list(model.parameters()), retain_graph=True)
        rates = [0.3, 0.3, 0.1, 0.1]
        rows.append(torch.cat([(2 * r) ** 0.5 * g.flatten() for r, g in zip(rates, gradients)]))
    jacobian = torch.stack(rows)
    np.testing.assert_allclose(output_kernel(case).matrix, (jacobian @ jacobian.T).numpy(), rtol=1e-9)


def test_squares_follow_the_exact_exponential():
    """Against descent of a linear model in small steps."""
    x = inputs()
    model = nn.Linear(4, 2).double()
    y = torch.sin(2 * x[:, :2])
    forecast = output_kernel(case_of(model, x, y, optimizer=0.01)).forecast
    descent = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(400):
        loss = nn.functional.mse_loss(model(x), y)
        losses.append(float(loss.detach()))
        descent.zero_grad()
        loss.backward()
        descent.step()
    steps = np.array([3, 10, 40, 100, 390])
    np.testing.assert_allclose(
        np.interp(steps, forecast.steps, forecast.losses), np.array(losses)[steps], rtol=0.03
    )


def test_cross_entropy_follows_descent_in_small_steps():
    x, model = inputs(), network(3)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
    kernel = output_kernel(case_of(model, x, y, optimizer=0.5))
    outputs, left = torch.as_tensor(kernel.outputs), []
    for _ in range(3000):
        slope = (torch.softmax(outputs, 1) - nn.functional.one_hot(y, 3)) / len(x)
        left.append(float(slope.square().sum()))
        outputs = outputs - 0.2 * (torch.as_tensor(kernel.matrix) @ slope.flatten()).reshape(outputs.shape)
    times, shares = 0.2 * np.arange(3000), np.array(left) / left[0]
    for share in (0.8, 0.5, 0.3):
        assert kernel.forecast.steps_until(share) == pytest.approx(crossing(times, shares, share), rel=0.05)


@pytest.mark.parametrize("loss", ["cross_entropy", "coupled"])
def test_the_curvature_of_any_loss_is_exact(loss):
    x, model = inputs(5), network(3)
    labels = torch.arange(5) % 3

    def coupled(outputs, _):
        return (outputs @ outputs.T).square().mean() + outputs.square().mean()

    given = coupled if loss == "coupled" else loss
    case = case_of(model, x, labels, loss=given)
    outputs = model(x).detach()
    expected = torch.autograd.functional.hessian(
        lambda flat: case.task.loss(flat.reshape(5, 3), case.task.y), outputs.flatten()
    )
    found = loss_matrix(case.task, outputs.numpy())
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-6, atol=1e-9)


def test_other_optimizers_are_seen_as_descent_at_its_recommended_rate():
    model, x = network(), inputs()
    case = case_of(model, x, x[:, :2], optimizer=torch.optim.Adam(model.parameters(), lr=1e-3))
    assert reference(case).recipe.kind is torch.optim.SGD
    assert reference(case) is reference(case)
    descending = case_of(model, x, x[:, :2])
    assert reference(descending) is descending


def test_a_straight_loss_has_no_times_and_many_outputs_no_kernel():
    model, x = network(), inputs()
    with pytest.raises(NotSupportedError, match="curvature"):
        _ = output_kernel(case_of(model, x, x[:, :2], loss=nn.functional.l1_loss)).forecast
    with pytest.raises(NotSupportedError, match="too many"):
        output_kernel(case_of(nn.Linear(4, 4000).double(), x, torch.zeros(30, 4000).double()))


def test_crossing_lies_between_the_points():
    assert crossing(np.array([0.0, 1.0, 2.0]), np.array([1.0, 0.6, 0.4]), 0.5) == pytest.approx(1.5)
    assert crossing(np.array([0.0, 1.0]), np.array([1.0, 0.9]), 0.5) == float("inf")


def test_rounding_below_zero_lets_no_error_grow():
    """Eigenvalues of -1e-6: in a million times of the fastest direction the error along them would grow e-fold."""
    x, model = inputs(), network(3)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
    found = output_kernel(case_of(model, x, y, optimizer=0.5))
    values, vectors = np.linalg.eigh(found.matrix)
    values[: len(values) // 2] = -1e-6 * values[-1]
    spoilt = OutputKernel(found.task, (vectors * values) @ vectors.T, found.outputs, found.slope)
    assert spoilt.forecast.losses[-1] <= spoilt.forecast.losses.min() * (1 + 1e-9)
