from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from foretrain.doctor.checks.modes import check
from foretrain.doctor.examine import Training, make_setup
from foretrain.doctor.finding import Severity
from foretrain.doctor.outcome import outcome_of
from foretrain.doctor.output_kernel import forecast_modes, output_kernel
from foretrain.doctor.setup import Case
from foretrain.empirical.mode_prediction import predict_modes
from foretrain.support.errors import NotSupportedError


def case_of(model, x, y, optimizer=0.05, loss=None):
    return Case(make_setup(model, x, y, Training(loss=loss, optimizer=optimizer, batch_size=None, seed=0)))


def network(n_in=4, n_out=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(n_in, 20), nn.Tanh(), nn.Linear(20, n_out)).double()


def inputs(samples=40):
    return torch.randn(samples, 4, generator=torch.Generator().manual_seed(1)).double()


def test_squares_agree_with_the_forecast_by_lanczos():
    x = inputs()
    y = torch.sin(x[:, :3]) * torch.tensor([1.0, 0.5, 0.2])
    model = network()
    found = forecast_modes(output_kernel(case_of(model, x, y, 0.05)))
    flow = predict_modes(model, x, y, 0.05, [10, 100, 1000], rehearsal=0)
    for place, steps in enumerate((10, 100, 1000)):
        np.testing.assert_allclose(found.left_after(steps), flow.residual["flow"][:, place], atol=0.02)
    np.testing.assert_allclose(found.left[0], flow.initial, atol=1e-6)
    assert found.shares.sum() == pytest.approx(1)


def test_two_modes_of_a_linear_layer_halve_as_they_must():
    """Inputs +-a e_1 and +-b e_2, so that the mean is zero: rates 2 a^2 and 2 b^2, times 2 lr / entries."""
    layer = nn.Linear(2, 2, bias=False).double()
    nn.init.zeros_(layer.weight)
    x, y = torch.diag(torch.tensor([1.0, 0.1])).double(), torch.diag(torch.tensor([2.0, 1.0])).double()
    x, y = torch.cat([x, -x]), torch.cat([y, -y])
    found = forecast_modes(output_kernel(case_of(layer, x, y, 0.1)))
    np.testing.assert_allclose(found.half_times, np.log(2) / (0.05 * np.array([1.0, 0.01])), rtol=0.1)
    np.testing.assert_allclose(found.shares, [0.8, 0.2])


def test_classes_are_modes_of_their_own():
    x = inputs()
    y = (x[:, 0] > 0).long() + (x[:, 1] > 1).long()
    case = case_of(network(), x, y, 0.2)
    found = forecast_modes(output_kernel(case))
    assert found.classes
    np.testing.assert_allclose(np.sort(np.abs(found.target.right).max(1)), 1, atol=1e-9)
    left = found.left[0]
    assert np.all((left > 0.4) & (left < 0.9))  # 1 - p of three classes
    data = check(case).data
    assert data.picture.dims == ("mode", "feature")
    assert data.left_after.dims == ("mode", "budget")
    assert "class" in check(case).findings[0].evidence


def test_sequences_have_courses_over_time():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.GRU(2, 8, batch_first=True), nn.Linear(8, 2)

        def forward(self, x):
            return self.head(self.body(x)[0])

    torch.manual_seed(0)
    x = torch.randn(10, 6, 2)
    ramp = torch.linspace(0, 1, 6)[None, :, None] * x.mean((1, 2))[:, None, None]
    y = torch.cat([ramp, torch.zeros_like(ramp)], 2)
    picture = check(case_of(Recurrent(), x, y)).data.picture
    assert picture.dims == ("mode", "time", "output")
    course = picture[0, :, 0] / picture[0, -1, 0]
    np.testing.assert_allclose(course, np.linspace(0, 1, 6), atol=1e-5)


