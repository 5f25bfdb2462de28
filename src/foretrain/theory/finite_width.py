"""What a layer's statistics mean for what one measures: observables of preactivations to order 1/n.

Given the layer before, the neurons of a layer are independent and Gaussian over the inputs. Their covariance, the
metric, fluctuates from network to network with mean K + G1/n and covariance V/n, n the fan-in. The mean of a
function F of one neuron is therefore that of <F>_metric, and two neurons covary because they share the metric:
Taylor expansions in the metric, (4.61), (4.64) and (4.112).

An observable is a list of factors, one per input (``["tanh", z**2]``; a single factor for a single input), or
any function of an array (points, inputs) that gives one number per point.

``mean_of``, ``covariance_of``, ``covariance_within_neuron``  of observables, with their parts
``expansion_parameter``  whether 1/n is small for a network
``layer_statistics``     K, V and G1 of one layer, from which all of this follows
``second_moment``, ``excess_kurtosis``, ``fluctuation``, ``neuron_covariance``, ``connected_four_point``  by layer
``couplings``            the action of a layer, its couplings, and how they run with the neurons kept

Observables follow from the mean of a function of one neuron and its derivatives with respect to the metric: Price's
for smooth factors and for delta functions, and Hermite weights for everything else. Neither needs K to be invertible,
and with weights F may have kinks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement, product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import ArrayLike

from foretrain.gaussian import Expectation, Factor, covariance_gradient, expectation, expectation_of
from foretrain.gaussian.expectation import MOST_INPUTS
from foretrain.gaussian.observables import directions, factors_of
from foretrain.support.answers import Result
from foretrain.support.arguments import Array
from foretrain.support.errors import NotSupportedError
from foretrain.support.user_warnings import warn_user
from foretrain.theory.architecture import MLP
from foretrain.theory.arguments import whole_numbers
from foretrain.theory.criticality import criticality
from foretrain.theory.flow import Flow, flow
from foretrain.theory.residual_networks import fluctuation_rate

if TYPE_CHECKING:
    import xarray as xr


SMALL, LARGE = 0.1, 0.3
"""V / (n K^2) below which the next order in 1/n hardly shows, and from which on the first is not enough."""


@dataclass(frozen=True, repr=False)
class ExpansionParameter(Result):
    """Whether 1/n is a small parameter: ``value`` = ``growth`` * L/n, the output's V / (n K^2).

    ``growth`` is that of the network's universality class, None (taken as 1) where it is not at criticality.
    """

    depth_to_width: float
    growth: float | None
    value: float
    verdict: str


def expansion_parameter(mlp: MLP) -> ExpansionParameter:
    """L/n times the growth of V / (n K^2) per layer, with a verdict; warns where it is not small.

    In a scale-invariant network the metric's relative variance is (1 + x/L)^L - 1 with x this parameter, so the
    order left out changes fluctuations by about x/2.
    """
    growth = _growth(mlp)
    value = mlp.depth_to_width * (1.0 if growth is None else growth)
    verdict = verdict_on(value)
    if value >= LARGE:
        warn_user(_too_deep(value))
    return ExpansionParameter(mlp.depth_to_width, growth, value, verdict)


def verdict_on(fluctuation: float) -> str:
    """What a size of V / (n K^2) means for an expansion in 1/n, in words."""
    if fluctuation < SMALL:
        return f"small, the next order changes fluctuations by about {50 * fluctuation:.1g} %"
    if fluctuation < LARGE:
        return f"noticeable, the next order changes fluctuations by about {50 * fluctuation:.2g} %"
    return "large, the first order in 1/n is not enough: widen the network or make it shallower"


def _too_deep(fluctuation: float) -> str:
    """The sentence of the warning for strong fluctuations."""
    return (
        f"the relative variance of the metric is {fluctuation:.2g}, so the first order in 1/n is only a "
        "guide: widen the network or make it shallower."
    )


def _growth(mlp: MLP) -> float | None:
    """What a layer adds to V / K^2 at criticality (section 5.4), None off criticality."""
    skips = set(mlp.gamma[1:-1])
    point = criticality(mlp.activation).point if len(skips) < 2 else None
    share = 1 - np.square(mlp.gamma[1:])  # what a skip connection leaves to the weights (B.20)
    if point is None or not np.allclose(mlp.C_W[1:], share * point.C_W, rtol=1e-6, atol=0.0):
        return None
    if point.kind == "scale-invariant" and not mlp.is_residual and all(mlp.C_b[1:]):
        return point.coefficients["nu"] / 3  # semi-critical: the kernel itself grows with depth
    if not np.allclose(mlp.C_b[1:], share * point.C_b, rtol=1e-6, atol=1e-12):
        return None
    skip = skips.pop() if skips else 0.0
    if point.kind != "half-stable":
        return fluctuation_rate(mlp.activation, skip)
    found = criticality(mlp.activation, skip).point
    return None if found is None else found.coefficients["nu"]


@dataclass(frozen=True, repr=False)
class LayerStatistics(Result):
    """Kernel K (N, N), vertex V (N, N, N, N) and correction G1 (N, N) of one layer; n = ``fan_in``."""

    also = ("fluctuation",)
    layer: int
    fan_in: int
    K: Array
    V: Array
    G1: Array

    @property
    def fluctuation(self) -> float:
        """The largest V / (n K^2) of the inputs: what has to be small for an expansion in 1/n."""
        K, V = np.diagonal(self.K), np.einsum("aaaa->a", self.V)
        return float(np.max(np.where(K > 0, V / np.where(K > 0, K, 1.0) ** 2, 0.0))) / self.fan_in


def layer_statistics(mlp: MLP, X: ArrayLike, layer: int | None = None) -> LayerStatistics:
    """K, V and G1 of one layer (the output by default) over the rows of X."""
    inputs = mlp.check_inputs(X)
    number = mlp.check_layer(layer)
    _refuse_residual(mlp, "the expansion of observables in 1/n")
    found = _whole_flow(mlp, tuple(map(tuple, inputs.tolist())))
    K, V, G1 = (found[name].sel(layer=number).values.copy() for name in ("K", "V", "G1"))
    return LayerStatistics(number, mlp.with_inputs(inputs).widths[number - 1], K, V, G1)


@lru_cache(maxsize=8)
def _whole_flow(mlp: MLP, rows: tuple[tuple[float, ...], ...]) -> Flow:
    """Kept, because one asks for many observables of the same network and inputs."""
    return flow(mlp, np.array(rows), ["K", "V", "G1"])


def _refuse_residual(mlp: MLP, what: str) -> None:
    """An error that names what is not known for networks with skip connections."""
    if mlp.is_residual:  # odd moments of its neurons do not vanish, and K, V, G1 are not all there is
        raise NotSupportedError(
            f"{what} is known for networks without skip connections only: leave `gamma` out, or sample networks "
            "with foretrain.theory.ensembles."
        )


def second_moment(mlp: MLP, X: ArrayLike) -> xr.Dataset:
    """E[z_a z_b] = K + G1/n at every layer (4.104): ``value``, and its parts ``leading`` and ``correction``."""
    import xarray as xr

    inputs = mlp.check_inputs(X)
    found = flow(mlp, inputs, ["K", "G1"])
    correction = found["G1"] / _fan_ins(mlp, inputs)
    return xr.Dataset(
        {"value": found["K"] + correction, "leading": found["K"], "correction": correction},
        attrs={"meaning": "E[z_a z_b] of one neuron to order 1/n", "network": repr(mlp)},
    )


def excess_kurtosis(mlp: MLP, X: ArrayLike) -> xr.DataArray:
    """E[z^4] / E[z^2]^2 - 3 = 3 V / (n K^2) at every layer, for every input (4.77): dims (layer, input)."""
    _refuse_residual(mlp, "the excess kurtosis")
    kurtosis = 3 * fluctuation(mlp, X)
    return kurtosis.rename("excess_kurtosis").assign_attrs(
        meaning="excess kurtosis of a preactivation at leading order in 1/n"
    )


def fluctuation(mlp: MLP, X: ArrayLike) -> xr.DataArray:
    """V / (n K^2) at every layer, for every input: the relative variance of the metric, dims (layer, input)."""
    import xarray as xr

    inputs = mlp.check_inputs(X)
    alone = np.repeat(np.arange(len(inputs))[:, None], 4, axis=1)
    found = flow(mlp, inputs, ["K", "V"], quadruples=alone)
    K = np.einsum("laa->la", found["K"].values)
    V = found["V"].values / _fan_ins(mlp, inputs).values[:, None]
    return xr.DataArray(
        np.where(K > 0, V / np.where(K > 0, K, 1.0) ** 2, 0.0),
        dims=("layer", "input"),
        coords={"layer": found["K"]["layer"].values, "input": np.arange(len(inputs))},
        name="fluctuation",
        attrs={"meaning": "relative variance of the metric, V / (n K^2)"},
    )


def neuron_covariance(mlp: MLP, X: ArrayLike) -> xr.DataArray:
    """Cov[z_{i;a}^2, z_{j;b}^2] = V_(aa)(bb) / n of two neurons i != j (4.77): dims (layer, input_1, input_2)."""
    inputs = mlp.check_inputs(X)
    V = flow(mlp, inputs, ["norm_covariance"])["norm_covariance"]
    return (
        (V / _fan_ins(mlp, inputs))
        .rename("neuron_covariance")
        .assign_attrs(meaning="Cov[z_i^2, z_j^2] of two neurons at leading order in 1/n")
    )


def connected_four_point(
    mlp: MLP, X: ArrayLike, neurons: Sequence[int], inputs: Sequence[int], layer: int | None = None
) -> float:
    """The connected E[z_{i1;a1} z_{i2;a2} z_{i3;a3} z_{i4;a4}]: 1/n times the V's that the neurons allow (4.77).

    Examples
    --------
    >>> import foretrain as ft
    >>> deep = ft.MLP("linear", depth=3, width=50, n_out=2)
    >>> round(connected_four_point(deep, [[1.0]], neurons=(0, 0, 1, 1), inputs=(0, 0, 0, 0)), 6)
    0.08
    """
    rows = mlp.check_inputs(X)
    number = mlp.check_layer(layer)
    _refuse_residual(mlp, "the connected four-point correlator")
    widths = mlp.with_inputs(rows).widths
    legs = whole_numbers("neurons", neurons, 4, widths[number])
    points = whole_numbers("inputs", inputs, 4, len(rows))
    pairings = ((0, 1, 2, 3), (0, 2, 1, 3), (0, 3, 1, 2))
    allowed = [p for p in pairings if legs[p[0]] == legs[p[1]] and legs[p[2]] == legs[p[3]]]
    if not allowed:
        return 0.0
    # Only the inputs that are named enter: the others are marginalised exactly.
    used = sorted(set(points))
    chosen = [[used.index(points[leg]) for leg in pairing] for pairing in allowed]
    V = flow(mlp, rows[used], ["V"], quadruples=chosen)["V"].sel(layer=number)
    return float(V.sum()) / widths[number - 1]


def _fan_ins(mlp: MLP, X: Array) -> xr.DataArray:
    """n_{l-1} by layer."""
    import xarray as xr

    widths = mlp.with_inputs(X).widths[:-1]
    return xr.DataArray(
        np.array(widths, dtype=float), dims="layer", coords={"layer": range(1, mlp.depth + 1)}
    )


Function = Callable[[Array], Any]


def _prepare(
    functions: Sequence[Any], mlp: MLP, X: ArrayLike, layer: int | None, kinks: Sequence[Any]
) -> tuple[LayerStatistics, list[_Differentiated | _Weighted]]:
    """The observables, and the statistics of the inputs that any of them looks at."""
    inputs = mlp.check_inputs(X)
    lists = [factors_of(F, len(inputs)) for F in functions]
    if any(factors is None for factors in lists):
        used = list(range(len(inputs)))
    else:
        moving = {i for factors in lists if factors for i, f in enumerate(factors) if not f.is_constant}
        used = sorted(moving) or [0]
    statistics = layer_statistics(mlp, inputs[used], layer)
    observables = [
        _Weighted(F, kinks) if factors is None else _of_factors(factors, used)
        for F, factors in zip(functions, lists)
    ]
    return statistics, observables


def times(F: Any, H: Any, inputs: int) -> Any:
    """The product of two observables."""
    first, second = factors_of(F, inputs), factors_of(H, inputs)
    if (first is None) != (second is None):
        raise NotSupportedError(
            "one observable is a list of factors and the other a function: give two of a kind."
        )
    if first is not None and second is not None:
        return [f * h for f, h in zip(first, second)]
    return lambda z: np.asarray(F(z)) * np.asarray(H(z))


def _of_factors(factors: list[Factor], used: list[int]) -> _Differentiated | _Weighted:
    """Derivatives where they exist, weights for kinks and for a user's function, whose derivatives are measured."""
    chosen = [factors[i] for i in used]
    chosen[0] = chosen[0] * math.prod(f.polynomial[0] for i, f in enumerate(factors) if i not in used)
    smooth = all(
        all(term.order + 4 <= term.activation.max_order for term in f.terms)
        and not f.kinks
        and not f.is_unproven
        for f in chosen
    )
    few = sum(not f.is_constant for f in chosen) <= MOST_INPUTS
    if any(f.deltas for f in chosen) or (smooth and few):
        return _Differentiated(chosen)

    def value(points: Array) -> Array:
        return np.asarray(math.prod(f(points[:, i]) for i, f in enumerate(chosen)))

    return _Weighted(value, [list(f.kinks) for f in chosen])


