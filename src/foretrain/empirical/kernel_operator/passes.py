"""Passes through a model that carry vectors: outputs to parameters (J^T v) and parameters to outputs (J t).

J^T v is an ordinary backward pass. J t goes by the first of three ways that torch offers for the model and that is
the adjoint of the backward pass on a few samples: forward mode, the gradient of J^T u by u (exact, because it is
linear in u), or one backward pass for every output. Where an operation cannot be batched over many vectors, they
go one after the other.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from foretrain.empirical.models.arguments import Batch
from foretrain.empirical.models.model import Model, with_values
from foretrain.support.errors import NotSupportedError

Values = dict[str, Tensor]  # by parameter; many vectors are stacked along a first axis

REFUSALS = (NotImplementedError, RuntimeError)  # of torch, where it has no derivative or no batched one
_AGREEMENT = {torch.float64: 1e-9, torch.float32: 1e-3}
_AGREEMENT_HALF = 0.05


@dataclass(frozen=True)
class Linearised:
    """A model at its present parameters: a map from changes of the chosen parameters to changes of outputs."""

    model: Model
    parameters: Mapping[str, Tensor]
    outputs: Sequence[int]

    def rows(self, batch: Batch, model: Model | None = None, differentiable: bool = True) -> Tensor:
        """The chosen outputs (samples, outputs); a lone sample goes twice, as a batch like the others."""
        run = batch.pick([0, 0]) if batch.count == 1 else batch
        found = (model or self.model)(run, differentiable)[: batch.count]
        if list(self.outputs) == list(range(found.shape[1])):
            return found
        return found[:, list(self.outputs)]

    def changed(self, values: Mapping[str, Tensor]) -> Model:
        """The same model with other tensors in the place of some parameters, tied ones included."""
        function = self.model.function
        if isinstance(function, nn.Module):
            return replace(self.model, function=with_values(function, values))
        by_identity = {id(self.parameters[name]): value for name, value in values.items()}
        return replace(self.model, given_parameters=_swapped(self.model.given_parameters, by_identity))


def _swapped(tree: Any, by_identity: Mapping[int, Tensor]) -> Any:
    if isinstance(tree, Mapping):
        return type(tree)({key: _swapped(part, by_identity) for key, part in tree.items()})  # type: ignore[call-arg]
    if isinstance(tree, tuple | list):
        parts = [_swapped(part, by_identity) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return by_identity.get(id(tree), tree)


@contextmanager
def differentiable_kernels() -> Iterator[None]:
    """Attention written out, because its fused kernels know first derivatives by backward passes alone."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def pull_one(linear: Linearised, batch: Batch, vectors: Tensor) -> Values:
    """J^T v of every vector (many, samples, outputs), one backward pass each."""
    outputs = linear.rows(batch)
    found = [
        _backward(outputs, linear.parameters, vector, keep=i + 1 < len(vectors))
        for i, vector in enumerate(vectors)
    ]
    return {name: torch.stack([values[name] for values in found]) for name in linear.parameters}


def pull_many(linear: Linearised, batch: Batch, vectors: Tensor) -> Values:
    """J^T v of all vectors by one batched backward pass."""
    if len(vectors) == 1:
        return pull_one(linear, batch, vectors)
    with differentiable_kernels():
        outputs = linear.rows(batch)
        gradients = torch.autograd.grad(
            outputs, list(linear.parameters.values()), vectors, allow_unused=True, is_grads_batched=True
        )
    return {
        name: value.new_zeros(len(vectors), *value.shape) if gradient is None else gradient
        for (name, value), gradient in zip(linear.parameters.items(), gradients)
    }


def _backward(outputs: Tensor, parameters: Mapping[str, Tensor], vector: Tensor, keep: bool) -> Values:
    gradients = torch.autograd.grad(
        outputs, list(parameters.values()), vector, retain_graph=keep, allow_unused=True
    )
    return {
        name: torch.zeros_like(value)
        if gradient is None
        else (gradient.to_dense() if gradient.is_sparse else gradient)
        for (name, value), gradient in zip(parameters.items(), gradients)
    }


def push_forward_mode(linear: Linearised, batch: Batch, tangents: Values, together: bool) -> Tensor:
    """J t by forward mode, all tangents in one pass or one after the other."""
    at, count = {name: value.detach() for name, value in linear.parameters.items()}, _count(tangents)

    def outputs(values: Values) -> Tensor:
        return linear.rows(batch, linear.changed(values), differentiable=False)

    def along(tangent: Values) -> Tensor:
        change: Tensor = torch.func.jvp(outputs, (at,), (tangent,))[1]
        return change

    with differentiable_kernels():
        if together and count > 1:
            found: Tensor = torch.func.vmap(along)(tangents)
            return found
        return torch.stack(
            [along({name: value[i] for name, value in tangents.items()}) for i in range(count)]
        )


def _count(tangents: Values) -> int:
    return len(next(iter(tangents.values())))