def test_images_are_pictured_as_images():
    x = torch.randn(20, 1, 5, 5)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 1))
    data = check(case_of(model, x, x.mean((1, 2, 3))[:, None])).data
    assert data.picture.dims == ("mode", "channel", "row", "column")
    flat = check(case_of(network(1, 1), torch.linspace(-1, 1, 20)[:, None], torch.rand(20, 1))).data
    assert "picture" not in flat


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["descent", "adam"])
def test_a_healthy_network_is_good(optimizer):
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    found = load_digits()
    x, y = torch.as_tensor(found.data / 16, dtype=torch.float32)[:300], torch.as_tensor(found.target)[:300]
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    (finding,) = check(case_of(model, x, y, adam if optimizer == "adam" else 0.1)).findings
    assert finding.severity is Severity.GOOD
    assert ("plain descent" in finding.evidence) == (optimizer == "adam")


def test_what_the_network_cannot_reach_is_told():
    """A tanh layer that saturates on its own bias learns constants alone."""
    x = inputs()
    model = network(4, 1)
    with torch.no_grad():
        model[0].bias.fill_(12.0)
    (finding,) = check(case_of(model, x, x[:, :1] - x[:, :1].mean())).findings
    assert finding.severity <= Severity.NOTE
    assert finding.numbers["slow_share"] == pytest.approx(1)
    assert "1 of 1 target mode (100% of the target)" in finding.title


def test_a_target_of_zero_has_no_modes():
    x = inputs()
    with pytest.raises(NotSupportedError, match="zero"):
        check(case_of(network(), x, torch.zeros(40, 3).double()))


def test_what_was_seen_to_learn_is_not_called_slow():
    """Twelve layers hardly pass a gradient, but Adam trains them."""
    torch.manual_seed(0)
    layers = [part for _ in range(5) for part in (nn.Linear(16, 16), nn.ReLU())]
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), *layers, nn.Linear(16, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.7)
    x = inputs(200).float()
    case = case_of(model, x, (x[:, 0] > 0).long(), torch.optim.Adam(model.parameters(), lr=3e-3))
    (finding,) = check(case).findings
    assert outcome_of(case).learns
    assert finding.numbers["slow_share"] > 0.5  # by the kernel at the start
    assert finding.severity is Severity.GOOD
    assert "seen to learn" in finding.title
    assert "10,000" not in finding.title


@pytest.mark.slow
def test_a_network_that_learned_only_what_trials_share_is_not_healthy():
    """Delayed match to sample: the fixation is learned in a few steps, whether two signs agree is not."""
    from foretrain.doctor.checks import states
    from foretrain.doctor.outcome import Status
    from foretrain.training.tasks import MatchToSample, Recurrent

    x, y = MatchToSample(sample=3, delay=8, test=3, response=4).batch(64, seed=0)
    case = case_of(Recurrent(2, 24, 2, "gru", seed=0), x, y, 0.1)
    (finding,) = check(case).findings
    outcome = outcome_of(case)
    trained = outcome.course.model(x).detach()
    apart = (y - trained) - (y - trained).mean(0)
    left = float(apart.square().sum() / (y - y.mean(0)).square().sum())
    assert left > 0.8
    if outcome.status is Status.LEARNS:
        assert finding.severity is Severity.WARNING
        assert finding.numbers["deviations_left"] == pytest.approx(left, abs=0.05)
        assert "samples apart" in finding.title
    else:
        assert finding.severity <= Severity.NOTE
    data = check(case).data
    assert {str(name).partition(" ")[0] for name in data.name.values} == {"mean", "deviation"}
    # Both checks tell the same half-times of the same modes.
    other = states.check(case).data
    for name, time in zip(other.mode_name.values, other.half_time.values):
        assert time == pytest.approx(float(data.half_time[data.name.values.tolist().index(name)]))


def test_modes_that_are_learned_already_wait_for_nothing():
    layer = nn.Linear(2, 2, bias=False).double()
    x = torch.eye(2).double()
    with torch.no_grad():
        layer.weight.copy_(torch.diag(torch.tensor([2.0, 1.0])))
    (finding,) = check(case_of(layer, x, x @ layer.weight.T.detach() * 1.01, 0.1)).findings
    assert finding.title == "The main modes of the target are learned already."
    assert "in sight" not in finding.evidence