class _Differentiated:
    """A product of factors, differentiated: entry (a, b) of dK is <d_a d_b F> / 2 (Price)."""

    def __init__(self, factors: list[Factor]) -> None:
        moving = [i for i, f in enumerate(factors) if not f.is_constant] or [0]
        self.places = np.array(moving)
        self.factors = [factors[i] for i in moving]
        constants = [f.polynomial[0] for i, f in enumerate(factors) if i not in moving]
        self.factors[0] = self.factors[0] * math.prod(constants)

    def mean(self, K: Array) -> Expectation:
        """<F>_K."""
        return expectation(self.factors, self._block(K))

    def gradient(self, K: Array) -> Expectation:
        """D (N, N) with d<F> = sum over all a, b of D_ab dK_ab."""
        found = covariance_gradient(self.factors, self._block(K))
        share = 0.5 * (1 + np.eye(len(self.places)))
        spread = np.ix_(self.places, self.places)
        value, error = np.zeros(K.shape), np.zeros(K.shape)
        value[spread], error[spread] = share * found.value, share * found.error
        return Expectation(value, error, found.rule)

    def shift(self, statistics: LayerStatistics) -> Expectation:
        """dK<F> · G1 + (1/8) sum V_(ab)(cd) <d_a d_b d_c d_d F>."""
        slope = self.gradient(statistics.K)
        value = float(np.sum(slope.value * statistics.G1))
        error = float(np.sum(slope.error * np.abs(statistics.G1)))
        K, V = self._block(statistics.K), _symmetrised(statistics.V[np.ix_(*[self.places] * 4)])
        for legs in combinations_with_replacement(range(len(self.places)), 4):
            counts = Counter(legs)
            orderings = 24 // math.prod(math.factorial(count) for count in counts.values())
            weight = orderings * float(V[legs]) / 8
            if weight:
                parts = [_derivative(f, counts[i]) for i, f in enumerate(self.factors)]
                found = [expectation(list(choice), K) for choice in product(*parts)]
                value += weight * sum(float(part) for part in found)
                error += abs(weight) * sum(float(part.error) for part in found)
        return Expectation(np.asarray(value), np.asarray(error), slope.rule)

    def _block(self, K: Array) -> Array:
        return np.asarray(K[np.ix_(self.places, self.places)])