def push_double_backward(linear: Linearised, batch: Batch, tangents: Values, together: bool) -> Tensor:
    """J t as the gradient by u of t . J^T u, of all tangents at once or one after the other."""
    count = _count(tangents)
    with differentiable_kernels():
        outputs = linear.rows(batch)
        u = torch.zeros_like(outputs).requires_grad_()
        gradients = torch.autograd.grad(
            outputs, list(linear.parameters.values()), u, create_graph=True, allow_unused=True
        )
        ends, given = [], []
        for name, gradient in zip(linear.parameters, gradients):
            if gradient is not None and gradient.requires_grad:  # else the outputs do not depend on it
                ends.append(gradient.to_dense() if gradient.is_sparse else gradient)
                given.append(tangents[name])
        if not ends:
            return u.new_zeros(count, *u.shape)
        if together and count > 1:
            (found,) = torch.autograd.grad(ends, u, given, is_grads_batched=True)
            return found
        each = [[values[i] for values in given] for i in range(count)]
        return torch.stack([torch.autograd.grad(ends, u, one, retain_graph=True)[0] for one in each])


def push_rows(linear: Linearised, batch: Batch, tangents: Values) -> Tensor:
    """J t from the rows of J, one backward pass for every output of every sample."""
    outputs = linear.rows(batch)
    found = []
    for row in outputs.reshape(-1):
        gradients = _backward(row, linear.parameters, torch.ones_like(row), keep=True)
        products = [
            (tangents[name].flatten(1) @ gradient.flatten().to(tangents[name])).to(outputs)
            for name, gradient in gradients.items()
        ]
        found.append(torch.stack(products).sum(0))
    return torch.stack(found, 1).reshape(-1, *outputs.shape)


@dataclass(frozen=True)
class Way:
    """One way of a product: how it is done for any number of vectors, and its name."""

    run: Callable[..., Any]
    name: str
    together: bool  # all vectors in one pass
    batched: bool = False  # by vmap

    def held(self, vectors: int) -> int:
        """How many vectors' passes are in memory together; one after the other, the graph is kept beside one."""
        return vectors if self.together else min(vectors, 2)


_PUSHES = (
    Way(partial(push_forward_mode, together=True), "forward mode", True, True),
    Way(partial(push_forward_mode, together=False), "forward mode", False),
    Way(partial(push_double_backward, together=True), "double backward", True, True),
    Way(partial(push_double_backward, together=False), "double backward", False),
    Way(push_rows, "one backward pass per output", True),
)
_PULLS = (Way(pull_many, "backward", True, True), Way(pull_one, "backward", False))


@dataclass(frozen=True)
class Ways:
    """How J^T v and J t are done for a model."""

    pull: Way
    push: Way


def find_ways(linear: Linearised, few: Batch) -> Ways:
    """The first way of each product that works on a few samples and agrees with single backward passes there."""
    generator = torch.Generator().manual_seed(0)
    outputs = linear.rows(few).detach()

    def draw(like: Tensor) -> Tensor:
        return torch.randn(2, *like.shape, generator=generator, dtype=torch.float64).to(like)

    vectors = draw(outputs)
    tangents = {name: draw(value.detach()) for name, value in linear.parameters.items()}
    pulled = pull_one(linear, few, vectors)
    overlaps = [tangents[name].flatten(1).double() @ pulled[name].flatten(1).double().T for name in pulled]
    expected = torch.stack(overlaps).sum(0)  # <t_i, J^T v_j>
    for push in _worthwhile(_PUSHES, linear.model):
        try:
            pushed = push.run(linear, few, tangents)
        except REFUSALS:
            continue
        found = pushed.flatten(1).double() @ vectors.flatten(1).double().T
        scale = pushed.flatten(1).double().norm(dim=1)[:, None] * vectors.flatten(1).double().norm(dim=1)
        if _agree(found, expected, scale, outputs.dtype):
            return Ways(_find_pull(linear, few, vectors, pulled), push)
    raise NotSupportedError(
        "the derivatives of the model by its parameters do not agree with its backward pass: check the custom "
        "autograd functions in it with torch.autograd.gradcheck."
    )


def _worthwhile(ways: Sequence[Way], model: Model) -> list[Way]:
    """Many vectors together, unless there are convolutions: with many weights each they are slower."""
    convolves = isinstance(model.function, nn.Module) and any(
        isinstance(module, nn.modules.conv._ConvNd) for module in model.function.modules()
    )
    return [way for way in ways if not (convolves and way.batched)]


def _find_pull(linear: Linearised, few: Batch, vectors: Tensor, expected: Values) -> Way:
    for pull in _worthwhile(_PULLS, linear.model):
        try:
            found = pull.run(linear, few, vectors)
        except REFUSALS:
            continue
        if all(
            _agree(found[name], values, values.abs().max(), vectors.dtype)
            for name, values in expected.items()
        ):
            return pull
    raise AssertionError("single backward passes agree with themselves")


def _agree(found: Tensor, expected: Tensor, scale: Tensor, dtype: torch.dtype) -> bool:
    tolerance = agreement(dtype)
    return bool(((found - expected).abs() <= tolerance * scale + torch.finfo(dtype).tiny).all())


def agreement(dtype: torch.dtype) -> float:
    """To which part of the sizes of all terms two ways to the same derivative must agree."""
    return _AGREEMENT.get(dtype, _AGREEMENT_HALF)
