"""Means and covariances of functions of preactivations to order 1/n: (4.61), (4.64), (4.112)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from foretrain.gaussian import Expectation
from foretrain.support.answers import Result
from foretrain.support.user_warnings import warn_user
from foretrain.theory.architecture import MLP
from foretrain.theory.finite_width.expansion import LARGE, LayerStatistics, too_deep
from foretrain.theory.finite_width.observables import Observable, prepare, times


@dataclass(frozen=True, repr=False)
class FirstOrder(Result):
    """A prediction to order 1/n: ``value`` = ``leading`` (infinite width) + ``correction`` (1/n included).

    ``error`` is the estimated error of the integrals; what the expansion leaves out is of order n^-2, about
    ``fluctuation`` times the correction.
    """

    also = ("value",)
    leading: float
    correction: float
    error: float
    layer: int
    fan_in: int
    fluctuation: float

    @property
    def value(self) -> float:
        """The sum of both orders."""
        return self.leading + self.correction

    def __float__(self) -> float:
        return self.value


def mean_of(
    F: Any, mlp: MLP, X: ArrayLike, layer: int | None = None, *, kinks: Sequence[Any] = ()
) -> FirstOrder:
    """E[F] = <F>_K + (1/n) [dK<F> · G1 + dK²<F> · V / 2] for one neuron of a layer (4.61), (4.112).

    Parameters
    ----------
    F
        Factors, one for each input, or a function of an array (points, inputs).
    X
        Inputs (N, n_in); those that no factor looks at cost nothing.
    kinks
        Where a function (not a factor, which knows) is not smooth: see :func:`foretrain.gaussian.expectation_of`.

    Examples
    --------
    >>> import foretrain as ft
    >>> found = mean_of([np.polynomial.Polynomial([0, 0, 1])], ft.MLP("relu", 3, 50, C_W=2.0), [[1.0, 2.0]])
    >>> round(found.leading, 10), round(found.correction, 10)
    (5.0, 0.0)
    """
    statistics, (observable,) = prepare([F], mlp, X, layer, kinks)
    leading, shift = _orders(observable, statistics)
    error = float(leading.error) + float(shift.error) / statistics.fan_in
    return _finish(statistics, float(leading), float(shift), error)


def covariance_of(
    F: Any, H: Any, mlp: MLP, X: ArrayLike, layer: int | None = None, *, kinks: Sequence[Any] = ()
) -> FirstOrder:
    """Cov[F(z_i), H(z_j)] = (1/n) dK<F> · V · dK<H> for two different neurons of a layer (4.64).

    At infinite width it is zero. For i = j use :func:`covariance_within_neuron`.
    """
    statistics, (first, second) = prepare([F, H], mlp, X, layer, kinks)
    left, right = first.gradient(statistics.K), second.gradient(statistics.K)
    V = statistics.V
    value = np.einsum("ab,abcd,cd->", left.value, V, right.value)
    error = np.einsum("ab,abcd,cd->", left.error, np.abs(V), np.abs(right.value))
    error += np.einsum("ab,abcd,cd->", np.abs(left.value), np.abs(V), right.error)
    return _finish(statistics, 0.0, float(value), float(error) / statistics.fan_in)


def covariance_within_neuron(
    F: Any, H: Any, mlp: MLP, X: ArrayLike, layer: int | None = None, *, kinks: Sequence[Any] = ()
) -> FirstOrder:
    """E[F H] - E[F] E[H] for two functions of the same neuron, strictly to order 1/n."""
    both = times(F, H, len(mlp.check_inputs(X)))
    statistics, observables = prepare([both, F, H], mlp, X, layer, kinks)
    (joint, joint_shift), (f, f_shift), (h, h_shift) = (_orders(item, statistics) for item in observables)
    leading = float(joint) - float(f) * float(h)
    shift = float(joint_shift) - float(f_shift) * float(h) - float(f) * float(h_shift)
    doubt = float(joint.error) + abs(float(f)) * float(h.error) + abs(float(h)) * float(f.error)
    shift_doubt = float(joint_shift.error) + abs(float(h)) * float(f_shift.error)
    shift_doubt += abs(float(f)) * float(h_shift.error)
    return _finish(statistics, leading, shift, doubt + shift_doubt / statistics.fan_in)


def _orders(observable: Observable, statistics: LayerStatistics) -> tuple[Expectation, Expectation]:
    return observable.mean(statistics.K), observable.shift(statistics)


def _finish(statistics: LayerStatistics, leading: float, shift: float, error: float) -> FirstOrder:
    size = statistics.fluctuation
    if size >= LARGE:  # the caller's caller is the user
        warn_user(too_deep(size))
    return FirstOrder(
        leading, shift / statistics.fan_in, error, statistics.layer, statistics.fan_in, float(size)
    )
