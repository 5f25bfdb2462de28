"""Which models are chains, which are not, and what they are told."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from chain_networks import CASES, normal
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from foretrain.empirical.autograd_graph.chain import find_chain
from foretrain.support.errors import InputError, NotSupportedError


@pytest.mark.parametrize("name", CASES)
def test_a_chain_is_rebuilt_from_its_parts(name: str) -> None:
    model, x = CASES[name].model(), CASES[name].x()
    chain = find_chain(model, x)
    for number in range(1, chain.depth + 1):
        layer, below = chain.layer(number), chain.u(number - 1)
        torch.testing.assert_close(layer(below), chain.v(number))
        u, slope = chain.derivative(number, chain.v(number))
        torch.testing.assert_close(u, chain.u(number))
        torch.testing.assert_close(slope, chain.a(number))
    torch.testing.assert_close(chain.u(chain.depth).reshape(-1), model(x).detach().reshape(-1))


def test_layers_keep_their_names_and_order() -> None:
    chain = find_chain(CASES["by hand"].model(), CASES["by hand"].x())
    assert [layer.name for layer in chain.layers] == ["fc1", "stem.1.0", "head"]
    assert chain.widths == (6, 7, 9, 1)


def test_what_learns_is_known() -> None:
    chain = find_chain(CASES["partly frozen"].model(), CASES["partly frozen"].x())
    assert [(one.trains_weight, one.trains_bias) for one in chain.layers] == [
        (True, False),
        (False, True),
        (True, True),
    ]


def test_activations_can_be_called_anywhere() -> None:
    chain = find_chain(CASES["by hand"].model(), CASES["by hand"].x())
    v = normal(5, 9, seed=3)
    torch.testing.assert_close(chain.activate(2, v), functional.silu(v) * 1.5)
    torch.testing.assert_close(chain.activate(3, v[:, :1]), v[:, :1] / 3)


@pytest.mark.parametrize(
    ("activation", "second"),
    [
        (nn.Tanh(), lambda v: -2 * torch.tanh(v) / torch.cosh(v) ** 2),
        (nn.ReLU(), torch.zeros_like),
        (nn.LeakyReLU(0.1), torch.zeros_like),
        (nn.Softplus(), lambda v: torch.sigmoid(v) * torch.sigmoid(-v)),
        (nn.Identity(), torch.zeros_like),
    ],
)
def test_second_derivatives(activation: nn.Module, second: Callable[[Tensor], Tensor]) -> None:
    model = nn.Sequential(nn.Linear(3, 4), activation, nn.Linear(4, 1)).double()
    chain = find_chain(model, normal(6, 3))
    torch.testing.assert_close(chain.curvature(1), second(chain.v(1)))


def test_the_model_is_left_as_it_was() -> None:
    model, x = CASES["by hand"].model(), CASES["by hand"].x()
    before, inputs, state = copy.deepcopy(model.state_dict()), x.clone(), torch.get_rng_state()
    chain = find_chain(model, x)
    chain.derivative(1, chain.v(1))
    chain.curvature(2)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(x, inputs)
    assert torch.equal(torch.get_rng_state(), state)
    for module in model.modules():
        assert not module._forward_hooks
        assert "forward" not in vars(module)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_fields_are_those_of_the_moment() -> None:
    model, x = CASES["tanh"].model(), CASES["tanh"].x()
    chain = find_chain(model, x)
    kept = chain.layer(1).weight.clone()
    with torch.no_grad():
        model[0].weight.mul_(2)
    assert torch.equal(chain.layer(1).weight, kept)
    with pytest.raises(InputError, match="parameters of 0"):
        chain.check_unchanged()


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = torch.tanh(self.fc1(x))
        return self.fc3(first + torch.tanh(self.fc2(first)))


class InputSkip(Skip):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(x + torch.tanh(self.fc1(x)))


class Parallel(Skip):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc1(x) + self.fc2(x)


class Recurrent(Skip):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(torch.tanh(self.fc1(torch.tanh(self.fc1(x)))))


class Noisy(Skip):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(functional.dropout(torch.tanh(self.fc1(x)), 0.5))


class Mean(Skip):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.fc1(x)).mean(dim=1)


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.gain = nn.Linear(4, 1), nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * self.fc(x)


class Pair(Skip):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.fc1(x), self.fc2(x)


class Detached(Skip):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(torch.tanh(self.fc1(x)).detach())


class Doubling(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    return model


def between(*parts: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), *parts, nn.Linear(4, 1))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Skip(), "fc2 and fc3"),
        (InputSkip(), "fc1 and fc3"),
        (
            Parallel(),
            "fc2 and the output|fc1 and fc2",
        ),
        (Recurrent(), "fc1 .*once"),
        (Noisy(), "different outputs"),
        (Mean(), "pass readout='mean'"),
        (Own(), "gain belongs to Own"),
        (Detached(), "fc1 and fc3 no gradient"),
        (tied(), "are the same parameter"),
        (
            nn.Sequential(Doubling(4, 2), nn.Tanh()),
            r"0 \(Doubling\)",
        ),
        (between(nn.Dropout(0.1)), r"1 \(Dropout\).*model.eval\(\)"),
        (between(nn.BatchNorm1d(4)), r"1 \(BatchNorm1d\)"),
        (between(nn.LayerNorm(4)), "1.weight belongs to LayerNorm"),
        (between(nn.LayerNorm(4, elementwise_affine=False)), "0 and 2 units or inputs"),
        (between(nn.Softmax(dim=1)), "0 and 2 units or inputs"),
        (between(nn.PReLU()), "1.weight belongs to PReLU"),
        (nn.Sequential(nn.Linear(4, 4), nn.GLU(), nn.Linear(2, 1)), r"4 units become \(2,\)"),
        (nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 1, 3)), "1.weight belongs to Conv1d"),
        (nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Linear(2, 3)), r"\(3, 2, 2\)"),
        (nn.Sequential(weight_norm(nn.Linear(4, 4)), nn.Tanh()), "belongs to ParametrizationList"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_what_is_no_chain_is_refused_by_name(model: nn.Module, message: str) -> None:
    with pytest.raises(NotSupportedError, match=message):
        find_chain(model, torch.randn(3, 4))


def test_switched_off_randomness_and_frozen_normalisation_are_fine() -> None:
    assert find_chain(between(nn.Dropout(0.3), nn.Tanh()).eval(), torch.randn(3, 4)).depth == 2
    assert find_chain(between(nn.Dropout(0.0), nn.Tanh()), torch.randn(3, 4)).depth == 2
    norm = nn.BatchNorm1d(4).requires_grad_(False)
    assert find_chain(between(norm, nn.ReLU()).eval(), torch.randn(3, 4)).depth == 2


@pytest.mark.parametrize(
    ("model", "x", "message"),
    [
        (nn.Linear(4, 1), torch.ones(4), r"give \(inputs, features\)"),
        (nn.Linear(4, 1), "inputs", "give a tensor"),
        (nn.Linear(4, 1), torch.full((2, 4), torch.nan), "x .*not finite"),
        (nn.Linear(4, 1), torch.ones(2, 3), "on x"),
        (Pair(), torch.ones(2, 4), "returned tuple"),
        (torch.tanh, torch.ones(2, 4), "give a torch module"),
    ],
)
def test_bad_input(model: nn.Module, x: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_chain(model, x)


def test_models_without_linear_layers_are_refused() -> None:
    with pytest.raises(NotSupportedError, match="no parameters"):
        find_chain(nn.Tanh(), torch.ones(2, 4))
    with pytest.raises(NotSupportedError, match=r"calls no nn\.Linear"):
        find_chain(nn.Conv1d(1, 1, 2).requires_grad_(False), torch.ones(2, 1, 4))
