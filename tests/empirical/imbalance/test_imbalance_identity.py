"""The imbalance identity on networks of every kind, against numbers computed another way."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from foretrain.empirical.imbalance import imbalance, observe_imbalance, record_imbalance
from foretrain.support.errors import InputError, NotSupportedError

ACTIVATIONS = {
    "tanh": nn.Tanh(),
    "gelu": nn.GELU(),
    "softplus": nn.Softplus(),
    "relu": nn.ReLU(),
    "sigmoid": nn.Sigmoid(),
}
LOSSES = {
    "mse": (functional.mse_loss, lambda n: torch.randn(n, 3).double()),
    "cross_entropy": (functional.cross_entropy, lambda n: torch.randint(0, 3, (n,))),
}


def mlp(activation, bias=True, widths=(4, 9, 7, 5, 3), seed=0):
    torch.manual_seed(seed)
    modules = []
    for n_in, n_out in pairwise(widths):
        modules += [nn.Linear(n_in, n_out, bias=bias), activation]
    return nn.Sequential(*modules[:-1]).double()


def finite_difference(model, x, y, loss, name_signs, rates, step=1e-5):
    """dΔ/dt by moving all weights a little along the flow, back and forth."""

    def delta(sign):
        moved = {}
        for name, parameter in model.named_parameters():
            gradient = gradients[name]
            moved[name] = parameter.detach() - sign * step * rates.get(name, 1.0) * gradient
        return sum(s * float(moved[name].square().sum()) / rates.get(name, 1.0) for name, s in name_signs)

    named = dict(model.named_parameters())
    gradients = dict(zip(named, torch.autograd.grad(loss(model(x), y), list(named.values()))))
    return (delta(1) - delta(-1)) / (2 * step)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_measured_drift_is_the_identity(activation, loss, bias) -> None:
    model = mlp(ACTIVATIONS[activation], bias)
    torch.manual_seed(1)
    x, (function, targets) = torch.randn(17, 4).double(), LOSSES[loss]
    y = targets(17)
    found = imbalance(model, x, y, function)
    assert found.pairs == ["0.weight -> 2.weight", "2.weight -> 4.weight", "4.weight -> 6.weight"]
    assert float(abs(found.data["difference"]).max()) < 1e-14
    if activation == "relu":
        np.testing.assert_allclose(found.data["identity"], 0, atol=1e-16)
    else:
        assert float(abs(found.data["identity"]).min()) > 1e-6
    signs = [("2.weight", 1), ("0.weight", -1), *([("0.bias", -1)] if bias else [])]
    expected = finite_difference(model, x, y, function, signs, {})
    assert float(found.data["drift"][0]) == pytest.approx(expected, abs=1e-10)


def test_with_rates_the_drift_stays_and_delta_is_weighted() -> None:
    model = mlp(nn.Tanh())
    x, y = torch.randn(11, 4).double(), torch.randn(11, 3).double()
    rates = {"0.weight": 2.0, "2.weight": 0.5}
    found, plain = (imbalance(model, x, y, functional.mse_loss, given) for given in (rates, None))
    np.testing.assert_allclose(found.data["drift"], plain.data["drift"])
    W, b, V = model[0].weight, model[0].bias, model[2].weight
    expected = V.square().sum() / 0.5 - W.square().sum() / 2 - b.square().sum() / 2
    assert float(found.data["delta"][0]) == pytest.approx(float(expected.detach()))
    signs = [("2.weight", 1), ("0.weight", -1), ("0.bias", -1)]
    moving = finite_difference(model, x, y, functional.mse_loss, signs, {**rates, "0.bias": 2.0})
    assert float(found.data["identity"][0]) == pytest.approx(moving, abs=1e-10)


def test_a_frozen_bias_leaves_delta_and_enters_phi() -> None:
    model = mlp(nn.GELU())
    model[0].bias.requires_grad_(False)
    x, y = torch.randn(11, 4).double(), torch.randn(11, 3).double()
    found = imbalance(model, x, y, functional.mse_loss)
    assert "0.bias" not in str(found.data["about"].values[0])
    assert "2.bias" in str(found.data["about"].values[1])
    assert float(abs(found.data["difference"]).max()) < 1e-14


@pytest.mark.parametrize("activation", [nn.Identity(), nn.Tanh(), nn.ReLU(), nn.Softplus()])
def test_the_matrix_form_holds_and_the_printed_one_only_on_the_diagonal(activation) -> None:
    model = mlp(activation)
    torch.manual_seed(2)
    x, y = torch.randn(13, 4).double(), torch.randn(13, 3).double()
    found = imbalance(model, x, y, functional.mse_loss)
    for number, name in enumerate(found.pairs):
        matrix = found.matrix(name)
        np.testing.assert_allclose(matrix["drift"], matrix["identity"], atol=1e-14)
        np.testing.assert_allclose(np.diagonal(matrix["printed"]), np.diagonal(matrix["drift"]), atol=1e-14)
        apart = float(abs(matrix["printed"] - matrix["drift"]).max())
        assert apart < 1e-14 if isinstance(activation, nn.Identity) else apart > 1e-3
        neurons = found.neurons(number)
        assert float(neurons["identity"].sum()) == pytest.approx(
            float(found.data["identity"][number]), abs=1e-14
        )
        assert float(neurons["delta"].sum()) == pytest.approx(float(found.data["delta"][number]))
        if isinstance(activation, nn.ReLU):
            np.testing.assert_allclose(neurons["drift"], 0, atol=1e-15)
            assert float(abs(matrix["drift"]).max()) > 1e-3


def test_the_matrix_and_its_drift_by_hand() -> None:
    model = mlp(nn.Tanh(), bias=False, widths=(2, 3, 1))
    x, y = torch.randn(5, 2).double(), torch.randn(5, 1).double()
    matrix = imbalance(model, x, y, functional.mse_loss).matrix()
    W, V = model[0].weight, model[2].weight
    torch.testing.assert_close(torch.from_numpy(matrix["value"].values), (V.T @ V - W @ W.T).detach())
    dW, dV = torch.autograd.grad(functional.mse_loss(model(x), y), [W, V])
    step = 1e-6
    moved = (V - step * dV).T @ (V - step * dV) - (W - step * dW) @ (W - step * dW).T
    slope = (moved - (V.T @ V - W @ W.T)) / step
    np.testing.assert_allclose(matrix["drift"], slope.detach(), atol=1e-5)


def test_convolutions_sum_over_positions() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1, stride=2),
        nn.Softplus(),
        nn.Conv2d(5, 4, 2),
        nn.GELU(),
        nn.Conv2d(4, 4, 1, groups=2),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(36, 3),
    ).double()
    x, y = torch.randn(6, 2, 8, 8).double(), torch.randint(0, 3, (6,))
    found = imbalance(model, x, y, functional.cross_entropy)
    assert len(found.pairs) == 3
    assert float(abs(found.data["difference"]).max()) < 1e-14
    matrix = found.matrix("0.weight -> 2.weight")
    np.testing.assert_allclose(matrix["drift"], matrix["identity"], atol=1e-14)
    assert matrix.sizes == {"unit_1": 5, "unit_2": 5}
    for pair in found.pairs[1:]:  # groups; positions that became units
        with pytest.raises(NotSupportedError, match="one to one"):
            found.matrix(pair)


def test_functional_networks_are_watched_too() -> None:
    torch.manual_seed(0)
    weights = {
        "a": torch.randn(3, 6),
        "b": torch.randn(5, 6),
        "c": torch.randn(5, 2),
        "shift": torch.randn(6),
    }
    weights = {name: value.double() for name, value in weights.items()}

    def network(w, x):
        return torch.sin(torch.tanh(x @ w["a"] + w["shift"]) @ w["b"].T) @ w["c"]

    x, y = torch.randn(8, 3).double(), torch.randn(8, 2).double()
    found = imbalance(network, x, y, functional.mse_loss, parameters=weights)
    assert found.pairs == ["a -> b", "b -> c"]
    assert float(abs(found.data["difference"]).max()) < 1e-13
    for pair in found.pairs:
        matrix = found.matrix(pair)
        np.testing.assert_allclose(matrix["drift"], matrix["identity"], atol=1e-13)


def test_columns_of_signals_and_sums_with_a_bias_are_watched() -> None:
    torch.manual_seed(0)
    shapes = {"a": (6, 3), "b": (6, 5), "c": (5, 4), "c_bias": (4,), "d": (4, 2)}
    weights = {name: torch.randn(shape).double() for name, shape in shapes.items()}

    def network(w, x):
        h = functional.gelu(w["b"].T @ torch.tanh(w["a"] @ x))
        return torch.sigmoid(torch.addmm(w["c_bias"], h.T, w["c"])) @ w["d"]

    x, y = torch.randn(3, 8).double(), torch.randn(8, 2).double()
    found = imbalance(network, x, y, functional.mse_loss, parameters=weights)
    assert found.pairs == ["a -> b", "c -> d"]
    assert "change of order" in found.refused["c"]
    assert str(found.data["about"].values[1]) == "+ |d|² - |c|² - |c_bias|²"
    assert float(abs(found.data["difference"]).max()) < 1e-13
    for pair in found.pairs:
        matrix = found.matrix(pair)
        np.testing.assert_allclose(matrix["drift"], matrix["identity"], atol=1e-13)


def test_inside_a_transformer_only_the_two_layers_of_a_block_are_a_pair() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu", dropout=0.0)
    model = nn.Sequential(nn.Linear(4, 8), layer, nn.Linear(8, 1)).double()
    x, y = torch.randn(3, 5, 4).double(), torch.randn(3, 5, 1).double()
    found = imbalance(model, x, y, functional.mse_loss)
    assert found.pairs == ["1.linear1.weight -> 1.linear2.weight"]
    assert float(abs(found.data["difference"]).max()) < 1e-14
    assert "2.weight" in found.refused
    assert "no pair" in repr(found)
    assert found.matrix().sizes["unit_1"] == 16


class Skip(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.third(h + torch.tanh(self.second(h)))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x)))[:, :1]


@pytest.mark.parametrize(
    ("model", "pair", "reason"),
    [
        (Skip(), ("first.weight", "second.weight"), "another way, to third.weight"),
        (Skip(), ("second.weight", "third.weight"), "2 layers at once"),
        (Tied(), ("layer.weight", "layer.weight"), "used 2 times"),
        (nn.Sequential(nn.Linear(3, 3), nn.Softmax(-1), nn.Linear(3, 1)), ("0.weight", "2.weight"), "mixed"),
        (nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 1)), ("0.weight", "2.weight"), "mixed"),
        (
            nn.Sequential(nn.Linear(3, 4), nn.GLU(), nn.Linear(2, 1)),
            ("0.weight", "2.weight"),
            "no elementwise",
        ),
        (
            nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)),
            ("2.weight", "0.weight"),
            "no linear layer",
        ),
    ],
)
def test_what_is_no_pair_is_refused_by_name(model, pair, reason) -> None:
    x = torch.randn(4, 3)
    with pytest.raises(NotSupportedError, match=reason) as refusal:
        imbalance(model, x, x[:, :1], functional.mse_loss, pairs=[pair])
    assert pair[0] in str(refusal.value)


def test_frozen_layers_and_batch_norm() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)).double()
    x = torch.randn(6, 3).double()
    kept = model[1].running_mean.clone()
    with pytest.raises(NotSupportedError, match="mixed"):
        imbalance(model, x, x[:, :1], functional.mse_loss)
    torch.testing.assert_close(model[1].running_mean, kept)
    found = imbalance(model.eval(), x, x[:, :1], functional.mse_loss)  # now it acts entry by entry
    assert float(abs(found.data["difference"]).max()) < 1e-14
    model[0].weight.requires_grad_(False)
    with pytest.raises(NotSupportedError, match=r"0\.weight is frozen"):
        imbalance(model, x, x[:, :1], functional.mse_loss)


def test_over_steps_of_descent_the_change_is_first_plus_second_order_exactly() -> None:
    model = mlp(nn.GELU(), widths=(4, 8, 6, 3))
    torch.manual_seed(3)
    batches = [(torch.randn(10, 4).double(), torch.randint(0, 3, (10,))) for _ in range(25)]
    record = record_imbalance(model, batches, functional.cross_entropy, lr=0.3, rates={"2.weight": 0.5})
    assert record.sizes == {"step": 26, "pair": 2}
    assert float(abs(record["difference"]).max()) < 1e-13
    assert float(abs(record["change"]).max()) > 1e-2
    twin = mlp(nn.GELU(), widths=(4, 8, 6, 3))
    optimizer = torch.optim.SGD(
        [
            {"params": [p for n, p in twin.named_parameters() if not n.startswith("2.")], "lr": 0.3},
            {"params": twin[2].parameters(), "lr": 0.15},
        ]
    )
    for x, y in batches:
        optimizer.zero_grad()
        functional.cross_entropy(twin(x), y).backward()
        optimizer.step()
    upper, lower = twin[4].weight, twin[2]
    delta = upper.square().sum() - (lower.weight.square().sum() + lower.bias.square().sum()) / 0.5
    assert float(record["delta"][-1, 1]) == pytest.approx(float(delta.detach()), rel=1e-12)
    torch.testing.assert_close(model[0].weight, mlp(nn.GELU(), widths=(4, 8, 6, 3))[0].weight)


def test_one_step_is_foretold() -> None:
    model = mlp(nn.Tanh(), widths=(4, 6, 3))
    x, y = torch.randn(9, 4).double(), torch.randn(9, 3).double()
    step = imbalance(model, x, y, functional.mse_loss).step(lr=0.1)
    record = record_imbalance(model, [(x, y)], functional.mse_loss, lr=0.1)
    assert float(record["change"][1, 0]) == pytest.approx(
        float(step["first_order"][0] + step["second_order"][0])
    )
    np.testing.assert_allclose(record["second_order"][1], step["second_order"])


def test_the_observable_gives_labelled_numbers() -> None:
    model = mlp(nn.Tanh())
    seen = observe_imbalance(
        model, (torch.randn(5, 4).double(), torch.randn(5, 3).double()), loss=functional.mse_loss
    )
    assert set(seen) == {"delta", "drift", "identity"}
    assert seen.sizes == {"pair": 3}


def test_bad_requests_are_named() -> None:
    model, x = mlp(nn.Tanh(), widths=(2, 3, 1)), torch.randn(4, 2).double()
    with pytest.raises(InputError, match="one number"):
        imbalance(model, x, x[:, :1], lambda a, b: a - b)
    with pytest.raises(InputError, match="rates"):
        imbalance(model, x, x[:, :1], functional.mse_loss, {"0.wieght": 1.0})
    with pytest.raises(InputError, match="rates"):
        imbalance(model, x, x[:, :1], functional.mse_loss, {"0.weight": 0.0})
    with pytest.raises(InputError, match="function with parameters"):
        imbalance(lambda x: x, x, x, functional.mse_loss)
    with pytest.raises(InputError, match="unknown pair"):
        imbalance(model, x, x[:, :1], functional.mse_loss).matrix("0.weight")
    with pytest.raises(NotSupportedError, match="linear maps or convolutions"):
        imbalance(nn.PReLU().double(), x, x, functional.mse_loss)
    with pytest.raises(InputError, match="no batches"):
        record_imbalance(model, [], functional.mse_loss, 0.1)
