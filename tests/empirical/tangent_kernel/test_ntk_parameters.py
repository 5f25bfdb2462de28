"""Which parameters count, with which rates, and their contributions apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from brute_force import assert_equal, brute_force, jacobian_of, kernel_of, normal, ready, tokens
from torch import Tensor, nn

from foretrain.compare.build import build, parameter_groups
from foretrain.empirical.tangent_kernel import ntk
from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP

X = normal(5, 3)


class Network(nn.Module):
    """Two parts with names, a norm between them, and one layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh())
        self.shared = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.shared(self.encoder(x)))
        return self.head(torch.tanh(self.shared(hidden)))


NAMES = [name for name, _ in Network().named_parameters()]


def kernel_by_name(model: nn.Module, x: Any = X) -> dict[str, Tensor]:
    """The contribution of every parameter by brute force."""
    found = {name: jacobian_of(model, x, parameters=[p]) for name, p in model.named_parameters()}
    return {name: kernel_of(rows, rows) for name, rows in found.items()}


def chosen_sum(names: list[str]) -> Tensor:
    parts = kernel_by_name(ready(Network))
    return torch.stack([parts[name] for name in names]).sum(0)


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("head.*", ["head.weight", "head.bias"]),
        ("head", ["head.weight", "head.bias"]),
        ("*.bias", ["encoder.0.bias", "encoder.1.bias", "shared.bias", "head.bias"]),
        (["encoder.0.weight", "shared.weight"], ["encoder.0.weight", "shared.weight"]),
        (["shared", "shared.weight"], ["shared.weight", "shared.bias"]),
        ("encoder.?.weight", ["encoder.0.weight", "encoder.1.weight"]),
        (lambda name, value: value.ndim == 1, [n for n in NAMES if "bias" in n or n == "encoder.1.weight"]),
        ("encoder.1.bias", ["encoder.1.bias"]),
        ("*", NAMES),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", ["auto", 2])
def test_subsets(choice: Any, names: list[str], size: int | str) -> None:
    kernel = ntk(ready(Network), X, parameters=choice, batch_size=size)
    assert set(kernel.routes) == set(names)
    assert_equal(kernel.values, chosen_sum(names))


def test_subsets_by_tensors() -> None:
    model = ready(Network)
    kernel = ntk(model, X, parameters=[model.head.bias, model.shared.weight])
    assert_equal(kernel.values, chosen_sum(["head.bias", "shared.weight"]))


def test_subsets_by_a_modules_own_parameters() -> None:
    model = ready(Network)
    kernel = ntk(model, X, parameters=list(model.encoder.parameters()))
    assert_equal(kernel.values, chosen_sum([name for name in NAMES if name.startswith("encoder")]))


@pytest.mark.parametrize("frozen", [["head.weight"], ["encoder.0.weight", "shared.bias"], NAMES[:-1]])
def test_frozen_parameters_do_not_count(frozen: list[str]) -> None:
    model = ready(Network)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    kernel = ntk(model, X, batch_size=2)
    assert_equal(kernel.values, chosen_sum([name for name in NAMES if name not in frozen]))
    assert not set(frozen) & set(kernel.routes)


def test_parameters_that_the_output_does_not_use() -> None:
    def make() -> nn.Module:
        model = Network()
        model.unused = nn.Linear(2, 2)
        return model

    model = ready(make)
    kernel = ntk(model, X, by="parameter")
    assert kernel.routes["unused.weight"].way == "unused"
    assert not kernel["unused.weight"].any()
    assert_equal(kernel.total(), brute_force(model, X))


@pytest.mark.parametrize("size", ["auto", 1, 2])
@pytest.mark.parametrize("outputs", ["full", "trace"])
def test_contributions_of_parameters(size: int | str, outputs: str) -> None:
    model = ready(Network)
    kernel = ntk(model, X, outputs=outputs, by="parameter", batch_size=size)
    assert list(kernel.labels or ()) == NAMES
    for name, expected in kernel_by_name(model).items():
        wanted = expected if outputs == "full" else expected.diagonal(dim1=2, dim2=3).sum(-1)
        assert_equal(kernel[name], wanted)
    assert_equal(kernel.total(), ntk(model, X, outputs=outputs).values, 1e-13)


def test_contributions_of_layers() -> None:
    model = ready(Network)
    kernel = ntk(model, X, by="layer", batch_size=2)
    assert kernel.labels == ("encoder.0", "encoder.1", "shared", "head")
    for layer in kernel.labels:
        assert_equal(kernel[layer], chosen_sum([f"{layer}.weight", f"{layer}.bias"]))
    assert_equal(kernel.total(), brute_force(model, X))


def test_contributions_with_two_sets_of_samples() -> None:
    model = ready(Network)
    kernel = ntk(model, X[:2], X[1:], by="parameter", batch_size=2)
    for name, expected in kernel_by_name(model).items():
        assert_equal(kernel[name], expected[:2, 1:])


def test_contributions_of_attention_and_tables() -> None:
    def make() -> nn.Module:
        layer = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True)
        return nn.Sequential(nn.Embedding(7, 4), layer, nn.Flatten(), nn.Linear(12, 2))

    model, ids = ready(make), tokens(4, 3)
    kernel = ntk(model, ids, by="parameter", batch_size=3)
    for name, expected in kernel_by_name(model, ids).items():
        assert_equal(kernel[name], expected)


def test_a_parameter_without_a_module_is_its_own_layer() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.layer = nn.Parameter(torch.randn(3, 3)), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(torch.tanh(x @ self.weight))

    model = ready(Bare)
    kernel = ntk(model, X, by="layer")
    assert kernel.labels == ("weight", "layer")
    assert_equal(kernel["weight"], kernel_by_name(model)["weight"])


