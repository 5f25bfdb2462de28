"""What every kernel obeys, and what the computation leaves untouched."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from brute_force import assert_equal, jacobian_of, normal, ready, tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from foretrain.empirical.tangent_kernel import ntk
from foretrain.support.errors import NotSupportedError


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 5), nn.GELU(), nn.Linear(5, 2))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 3, 2), nn.Flatten(), nn.Linear(3, 2)
    )


def words() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(7, 4),
        nn.TransformerEncoderLayer(4, 2, 6, batch_first=True),
        nn.Flatten(),
        nn.Linear(12, 2),
    )


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(2, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[1][0]


class Sorting(nn.Module):
    """Puts samples in another order inside, which is checked chunk by chunk."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        return torch.tanh(self.layer(x[order]))[order.argsort()]


MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "mlp": (mlp, normal(6, 3)),
    "cnn": (cnn, normal(6, 2, 4, 4)),
    "words": (words, tokens(6, 3)),
    "recurrent": (Recurrent, normal(6, 3, 2)),
    "sorting": (Sorting, normal(6, 3)),
}
each_model = pytest.mark.parametrize("name", MODELS)


@each_model
@pytest.mark.parametrize("outputs", ["full", "trace"])
@pytest.mark.parametrize("size", ["auto", 4, 1])
def test_exactly_symmetric(name: str, outputs: str, size: int | str) -> None:
    make, x = MODELS[name]
    kernel = ntk(ready(make), x, outputs=outputs, batch_size=size)
    assert kernel.symmetric
    swapped = kernel.values.transpose(0, 1)
    assert torch.equal(kernel.values, swapped if outputs == "trace" else swapped.transpose(2, 3))


@each_model
def test_positive_and_of_the_rank_of_the_jacobian(name: str) -> None:
    make, x = MODELS[name]
    model = ready(make)
    kernel = ntk(model, x)
    size = kernel.shape[0] * kernel.shape[2]
    matrix = kernel.values.permute(0, 2, 1, 3).reshape(size, size)
    eigenvalues = torch.linalg.eigvalsh(matrix)
    assert eigenvalues.min() > -1e-12 * eigenvalues.max()
    lengths = torch.linalg.svdvals(jacobian_of(model, x).reshape(size, -1)) ** 2
    assert_equal(eigenvalues.flip(0)[: len(lengths)], lengths)


@each_model
@pytest.mark.parametrize("size", ["auto", 4])
def test_samples_in_another_order(name: str, size: int | str) -> None:
    make, x = MODELS[name]
    model, order = ready(make), torch.tensor([3, 0, 5, 1, 4, 2])
    expected = ntk(model, x).values[order][:, order]
    assert_equal(ntk(model, x[order], batch_size=size).values, expected, 1e-12)


@each_model
def test_the_trace_is_that_of_the_whole_kernel(name: str) -> None:
    make, x = MODELS[name]
    model = ready(make)
    whole = ntk(model, x).values.diagonal(dim1=2, dim2=3).sum(-1)
    assert_equal(ntk(model, x, outputs="trace").values, whole, 1e-12)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    widths=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    count=st.integers(1, 7),
    size=st.one_of(st.just("auto"), st.integers(1, 5)),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
    bias=st.booleans(),
)
def test_random_networks_of_any_sizes(
    widths: list[int], count: int, size: int | str, scale: float, bias: bool
) -> None:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs, bias=bias), nn.Tanh()]
    model = ready(lambda: nn.Sequential(*layers))
    x = scale * normal(count, widths[0])
    rows = jacobian_of(model, x)
    expected = torch.einsum("nap,mbp->nmab", rows, rows)
    if float(expected.abs().max()) < 1e-200:  # all units saturated
        return
    assert_equal(ntk(model, x, batch_size=size).values, expected)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_outputs_of_any_size(scale: float) -> None:
    model = ready(mlp)
    x = normal(6, 3)
    assert_equal(ntk(model, x, output=lambda y: scale * y).values, scale**2 * ntk(model, x).values, 1e-12)


def state_of(model: nn.Module) -> dict[str, Any]:
    return {
        "mode": {name: module.training for name, module in model.named_modules()},
        "learns": {name: p.requires_grad for name, p in model.named_parameters()},
        "gradients": {name: p.grad for name, p in model.named_parameters()},
        "values": {name: value.clone() for name, value in model.state_dict().items()},
        "hooks": {
            name: len(module._forward_hooks) + len(module._forward_pre_hooks) + len(module._backward_hooks)
            for name, module in model.named_modules()
        },
    }


def assert_same_state(before: dict[str, Any], after: dict[str, Any]) -> None:
    for key in ("mode", "learns", "hooks"):
        assert before[key] == after[key]
    assert all(before["gradients"][name] is gradient for name, gradient in after["gradients"].items())
    assert all(torch.equal(before["values"][name], value) for name, value in after["values"].items())


@each_model
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("size", ["auto", 2])
def test_the_model_stays_as_it_was(name: str, training: bool, size: int | str) -> None:
    make, x = MODELS[name]
    model = ready(make).train(training)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    first = next(model.parameters())
    first.grad = torch.ones_like(first)
    list(model.parameters())[-1].requires_grad_(False)
    before, inputs = state_of(model), x.clone()
    ntk(model, x, batch_size=size)
    assert_same_state(before, state_of(model))
    assert torch.equal(x, inputs)


@each_model
@pytest.mark.parametrize("size", ["auto", 3, 2, 1])
def test_random_numbers_outside_go_on_as_if_nothing_had_happened(name: str, size: int | str) -> None:
    make, x = MODELS[name]
    model = ready(make)
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    random.seed(5)
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    ntk(model, x, batch_size=size)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002
    assert random.getstate() == states[2]


def test_the_result_is_the_same_every_time() -> None:
    make, x = MODELS["words"]
    torch.manual_seed(0)
    first = ntk(ready(make), x, batch_size=2).values
    torch.manual_seed(1)
    assert torch.equal(first, ntk(ready(make), x, batch_size=2).values)


def test_settings_of_torch_stay() -> None:
    make, x = MODELS["recurrent"]
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            before = torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled, torch.get_num_threads()
            ntk(ready(make), x)
            assert torch.is_grad_enabled() is enabled
            assert (
                torch.backends.mkldnn.enabled,
                torch.backends.cudnn.enabled,
                torch.get_num_threads(),
            ) == before


def test_power_iterations_of_training_mode_are_refused_or_undone() -> None:
    model = ready(
        lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(3, 4)), nn.Linear(4, 2))
    ).train()
    before = state_of(model)
    with pytest.raises(NotSupportedError, match=r"eval\(\)|every call"):
        ntk(model, normal(5, 3))
    assert_same_state(before, state_of(model))


def test_the_result_has_no_graph() -> None:
    make, x = MODELS["mlp"]
    kernel = ntk(ready(make), x)
    assert not kernel.values.requires_grad
    assert kernel.values.device.type == "cpu"
