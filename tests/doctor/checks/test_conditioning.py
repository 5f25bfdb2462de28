from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import foretrain as ft
from foretrain.doctor.checks.conditioning import check
from foretrain.doctor.examine import Training, make_setup
from foretrain.doctor.finding import Severity
from foretrain.doctor.setup import Case


def case_of(model, x, y, optimizer=0.05, loss=None):
    return Case(make_setup(model, x, y, Training(loss=loss, optimizer=optimizer, batch_size=None, seed=0)))


def inputs(samples=40):
    return torch.randn(samples, 4, generator=torch.Generator().manual_seed(1)).double()


def network(depth=1, weight=1.0):
    torch.manual_seed(0)
    layers = [part for _ in range(depth - 1) for part in (nn.Linear(20, 20), nn.Tanh())]
    model = nn.Sequential(nn.Linear(4, 20), nn.Tanh(), *layers, nn.Linear(20, 1)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(weight)
    return model


def test_spectrum_is_that_of_the_kernel():
    x, model = inputs(), network()
    examination = check(case_of(model, x, torch.sin(x[:, :1]), 0.05))
    spectrum = ft.ntk(model, x).spectrum()
    np.testing.assert_allclose(examination.data.eigenvalue[:10], 0.05 * spectrum.eigenvalues[:10], rtol=1e-6)
    assert float(examination.data.entropy_rank) == pytest.approx(spectrum.entropy_rank, rel=1e-4)
    assert float(examination.data.effective_rank) == pytest.approx(spectrum.effective_rank)
    assert f"effective rank is {spectrum.effective_rank:.3g}" in examination.findings[0].evidence
    assert float(examination.data.energy.sum()) == pytest.approx(1)


def test_half_of_the_error_is_gone_when_it_says():
    """Of a linear model, against its descent at the recommended rate."""
    x = inputs() * torch.tensor([1.0, 0.7, 0.5, 0.3]).double()
    torch.manual_seed(0)
    model = nn.Linear(4, 1).double()
    y = x @ torch.tensor([[1.0], [2.0], [-1.0], [2.0]]).double()
    case = case_of(model, x, y, 0.05)
    (finding,) = check(case).findings
    from foretrain.doctor.stability import edge
    from foretrain.doctor.trials import trial

    losses = trial(case.setup.with_recipe(case.recipe.scaled(edge(case).recommended / 0.05)), 200).losses
    ninety = int(np.argmax(losses < 0.1 * losses[0]))
    assert finding.numbers["ninety_steps"] == pytest.approx(ninety, rel=0.3, abs=1)
    assert finding.severity is Severity.GOOD


def test_error_out_of_reach_is_a_warning():
    """Thirty layers at half their scale forget their inputs: only the constant is learned."""
    x, model = inputs(), network(30, 0.5)
    (finding,) = check(case_of(model, x, x[:, :1] - x[:, :1].mean(), None)).findings
    assert finding.severity is Severity.WARNING
    assert finding.numbers["top_share"] > 0.99
    assert finding.numbers["left"] > 0.95


def test_a_straight_loss_still_has_a_spectrum():
    x = inputs()
    examination = check(case_of(network(), x, torch.sin(x[:, :1]), loss=nn.functional.l1_loss))
    assert np.isnan(float(examination.data.half_steps))
    assert examination.data.sizes["mode"] == 40
    assert "unknown" in examination.findings[0].evidence


@pytest.mark.parametrize("labels", [False, True])
def test_healthy_networks_are_good(labels):
    torch.manual_seed(0)
    x = inputs(100).float()
    y = (x[:, 0] > 0).long() if labels else torch.sin(x[:, :2])
    model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    (finding,) = check(case_of(model, x, y, 0.05)).findings
    assert finding.severity is Severity.GOOD
