from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from foretrain.doctor.examine import Training, make_setup
from foretrain.doctor.learning_curve import TRUSTED, learning_curve
from foretrain.doctor.setup import Case
from foretrain.support.errors import InputError


def case_of(model, x, y, optimizer, loss=None):
    return Case(make_setup(model, x, y, Training(loss=loss, optimizer=optimizer, batch_size=None, seed=0)))


def wide(width, seed=0):
    """One hidden layer in the parametrisation that has a limit: the kernel does not grow with the width."""
    torch.manual_seed(seed)

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, width), nn.Linear(width, 1)
            nn.init.normal_(self.first.weight)
            nn.init.normal_(self.last.weight)

        def forward(self, x):
            return self.last(torch.tanh(self.first(x) / 2)) / width**0.5

    return Network().double()


@pytest.fixture
def regression():
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(3)).double()
    return x, torch.sin(x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:3]


OPTIMIZERS = {
    "descent": lambda p: torch.optim.SGD(p, lr=0.2),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.03),
}


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("labels", [False, True])
def test_exact_for_a_linear_model(name, labels):
    torch.manual_seed(0)
    x, model = torch.randn(30, 5).double(), nn.Linear(5, 3).double()
    y = torch.arange(30) % 3 if labels else torch.randn(30, 3).double()
    found = learning_curve(case_of(model, x, y, OPTIMIZERS[name](model.parameters())), 80)
    np.testing.assert_allclose(found.predicted, found.measured, rtol=1e-6)
    assert found.measured[-1] < found.measured[0]
    assert found.trusted_until == 80
    assert found.relative_error.max() < 1e-9


def test_follows_the_kernel_of_descent(regression):
    """f_{t+1} = f_t - Theta dL/df, with Theta from the Jacobian written out."""
    x, y = regression
    model = wide(8)
    case = case_of(model, x, y, torch.optim.SGD(model.parameters(), lr=0.3))
    weights = dict(model.named_parameters())
    jacobian = torch.autograd.functional.jacobian(
        lambda *values: torch.func.functional_call(model, dict(zip(weights, values)), x)[:, 0],
        tuple(weights.values()),
    )
    kernel = sum(0.3 * part.flatten(1) @ part.flatten(1).T for part in jacobian)
    outputs, expected = model(x).detach()[:, 0], []
    for _ in range(21):
        expected.append(float((outputs - y[:, 0]).square().mean()))
        outputs = outputs - kernel @ (2 / 40 * (outputs - y[:, 0]))
    np.testing.assert_allclose(learning_curve(case, 20).predicted, expected, rtol=1e-9)


@pytest.mark.slow
def test_wide_networks_are_trusted_longer_and_agree_inside(regression):
    x, y = regression
    found = {}
    for width in (6, 2000):
        model = wide(width)
        found[width] = learning_curve(case_of(model, x, y, torch.optim.SGD(model.parameters(), lr=0.3)), 300)
    assert found[6].trusted_until < found[2000].trusted_until == 300
    np.testing.assert_allclose(found[2000].predicted, found[2000].measured, rtol=0.05)
    inside = slice(0, found[6].trusted_until + 1)
    np.testing.assert_allclose(found[6].predicted[inside], found[6].measured[inside], rtol=0.15)
    beyond = abs(found[6].predicted[-1] / found[6].measured[-1] - 1)
    assert beyond > 0.3


def test_a_growing_kernel_ends_the_trust_before_the_outputs_are_wrong():
    torch.manual_seed(0)
    layers = [nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)]
    model = nn.Sequential(*layers).double()
    x = torch.randn(60, 8).double()
    found = learning_curve(case_of(model, x, torch.sin(x[:, :1]), 0.2), 200)
    inside = found.looked_at <= found.trusted_until
    assert 0 < found.trusted_until < 200
    assert np.maximum(found.relative_error, found.speed_error)[inside].max() <= TRUSTED
    np.testing.assert_allclose(
        found.predicted[: found.trusted_until], found.measured[: found.trusted_until], rtol=0.15
    )


def test_labelled_and_told(regression):
    x, y = regression
    case = case_of(wide(8), x, y, 0.1)
    before = [p.detach().clone() for p in case.model.parameters()]
    found = learning_curve(case, 10)
    assert all(torch.equal(a, b) for a, b in zip(before, case.model.parameters()))
    data = found.to_dataset()
    assert data.predicted.dims == ("step",)
    assert data.speed_error.dims == ("looked_at",)
    assert data.sizes["step"] == 11
    assert "10 steps" in repr(found)
    losses, errors = found.figure().panels
    assert [mark.label for mark in losses.marks] == ["prediction is trusted", "real", "predicted"]
    assert errors.marks[0].y.tolist() == found.relative_error.tolist()
    assert found.plot().axes


def test_divergence_is_infinite_not_an_error(regression):
    x, y = regression
    model = wide(8)
    found = learning_curve(case_of(model, x, y, 1e6), 60)
    assert np.isinf(found.predicted[-1])
    assert found.trusted_until < 60


@pytest.mark.parametrize("steps", [0, 1.5])
def test_bad_steps_are_refused(regression, steps):
    x, y = regression
    with pytest.raises(InputError, match="steps"):
        learning_curve(case_of(wide(4), x, y, 0.1), steps)
