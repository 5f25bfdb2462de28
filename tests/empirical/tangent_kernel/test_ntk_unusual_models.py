"""Models that do what few do: in-place writes, derivatives inside, own backward passes, other dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from brute_force import (
    Case,
    assert_equal,
    brute_force,
    check,
    force_way,
    jacobian_of,
    kernel_of,
    normal,
    ready,
    slow_parameters,
    tokens,
)
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune

from foretrain.empirical.tangent_kernel import ntk

X = normal(5, 3)


class Written(nn.Module):
    """A model given by its parameters' shapes and a function of them and the samples."""

    def __init__(self, function: Callable[..., Tensor], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(shape)) for shape in shapes])

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.weights)


def in_place(x: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
    hidden = x @ w
    hidden += b
    hidden = hidden.sin()
    hidden *= v
    return hidden.relu_()


def written_in_parts(x: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
    result = x.new_zeros(len(x), 4)
    result[:, :2] = x @ w[:, :2]
    result[:, 2:] = x @ w[:, 2:] + b[2:]
    result[:, 1] += v[1]
    return result.tanh()


FUNCTIONS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "in place": (in_place, ((3, 4), (4,), (4,))),
    "a number": (lambda x, s: torch.tanh(s * x), ((),)),
    "repeated token": (
        lambda x, t, w: torch.tanh(torch.cat([t.repeat(len(x), 1, 1), x[:, None] * x[:, :, None]], 1) @ w).flatten(1),
        ((1, 1, 3), (3, 2)),
    ),
    "expanded by broadcasting": (lambda x, t, w: torch.tanh(t + 0 * x) @ w, ((3,), (3, 2))),
    "weight also added": (lambda x, w: torch.tanh(x @ w) + w.sum(0), ((3, 2),)),
    "bias of two layers": (
        lambda x, w, v, b: torch.addmm(b, torch.tanh(torch.addmm(b, x, w)), v), ((3, 4), (4, 4), (4,)),
    ),
    "one weight, two biases": (
        lambda x, w, b, c: torch.addmm(b, torch.tanh(torch.addmm(c, x, w)), w), ((3, 3), (3,), (3,)),
    ),
    "centres": (lambda x, c, w: torch.exp(-(x[:, None] - c).pow(2).sum(-1)) @ w, ((4, 3), (4, 2))),
    "outer product": (lambda x, u, v: torch.tanh(x @ torch.outer(u, v)), ((3,), (4,))),
    "normalised rows": (lambda x, w: functional.normalize(x) @ functional.normalize(w, dim=1).T, ((4, 3),)),
    "softmax of weights": (lambda x, w: torch.tanh(x @ w.softmax(0)), ((3, 4),)),
    "exponential of a matrix": (lambda x, w: torch.tanh(x @ torch.matrix_exp(w - w.T)), ((3, 3),)),
    "diagonal": (lambda x, d, w: torch.tanh(x @ torch.diag(d)) @ w, ((3,), (3, 2))),
    "lower triangle": (lambda x, w: torch.tanh(x @ w.tril()), ((3, 3),)),
    "kronecker": (lambda x, a, b: torch.tanh(x @ torch.kron(a, b)), ((1, 2), (3, 2))),
    "cut twice": (lambda x, w: torch.tanh(x @ w[:3]) @ w[1:4], ((4, 3),)),
    "chunks": (lambda x, w: torch.tanh(x @ w.chunk(2)[0].T) @ w.chunk(2)[1], ((6, 3),)),
    "rolled": (lambda x, w: torch.tanh(x @ w.roll(1, 0)) @ w, ((3, 3),)),
    "filter": (lambda x, w: torch.tanh(functional.conv1d(x[:, None], w)).flatten(1), ((2, 1, 2),)),
    "cosines": (lambda x, c: functional.cosine_similarity(x[:, None], c, dim=-1), ((4, 3),)),
    "polynomial": (lambda x, a: a[0] + a[1] * x + a[2] * x**2, ((3,),)),
    "real and imaginary parts": (lambda x, w: torch.fft.fft(x @ w).abs(), ((3, 4),)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_parameters(name: str) -> None:
    function, shapes = FUNCTIONS[name]
    check(Case(lambda: Written(function, *shapes), X))


SLOW: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "written in parts": (written_in_parts, ((3, 4), (4,), (4,))),
    "exponents": (lambda x, p: x.abs() ** p, ((3,),)),
    "larger of two": (lambda x, m: torch.maximum(x, m), ((3,),)),
    "bounds": (lambda x, m: torch.clamp(x, min=m), ((3,),)),
    "where": (lambda x, m: torch.where(x > 0, x, m * m), ((3,),)),
    "interpolated": (lambda x, a, b: torch.lerp(x, a, b), ((3,), (3,))),
    "addcmul": (lambda x, a, b: torch.addcmul(a, x, b, value=0.5), ((3,), (3,))),
    "distances": (lambda x, c: torch.cdist(x, c), ((4, 3),)),
    "spline": (lambda x, a: a[(x * 3).long().clamp(0, 4)] * x, ((5,),)),
}


@pytest.mark.parametrize("name", SLOW)
def test_rare_uses_are_exact(name: str) -> None:
    function, shapes = SLOW[name]
    every = tuple(f"weights.{number}" for number in range(len(shapes)))
    check(Case(lambda: Written(function, *shapes), X, slow=every))


class Sign(torch.autograd.Function):
    """Binary weights whose gradient passes straight through."""

    @staticmethod
    def forward(context: Any, weight: Tensor) -> Tensor:
        return weight.sign()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return 0.5 * gradient


class OwnProduct(torch.autograd.Function):
    """A product with its own backward pass, which the graph shows as a closed box."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor) -> Tensor:
        context.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = context.saved_tensors
        return gradient @ weight.T, x.T @ gradient


def test_weights_with_an_own_backward_pass() -> None:
    check(
        Case(
            lambda: Written(lambda x, w, v: torch.tanh(x @ Sign.apply(w)) @ v, (3, 4), (4, 2)),
            X,
        )
    )


def test_a_product_with_an_own_backward_pass() -> None:
    check(
        Case(
            lambda: Written(lambda x, w, v: torch.tanh(OwnProduct.apply(x, w)) @ v, (3, 4), (4, 2)),
            X,
            slow=("weights.0",),
        )
    )


class Slope(nn.Module):
    """The output is a derivative of a network with respect to its input, as in physics-informed networks."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x: Tensor) -> Tensor:
        place = x.detach().requires_grad_()
        with torch.enable_grad():
            height = self.network(place)
            (slope,) = torch.autograd.grad(height.sum(), place, create_graph=True)
        return torch.cat([height, slope], 1)


def test_derivatives_with_respect_to_the_input() -> None:
    check(Case(Slope, X))


def test_a_bias_that_drops_out_of_a_derivative() -> None:
    kernel = ntk(ready(Slope), X, output=lambda y: y[:, 1:], by="parameter")
    assert not kernel["network.2.bias"].any()
    expected = brute_force(ready(Slope), X, pick=lambda y: y[:, 1:])
    assert_equal(kernel.total(), expected)


class Ensemble(nn.Module):
    """Several networks at once, by vmap over stacked weights."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(2, 3, 4)), nn.Parameter(torch.randn(2, 4))

    def forward(self, x: Tensor) -> Tensor:
        each = torch.vmap(lambda w, b: torch.tanh(x @ w + b), out_dims=1)
        return each(self.w, self.b).flatten(1)


def test_ensembles_by_vmap() -> None:
    check(Case(Ensemble, X))


def test_samples_by_vmap() -> None:
    class EachSample(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.vmap(lambda row: torch.tanh(self.layer(row)).cumsum(0))(x)

    check(Case(EachSample, X))


class SharedLayers(nn.Module):
    """One transformer layer three times over."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True, norm_first=True)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.layer(x)
        return x.mean(1)


def test_layers_shared_in_depth() -> None:
    check(Case(SharedLayers, normal(4, 3, 4)))


def test_pruned_weights() -> None:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        prune.l1_unstructured(model[0], "weight", 0.5)
        model[0].weight_mask = model[0].weight_mask.double()
        return model

    model = ready(make)
    kernel = ntk(model, X)
    assert_equal(kernel.values, brute_force(model, X))
    assert not slow_parameters(kernel)


@pytest.mark.parametrize("by", ["parameter", "layer"])
def test_contributions_of_parameters_that_make_one_weight(by: str) -> None:
    """A weight's length and its direction share a source, but each has a contribution of its own."""
    model = ready(
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2))
    )
    kernel = ntk(model, X, by=by, batch_size=2)
    named = dict(model.named_parameters())
    for label in kernel.labels or ():
        own = [
            p
            for name, p in named.items()
            if (name if by == "parameter" else name.rpartition(".")[0]) == label
        ]
        rows = jacobian_of(model, X, parameters=own)
        assert_equal(kernel[label], kernel_of(rows, rows))
    assert_equal(kernel.total(), brute_force(model, X))


