from __future__ import annotations

import numpy as np
import pytest
import torch
from planted_networks import GatedNetwork
from torch import nn

from foretrain.doctor.examine import Training, make_setup
from foretrain.doctor.setup import Case
from foretrain.doctor.stability import adaptive_edge, edge
from foretrain.doctor.trials import trial


def case_of(model, x, y, loss="mse", optimizer=0.1, batch_size=None):
    return Case(
        make_setup(model, x, y, Training(loss=loss, optimizer=optimizer, batch_size=batch_size, seed=0))
    )


def network(sizes, seed=0):
    torch.manual_seed(seed)
    layers = [nn.Linear(sizes[0], sizes[1]), nn.Tanh(), nn.Linear(sizes[1], sizes[2])]
    return nn.Sequential(*layers).double()


def dense_product(case, rates=None):
    """The top eigenvalue of R^1/2 J^T H J R^1/2, written out entry by entry."""
    model, task, rates = case.model, case.task, rates or case.recipe.rates
    weights = dict(model.named_parameters())

    def outputs(*values):
        return torch.func.functional_call(model, dict(zip(weights, values)), task.x).flatten()

    values = tuple(p.detach() for p in weights.values())
    jacobian = torch.cat(
        [
            part.flatten(1) * torch.as_tensor(rates[name]).flatten() ** 0.5
            for name, part in zip(weights, torch.autograd.functional.jacobian(outputs, values))
        ],
        dim=1,
    )
    shape = model(task.x).shape
    curvature = torch.autograd.functional.hessian(
        lambda flat: task.loss(flat.reshape(shape), task.y), outputs(*values).detach()
    )
    return float(torch.linalg.eigvalsh(jacobian.T @ curvature @ jacobian)[-1])


@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_agrees_with_the_dense_matrix(loss):
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(1)).double()
    y = torch.arange(20) % 3 if loss == "cross_entropy" else torch.sin(x[:, :3])
    model = network([4, 10, 3])
    first, last = (list(model[place].parameters()) for place in (0, 2))
    optimizer = torch.optim.SGD([{"params": first, "lr": 0.3}, {"params": last, "lr": 0.02}], lr=0.1)
    case = case_of(model, x, y, loss, optimizer)
    assert edge(case).product == pytest.approx(dense_product(case), rel=0.01)
    assert edge(case).limit == 2


def test_recurrent_layers_and_attention_need_no_forward_mode():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.GRU(2, 5, batch_first=True), nn.Linear(5, 2)

        def forward(self, x):
            return self.head(self.body(x)[0])

    torch.manual_seed(0)
    x = torch.randn(6, 7, 2).double()
    case = case_of(Recurrent().double(), x, torch.cumsum(x, 1))
    assert edge(case).product == pytest.approx(dense_product(case), rel=0.01)
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    attention = nn.Sequential(nn.TransformerEncoder(layer, 1), nn.Flatten(), nn.Linear(12, 2))
    found = edge(case_of(attention, torch.randn(10, 3, 4), torch.randn(10, 2)))
    assert found.product > 0


@pytest.mark.slow(after=3)
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
@pytest.mark.parametrize("share", [0.9, 1.1])
def test_descent_on_squares_diverges_above_the_edge_and_not_below(momentum, nesterov, share):
    torch.manual_seed(0)
    x = torch.randn(50, 6).double()
    model = nn.Linear(6, 2).double()

    def descent(rate):
        return torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum, nesterov=nesterov)

    found = edge(case_of(model, x, x[:, :2], optimizer=descent(1.0)))
    setup = case_of(model, x, x[:, :2], optimizer=descent(share * found.largest_rate)).setup
    losses = trial(setup, 300).losses
    assert (losses[-1] > 10 * losses[0]) == (share > 1)
    assert (losses[-1] < 0.1 * losses[0]) == (share < 1)


