"""Units that do not answer to the data are counted and brought back; what looks alike for a good reason is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from mlp_networks import network, only, run_code, same_weights, setup_of, task, with_and_without
from torch import Tensor, nn
from torch.nn import functional

from foretrain.doctor.checks.dead_units import check
from foretrain.doctor.finding import Severity
from foretrain.doctor.setup import Case
from foretrain.doctor.units import responses
from foretrain.support.errors import NotSupportedError

X, Y = task()


def biased(model: nn.Module, layer: str, value: float, share: float = 1.0) -> nn.Module:
    with torch.no_grad():
        bias = model.get_submodule(layer).get_parameter("bias")
        bias[: round(share * len(bias))] = value
    return model


class Functional(nn.Module):
    """A pooling convolutional network whose rectifiers are functions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 8, 3, padding=1)
        self.second = nn.Conv1d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool1d(torch.relu(self.first(x)), 2)
        return self.head(torch.relu(self.second(x)).mean(2))


@pytest.mark.parametrize(
    ("activation", "depth", "width", "layer"),
    [(nn.ReLU, 4, 32, "2"), (nn.ReLU, 3, 128, "0"), (nn.GELU, 5, 64, "4"), (nn.SiLU, 4, 32, "2")],
)
def test_biases_at_minus_ten_are_found_and_mended(
    activation: Callable[[], nn.Module], depth: int, width: int, layer: str
) -> None:
    model = biased(network(activation, depth, width, 2.0), layer, -12.0)
    case = Case(setup_of(model, X, Y))
    finding = only(check(case))
    assert finding.severity == Severity.CRITICAL
    assert finding.where == (layer,)
    assert finding.treatment is not None
    treated = finding.treatment.apply(case.setup)
    assert only(check(Case(treated))).severity == Severity.GOOD
    assert same_weights(run_code(finding, model, X), treated.model)


def test_the_share_of_dead_units_is_counted() -> None:
    model = biased(network(nn.ReLU, 4, 64, 2.0), "2", -30.0, share=0.5)
    finding = only(check(Case(setup_of(model, X, Y))))
    assert finding.severity == Severity.WARNING
    assert finding.numbers["dead"] == 0.5


@pytest.mark.slow
def test_the_advice_trains_better() -> None:
    given, treated = with_and_without(check, biased(network(nn.ReLU, 4, 32, 2.0), "2", -10.0), X, Y)
    assert treated < 0.3 * given
    given, treated = with_and_without(check, network(nn.Tanh, 4, 64, 400.0), X, Y)
    assert treated < 0.3 * given


@pytest.mark.parametrize(("activation", "C_W"), [(nn.Tanh, 400.0), (nn.Sigmoid, 4000.0)])
def test_saturated_layers_are_found_and_rescaled(activation: Callable[[], nn.Module], C_W: float) -> None:
    model = network(activation, 4, 64, C_W)
    case = Case(setup_of(model, X, Y))
    finding = only(check(case))
    assert finding.severity <= Severity.WARNING
    assert "saturated" in finding.title
    assert finding.treatment is not None
    treated = finding.treatment.apply(case.setup)
    assert only(check(Case(treated))).severity == Severity.GOOD
    assert same_weights(run_code(finding, model, X), treated.model)


def test_dead_channels_behind_functions_and_pooling() -> None:
    torch.manual_seed(0)
    model = Functional()
    assert only(check(Case(setup_of(model, X[:, None, :], Y)))).severity == Severity.GOOD
    for layer in ("first", "second"):
        dead = biased(Functional(), layer, -50.0)
        finding = only(check(Case(setup_of(dead, X[:, None, :], Y))))
        assert finding.severity == Severity.CRITICAL
        assert layer in finding.where
        assert finding.treatment is not None
        setup = setup_of(dead, X[:, None, :], Y)
        assert same_weights(run_code(finding, dead, X[:, None, :]), finding.treatment.apply(setup).model)


@pytest.mark.parametrize(
    "model",
    [
        network(nn.ReLU, 30, 64, 2.0),
        network(nn.ReLU, 50, 32, 2.0, seed=1),
        network(nn.ReLU, 3, 6, None),
        network(nn.ReLU, 8, 64, None, seed=2),
        network(nn.Tanh, 30, 64, 4.0),
        network(nn.LeakyReLU, 4, 16, None),
        nn.Sequential(nn.Linear(10, 16), nn.Softmax(1), nn.Linear(16, 1)),
        nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1)),
    ],
)
def test_healthy_layers_pass(model: nn.Module) -> None:
    """In deep networks all inputs look alike, so that units are on or off for all of them, as many as chance says."""
    assert only(check(Case(setup_of(model, X, Y)))).severity == Severity.GOOD


def test_counts_against_a_direct_computation() -> None:
    model = network(nn.ReLU, 3, 32, None)
    first = responses(model, X)[0]
    with torch.no_grad():
        v = model[0](X)
    assert torch.equal(first.silent, (v <= 0).all(0))
    assert torch.equal(first.always_on, (v > 0).all(0))
    assert first.shut == pytest.approx(float((v <= 0).double().mean()))
    assert first.closed == 0


def test_measurements_are_labelled_by_layer() -> None:
    data = check(Case(setup_of(network(nn.Tanh, 4, 16, 1.0), X, Y))).data
    assert data is not None
    assert list(data["layer"].values) == ["0", "2", "4"]
    assert (data["dead"] == 0).all()


def test_a_single_layer_has_no_units() -> None:
    with pytest.raises(NotSupportedError):
        check(Case(setup_of(nn.Linear(10, 1), X, Y)))


def test_units_of_a_network_of_zeros_are_not_said_to_answer() -> None:
    model = network(nn.ReLU, 4, 16, 2.0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    finding = only(check(Case(setup_of(model, X, Y))))
    assert finding.severity is Severity.NOTE
    assert finding.title == "Units of 3 of 3 layers get the same for every sample: none can answer."
    assert finding.where == ("0", "2", "4")
