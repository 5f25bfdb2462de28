"""Everything that a model may take and return, and how samples are cut into chunks."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from brute_force import assert_equal, brute_force, jacobian_of, kernel_of, normal, ready, tokens
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import foretrain as ft
from foretrain.empirical.tangent_kernel import ntk


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


X = normal(7, 3)


def test_ntk_is_in_the_front_room() -> None:
    assert ft.ntk is ntk


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 100, "auto"])
@pytest.mark.parametrize("outputs", ["full", "trace"])
def test_chunks_of_any_size(size: int | str, outputs: str) -> None:
    model = ready(network)
    expected = brute_force(model, X)
    kernel = ntk(model, X, outputs=outputs, batch_size=size)
    assert_equal(kernel.values, expected if outputs == "full" else expected.diagonal(dim1=2, dim2=3).sum(-1))


@pytest.mark.parametrize("size", [1, 2, 3, "auto"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_few_samples(count: int, size: int | str) -> None:
    model = ready(network)
    assert_equal(ntk(model, X[:count], batch_size=size).values, brute_force(model, X[:count]))


@pytest.mark.parametrize("size", [1, 2, "auto"])
@pytest.mark.parametrize("counts", [(1, 5), (5, 1), (4, 3), (1, 1)])
def test_two_sets_of_samples(counts: tuple[int, int], size: int | str) -> None:
    model = ready(network)
    first, second = X[: counts[0]], normal(counts[1], 3, seed=1)
    expected = kernel_of(jacobian_of(model, first), jacobian_of(model, second))
    kernel = ntk(model, first, second, batch_size=size)
    assert kernel.shape == (*counts, 2, 2)
    assert not kernel.symmetric
    assert_equal(kernel.values, expected)


@pytest.mark.parametrize("size", [1, 2, "auto"])
def test_samples_with_themselves_as_the_second_set(size: int | str) -> None:
    model = ready(network)
    assert_equal(ntk(model, X, X, batch_size=size).values, ntk(model, X).values, 1e-14)


def test_the_same_sample_many_times() -> None:
    model = ready(network)
    kernel = ntk(model, X[:1].expand(5, 3))
    assert_equal(kernel.values, brute_force(model, X[:1]).expand(5, 5, 2, 2))


def test_inputs_that_need_gradients_stay_without() -> None:
    model, x = ready(network), X.clone().requires_grad_()
    assert_equal(ntk(model, x).values, brute_force(model, X))
    assert x.grad is None


def test_views_that_are_not_contiguous() -> None:
    model = ready(network)
    assert_equal(ntk(model, normal(3, 14).t()[::2]).values, brute_force(model, normal(3, 14).t()[::2]))


class Sum(nn.Module):
    """Two tensors and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 2), nn.Linear(4, 2)

    def forward(self, a: Tensor, b: Tensor, scale: float = 1.0) -> Tensor:
        return torch.tanh(self.left(a)) * self.right(b) * scale


A, B = normal(5, 3), normal(5, 4, seed=1)


def expected_sum(scale: float = 1.0) -> tuple[nn.Module, Tensor]:
    model = ready(Sum)
    return model, scale**2 * brute_force(model, (A, B))


@pytest.mark.parametrize("arguments", [(A, B), [A, B], {"b": B, "a": A}])
@pytest.mark.parametrize("size", ["auto", 2])
def test_several_arguments(arguments: Any, size: int | str) -> None:
    model, expected = expected_sum()
    assert_equal(ntk(model, arguments, batch_size=size).values, expected)


@pytest.mark.parametrize(
    "arguments", [(A, B, 2.0), {"a": A, "b": B, "scale": 2.0}, (A, B, torch.tensor(2.0))]
)
def test_arguments_without_samples_are_passed_on(arguments: Any) -> None:
    model, expected = expected_sum(2.0)
    assert_equal(ntk(model, arguments, batch_size=2).values, expected)


def test_two_sets_of_several_arguments() -> None:
    model, expected = expected_sum()
    first, second = (A[:2], B[:2]), (A[1:], B[1:])
    assert_equal(ntk(model, first, second, batch_size=2).values, expected[:2, 1:])


class OfDict(Sum):
    def forward(self, batch: dict[str, Any]) -> Tensor:
        return super().forward(batch["a"], batch["inside"]["b"])


def test_a_dict_as_the_only_argument() -> None:
    expected = brute_force(ready(Sum), (A, B))
    assert_equal(ntk(ready(OfDict), {"a": A, "inside": {"b": B}}, batch_size=2).values, expected)


class OfBatch(Sum):
    def forward(self, batch: dict[str, Any], scale: float = 1.0) -> Tensor:
        return super().forward(**batch, scale=scale)