def _derivative(f: Factor, order: int) -> list[Factor]:
    """The terms of a derivative, equal ones collected."""
    parts = [f]
    for _ in range(order):
        collected: dict[Any, Polynomial] = {}
        for slope in (slope for part in parts for slope in part.derivative()):
            before = collected.get(slope.terms, Polynomial([0.0]))
            collected[slope.terms] = before + Polynomial(slope.polynomial)
        parts = [Factor(terms, tuple(map(float, p.coef))) for terms, p in collected.items() if p.coef.any()]
    return parts


class _Weighted:
    """Any function, its derivatives turned into Hermite polynomials of x = W z, independent on the support of K.

    Metrics never leave the support: what every network sends to zero in K it sends to zero.
    """

    def __init__(self, function: Function, kinks: Sequence[Any]) -> None:
        self.function, self.kinks = function, kinks

    def mean(self, K: Array) -> Expectation:
        """<F>_K."""
        return expectation_of(self.function, K, kinks=self.kinks)

    def gradient(self, K: Array) -> Expectation:
        """D = W^T <F (x x^T - 1)> W / 2."""
        whitening = directions(K).back
        rank = len(whitening)
        value, error = np.zeros((rank, rank)), np.zeros((rank, rank))
        for a, b in combinations_with_replacement(range(rank), 2):
            direction = np.zeros((rank, rank))
            direction[a, b] = 1.0
            found = self._with_weight(_HermiteWeight(direction, np.zeros((rank,) * 4)), whitening, K)
            value[a, b] = value[b, a] = float(found)
            error[a, b] = error[b, a] = float(found.error)
        size = np.abs(whitening)
        return Expectation(
            whitening.T @ value @ whitening, size.T @ error @ size, "Hermite weights on the support of K"
        )

    def shift(self, statistics: LayerStatistics) -> Expectation:
        """dK<F> · G1 + dK²<F> · V / 2 as one integral of F with a weight."""
        W = directions(statistics.K).back
        V = np.einsum("ijkl,ai,bj,ck,dl->abcd", _symmetrised(statistics.V), W, W, W, W, optimize=True)
        return self._with_weight(_HermiteWeight(W @ statistics.G1 @ W.T, V), W, statistics.K)

    def _with_weight(self, weight: _HermiteWeight, whitening: Array, K: Array) -> Expectation:
        def weighted(points: Array) -> Array:
            return np.asarray(self.function(points)) * weight(points @ whitening.T)

        return expectation_of(weighted, K, kinks=self.kinks)


