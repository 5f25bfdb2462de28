from __future__ import annotations

import pytest
import torch
from planted_networks import GatedNetwork
from torch import nn

from foretrain.doctor.checks.learning_rate import check
from foretrain.doctor.examine import Training, make_setup
from foretrain.doctor.finding import Severity
from foretrain.doctor.setup import Case
from foretrain.doctor.stability import edge
from foretrain.doctor.trials import trial

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh}


def regression():
    source = torch.Generator().manual_seed(0)
    x = torch.randn(200, 8, generator=source)
    return x, torch.sin(x @ torch.randn(8, 1, generator=source) / 2)


def digits():
    from sklearn.datasets import load_digits

    found = load_digits()
    return torch.as_tensor(found.data / 16, dtype=torch.float32)[:500], torch.as_tensor(found.target)[:500]


def setup_at(share, task="regression", activation="relu", momentum=0.0, seed=0):
    """A network whose rate is so many times the edge."""
    torch.manual_seed(seed)
    x, y = digits() if task == "digits" else regression()
    model = nn.Sequential(
        nn.Linear(x.shape[1], 64), ACTIVATIONS[activation](), nn.Linear(64, 10 if task == "digits" else 1)
    )
    descent = torch.optim.SGD(model.parameters(), lr=1.0, momentum=momentum)
    setup = make_setup(model, x, y, Training(loss=None, optimizer=descent, batch_size=None, seed=seed))
    return setup.with_recipe(setup.recipe.scaled(share / edge(Case(setup)).ratio))


def run_code(code, setup):
    model = setup.model
    optimizer = setup.recipe.build(model)
    exec(code, {"torch": torch, "optimizer": optimizer, "model": model})
    return [group["lr"] for group in optimizer.param_groups]


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("task", ["regression", "digits"])
@pytest.mark.parametrize("share", [3.0, 50.0])
def test_rates_above_the_edge_are_found_and_mended(share, task, activation, momentum):
    setup = setup_at(share, task, activation, momentum)
    (finding,) = check(Case(setup)).findings
    ends = trial(setup, 150).end
    if share == 3 and finding.severity is Severity.NOTE:  # a catapult: it must then really work
        assert ends < 0.5 * trial(setup, 150).start
        return
    assert finding.severity <= Severity.WARNING
    treated = finding.treatment.apply(setup)
    assert trial(treated, 150).end < 0.7 * min(ends, trial(setup, 0).start)
    assert run_code(finding.code, setup) == pytest.approx([group.rate for group in treated.recipe.groups])
    (again,) = check(Case(treated)).findings
    assert again.severity >= Severity.NOTE


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("task", ["regression", "digits"])
@pytest.mark.parametrize("share", [1e-4])
def test_rates_that_are_far_too_small_are_found_and_mended(share, task):
    setup = setup_at(share, task, "tanh")
    examination = check(Case(setup))
    (finding,) = examination.findings
    assert finding.severity <= Severity.WARNING
    assert "smaller" in finding.title
    assert float(examination.data.half_time) > 2000
    before, after = trial(setup, 150), trial(finding.treatment.apply(setup), 150)
    assert after.drop > 10 * before.drop


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("share", [0.03, 0.2])
@pytest.mark.parametrize("task", ["regression", "digits"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_healthy_rates_are_good(share, task, activation):
    (finding,) = check(Case(setup_at(share, task, activation, seed=1))).findings
    assert finding.severity is Severity.GOOD
    assert finding.treatment is None


@pytest.mark.slow
def test_stable_at_first_but_not_for_long():
    """Small weights have little curvature; it grows within the first steps, and only real steps show it."""
    torch.manual_seed(0)

    x = torch.randn(32, 20, 3, generator=torch.Generator().manual_seed(1))
    y = 0.3 * torch.cumsum(x[..., :2], 1)
    setup = make_setup(GatedNetwork(), x, y, Training(loss=None, optimizer=1.0, batch_size=None, seed=0))
    setup = setup.with_recipe(setup.recipe.scaled(0.7 / edge(Case(setup)).ratio))
    (finding,) = check(Case(setup)).findings
    assert finding.severity is Severity.CRITICAL
    assert trial(finding.treatment.apply(setup)).end < 0.7 * trial(setup).start


@pytest.mark.parametrize(("rate", "word"), [(1e-7, "small"), (3.0, "large"), (1e-3, None), (1e-2, None)])
def test_other_optimizers_are_tried(rate, word):
    torch.manual_seed(0)
    x, y = digits()
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    setup = make_setup(model, x, y, Training(loss=None, optimizer=optimizer, batch_size=64, seed=0))
    (finding,) = check(Case(setup)).findings
    if word is None:
        assert finding.severity is Severity.GOOD
        return
    assert finding.severity <= Severity.WARNING
    assert word in finding.title
    assert trial(finding.treatment.apply(setup)).end < 0.5 * trial(setup).end


def test_without_an_optimizer_the_rate_is_a_recommendation():
    x, y = regression()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    setup = make_setup(model, x, y, Training(loss=None, optimizer=None, batch_size=None, seed=0))
    examination = check(Case(setup))
    (finding,) = examination.findings
    assert finding.severity is Severity.GOOD
    assert "No optimizer" in finding.title
    assert examination.data.loss.dims == ("rate", "step")


def test_groups_keep_their_proportions():
    x, y = regression()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    groups = [{"params": model[0].parameters(), "lr": 20.0}, {"params": model[2].parameters(), "lr": 5.0}]
    setup = make_setup(
        model, x, y, Training(loss=None, optimizer=torch.optim.SGD(groups), batch_size=None, seed=0)
    )
    (finding,) = check(Case(setup)).findings
    treated = finding.treatment.apply(setup)
    first, second = treated.recipe.groups
    assert first.rate / second.rate == pytest.approx(4)
    assert "in proportion" in finding.advice


def test_a_rate_above_the_edge_that_ends_lower_is_no_fault():
    """A rectifier leaps to where the loss is flat: at three times the edge it is slower first and better later."""
    source = torch.Generator().manual_seed(1)
    x, y = regression()
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    with torch.no_grad():
        for layer in model[::2]:
            size = (2 / layer.in_features) ** 0.5
            layer.weight.copy_(size * torch.randn(layer.weight.shape, generator=source))
    setup = make_setup(model, x, y, Training(loss=None, optimizer=1.0, batch_size=None, seed=0))
    for share in (2.5, 3.0, 3.5):
        setup = setup.with_recipe(setup.recipe.scaled(share / edge(Case(setup)).ratio))
        (finding,) = check(Case(setup)).findings
        if finding.severity <= Severity.WARNING:
            treated = finding.treatment.apply(setup)
            assert trial(treated, 240).end < trial(setup, 240).end
