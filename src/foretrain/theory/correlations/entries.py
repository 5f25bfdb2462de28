"""What correlators of tangent kernels share: the result, its assembly from entries of tensors, and what is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.answers import Result
from foretrain.support.errors import InputError
from foretrain.support.user_warnings import warn_user
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.flow import flow

Array = NDArray[np.float64]
Quadruple = tuple[int, int, int, int]


@dataclass(frozen=True, repr=False)
class NTKCorrelation(Result):
    """A correlator at order 1/n: ``value`` is the sum of ``terms``, each with its 1/n.

    ``error`` is that of the integrals of a function given to :func:`observable_ntk`, else 0.
    """

    value: float
    terms: dict[str, float]
    layer: int
    fan_in: int
    error: float = 0.0

    def __float__(self) -> float:
        return self.value


def assembled(mlp: MLP, X: ArrayLike, wanted: dict[str, tuple[str, Quadruple]], layer: int) -> NTKCorrelation:
    """The sum of named entries of tensors, at a layer."""
    terms = {
        name: float(tensor_entries(mlp, X, tensor, [places], layer)[0])
        for name, (tensor, places) in wanted.items()
    }
    return with_fan_in(mlp, X, terms, layer)


def with_fan_in(
    mlp: MLP, X: ArrayLike, terms: dict[str, float], layer: int, error: float = 0.0, *, accurate: bool = True
) -> NTKCorrelation:
    """With the 1/n of the width before the layer; layer 1, whose tensors are zero, has the data before it.

    Warns of the ``error`` where the integrals of an observable are not as accurate as they should be.
    """
    fan_in = mlp.with_inputs(mlp.check_inputs(X)).widths[layer - 1]
    parts = {name: value / fan_in for name, value in terms.items()}
    found = NTKCorrelation(sum(parts.values(), 0.0), parts, layer, fan_in, error / fan_in)
    if found.error and not accurate:
        warn_user(
            f"the correlator {found.value:.6g} is known to within {found.error:.1g} only: give factors or a tuple of "
            "two functions if the observable is a product, declare its `kinks=`, or leave out inputs it does not "
            "look at."
        )
    return found


def tensor_entries(mlp: MLP, X: ArrayLike, tensor: str, places: Sequence[Quadruple], layer: int) -> Array:
    """Entries of one tensor of the flow."""
    found = flow(mlp, X, [tensor], quadruples=np.array(places))
    return np.asarray(found[tensor].sel(layer=layer).values)


def neurons_looked_at(of: Sequence[int]) -> tuple[int, ...]:
    """One or two different neurons."""
    found = np.asarray(of)
    if (
        found.ndim != 1
        or found.dtype.kind not in "iu"
        or len(found) not in (1, 2)
        or len(set(found)) < len(found)
    ):
        raise InputError(
            f"of is {of!r}: name one neuron, (0,), or two different ones, (0, 1), that the observable looks at."
        )
    return tuple(int(number) for number in found)


def inputs_and_layer(
    mlp: MLP, X: ArrayLike, inputs: Sequence[int], layer: int | None
) -> tuple[Quadruple, int]:
    """Four inputs, and the layer."""
    check_network(mlp)
    place = mlp.check_layer(layer)
    a, b, c, d = inputs_asked(inputs, 4, len(mlp.check_inputs(X)))
    return (a, b, c, d), place


def four_neurons(values: Sequence[int]) -> Quadruple:
    """Four labels of neurons."""
    a, b, c, d = whole_numbers("neurons", values, 4)
    return a, b, c, d


def inputs_asked(values: Sequence[int], count: int, size: int) -> tuple[int, ...]:
    """So many rows of X."""
    found = whole_numbers("inputs", values, count)
    if min(found) < 0 or max(found) >= size:
        raise InputError(f"inputs {found} are not all rows of X, which has {size}.")
    return found


def whole_numbers(name: str, values: Sequence[int], count: int) -> tuple[int, ...]:
    """So many of them."""
    found = np.asarray(values)
    if found.shape != (count,) or found.dtype.kind not in "iu":
        raise InputError(f"`{name}` is {values!r}: give {count} whole numbers.")
    return tuple(int(value) for value in found)
