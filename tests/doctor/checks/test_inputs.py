from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import foretrain as ft
from foretrain.doctor.checks.inputs import check
from foretrain.doctor.data import (
    feature_axis,
    linear_steps,
    measure,
    output_bias,
    standardised,
    standardising_code,
)
from foretrain.doctor.examine import Training, make_setup
from foretrain.doctor.finding import Severity
from foretrain.doctor.setup import Case
from foretrain.doctor.stability import with_chosen_rate
from foretrain.doctor.trials import trial
from foretrain.support.errors import NotSupportedError

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh}


def regression(seed=0):
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(200, 8, generator=source)
    return x, torch.sin(x @ torch.randn(8, 1, generator=source) / 2)


def digits():
    from sklearn.datasets import load_digits

    found = load_digits()
    return torch.as_tensor(found.data, dtype=torch.float32)[:500], torch.as_tensor(found.target)[:500]


def network(n_in, n_out, activation="relu", seed=0):
    torch.manual_seed(seed)
    act = ACTIVATIONS[activation]
    return nn.Sequential(nn.Linear(n_in, 48), act(), nn.Linear(48, 48), act(), nn.Linear(48, n_out))


def setup_of(model, x, y, optimizer=None, **options):
    return make_setup(
        model, x, y, Training(loss=None, optimizer=optimizer, batch_size=None, seed=0, **options)
    )


def trained(setup, steps=200):
    return trial(with_chosen_rate(setup) if setup.recipe.chosen else setup, steps)


def scales(count, seed):
    spread = 4 * torch.rand(count, generator=torch.Generator().manual_seed(seed))
    spread[0], spread[1] = 0.0, 4.0
    return 10**spread


OPTIMIZERS = {
    "chosen": lambda p: None,
    "descent": lambda p: torch.optim.SGD(p, lr=0.05),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_features_on_wildly_different_scales(activation, optimizer):
    x, y = regression()
    model = network(8, 1, activation)
    setup = setup_of(model, x * scales(8, 1), y, OPTIMIZERS[optimizer](model.parameters()))
    (finding,) = check(Case(setup)).findings
    assert finding.severity <= Severity.WARNING
    treated = finding.treatment.apply(setup)
    assert trained(treated).end < 0.7 * trained(setup).end
    names = {"x": setup.task.x, "torch": torch, "optimizer": setup.recipe.build(model)}
    exec(finding.code, names)
    torch.testing.assert_close(names["x"], treated.task.x)
    assert names["optimizer"].param_groups[0]["lr"] == pytest.approx(treated.recipe.rate)
    (again,) = check(Case(treated)).findings
    assert again.severity is Severity.GOOD


@pytest.mark.slow
def test_classes_on_wildly_different_scales():
    x, y = digits()
    setup = setup_of(network(64, 10, "tanh"), x * scales(64, 2), y)
    (finding,) = check(Case(setup)).findings
    assert finding.severity <= Severity.WARNING
    assert trained(finding.treatment.apply(setup)).end < 0.5 * trained(setup).end


@pytest.mark.slow
@pytest.mark.parametrize("change", ["offset", "large", "small"])
def test_offsets_and_sizes(change):
    x, y = regression()
    moved = {"offset": x + 100, "large": x * 1000, "small": x / 1000}[change]
    setup = setup_of(network(8, 1), moved, y)
    (finding,) = check(Case(setup)).findings
    assert finding.severity <= Severity.WARNING
    assert trained(finding.treatment.apply(setup)).end < 0.5 * trained(setup).end


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("divisor", [1.0, 16.0])
def test_images_with_constant_borders_are_fine(divisor, activation):
    """Raw pixels 0..16 or scaled to 1, some of which are always 0."""
    x, y = digits()
    (finding,) = check(Case(setup_of(network(64, 10, activation), x / divisor, y))).findings
    assert finding.severity is Severity.GOOD
    assert "constant" in finding.evidence


@pytest.mark.parametrize("seed", [0, 1])
def test_healthy_inputs_are_fine(seed):
    x, y = regression(seed)
    for factor in (0.3, 1.0, 3.0):
        (finding,) = check(Case(setup_of(network(8, 1, seed=seed), factor * x, y))).findings
        assert finding.severity is Severity.GOOD


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_offset_targets_move_the_bias_of_the_readout(activation):
    x, y = regression()
    setup = setup_of(network(8, 1, activation), x, y + 100)
    (finding,) = check(Case(setup)).findings
    assert finding.severity <= Severity.WARNING
    assert finding.where == ("4.bias",)
    treated = finding.treatment.apply(setup)
    assert trained(treated).end < 0.5 * trained(setup).end
    model = setup.model
    exec(finding.code, {"model": model, "torch": torch})
    torch.testing.assert_close(model(x), treated.model(x), rtol=1e-4, atol=1e-4)


def test_tiny_targets_are_standardised():
    x, y = regression()
    setup = setup_of(network(8, 1), x, y / 1000)
    (finding,) = check(Case(setup)).findings
    assert finding.severity is Severity.WARNING
    assert "Standardise the targets" in finding.advice
    space = {"y": setup.task.y, "torch": torch}
    exec(finding.code, space)
    torch.testing.assert_close(finding.treatment.apply(setup).task.y, space["y"])


def test_the_output_bias_is_found_by_what_it_does():
    x, y = regression()
    assert output_bias(Case(setup_of(network(8, 1), x, y))) == "4.bias"
    squashed = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1), nn.Tanh())
    assert output_bias(Case(setup_of(squashed, x, y))) is None


