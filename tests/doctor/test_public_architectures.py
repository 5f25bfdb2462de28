"""Architectures nobody here wrote: healthy ones raise no alarm, planted faults are found, and told truly."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from planted_networks import digits
from torch import Tensor, nn

import foretrain as ft
from foretrain.doctor import Diagnosis, Severity


class Attention(nn.Module):
    """Rows of an image as tokens, torch's own encoder, a linear head on their mean."""

    def __init__(self, layers: int = 2, width: int = 32, *, norm_first: bool = False) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.position = nn.Parameter(0.02 * torch.randn(8, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.1, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x.reshape(-1, 8, 8)) + self.position
        return self.head(self.encoder(tokens).mean(1))


class Block(nn.Module):
    def __init__(
        self, channels: int, *, normalise: bool = True, skip: bool = True, branch: float = 1.0
    ) -> None:
        super().__init__()
        norm = nn.BatchNorm2d if normalise else nn.Identity
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=not normalise)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=not normalise)
        self.norm_first, self.norm_second = norm(channels), norm(channels)
        self.skip, self.branch = skip, branch

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.norm_first(self.first(x)))
        inner = self.branch * self.norm_second(self.second(inner))
        return torch.relu(x + inner if self.skip else inner)


class ResNet(nn.Module):
    def __init__(self, blocks: int = 3, channels: int = 8, **options: Any) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.blocks = nn.Sequential(*[Block(channels, **options) for _ in range(blocks)])
        self.head = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(torch.relu(self.stem(x.reshape(-1, 1, 8, 8)))).mean((2, 3)))


class LastState(nn.Module):
    def __init__(self, units: int = 32, outputs: int = 10) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, units, batch_first=True)
        self.head = nn.Linear(units, outputs)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(x.reshape(-1, 8, 8))
        return self.head(states[:, -1])


def examined(model: nn.Module, optimizer: Any = None, samples: int = 160, **options: Any) -> Diagnosis:
    x, y = digits(samples)
    return ft.doctor(model, x, y, optimizer=optimizer, **options)


def adam(model: nn.Module, lr: float = 1e-3) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=lr)


def worst(found: Diagnosis, *checks: str) -> Severity:
    told = [finding.severity for name in checks for finding in found.examinations[name].findings]
    return min(told, default=Severity.GOOD)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


HEALTHY = {
    "lstm with a head": lambda: LastState(),
    "transformer": lambda: Attention(),
    "transformer, norm first": lambda: Attention(4, norm_first=True),
    "resnet": lambda: ResNet(),
}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_architectures_raise_no_alarm(name: str) -> None:
    model = HEALTHY[name]()
    found = examined(model, adam(model))
    assert found.healthy, found
    assert sum(bool(one.findings) for one in found.examinations.values()) >= 4, found


@pytest.mark.slow
def test_an_lstm_alone_is_examined_on_its_states() -> None:
    model = nn.LSTM(3, 16, batch_first=True)
    x = torch.randn(64, 10, 3)
    y = 0.5 * torch.tanh(x.cumsum(1).mean(2, keepdim=True)).expand(-1, -1, 16)
    found = ft.doctor(model, x, y, loss="mse", optimizer=adam(model, 1e-2))
    assert not any(finding.severity is Severity.CRITICAL for finding in found.findings), found
    assert found.examinations["states"].findings, found
    trained = found.verify(100)
    assert trained.treated.final < trained.treated.losses[0]


def rates_that_diverge(model: nn.Module, rate: float) -> bool:
    """Whether plain descent at this rate ends above its start, by a loop that knows nothing of the doctor."""
    x, y = digits(160)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=rate), []
    for _ in range(40):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return not losses[-1] < losses[0]


