"""States over time: what recurrent layers forget is measured, and mended so that real trainings go better."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from mlp_networks import final_loss
from torch import Tensor, nn

from foretrain.doctor.checks.states import check
from foretrain.doctor.examine import Training, make_setup
from foretrain.doctor.finding import Examination, Severity
from foretrain.doctor.memory import Memory, adaptive_rate, measure_memory, run
from foretrain.doctor.setup import Case, Setup
from foretrain.support.errors import NotSupportedError
from foretrain.training.tasks import MemoryPro, Recurrent


def memory_pro(delay: int, samples: int = 64, seed: int = 0) -> tuple[Tensor, Tensor]:
    return MemoryPro(stimulus=6, memory=delay, response=6).batch(samples, seed)


def examined(model: nn.Module, x: Tensor, y: Tensor, **options: Any) -> tuple[Setup, Examination]:
    setup = make_setup(model, x, y, Training(**options))
    return setup, check(Case(setup))


def memory_of(model: nn.Module, x: Tensor, y: Tensor) -> Memory:
    setup = make_setup(model, x, y, Training(optimizer=0.1))
    return measure_memory(run(Case(setup).model, setup.task.x), setup.task)


class Copying(nn.Module):
    """A linear recurrence h <- a h + x with outputs h: what it holds after k steps is a^k."""

    def __init__(self, kept: float) -> None:
        super().__init__()
        self.layer = nn.RNN(1, 1, nonlinearity="relu", batch_first=True)
        with torch.no_grad():
            for parameter in self.layer.parameters():
                parameter.fill_(0.0)
            self.layer.weight_ih_l0.fill_(1.0)
            self.layer.weight_hh_l0.fill_(kept)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


@pytest.mark.parametrize("kept", [1.0, 0.5, 0.1])
def test_retention_of_a_linear_recurrence_is_its_power(kept) -> None:
    x = torch.zeros(50, 6, 1)
    x[:, 0, 0] = torch.linspace(1, 2, 50)
    y = torch.zeros(50, 6, 1)
    y[:, 5] = x[:, 0]
    found = memory_of(Copying(kept), x, y)
    assert found.retention == pytest.approx(kept**5, rel=1e-3)
    assert found.lag == (5 if kept < 1 else pytest.approx(5, abs=5))
    assert found.asked == 5
    np.testing.assert_allclose(found.held, kept ** np.arange(6.0), rtol=1e-3)
    np.testing.assert_allclose(found.reach, kept ** np.arange(5, -1, -1.0), rtol=1e-3)
    np.testing.assert_allclose(found.energy, [0, 0, 0, 0, 0, 1])


def test_what_is_asked_at_once_is_held() -> None:
    x = torch.randn(200, 8, 3, generator=torch.Generator().manual_seed(0))
    found = memory_of(Recurrent(3, 24, 2, "gru", seed=0), x, torch.tanh(x[..., :2]))
    assert found.retention > 0.95
    assert found.lag == 0


@pytest.mark.slow
def test_random_targets_are_not_called_forgotten() -> None:
    source = torch.Generator().manual_seed(0)
    x, y = torch.randn(64, 9, 3, generator=source), torch.randn(64, 9, 4, generator=source)
    torch.manual_seed(0)
    for layer in (nn.LSTM(3, 4, batch_first=True), nn.GRU(3, 4, batch_first=True)):
        _, found = examined(layer, x, y, optimizer=0.1)
        assert all(finding.severity is Severity.GOOD for finding in found.findings), found.findings


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("cell", "units", "delay", "seed"),
    [
        ("gru", 32, 12, 0),
        ("lstm", 32, 12, 1),
        pytest.param("gru", 48, 25, 2, marks=pytest.mark.statistical),
        pytest.param("gru", 64, 6, 3, marks=pytest.mark.statistical),
        pytest.param("lstm", 48, 25, 4, marks=pytest.mark.statistical),
    ],
)
def test_a_target_in_the_response_period_is_found_and_learned(cell, units, delay, seed) -> None:
    x, y = memory_pro(delay, seed=seed)
    setup, found = examined(Recurrent(3, units, 3, cell, seed=seed), x, y, optimizer=0.1)
    memory, slow = found.findings
    assert memory.severity <= Severity.WARNING
    assert slow.severity is Severity.WARNING
    assert f"in steps {6 + delay} to {11 + delay}" in memory.evidence
    assert memory.numbers["retention_after"] > 5 * memory.numbers["retention"]
    treated = setup
    for finding in found.findings:
        assert finding.treatment is not None
        treated = finding.treatment.apply(treated)
    again = check(Case(treated)).findings
    assert [finding.severity for finding in again] == [Severity.GOOD], again
    assert final_loss(treated, 80) < 0.7 * final_loss(setup, 80)


@pytest.mark.statistical
@pytest.mark.parametrize("seed", [0, 1])
def test_a_plain_layer_is_given_weights_that_lose_nothing(seed) -> None:
    x, y = memory_pro(12, seed=seed)
    torch.manual_seed(seed)
    model = Recurrent(3, 48, 3, "rnn", seed=seed)
    model.recurrent = nn.RNN(3, 48, batch_first=True)  # torch's weights, which shrink states
    setup, found = examined(model, x, y, optimizer=0.1)
    treated = setup
    for finding in found.findings:
        assert finding.treatment is not None, finding
        treated = finding.treatment.apply(treated)
    assert final_loss(treated, 150) < 0.7 * final_loss(setup, 150)


@pytest.mark.slow
def test_adam_gets_gates_and_keeps_its_rate() -> None:
    x, y = memory_pro(20)
    model = Recurrent(3, 32, 3, "gru", seed=0)
    setup, found = examined(model, x, y, optimizer=torch.optim.Adam(model.parameters(), lr=5e-3))
    (finding,) = found.findings
    assert finding.treatment is not None
    treated = finding.treatment.apply(setup)
    assert treated.recipe == setup.recipe
    assert final_loss(treated, 60) < 0.8 * final_loss(setup, 60)


@pytest.mark.slow
def test_the_codes_do_what_the_treatments_do() -> None:
    x, y = memory_pro(12)
    for cell in ("gru", "lstm"):
        model = Recurrent(3, 16, 3, cell, seed=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        setup, found = examined(model, x, y, optimizer=optimizer)
        names = {"torch": torch, "model": model, "optimizer": optimizer}
        treated = setup
        for finding in found.findings:
            exec(finding.code, names)
            assert finding.treatment is not None
            treated = finding.treatment.apply(treated)
        for given, wanted in zip(model.parameters(), treated.model.parameters(), strict=True):
            torch.testing.assert_close(given, wanted)
        made = names["optimizer"]
        assert isinstance(made, torch.optim.Adam)
        assert made.param_groups[0]["lr"] == treated.recipe.rate == adaptive_rate(model.recurrent)


def test_half_times_are_those_of_linearised_descent() -> None:
    """A readout of constant states is linear in its weights: its misfit falls by 2 rate |h|^2 in a step."""
    model = Recurrent(1, 4, 1, "gru", seed=0)
    for parameter in model.recurrent.parameters():
        parameter.requires_grad_(False)
    model.readout.bias.requires_grad_(False)
    x, y = torch.ones(5, 1, 1), torch.ones(5, 1, 1)
    _, found = examined(model, x, y, optimizer=0.01)
    states = model.recurrent(x)[0].detach()
    size = float(states[0].square().sum())
    assert found.data is not None
    assert float(found.data["half_time"][0]) == pytest.approx(np.log(2) / (0.01 * 2 * size), rel=0.1)
    assert found.data["mode_name"].values.tolist() == ["mean"]


class Last(nn.Module):
    """Words, two layers in both directions, the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 6)
        self.layer = nn.GRU(6, 8, num_layers=2, bidirectional=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        _, last = self.layer(self.words(x).transpose(0, 1))
        return self.head(last[-1])


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    "layer", [nn.LSTM(3, 6), nn.GRU(3, 6, num_layers=2), nn.RNN(3, 6, bidirectional=True)]
)
def test_layers_of_torch_alone(layer) -> None:
    x = torch.randn(7, 20, 3, generator=torch.Generator().manual_seed(0))
    outputs = layer(x)[0].detach()
    _, found = examined(layer, x, 0.3 * torch.tanh(x[..., :1]).expand_as(outputs), optimizer=0.05)
    assert [finding.severity for finding in found.findings] == [Severity.GOOD]
    assert found.data is not None
    assert {"temporal_rank", "spatial_rank"} <= set(found.data.attrs)