@pytest.mark.slow
def test_notes_on_labels_and_conflicts():
    x, y = digits()
    rare = torch.where(torch.arange(500) < 496, 0, 1)
    found = check(Case(setup_of(network(64, 10), x, rare))).findings
    assert [f.severity for f in found] == [Severity.GOOD, Severity.NOTE]
    assert "rarer" in found[1].title
    twice = torch.cat([x[:100], x[:100]])
    targets = torch.cat([y[:100], (y[:100] + 1) % 10])
    found = check(Case(setup_of(network(64, 10), twice, targets))).findings
    assert any("no network can fit" in f.title for f in found)


def test_tokens_and_single_samples_are_refused():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 2))
    with pytest.raises(NotSupportedError, match="tokens"):
        check(Case(setup_of(model, torch.randint(0, 5, (10, 3)), torch.zeros(10).long())))
    with pytest.raises(NotSupportedError, match="two"):
        check(Case(setup_of(nn.Linear(3, 1), torch.randn(1, 3), torch.randn(1, 1), optimizer=0.1)))


def test_channels_of_images_and_features_of_sequences():
    images = torch.randn(6, 3, 4, 4) * torch.tensor([1.0, 10.0, 100.0])[:, None, None]
    convolution, recurrent = nn.Sequential(nn.Conv2d(3, 2, 3)), nn.GRU(5, 4)
    assert feature_axis(convolution, images) == 1
    assert feature_axis(recurrent, torch.randn(6, 7, 5)) == 2
    even = standardised(images, 1)
    torch.testing.assert_close(even.std((0, 2, 3), correction=0), torch.ones(3))
    names = {"x": images, "torch": torch}
    exec(standardising_code(images, 1), names)
    torch.testing.assert_close(names["x"], even)
    constant = standardised(torch.full((5, 2), 3.0), 1)
    assert torch.equal(constant, torch.zeros(5, 2))


def test_steps_of_a_linear_readout():
    """Orthogonal features of sizes 10 and 1: the smaller has speed 1/100, and exp(-2 t speed) falls to 0.1."""
    x = torch.tensor([[10.0, 1.0], [10.0, -1.0], [-10.0, 1.0], [-10.0, -1.0]]).double()
    assert linear_steps(x, x[:, 1:]) == pytest.approx(100 * math.log(10) / 2, rel=0.06)
    assert linear_steps(x, x[:, :1]) == pytest.approx(math.log(10) / 2, rel=0.06)
    found = measure(x, x[:, 1:], 1)
    assert found.spread == pytest.approx(10)
    assert found.offset == 0
    assert found.standard_steps == pytest.approx(math.log(10) / 2, rel=0.06)


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_inputs_that_are_all_the_same_are_critical(value):
    x, y = regression()
    (finding,) = check(Case(setup_of(network(8, 1), torch.full_like(x, value), y))).findings
    assert finding.severity is Severity.CRITICAL
    assert "the average" in finding.title


def test_a_clock_with_the_same_input_for_all_is_no_fault():
    """One course over time may well be learned from one input."""
    x, y = torch.zeros(20, 4), torch.ones(20, 1)
    findings = check(Case(setup_of(network(4, 1), x, y))).findings
    assert all(finding.severity > Severity.WARNING for finding in findings)


@pytest.mark.filterwarnings("error")
def test_one_sample_is_examined_without_complaints_of_torch():
    found = ft.doctor(network(8, 1), torch.ones(1, 8), torch.ones(1, 1))
    assert not any(one.failed for one in found.examinations.values())