@dataclass(frozen=True)
class _HermiteWeight:
    """A_ab He_ab(x) / 2 + B_abcd He_abcd(x) / 8 with B totally symmetric, at points (P, rank)."""

    second: Array
    fourth: Array

    def __call__(self, x: Array) -> Array:
        rank = x.shape[1]
        squares = (x[:, :, None] * x[:, None, :]).reshape(len(x), rank**2)
        trace = np.einsum("abcc->ab", self.fourth)
        quartic = np.sum(squares @ self.fourth.reshape(rank**2, rank**2) * squares, axis=1)
        quadratic = squares @ trace.ravel()
        plain = squares @ self.second.ravel() - np.trace(self.second)
        return np.asarray(plain / 2 + (quartic - 6 * quadratic + 3 * np.trace(trace)) / 8)


def _symmetrised(V: Array) -> Array:
    """The mean of V over the three ways to pair its indices: all that four equal derivatives feel."""
    return np.asarray((V + V.transpose(0, 2, 1, 3) + V.transpose(0, 3, 2, 1)) / 3)


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
    statistics, (observable,) = _prepare([F], mlp, X, layer, kinks)
    leading, shift = observable.mean(statistics.K), observable.shift(statistics)
    error = float(leading.error) + float(shift.error) / statistics.fan_in
    return _finish(statistics, float(leading), float(shift), error)


