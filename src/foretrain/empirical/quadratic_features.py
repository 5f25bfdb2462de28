"""A torch network at initialisation as a quadratic model: random features and meta-features (11.145)-(11.150).

Features are dz/dθ, meta-features d²z/dθdθ, so the kernel is the NTK and the meta-kernel the dNTK. Outputs share their
parameters, hence rows are pairs (sample, output). Sums over features are passes through the network along one change
of all parameters, so that nothing of the size parameters x parameters, or samples x parameters, is formed.

>>> import torch
>>> from foretrain.theory.prediction.nearly_kernel import solve
>>> net = torch.nn.Sequential(torch.nn.Linear(2, 50), torch.nn.Tanh(), torch.nn.Linear(50, 1)).double()
>>> x, y = torch.randn(4, 2).double(), torch.zeros(4)
>>> solve(NetworkFeatures(net), x, y, "flow").predict(x).shape
(4,)
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foretrain.empirical.differentials.derivatives import (
    change_along,
    curvature_along,
    differentiable_often,
    repeated_along,
)
from foretrain.empirical.differentials.kernel_differentials import dntk
from foretrain.empirical.kernel_operator.passes import (
    REFUSALS,
    Linearised,
    Values,
    Ways,
    agreement,
    find_ways,
    pull_one,
)
from foretrain.empirical.models.arguments import Batch, Rates, chosen, rate_of_each, trainable
from foretrain.empirical.models.model import Output, unchanged
from foretrain.empirical.tangent_kernel.kernel import KernelOptions, ntk, prepare
from foretrain.support.answers import Answer, Result
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.progress import track

Array = NDArray[np.float64]

Way = Callable[[Linearised, Batch, Values, Values], Tensor]  # D²z[v, w] along two changes of the parameters

_REFUSALS = (*REFUSALS, NotSupportedError)  # the latter of passes that explain what torch says
_NEGLIGIBLE = 1e-15  # of the largest singular value of a sum: rounding


class NetworkFeatures(Result):
    """Features and meta-features of a network as it is now; it may be trained afterwards, this keeps a copy.

    ``rates`` are the learning rates λ of the parameters, as in ``ft.ntk`` (an optimizer or its groups will do): with
    them, ``eta`` of gradient descent multiplies all. ``parameters`` and ``output`` as in ``ft.ntk``. The copy is in
    double precision, because the correction holds the square of an inverse; ``dtype=None`` leaves the network's own.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        rates: Rates = None,
        output: Output = None,
        parameters: Any = None,
        dtype: torch.dtype | None = torch.float64,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"model is a {type(model).__name__}: give a torch module.")
        kept = chosen(trainable(model, None), parameters)
        self._rates = rate_of_each(kept, rates)
        self._names = list(kept)
        self._model = deepcopy(model).to(dtype=dtype)
        self._output = output

    def answer(self) -> Answer:
        """Of which network."""
        count = sum(value.numel() for name, value in self._model.named_parameters() if name in self._names)
        kind = type(self._model).__name__
        return Answer(f"NetworkFeatures({kind} with {count} parameters as they were)")

    def tensor(self, x: Any) -> Tensor:
        """Samples on the network's device; real numbers also in its dtype."""
        like = next(iter(self._model.parameters())).detach()
        if not isinstance(x, Tensor | np.ndarray):
            raise InputError(f"samples are a {type(x).__name__}: give a tensor or a numpy array.")
        given = torch.as_tensor(np.array(x)) if isinstance(x, np.ndarray) else x.detach()
        return given.to(like) if given.is_floating_point() else given.to(like.device)

    def points(self, x: Any) -> NetworkPoints:
        """The samples, ready for sums over features."""
        given = self.tensor(x)
        with unchanged(self._model):
            options = KernelOptions(output=self._output, parameters=self._names)
            engine, batch, _ = prepare(self._model, given, options=options)
        linear = Linearised(engine.model, engine.parameters, engine.outputs)
        return NetworkPoints(self, given, linear, batch, len(engine.outputs))

    def outputs(self, x: Any) -> Array:
        """What the network says before training, (N, C): the offset of the quadratic model."""
        points = self.points(x)
        return _numpy(points.linear.rows(points.batch, differentiable=False))

    def start(self, x: Any, outputs: int) -> Array:
        """Outputs before training, for as many outputs as there are targets."""
        found = self.outputs(x)
        if found.shape[1] != outputs:
            raise InputError(f"y has {outputs} outputs, but the network has {found.shape[1]}.")
        return found

    def kernel(self, x1: Any, x2: Any) -> Array:
        """The NTK (11.148) with rates: (N1, N2, C, C)."""
        same = x2 is x1
        found = ntk(
            self._model,
            self.tensor(x1),
            None if same else self.tensor(x2),
            output=self._output,
            parameters=self._names,
            rates=self._rates,
        )
        return np.asarray(found, dtype=np.float64)

    def meta_kernel(self, x0: Any, x1: Any, x2: Any) -> Array:
        """The dNTK (11.149) with rates: (N0, N1, N2, C, C, C); the first index is differentiated twice."""
        known = {id(x): self.points(x) for x in (x0, x1, x2)}
        front, first, second = (known[id(x)] for x in (x0, x1, x2))
        flat = front.meta_kernel(first, second)
        C = front.wires
        split = flat.reshape(front.batch.count, C, first.batch.count, C, second.batch.count, C)
        return np.asarray(split.transpose(0, 2, 4, 1, 3, 5))

    def differential(self, x: Any) -> Array:
        """The dNTK with rates of samples with themselves, pairs (sample, output) as rows."""
        given, names = self.tensor(x), self._names
        found = dntk(self._model, given, output=self._output, parameters=names, rates=self._rates)
        return _numpy(found.joint())

    def weighted(self, values: Values) -> Values:
        """Λ times a change of the parameters."""
        return {name: self._rates[name] * value for name, value in values.items()}