def test_tied_parameters_count_once_under_their_first_name() -> None:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
        model[2].weight = model[0].weight
        return model

    model = ready(make)
    kernel = ntk(model, X, by="parameter")
    assert kernel.labels == ("0.weight", "0.bias", "2.bias")
    assert_equal(kernel.total(), brute_force(model, X))


def weighted(rates: dict[str, float]) -> Tensor:
    parts = kernel_by_name(ready(Network))
    return torch.stack([rates[name] * part for name, part in parts.items()]).sum(0)


@pytest.mark.parametrize("size", ["auto", 2])
def test_rates(size: int | str) -> None:
    model = ready(Network)
    own = {name: 0.5 + number for number, name in enumerate(NAMES)}
    forms: list[tuple[Any, dict[str, float]]] = [
        (3.0, dict.fromkeys(NAMES, 3.0)),
        (0, dict.fromkeys(NAMES, 0.0)),
        (own, own),
        ({"*": 2.0, "head": 0.25}, {name: 0.25 if name.startswith("head") else 2.0 for name in NAMES}),
        ({"*.bias": 0.0}, {name: 0.0 if name.endswith("bias") else 1.0 for name in NAMES}),
        ({"*.weight": 0.0}, {name: 0.0 if name.endswith("weight") else 1.0 for name in NAMES}),
        (lambda name, value: own[name] / value.numel(), {n: own[n] / p.numel() for n, p in model.named_parameters()}),
    ]  # fmt: skip
    for rates, meaning in forms:
        expected = weighted(meaning)
        found = ntk(model, X, rates=rates, batch_size=size).values
        if any(meaning.values()):
            assert_equal(found, expected)
        else:
            assert not found.any()


def test_rates_of_an_optimizer() -> None:
    model = ready(Network)
    groups = [{"params": model.encoder.parameters(), "lr": 0.3}, {"params": [*model.shared.parameters()]},
              {"params": [*model.head.parameters()], "lr": 2.0}]  # fmt: skip
    optimizer = torch.optim.SGD(groups, lr=0.7)
    meaning = {name: {"encoder": 0.3, "shared": 0.7, "head": 2.0}[name.split(".")[0]] for name in NAMES}
    assert_equal(ntk(model, X, rates=optimizer.param_groups).values, weighted(meaning))


def test_rates_of_the_theory_predict_one_step_of_gradient_descent() -> None:
    # f after a small step from the loss sum(f * v) is f - K v, with the rates of every group inside K.
    theory = MLP("tanh", depth=2, width=6, n_in=3, n_out=2, C_b=0.1, C_W=1.5, lambda_b=0.5, lambda_W=2.0)
    network = build(theory, seed=3).double()
    groups = parameter_groups(network, theory, eta=1e-6)
    kernel = ntk(network, X, rates=groups).values
    direction = normal(5, 2, seed=4)
    before = network(X)
    (before * direction).sum().backward()
    torch.optim.SGD(groups).step()
    change = network(X) - before
    assert_equal(-change, torch.einsum("nmab,mb->na", kernel, direction), 1e-5)


def test_rates_and_scales_together() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(2))

        def forward(self, x: Tensor) -> Tensor:
            return x @ (self.weight / 3) + 0.1 * self.bias

    kernel = ntk(ready(Scaled), X, rates={"weight": 2.0, "bias": 5.0})
    expected = (2 / 9 * X @ X.T + 0.05)[:, :, None, None] * torch.eye(2, dtype=X.dtype)
    assert_equal(kernel.values, expected, 1e-13)


@pytest.mark.parametrize("outputs", ["full", "trace"])
def test_rates_of_parameters_that_go_sample_by_sample(outputs: str) -> None:
    model, x = ready(lambda: nn.Bilinear(3, 3, 2)), (X, X.sin())
    kernel = ntk(model, x, outputs=outputs, rates={"weight": 3.0, "bias": 0.5})
    assert kernel.routes["weight"].way == "per sample"
    parts = kernel_by_name(model, x)
    expected = 3 * parts["weight"] + 0.5 * parts["bias"]
    assert_equal(kernel.values, expected if outputs == "full" else expected.diagonal(dim1=2, dim2=3).sum(-1))


def test_rates_apply_to_contributions() -> None:
    model = ready(Network)
    kernel = ntk(model, X, rates={"*": 2.0, "head.bias": 3.0}, by="parameter")
    parts = kernel_by_name(model)
    assert_equal(kernel["head.bias"], 3 * parts["head.bias"])
    assert_equal(kernel["shared.weight"], 2 * parts["shared.weight"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"parameters": "decoder.*"}, "no parameter matches 'decoder"),
        ({"parameters": []}, "leaves no parameter"),
        ({"parameters": lambda name, value: False}, "leaves no parameter"),
        ({"parameters": [torch.zeros(2)]}, "no parameter of the model"),
        ({"rates": {"decoder": 1.0}}, "no parameter matches 'decoder"),
        ({"rates": -1.0}, "not negative"),
        ({"rates": float("nan")}, "finite"),
        ({"rates": {"head": float("inf")}}, "head.weight"),
        ({"rates": [{"params": []}]}, "'params' and 'lr'"),
        ({"rates": [{"params": [], "lr": 1.0}]}, "rates="),
    ],
)  # fmt: skip
def test_parameters_and_rates_that_do_not_fit(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        ntk(ready(Network), X, **options)