def test_a_dict_for_a_model_with_other_argument_names() -> None:
    expected = brute_force(ready(Sum), (A, B))
    assert_equal(ntk(ready(OfBatch), {"a": A, "b": B}, batch_size=2).values, expected)


Pair = namedtuple("Pair", ["a", "b"])


class OfPair(Sum):
    def forward(self, pair: Any) -> Tensor:
        return super().forward(pair.a, pair.b)


def test_a_nested_named_tuple() -> None:
    expected = brute_force(ready(Sum), (A, B))
    assert_equal(ntk(ready(OfPair), (Pair(A, B),), batch_size=2).values, expected)


@dataclass
class Result:
    logits: Tensor
    hidden: Tensor
    note: str = "n"


class Returning(nn.Module):
    """The same numbers in many containers."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.last, self.kind = nn.Linear(3, 4), nn.Linear(4, 2), kind

    def forward(self, x: Tensor) -> Any:
        hidden = torch.tanh(self.first(x))
        logits = self.last(hidden)
        return {
            "dataclass": Result(logits, hidden),
            "dict": {"logits": logits, "hidden": hidden},
            "ordered": OrderedDict(logits=logits, hidden=hidden),
            "tuple": (logits, hidden),
            "list": [logits, hidden],
            "named": Pair(logits, hidden),
            "one in a tuple": (logits, None),
            "one in a dict": {"logits": logits, "loss": None, "steps": 3},
        }[self.kind]


@pytest.mark.parametrize(
    ("kind", "output"),
    [
        ("dataclass", "logits"), ("dict", "logits"), ("ordered", "logits"), ("tuple", 0), ("list", -2),
        ("named", "a"), ("named", 0), ("one in a tuple", None), ("one in a dict", None),
        ("tuple", lambda result: result[0]), ("dataclass", lambda result: result.logits),
    ],
)  # fmt: skip
def test_containers_of_outputs(kind: str, output: Any) -> None:
    model = ready(lambda: Returning(kind))
    expected = brute_force(ready(lambda: Returning("list")), X, pick=lambda result: result[0])
    assert_equal(ntk(model, X, output=output, batch_size=3).values, expected)


def test_a_function_of_the_result_may_compute() -> None:
    model = ready(network)
    expected = brute_force(model, X, pick=lambda y: y.log_softmax(-1)[:, :1])
    assert_equal(ntk(model, X, output=lambda y: y.log_softmax(-1)[:, :1]).values, expected)


@pytest.mark.parametrize("numbers", [[0], [1, 0], [0, 2, 3], [-1], (3, 3), range(1, 3), torch.tensor([0, 2])])
@pytest.mark.parametrize("size", ["auto", 2])
def test_chosen_outputs(numbers: Any, size: int | str) -> None:
    model = ready(lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)))
    order = [int(n) for n in numbers]
    expected = brute_force(model, X)[:, :, order][:, :, :, order]
    kernel = ntk(model, X, outputs=numbers, batch_size=size)
    assert_equal(kernel.values, expected)
    assert kernel.outputs == tuple(n % 4 for n in order)


def test_outputs_of_several_axes_are_flattened() -> None:
    model = ready(lambda: nn.Conv2d(1, 2, 2))
    kernel = ntk(model, normal(3, 1, 3, 3))
    assert kernel.shape == (3, 3, 8, 8)
    assert_equal(kernel.values, brute_force(model, normal(3, 1, 3, 3)))


class Pairs(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        return X[place], place % 2


class Dicts(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return len(A)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {"a": A[place], "b": B[place]}


class Nested(Dataset[tuple[tuple[Tensor, Tensor], int]]):
    def __len__(self) -> int:
        return len(A)

    def __getitem__(self, place: int) -> tuple[tuple[Tensor, Tensor], int]:
        return (A[place], B[place]), 0


@pytest.mark.parametrize("data", [TensorDataset(X), TensorDataset(X, X), Pairs()])
def test_loaders_give_inputs_with_or_without_targets(data: Dataset[Any]) -> None:
    model = ready(network)
    assert_equal(ntk(model, DataLoader(data, batch_size=3)).values, brute_force(model, X))


def test_loader_as_the_second_set() -> None:
    model = ready(network)
    loader = DataLoader(Pairs(), batch_size=4)
    assert_equal(ntk(model, X[:2], loader, batch_size=3).values, brute_force(model, X)[:2])


@pytest.mark.parametrize("data", [Dicts(), Nested()])
def test_loaders_of_several_tensors(data: Dataset[Any]) -> None:
    model, expected = expected_sum()
    assert_equal(ntk(model, DataLoader(data, batch_size=2)).values, expected)


def test_single_precision() -> None:
    model = ready(network)
    expected = brute_force(model, X)
    kernel = ntk(model.float(), X.float())
    assert kernel.values.dtype == torch.float32
    assert_equal(kernel.values, expected, 1e-5)


@pytest.mark.parametrize("size", ["auto", 2])
def test_single_precision_in_deep_layers(size: int | str) -> None:
    def make() -> nn.Module:
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        return nn.Sequential(nn.Embedding(7, 4), layer, nn.Flatten(), nn.Linear(12, 2))

    model, ids = ready(make), tokens(4, 3)
    expected = brute_force(model, ids)
    kernel = ntk(model.float(), ids, batch_size=size)
    assert_equal(kernel.values, expected, 2e-5)
    assert all(route.way != "per sample" for route in kernel.routes.values())


def test_half_precision_has_the_sizes_of_the_exact_kernel() -> None:
    model = ready(network)
    expected = brute_force(model, X)
    kernel = ntk(model.bfloat16(), X.bfloat16())
    assert kernel.values.dtype == torch.float32  # sums of many products need more digits
    assert_equal(kernel.values, expected, 0.1)


def test_functional_models() -> None:
    model = ready(network)
    parameters = dict(model.named_parameters())

    def function(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, weights, (x,))

    kernel = ntk(function, X, parameters=parameters, batch_size=3)
    assert_equal(kernel.values, brute_force(model, X))
    assert set(kernel.routes) == set(parameters)


def test_functional_models_with_nested_parameters() -> None:
    w, v, b = (normal(*shape, seed=2).requires_grad_() for shape in ((3, 4), (4, 2), (4,)))

    def function(theta: dict[str, Any], x: Tensor) -> Tensor:
        (first, bias), last = theta["layers"][0], theta["layers"][1]
        return torch.tanh(x @ first + bias) @ last

    module = ready(network, shaken=False)
    with torch.no_grad():
        module[0].weight.copy_(w.t())
        module[0].bias.copy_(b)
        module[2].weight.copy_(v.t())
        module[2].bias.zero_().requires_grad_(False)
    kernel = ntk(function, X, parameters={"layers": [(w, b), v]}, by="parameter")
    assert set(kernel.labels or ()) == {"layers.0.0", "layers.0.1", "layers.1"}
    assert_equal(kernel.total(), brute_force(module, X))


def test_functional_model_of_one_tensor() -> None:
    w = normal(3, 2).requires_grad_()
    kernel = ntk(lambda weight, x: x @ weight, X, parameters=w)
    assert_equal(kernel.values, (X @ X.T)[:, :, None, None] * torch.eye(2, dtype=X.dtype))


def test_functional_models_of_several_arguments() -> None:
    w = normal(3, 2).requires_grad_()
    expected = torch.einsum("ni,mi,na,mb,ab->nmab", A, A, B[:, :2], B[:, :2], torch.eye(2, dtype=A.dtype))
    for arguments in [(A, B), {"x": A, "y": B}]:
        kernel = ntk(lambda weight, x, y: (x @ weight) * y[:, :2], arguments, parameters=w)
        assert_equal(kernel.values, expected)


def test_a_compiled_model_is_read_as_the_model() -> None:
    model = ready(network)
    assert_equal(ntk(torch.compile(model), X).values, brute_force(model, X))


def test_a_model_in_a_wrapper() -> None:
    model = ready(network)
    assert_equal(ntk(nn.DataParallel(model), X).values, brute_force(model, X))


def test_result_as_numbers_and_as_a_labelled_array() -> None:
    model = ready(network)
    kernel = ntk(model, X, outputs=[1], by="layer")
    assert kernel.dims == ("layer", "input_1", "input_2", "output_1", "output_2")
    labelled = kernel.to_xarray()
    assert labelled.dims == kernel.dims
    assert list(labelled["layer"].values) == ["0", "2"]
    assert list(labelled["output_1"].values) == [1]
    np.testing.assert_array_equal(labelled.values, np.asarray(kernel))
    assert len(kernel) == 2
    assert torch.equal(kernel["2"], kernel.values[1])
    assert torch.equal(kernel[0], kernel.values[0])
    assert ntk(model, X, outputs="trace").dims == ("input_1", "input_2")
    with pytest.raises(KeyError, match="labels"):
        kernel["nowhere"]
    with pytest.raises(KeyError, match="by="):
        ntk(model, X)["0"]


def test_the_printed_form_says_what_was_done() -> None:
    printed = repr(ntk(ready(network), X))
    assert "input_1 7" in printed
    assert "float64" in printed
    assert "4 by gram" in printed