def test_one_of_the_parameters_that_make_a_weight() -> None:
    model = ready(
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2))
    )
    length = model[0].parametrizations.weight.original0
    rows = jacobian_of(model, X, parameters=[length])
    assert_equal(ntk(model, X, parameters=[length]).values, kernel_of(rows, rows))


class Factors(nn.Module):
    """A weight that is the product of two modules' weights."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(3, 2, bias=False), nn.Linear(2, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(functional.linear(x, self.up.weight @ self.down.weight))


def test_contributions_of_layers_that_make_one_weight() -> None:
    model = ready(Factors)
    kernel = ntk(model, X, by="layer", rates={"up": 2.0, "down": 0.5})
    for layer, rate in (("up", 2.0), ("down", 0.5)):
        rows = jacobian_of(model, X, parameters=getattr(model, layer).parameters())
        assert_equal(kernel[layer], rate * kernel_of(rows, rows))


class Pooled(nn.Module):
    """Images and texts of any size."""

    def __init__(self, words: bool) -> None:
        super().__init__()
        self.first: nn.Module = nn.Embedding(7, 4) if words else nn.Conv1d(2, 4, 2)
        self.words, self.middle, self.last = words, nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x) if self.words else self.first(x).transpose(1, 2)
        return self.last(torch.tanh(self.middle(torch.tanh(hidden))).mean(1))


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("way", ["pairs", "gradient"])
def test_two_sets_of_samples_of_unequal_lengths(
    words: bool, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_way(way, monkeypatch)
    model = ready(lambda: Pooled(words))
    first, second = (
        (tokens(4, 5), tokens(3, 8, seed=1)) if words else (normal(4, 2, 5), normal(3, 2, 8, seed=1))
    )
    expected = kernel_of(jacobian_of(model, first), jacobian_of(model, second))
    kernel = ntk(model, first, second, batch_size=2)
    assert_equal(kernel.values, expected)
    assert not slow_parameters(kernel)


@pytest.mark.parametrize("words", [False, True])
def test_two_sets_of_which_one_has_a_single_position(words: bool) -> None:
    model = ready(lambda: Pooled(words))
    first, second = (
        (tokens(4, 1), tokens(3, 4, seed=1)) if words else (normal(4, 2, 2), normal(3, 2, 5, seed=1))
    )
    expected = kernel_of(jacobian_of(model, first), jacobian_of(model, second))
    assert_equal(ntk(model, first, second, batch_size=2).values, expected)
    assert_equal(ntk(model, second, first).values, expected.permute(1, 0, 3, 2))


class Mixed(nn.Module):
    """A part in single precision inside a model in double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.high(torch.tanh(self.low(x.float())).double())