def covariance_of(
    F: Any, H: Any, mlp: MLP, X: ArrayLike, layer: int | None = None, *, kinks: Sequence[Any] = ()
) -> FirstOrder:
    """Cov[F(z_i), H(z_j)] = (1/n) dK<F> · V · dK<H> for two different neurons of a layer (4.64).

    At infinite width it is zero. For i = j use :func:`covariance_within_neuron`.
    """
    statistics, (first, second) = _prepare([F, H], mlp, X, layer, kinks)
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
    statistics, observables = _prepare([both, F, H], mlp, X, layer, kinks)
    (joint, joint_shift), (f, f_shift), (h, h_shift) = (
        (item.mean(statistics.K), item.shift(statistics)) for item in observables
    )
    leading = float(joint) - float(f) * float(h)
    shift = float(joint_shift) - float(f_shift) * float(h) - float(f) * float(h_shift)
    doubt = float(joint.error) + abs(float(f)) * float(h.error) + abs(float(h)) * float(f.error)
    shift_doubt = float(joint_shift.error) + abs(float(h)) * float(f_shift.error)
    shift_doubt += abs(float(f)) * float(h_shift.error)
    return _finish(statistics, leading, shift, doubt + shift_doubt / statistics.fan_in)


def _finish(statistics: LayerStatistics, leading: float, shift: float, error: float) -> FirstOrder:
    size = statistics.fluctuation
    if size >= LARGE:  # the caller's caller is the user
        warn_user(_too_deep(size))
    return FirstOrder(
        leading, shift / statistics.fan_in, error, statistics.layer, statistics.fan_in, float(size)
    )