@pytest.mark.statistical
@pytest.mark.parametrize("make", [Attention, ResNet, LastState])
def test_a_rate_above_the_edge_is_found_and_mended(make: type[nn.Module]) -> None:
    model = make()
    rate = 300.0
    found = examined(model, rate)
    assert worst(found, "learning_rate") is Severity.CRITICAL, found
    trained = found.verify(60)
    assert rates_that_diverge(model, rate)
    assert trained.improvement > 1.2, trained
    assert trained.treated.final < trained.treated.losses[0]


@pytest.mark.statistical
def test_branches_that_are_ten_times_too_strong_are_found() -> None:
    model = ResNet(6, normalise=False, branch=10.0)
    with torch.no_grad():
        for part in model.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
    x, _ = digits(160)
    with torch.no_grad():
        entering = torch.relu(model.stem(x.reshape(-1, 1, 8, 8)))
        growth = float(model.blocks(entering).std() / entering.std())
    assert growth > 1e4  # measured without the doctor
    found = examined(model)
    assert worst(found, "gains", "initialisation") is Severity.CRITICAL, found
    # 1.22 to 1.27 by three sets of instructions (SSE, AVX2, AVX-512), infinite where the given one diverges.
    assert found.verify(240, seconds=600).improvement > 1.1


@pytest.mark.statistical
def test_a_deep_cnn_without_normalisation_and_with_small_weights_is_found() -> None:
    model = ResNet(6, normalise=False, skip=False)
    with torch.no_grad():
        for part in model.blocks.modules():
            if isinstance(part, nn.Conv2d):
                part.weight.mul_(0.5)
                part.bias.zero_()
        x, _ = digits(160)
        entering = torch.relu(model.stem(x.reshape(-1, 1, 8, 8)))
        left = float(model.blocks(entering).std(0).mean() / entering.std(0).mean())
    assert left < 1e-4
    found = examined(model)
    assert found.cause, found
    assert found.cause[0] == "gains"
    trained = found.verify(400, seconds=600)
    # It leaves its first loss after some 180 steps, and then swings at the edge of stability, so that where it ends
    # is chance; its best loss is 1.2 to 1.9 by three sets of instructions, and 2.30 as given.
    assert trained.treated.losses.min() < trained.given.losses.min() / 1.1


@pytest.mark.statistical
def test_unequal_pixels_are_found_before_an_lstm() -> None:
    model = LastState()
    x, y = digits(160)
    scales = torch.logspace(-3, 3, 8).repeat(8)
    found = ft.doctor(model, x * scales, y)
    assert worst(found, "inputs") <= Severity.WARNING, found
    assert found.verify(100).improvement > 1.1


def strengthened(model: nn.Module, factor: float, *endings: str) -> nn.Module:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(endings):
                parameter.mul_(factor)
    return model


def best_loss(model: nn.Module, rate: float) -> float:
    """By Adam in 150 steps, by a loop that knows nothing of the doctor."""
    (x, y), losses = digits(160), []
    optimizer = adam(model, rate)
    for _ in range(150):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return min(losses)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("optimizer", "severity"), [(adam, Severity.NOTE), (lambda model: None, Severity.WARNING)]
)
def test_branches_of_a_transformer_that_drown_its_stream_are_found_and_mended(
    optimizer: Any, severity: Severity
) -> None:
    """Adam learns as well with them, if later, so that they are no fault then."""
    model = strengthened(Attention(3, norm_first=True), 30, "out_proj.weight", "linear2.weight")
    x, y = digits(160)
    found = ft.doctor(model, x, y, optimizer=optimizer(model), checks=["gains"])
    (finding,) = found.examinations["gains"].findings
    assert finding.severity is severity, found
    assert "Residual branches" in finding.title
    assert 20 < finding.numbers["branch_ratio"] < 80
    treated = finding.treatment.apply(found.setup).model
    assert best_loss(copy.deepcopy(treated), 1e-3) < best_loss(copy.deepcopy(model), 1e-3) / 2
    exec(finding.code, {"model": model, "torch": torch})
    after = treated.state_dict()
    assert all(torch.allclose(value, after[name]) for name, value in model.state_dict().items())