def test_small_batches_lower_the_edge():
    x = torch.randn(256, 4, generator=torch.Generator().manual_seed(1)).double()
    model, y = network([4, 20, 1]), x[:, :1]
    whole, one = (edge(case_of(model, x, y, batch_size=size)) for size in (None, 1))
    assert 1.2 * one.largest_rate < whole.largest_rate
    assert one.samples == 4
    assert edge(case_of(model, x, y, batch_size=256)).product == whole.product


def test_no_edge_is_told_for_adam_and_none_for_a_straight_loss():
    x = torch.randn(16, 4).double()
    model = network([4, 5, 2])
    found = edge(case_of(model, x, x[:, :2], optimizer=torch.optim.Adam(model.parameters(), lr=1e-3)))
    assert np.isnan(found.product)
    assert "Adam" in found.reason
    assert found.recommended <= 1e-3
    straight = edge(case_of(model, x, x[:, :2], loss=nn.functional.l1_loss))
    assert straight.product == 0
    assert straight.largest_rate == float("inf")
    assert np.isfinite(straight.recommended)


@pytest.mark.slow
def test_recommended_rate_is_lowered_where_the_first_steps_diverge():
    torch.manual_seed(0)

    model = GatedNetwork()
    x = torch.randn(32, 20, 3, generator=torch.Generator().manual_seed(1))
    found = edge(case_of(model, x, 0.3 * torch.cumsum(x[..., :2], 1)))
    at_start = found.case.setup.with_recipe(found.case.recipe.scaled(found.start / found.rate))
    assert not trial(at_start).drop > 0
    rate, best = found.best
    assert rate < found.start
    assert best.end < 0.7 * best.start


def test_frozen_parameters_do_not_count():
    x = torch.randn(30, 4).double()
    model = network([4, 10, 3])
    everything = edge(case_of(model, x, x[:, :3])).product
    model[0].requires_grad_(False)
    case = case_of(model, x, x[:, :3])
    states = torch.cat([torch.tanh(model[0](x)), torch.ones(30, 1)], 1).detach()
    expected = 0.1 * 2 / 90 * float(torch.linalg.eigvalsh(states.T @ states)[-1])
    assert edge(case).product == pytest.approx(expected, rel=0.01)
    assert edge(case).product < everything


def test_the_edge_of_adam_agrees_with_the_dense_matrix_of_the_network_that_it_has_trained():
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(1)).double()
    y, model = torch.sin(x[:, :3]), network([4, 10, 3])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    case = case_of(model, x, y, "mse", optimizer)
    found = adaptive_edge(case)
    for _ in range(found.steps):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    rates = {}
    for name, parameter in model.named_parameters():
        second = optimizer.state[parameter]["exp_avg_sq"] / (1 - 0.999**found.steps)
        rates[name] = 0.01 / (second.sqrt() + 1e-8)
    expected = dense_product(case_of(model, x, y, "mse", 0.1), rates)
    assert found.product == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(("times", "stable"), [(0.95, True), (1.05, False)])
def test_the_limit_of_adam_is_that_of_its_averaged_gradients(times, stable):
    """With the preconditioner held, one direction of curvature h: exactly solvable, and iterated here."""
    model = network([4, 10, 3])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.8, 0.99))
    limit = adaptive_edge(
        case_of(model, torch.ones(4, 4).double(), torch.ones(4, 3).double(), "mse", optimizer)
    ).limit
    assert limit == pytest.approx(2 * 1.8 / 0.2)
    place, average, curvature, rate = 1.0, 0.0, 1.0, times * limit
    for _ in range(2000):
        average = 0.8 * average + 0.2 * curvature * place
        place -= rate * average
    assert (abs(place) < 1) == stable


def test_other_optimizers_have_no_such_edge():
    model = network([4, 10, 3])
    x, y = torch.ones(4, 4).double(), torch.ones(4, 3).double()
    assert adaptive_edge(case_of(model, x, y, "mse", torch.optim.RMSprop(model.parameters()))) is None