@pytest.mark.slow
def test_words_and_the_last_state() -> None:
    words = torch.randint(0, 12, (60, 9), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    _, found = examined(Last(), words, words[:, -1] % 3, optimizer=0.1)
    assert all(finding.severity is Severity.GOOD for finding in found.findings)


def test_models_without_recurrence_are_told_why() -> None:
    x = torch.randn(8, 5, 8)
    with pytest.raises(NotSupportedError, match="attention sees all steps"):
        examined(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), x, x, optimizer=0.1)
    with pytest.raises(NotSupportedError, match="no recurrent layer"):
        examined(nn.Linear(8, 2), x, torch.randn(8, 5, 2), optimizer=0.1)


def test_measurements_are_labelled() -> None:
    x, y = memory_pro(6)
    _, found = examined(Recurrent(3, 16, 3, "gru", seed=0), x, y, optimizer=0.1)
    seen = found.data
    assert seen is not None
    assert seen["temporal_gram"].shape == (18, 18)
    np.testing.assert_allclose(np.diag(seen["temporal_gram"]), seen["changed_states"])
    np.testing.assert_allclose(np.square(seen["mode_course"]).sum("step"), 1.0, rtol=1e-5)
    assert float(seen["target_energy"][:12].sum()) == pytest.approx(0, abs=1e-9)
    assert 1 <= seen.attrs["temporal_rank"] < 18 * 64
