"""MLPs are recognised by running them, with their layers, activation and variances; other models are not."""

from __future__ import annotations

import pytest
import torch
from planted_networks import Activation, chain, default_mlp, mlp, regression
from torch import Tensor, nn

from foretrain.doctor.examine import Training, make_setup
from foretrain.doctor.mlp_chain import chain_of
from foretrain.doctor.setup import Case
from foretrain.support.errors import NotSupportedError

X, Y = regression(64)
LABELS = torch.arange(64) % 3


class Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x)


def case_of(model: nn.Module, x: Tensor = X, y: Tensor = Y) -> Case:
    return Case(make_setup(model, x, y, Training(loss=None, optimizer=0.1, batch_size=None, seed=0)))


def test_variances_and_widths_are_those_of_the_weights() -> None:
    model = default_mlp(chain(10, 16, 3, 1), nn.Tanh)
    found = chain_of(case_of(model))
    assert found.names == ("0", "2", "4", "6")
    assert found.widths == (10, 16, 16, 16, 1)
    assert found.whole
    second = model[2]
    assert isinstance(second, nn.Linear)
    assert found.C_W[1] == pytest.approx(16 * float(second.weight.detach().double().square().mean()))
    assert found.C_b[1] == pytest.approx(float(second.bias.detach().double().square().mean()))
    assert found.mlp.activation.label == "tanh"
    assert tuple(found.C_W) == found.mlp.C_W


@pytest.mark.parametrize(
    ("activation", "label"),
    [
        (nn.ReLU, "relu"),
        (nn.GELU, "gelu"),
        (nn.SiLU, "swish(beta=1.0)"),
        (lambda: nn.LeakyReLU(0.2), "leaky_relu(slope=0.2)"),
        (Sine, "sin"),
        (nn.Softplus, "softplus"),
        (nn.Identity, "linear(slope=1.0)"),
    ],
)
@pytest.mark.parametrize("C_W", [1e-8, 2.0])
def test_the_activation_is_known_even_where_signals_are_tiny(
    activation: Activation, label: str, C_W: float
) -> None:
    assert chain_of(case_of(mlp(chain(10, 8, 3, 1), activation, C_W))).activation.label == label


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(10, 8), nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.second(torch.tanh(self.first(x))))
        return self.third(hidden).squeeze(-1)


class Skip(nn.Module):
    def __init__(self, around: str) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(10, 10), nn.Linear(10, 10), nn.Linear(10, 10)
        self.around = around

    def forward(self, x: Tensor) -> Tensor:
        first = torch.relu(self.first(x))
        second = torch.relu(self.second(first)) + (first if self.around == "middle" else 0)
        return self.third(second) + (x if self.around == "all" else 0)


def test_functions_between_layers_count() -> None:
    found = chain_of(case_of(Functional(), X, Y[:, 0]))
    assert (found.names, found.activation.label) == (("first", "second", "third"), "tanh")


def test_flattening_dropout_and_a_softmax_at_the_end_do_not_matter() -> None:
    layers = [nn.Flatten(), nn.Linear(10, 8), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Identity()]
    model = nn.Sequential(*layers, nn.Linear(8, 3), nn.LogSoftmax(1))
    found = chain_of(case_of(model, X.reshape(-1, 2, 5), LABELS))
    assert found.names == ("1", "5")
    assert found.activation.label == "relu"


def test_the_head_of_a_larger_model_is_a_chain_of_its_own() -> None:
    head = [nn.Flatten(), nn.Linear(40, 16), nn.Tanh(), nn.Linear(16, 3)]
    model = nn.Sequential(nn.Conv1d(1, 4, 3, padding=1), nn.ReLU(), *head)
    found = chain_of(case_of(model, X[:, None, :], LABELS))
    assert (found.names, found.whole) == (("3", "5"), False)


def test_whole_number_inputs_of_an_embedding() -> None:
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    words = torch.arange(28) % 7
    assert chain_of(case_of(model, words, words % 3)).names == ("1", "3")


@pytest.mark.parametrize(
    "model",
    [
        Skip("middle"),
        Skip("all"),
        nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10)),
        nn.Sequential(nn.Linear(10, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 10)),
        nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 10)),
    ],
)
def test_skips_normalisation_and_mixed_activations_are_no_chain(model: nn.Module) -> None:
    with pytest.raises(NotSupportedError):
        chain_of(case_of(model, X, X))