@dataclass(frozen=True, eq=False)
class NetworkPoints:
    """Samples of a network, and the sums over kernel and meta-kernel that predictions are made of."""

    network: NetworkFeatures
    x: Any
    linear: Linearised
    batch: Batch
    wires: int
    _drifts: list[tuple[Array, Values]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Samples times outputs."""
        return self.batch.count * self.wires

    def kernel(self, other: NetworkPoints) -> Array:
        """The NTK with pairs (sample, output) as rows."""
        found = self.network.kernel(self.x, other.x)
        return np.asarray(found.transpose(0, 2, 1, 3).reshape(self.rows, other.rows))

    def meta_kernel(self, first: NetworkPoints, second: NetworkPoints) -> Array:
        """The dNTK of all samples that occur, of which the asked rows are kept."""
        sets = list({id(points): points for points in (self, first, second)}.values())
        ends = np.cumsum([points.rows for points in sets])
        places = {id(points): np.arange(end - points.rows, end) for points, end in zip(sets, ends)}
        whole = self.network.differential(torch.cat([points.x for points in sets]))
        return np.asarray(whole[np.ix_(places[id(self)], places[id(first)], places[id(second)])])

    def in_front(self, train: NetworkPoints, weights: Array) -> Array:
        """Σ μ_{δ α1 α2} c_{α1α2}: second derivatives along the modes of the symmetric part of c."""
        values, modes = np.linalg.eigh(0.5 * (weights[0] + weights[0].T))
        found = np.zeros(self.rows)
        for value, mode in zip(values, modes.T, strict=True):
            if abs(value) > _NEGLIGIBLE * np.abs(values).max():
                along = train.direction(mode)
                found += value * self._second(along, along)
        return found[None]

    def in_the_middle(self, train: NetworkPoints, weights: Array) -> Array:
        """Σ μ_{α1 δ α2} c_{α1α2}: one derivative along a change of the parameters that depends on training alone."""
        if not weights.any():
            return np.zeros((1, self.rows))
        drift = self.network.weighted(train.drift(weights))
        change = self._ways.push.run(
            self.linear, self.batch, {name: value[None] for name, value in drift.items()}
        )
        return _numpy(change).reshape(1, self.rows)

    def shift(self, other: NetworkPoints, train: NetworkPoints, weights: Array) -> Array:
        """Σ μ_{δ1δ2α} c_α: second derivatives along Σ c φ and the gradient of each row of the other points."""
        along = train.direction(weights[0])
        columns = [
            self._second(along, other.direction(unit)) for unit in track(np.eye(other.rows), "dNTK sums")
        ]
        return np.stack(columns, axis=1)[None]

    def movement(self, weights: Array, inverse_root: Array) -> float:
        """How far the features move along Σ c φ, inside the span of these points' features."""
        inside = inverse_root @ self.shift(self, self, weights)[0] @ inverse_root
        return float(np.linalg.norm(inside, 2))

    def direction(self, weights: Array) -> Values:
        """Λ Σ_α c_α dz_α/dθ, a change of the parameters."""
        vector = torch.as_tensor(weights).reshape(1, self.batch.count, self.wires).to(self._like)
        found = pull_one(self.linear, self.batch, vector)
        return self.network.weighted({name: value[0] for name, value in found.items()})

    def drift(self, weights: Array) -> Values:
        """Σ_α1 d²z_α1/dθdθ Λ Σ_α2 c_{α1α2} dz_α2/dθ, as a sum over the modes of c; kept for the next call."""
        for known, found in self._drifts:
            if known is weights:
                return found
        left, sizes, right = np.linalg.svd(weights[0])
        total: Values = {}
        for u, size, v in track(list(zip(left.T, sizes, right, strict=True)), "Hessian products"):
            if size <= _NEGLIGIBLE * sizes[0]:
                continue
            # Σ_α c_α d²z_α/dθdθ along one mode.
            vector = torch.as_tensor(size * u).reshape(self.batch.count, self.wires).to(self._like)
            along = self.direction(v)
            with differentiable_often(), torch.enable_grad():
                summed = (self.linear.rows(self.batch) * vector).sum()
                steps = {name: value[None] for name, value in along.items()}
                found = curvature_along(summed, self.linear.parameters, steps)
            product = {name: value[0].detach() for name, value in found.items()}
            total = {name: total[name] + value if total else value for name, value in product.items()}
        self._drifts[:] = [(weights, total)]
        return total

    @property
    def _like(self) -> Tensor:
        return next(iter(self.linear.parameters.values())).detach()

    @cached_property
    def _ways(self) -> Ways:
        return find_ways(self.linear, self.batch.pick(range(min(self.batch.count, 2))))

    @cached_property
    def _second_way(self) -> Way:
        return right_way(self.linear, self.batch)

    def _second(self, first: Values, second: Values) -> Array:
        """D² z[v, w] of every row."""
        return _numpy(self._second_way(self.linear, self.batch, first, second)).reshape(-1)


def _numpy(values: Tensor) -> Array:
    return np.asarray(values.detach().cpu().double().numpy())


def by_forward_mode(linear: Linearised, batch: Batch, first: Values, second: Values) -> Tensor:
    """(samples, outputs) by a forward pass inside a forward pass."""

    def outputs(values: Values) -> Tensor:
        # With gradients allowed: torch then takes formulas that can be differentiated again.
        return linear.rows(batch, linear.changed(values))

    def slope(values: Values) -> Tensor:
        found: Tensor = torch.func.jvp(outputs, (values,), (first,))[1]
        return found

    at = {name: value.detach() for name, value in linear.parameters.items()}
    with differentiable_often(), torch.enable_grad():
        change: Tensor = torch.func.jvp(slope, (at,), (second,))[1]
    return change.detach()


def by_backward_passes(linear: Linearised, batch: Batch, first: Values, second: Values) -> Tensor:
    """The same by passes backward, two for every direction."""
    with differentiable_often(), torch.enable_grad():
        slope = change_along(linear.rows(batch), linear.parameters, first)
        return change_along(slope, linear.parameters, second).detach()


def right_way(linear: Linearised, batch: Batch) -> Way:
    """The first way that repeated gradients of a random sum of outputs confirm on a few samples.

    Nested forward mode is the cheapest. It is missing for some operations of torch and wrong for others.
    """
    few, source = batch.pick(range(min(batch.count, 2))), torch.Generator().manual_seed(0)
    along = {
        name: torch.randn(value.shape, generator=source).to(value.detach())
        for name, value in linear.parameters.items()
    }
    for way in (by_forward_mode, by_backward_passes):
        try:
            found = way(linear, few, along, along)
            weights = torch.randn(found.shape, generator=source).to(found)
            with differentiable_often(), torch.enable_grad():
                total = (linear.rows(few) * weights).sum()
                expected = repeated_along(total, linear.parameters, along, 2)
        except _REFUSALS:
            continue
        allowed = agreement(found.dtype) * float((found * weights).abs().sum())
        if abs(float((found * weights).sum()) - expected) <= allowed:
            return way
    raise NotSupportedError(
        "second derivatives of this network, by several ways of torch, are missing or disagree: an operation of it "
        "cannot be differentiated twice; write it with plain torch operations."
    )