@pytest.mark.parametrize("outputs", ["full", "trace"])
def test_two_precisions_in_one_model(outputs: str) -> None:
    model = ready(Mixed)
    expected = brute_force(_in_double(model), X)
    model.low.float()
    kernel = ntk(model, X, outputs=outputs, batch_size=2)
    wanted = expected if outputs == "full" else expected.diagonal(dim1=2, dim2=3).sum(-1)
    assert_equal(kernel.values, wanted, 1e-5)


def _in_double(model: nn.Module) -> nn.Module:
    return nn.Sequential(model.low, nn.Tanh(), model.high)


def test_outputs_in_another_precision() -> None:
    model = ready(lambda: nn.Linear(3, 2))
    assert_equal(ntk(model, X, output=lambda y: y.float()).values, brute_force(model, X), 1e-5)


def test_automatic_casting() -> None:
    model = ready(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    expected = brute_force(model, X)
    model.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        kernel = ntk(model, X.float())
    assert_equal(kernel.values, expected, 0.1)


class Spectral(nn.Module):
    """Complex weights in Fourier space; each counts as two real numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.real, self.imaginary = nn.Parameter(torch.randn(2, 3, 3)), nn.Parameter(torch.randn(2, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.complex(self.real, self.imaginary)
        return torch.fft.irfft(torch.einsum("nik,iok->nok", torch.fft.rfft(x), weight), n=4).flatten(1).tanh()


def test_complex_weights_made_of_real_ones() -> None:
    check(Case(Spectral, normal(4, 2, 4), slow=("real", "imaginary")))


def test_parameters_without_entries() -> None:
    def make() -> nn.Module:
        model = nn.Linear(3, 2)
        model.empty = nn.Parameter(torch.empty(0))
        return model

    check(Case(make, X))


def test_only_parameters_that_are_not_used() -> None:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(3, 2))
        model.unused = nn.Linear(1, 1)
        return model.double()

    kernel = ntk(ready(lambda: _Using(make())), X, parameters="model.unused")
    assert not kernel.values.any()


class _Using(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model[0](x)


def test_sorted_features_of_each_sample() -> None:
    check(Case(lambda: Written(lambda x, w, v: torch.sort(x @ w).values @ v, (3, 4), (4, 2)), X))


def test_outputs_that_do_not_depend_on_the_sample() -> None:
    check(Case(lambda: Written(lambda x, w, v: torch.tanh(w).expand(len(x), -1) * 2, (3,), (4, 2)), X))
