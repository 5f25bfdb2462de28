"""One network, one input: which asymptotic laws of the kernel hold, beside the exact recursion (section 5.3).

At fixed points other than K* = 0 and off criticality K - K*, dK_[1] fall as chi_parallel^l and ddK_[2] as chi_perp^l,
all at K*; V and G1 settle.

Near a half-stable K* > 0 (SWISH, GELU) (5.102), (5.103), with x = -a_1 (K - K*) at layer 1, t = l - 1 and s = 1 + x
t, the flow K' = K + a_1 (K - K*)^2 and all that hangs on it is solved at leading order in x for any x t: V = S* t
at x t << 1 as from K* itself, V = S* t / 5 at x t >> 1.

Critical flow to K* = 0 with a_1 < 0 (tanh, sin, erf): series in 1/l and log l (section 5.3.3).

A skip connection at criticality multiplies a_1, a_2 and b_1 by 1 - gamma^2 and changes nothing else for the kernel
(B.32).

Where a_1 (and more) vanish the leading term is K' = K + a K^(1+k) with k = 2, 3, ..., and k = 1/2 where the second
derivative of the activation jumps at 0. Then K = (-k a l)^(-1/k), dK_[1] falls as l^(-(1+k)/k), and V / K^2 = 2 l /
3 for every k.

Scale-invariant activations have closed forms for every depth, critical or not (5.60)-(5.65), (5.113)-(5.120).

What a law is: its values at every layer, its formula, where it is from, and how large what it leaves out is.

Data constants are what the asymptotics leave open and the exact recursion decides. A slow flow y' = y - s y^2 + ...
towards 0 has a coordinate 1 / (s y) + r log(1 / (s y)) - depth whose limit is a constant of the data, and whose
remainder is a power series in y, without logarithms: values at a few depths, extrapolated to y = 0 by a polynomial,
give it to many digits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.polynomial import polynomial
from numpy.typing import ArrayLike

from foretrain.activations import Activation
from foretrain.support.arguments import Array, real_array
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.architecture import MLP
from foretrain.theory.arguments import one_input
from foretrain.theory.criticality import CriticalPoint, criticality, taylor_coefficients
from foretrain.theory.criticality.fixed_points import correlation_depth, flows_to
from foretrain.theory.kernel_functions import KernelValues, shared_functions
from foretrain.theory.nearby import Nearby, first_layer, propagate
from foretrain.theory.recursions.single_input import single_input_flow
from foretrain.theory.tensors import MEANINGS

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class Law:
    """One quantity as a function of depth."""

    values: Array
    formula: str
    equation: str  # the source's number, or "derived"
    remainder: str

    def beside(self, exact: Array, meaning: str) -> tuple[tuple[str, str], Array, dict[str, str]]:
        """The exact values and the law as a variable over law and layer, with what is known of it."""
        about = {"formula": self.formula, "equation": self.equation, "remainder": self.remainder}
        return ("law", "layer"), np.stack([exact, self.values]), {"meaning": meaning, **about}


@dataclass(frozen=True)
class LawSet:
    """The laws of one network and input, with the data constants in them."""

    universality_class: str
    statement: str
    laws: dict[str, Law]
    constants: dict[str, float] = field(default_factory=dict)

    def without(self, *names: str) -> LawSet:
        """The same set without some quantities."""
        return replace(self, laws={name: law for name, law in self.laws.items() if name not in names})

    def dataset(self, mlp: MLP, variables: Mapping[str, Any], constants: Mapping[str, float]) -> xr.Dataset:
        """Variables over law ("exact", "asymptotic") and layer = 1, 2, ... as a dataset that says what holds."""
        import xarray as xr

        about = {"universality_class": self.universality_class, "statement": self.statement}
        found = xr.Dataset(variables, attrs={"activation": mlp.activation.label, **about, **constants})
        layer = np.arange(1, found.sizes["layer"] + 1)
        return found.assign_coords(law=["exact", "asymptotic"], layer=layer)


@dataclass(frozen=True)
class Uniform:
    """Hyperparameters common to all layers after the first."""

    C_b: float
    C_W: float
    gamma: float

    @property
    def remaining(self) -> float:
        """1 - gamma^2: what the weights must supply at criticality (B.20), (B.21)."""
        return 1 - self.gamma**2

    def network(self, act: Activation, depth: int) -> MLP:
        """A network with this many equal layers, and an output layer, which has no skip connection, after them."""
        return MLP(act, depth + 1, width=1, C_b=self.C_b, C_W=self.C_W, gamma=self.gamma or None)


FIT_DEPTH = 4096
_FRACTIONS = (1, 2, 3, 4, 6, 8)


def series_in(y: Array, values: Array) -> Array:
    """Power series of values in y along a flow of layers 1..L, through some of the last layers."""
    places = np.array([len(y) // fraction - 1 for fraction in _FRACTIONS])
    unit = y[places[0]]
    fitted = polynomial.polyfit(y[places] / unit, values[places], len(places) - 1)
    return np.asarray(fitted / unit ** np.arange(len(places)))


def extrapolated(y: Array, values: Array) -> float:
    """The limit y -> 0 of values along a flow of layers 1..L."""
    return float(series_in(y, values)[0])


def is_deep_enough(first: float, slope: float) -> bool:
    """Whether a flow that starts at ``first`` reaches its asymptotic regime within the depth of a fit."""
    return slope * first * FIT_DEPTH > 8


def reference_start(slope: float) -> float:
    """Where to start a flow that serves to find the constants of starts too small to flow far themselves."""
    return 0.05 / slope


def log_depth_constant(y: Array, first: float, slope: float, logarithm: float) -> float:
    """log l_0 of the law 1 / y = slope (l - logarithm log(l / l_0)) for a flow that starts at ``first`` in layer 1.

    ``y`` is a flow of layers 1..L with the same recursion: this one itself, or one that reaches small values sooner.
    """
    if logarithm == 0:
        return 0.0

    def coordinate(place: Array | float) -> Array:
        scale = 1 / (slope * np.asarray(place))
        return np.asarray(scale + logarithm * np.log(scale))

    series = series_in(y, coordinate(y) - np.arange(1, len(y) + 1))
    if y[0] == first:
        shift = float(series[0])
    else:
        shift = float(coordinate(first)) - 1 - float(polynomial.polyval(first, [0.0, *series[1:]]))
    return shift / logarithm


_CLOSE = 1e-12


def vertex_constant(act: Activation) -> float:
    """3 A_4 / A_2^2 - 1: 2 for linear activations, 5 for ReLU (5.116)."""
    minus, plus = _slopes(act)
    return 6 * (minus**4 + plus**4) / (minus**2 + plus**2) ** 2 - 1


def scale_invariant_laws(act: Activation, common: Uniform, start: Nearby, layer: Array) -> LawSet:
    """K, V and the pair components; with skip connections K and the pair components only."""
    minus, plus = _slopes(act)
    growth = common.C_W * (minus**2 + plus**2) / 2 + common.gamma**2
    if abs(growth - 1) < _CLOSE:
        growth = 1.0
    K = start.K00 + common.C_b * (layer - 1)
    if growth != 1:
        settled = common.C_b / (1 - growth)
        K = (start.K00 - settled) * growth ** (layer - 1) + settled
    pair = "holds while l << 3 / (rho psi), see foretrain.theory.angles" if minus != plus else "none"
    laws = {
        "K": Law(K, "K1 chi^(l-1) + C_b (1 - chi^(l-1)) / (1 - chi)", "(5.60)-(5.65), summed", "none"),
        "K1": Law(start.K1 * growth ** (layer - 1), "K1 chi^(l-1)", "(5.60)-(5.65)", "none"),
        "K2": Law(start.K2 * growth ** (layer - 1), "K2 chi^(l-1)", "(5.60)-(5.65)", pair),
    }
    if not common.gamma:
        c = vertex_constant(act)
        V = c * _vertex_sum(growth, common.C_b, start.K00, layer)
        laws["V"] = Law(V, "c sum_m chi^(2(l-m)) K_m^2, c = 3 A_4 / A_2^2 - 1", "(5.116), summed", "none")
        laws["G1"] = Law(np.zeros_like(layer), "0", "(5.117)", "none")
        fluctuation = Law(V / K**2, "V / (n K^2)", "derived", "none")
        if growth == 1 and common.C_b == 0:
            fluctuation = Law(c * (layer - 1), "c (l - 1) / n", "(5.120)", "none")
        elif growth == 1:
            fluctuation = Law(c * layer / 3, "c l / (3 n)", "derived", "O(1) / n")
        laws["fluctuation"] = fluctuation
    kind, statement = _statement(growth, common.C_b)
    return LawSet(kind, statement, laws, {"chi": growth, "c": vertex_constant(act)})


def exact_fluctuation(mlp: MLP) -> Array:
    """Var[G^(l)] / K^2 at layers 1..L, exact at any width, for one input: prod_{k<l} (1 + c / n_k) - 1.

    For scale-invariant activations without biases or skip connections; the mean of the metric is K exactly.

    Examples
    --------
    >>> exact_fluctuation(MLP("relu", depth=3, width=10, C_W=2.0))
    array([0.  , 0.5 , 1.25])
    """
    c = vertex_constant(mlp.activation)
    if any(mlp.C_b) or mlp.is_residual:
        raise NotSupportedError(
            "the exact product holds without biases and skip connections: set `C_b=0`, `gamma=None`."
        )
    steps = np.log1p(c / np.array([math.inf, *mlp.hidden_widths]))
    return np.asarray(np.expm1(np.cumsum(steps)))


def linear_vertex(K: ArrayLike, widths: ArrayLike) -> Array:
    """V_(12)(34) = n_{l-1} sum_{k<l} (1/n_k) (K_13 K_24 + K_14 K_23) after hidden layers of widths n_1..n_{l-1}.

    For linear activations at criticality with C_b = 0, from (4.119); equal widths give (l - 1) times the bracket.
    """
    kernel, n = np.asarray(K, dtype=float), np.asarray(widths, dtype=float)
    factor = float(n[-1] * np.sum(1 / n)) if n.size else 0.0
    crossed = np.einsum("ac,bd->abcd", kernel, kernel) + np.einsum("ad,bc->abcd", kernel, kernel)
    return np.asarray(factor * crossed)


def _slopes(act: Activation) -> tuple[float, float]:
    if act.slopes is None or not any(act.slopes):
        raise NotSupportedError(
            f"{act.label} is not scale-invariant: this law is for linear, ReLU and their kin."
        )
    return act.slopes


def _vertex_sum(growth: float, C_b: float, first: float, layer: Array) -> Array:
    """sum_{m<l} chi^(2(l-m)) K_m^2 with K_m = alpha chi^(m-1) + beta, or first + C_b (m-1) where chi = 1."""
    t = layer - 1
    if growth == 1:
        squares = t * (t - 1) * (2 * t - 1) / 6
        return np.asarray(t * first**2 + C_b * first * t * (t - 1) + C_b**2 * squares)
    beta = C_b / (1 - growth)
    alpha = first - beta
    power = growth**t
    mixed = growth * power * (1 - power) / (1 - growth)
    plain = growth**2 * (1 - power**2) / (1 - growth**2)
    return np.asarray(alpha**2 * t * power**2 + 2 * alpha * beta * mixed + beta**2 * plain)


def _statement(growth: float, C_b: float) -> tuple[str, str]:
    kind = "scale-invariant"
    if growth == 1:
        if C_b == 0:
            return kind, "critical: the kernel keeps its first value, V grows as l"
        return "semi-critical", "chi = 1 with biases: the kernel grows as C_b l, V as l^3"
    depth = abs(1 / math.log(growth)) if growth > 0 else 0.0
    if growth > 1:
        return f"{kind}, off-critical", f"the kernel grows by e every {depth:.4g} layers"
    end = C_b / (1 - growth)
    return f"{kind}, off-critical", f"the kernel tends to {end:.6g}, by a factor 1/e every {depth:.4g} layers"


_DEEPEST_FIT = 2**17


class Series(NamedTuple):
    """C_W g = K + a_1 K^2 + a_2 K^3, chi_perp = 1 + b_1 K (5.83)-(5.88), skip connections included."""

    a_1: float
    a_2: float
    b_1: float

    @property
    def c(self) -> float:
        """a_2 - a_1^2, the weight of logarithms."""
        return self.a_2 - self.a_1**2


def zero_fixed_point_laws(
    act: Activation, coefficients: dict[str, float], common: Uniform, start: Nearby, layer: Array
) -> LawSet:
    """K (5.94), dK_[1] (5.97), ddK_[2] (5.99), V (5.127), G1 bare (5.134) and tuned (corrected (5.143))."""
    a = Series(*(common.remaining * coefficients[name] for name in ("a_1", "a_2", "b_1")))
    # log l_0 of (5.94), from the exact recursion.
    begin = start.K00 if is_deep_enough(start.K00, -a.a_1) else reference_start(-a.a_1)
    deep = propagate(common.network(act, FIT_DEPTH), Nearby(begin))["K00"].values[:-1]
    log_scale = log_depth_constant(deep, start.K00, -a.a_1, a.c / a.a_1**2)
    with np.errstate(over="ignore"):
        constants = {**a._asdict(), "l_0": float(np.exp(log_scale)), "log_l_0": log_scale}
    # The laws hold far beyond this depth: there the start is forgotten.
    constants["crossover_depth"] = -1 / (a.a_1 * start.K00)
    log = np.log(layer) - log_scale
    # K to the order 1/l^2 with the logarithms of 1/l^3.
    first = -1 / (a.a_1 * layer) - a.c * log / (a.a_1**3 * layer**2)
    K = first - a.c**2 * (log**2 - log) / (a.a_1**5 * layer**3)
    laws = {"K": Law(K, _KERNEL, "(5.94), (B.32)", "O(1/l^3)")}
    if start.K1 or start.K2:
        constants |= _pair_constants(act, a, common, start)
        power = a.b_1 / a.a_1
        parallel = constants["delta_parallel"] / layer**2 * (1 + 2 * a.c / a.a_1**2 * log / layer)
        distance = constants["delta_squared"] / layer**power * (1 + power * a.c / a.a_1**2 * log / layer)
        rest = "relative O(1/l)"
        laws["K1"] = Law(parallel, "delta_parallel / l^2 [1 + 2 c L / (a_1^2 l)]", "(5.97)", rest)
        laws["K2"] = Law(distance, "delta^2 / l^(b_1/a_1) [1 + b_1 c L / (a_1^3 l)]", "(5.99)", rest)
    if not common.gamma:
        a_1, a_2, b_1 = a
        subleading = (5 * a_2 + a_1 * (82 * a_1 - 90 * b_1)) / (3 * a_1**4)
        V = 2 / (3 * a_1**2 * layer) + (2 * a.c * log / (3 * a_1**4) + subleading) / layer**2
        tuned = (a_2 + 90 * a_1 * b_1 - 84 * a_1**2) / (3 * (-a_1) ** 3)
        laws |= {
            "V": Law(
                V,
                "2/(3 a_1^2 l) + [2 c L + 5 a_2 + a_1 (82 a_1 - 90 b_1)]/(3 a_1^4 l^2)",
                "(5.127)",
                "O(log^2 l / l^3)",
            ),
            "G1": Law(np.full_like(layer, 1 / (3 * a_1)), "-1/(3 (-a_1))", "(5.134)", "O(log l / l)"),
            "G1_tuned": Law(
                tuned / layer,
                "(a_2 + 90 a_1 b_1 - 84 a_1^2)/(3 (-a_1)^3 l) with c_W_1 = 2/(3 sigma_1^2)",
                "(5.143) corrected",
                "O(log l / l^2)",
            ),
            "fluctuation": Law(2 * layer / 3, "2 l / (3 n)", "from (5.94), (5.127)", "O(log l) / n"),
        }
        constants["c_W_1"] = 2 / 3 * common.C_W
    growth = common.remaining * (1 + common.gamma**2) * 2 / 3
    statement = f"critical at K* = 0: K falls as 1 / (-a_1 l), V / K^2 grows as {growth:.4g} l"
    return LawSet("K*=0", statement, laws, constants)


_KERNEL = "-1/(a_1 l) - c L/(a_1^3 l^2) - c^2 (L^2 - L)/(a_1^5 l^3), c = a_2 - a_1^2, L = log(l/l_0)"


def _pair_constants(act: Activation, a: Series, common: Uniform, start: Nearby) -> dict[str, float]:
    """delta_parallel and delta^2: limits of K1 / (a_1 K)^2 and K2 / (-a_1 K)^(b_1/a_1), power series in K."""
    depth = max(FIT_DEPTH, int(64 / (-a.a_1 * start.K00)))
    if depth > _DEEPEST_FIT:
        return {"delta_parallel": np.nan, "delta_squared": np.nan}
    flow = propagate(common.network(act, depth), start).isel(layer=slice(0, -1))
    K, K1, K2 = (flow[name].values for name in ("K00", "K1", "K2"))
    return {
        "delta_parallel": extrapolated(K, K1 / (a.a_1 * K) ** 2),
        "delta_squared": extrapolated(K, K2 / (-a.a_1 * K) ** (a.b_1 / a.a_1)),
    }


_HIGHEST = 8


class LeadingTerm(NamedTuple):
    """C_W g = K + coefficient K^(1 + power) + ... at criticality."""

    power: float
    coefficient: float


def leading_term(act: Activation, coefficients: dict[str, float]) -> LeadingTerm | None:
    """The first term that moves the kernel at C_W = 1 / sigma_1^2, C_b = 0; None if none is found."""
    if "a_1/2" in coefficients:
        return LeadingTerm(0.5, coefficients["a_1/2"])
    tolerance = 1e-7 if act.strip_is_measured else 1e-12
    for k in range(1, _HIGHEST + 1):
        try:
            series = act.taylor(2 * k + 1, series=True)
        except NotSupportedError:
            return None
        # They add up to a_k = (2k+1)!! [z^(2k+2)] sigma^2 / sigma_1^2.
        terms = math.prod(range(1, 2 * k + 2, 2)) * (series[1:] * series[:0:-1] / series[1] ** 2)
        if abs(terms.sum()) > tolerance * np.abs(terms).sum():
            return LeadingTerm(k, float(terms.sum()))
    return None


def fine_tuned_laws(
    act: Activation, leading: LeadingTerm, common: Uniform, start: Nearby, layer: Array
) -> LawSet:
    """K, dK_[1] and, without skip connections, V at leading order."""
    k, a = leading.power, common.remaining * leading.coefficient
    K = (-k * a * layer) ** (-1 / k)
    rest = f"relative O(l^(-{min(1, 1 / k):.3g})) up to logarithms"
    constants = {"k": k, "a": a, "crossover_depth": -1 / (k * a * start.K00**k)}
    laws = {"K": Law(K, "(-k a l)^(-1/k)", "derived", rest)}
    if start.K1:
        # The limit of dK_[1] / ((-k a)^(1/k) K)^(1+k), a power series in K or, with k = 1/2, in its root.
        flow = propagate(common.network(act, FIT_DEPTH), start).isel(layer=slice(0, -1))
        deep, K1 = flow["K00"].values, flow["K1"].values
        part = K1 / ((-k * a) ** (1 / k) * deep) ** (1 + k)
        constants["delta_parallel"] = extrapolated(deep ** min(k, 1.0), part)
        values = constants["delta_parallel"] * layer ** (-(1 + k) / k)
        laws["K1"] = Law(values, "delta_parallel l^(-(1+k)/k)", "derived", rest)
    if not common.gamma:
        laws["V"] = Law(2 * layer / 3 * K**2, "2 l K^2 / 3", "derived", rest)
        laws["fluctuation"] = Law(2 * layer / 3, "2 l / (3 n)", "derived", rest)
    statement = f"critical at K* = 0, leading term a K^{1 + k:g}: K falls as l^(-{1 / k:.3g})"
    return LawSet("K*=0, fine-tuned", statement, laws, constants)


def off_critical_laws(act: Activation, K_star: float, common: Uniform, start: Nearby, layer: Array) -> LawSet:
    """K, dK_[1], ddK_[2], and without skip connections V and G1, at leading order in what is left of K - K*."""
    at = shared_functions(act).at(K_star)
    parallel = common.gamma**2 + common.C_W * float(at.square_slope)
    perpendicular = common.gamma**2 + common.C_W * float(at.slope_square)
    constants = {
        "K_star": K_star,
        "chi_parallel": parallel,
        "chi_perpendicular": perpendicular,
        "depth_parallel": float(correlation_depth(parallel)),
        "depth_perpendicular": float(correlation_depth(perpendicular)),
    }
    # Prefactors of the exponentials, read off the exact flow where the gap is small but well above rounding.
    depth = 4
    if abs(parallel) < 1:
        depth += math.ceil(math.log(1e6) * max(constants["depth_parallel"], 0))
    last = propagate(common.network(act, depth), start).isel(layer=depth - 1)
    A = (float(last["K00"]) - K_star) * parallel**-depth if parallel else 0.0
    A_1 = float(last["K1"]) * parallel**-depth if parallel else 0.0
    A_2 = float(last["K2"]) * perpendicular**-depth
    constants |= {"A": A, "A_1": A_1, "A_2": A_2}
    decay = "relative O(chi_parallel^l)"
    gap = A * parallel**layer
    laws = {"K": Law(K_star + gap, "K* + A chi_parallel^l", "derived from (5.46)", decay)}
    if start.K1 or start.K2:
        laws["K1"] = Law(A_1 * parallel**layer, "A_1 chi_parallel^l", "(5.47)", decay)
    if start.K2 and perpendicular > parallel**2:
        laws["K2"] = Law(A_2 * perpendicular**layer, "A_2 chi_perp^l", "(5.48)", decay)
    if not common.gamma:
        laws |= _finite_width(at, common, parallel, K_star, gap, layer)
    statement = (
        f"off-critical: K tends to {K_star:.8g}, its rest falls by 1/e every "
        f"{constants['depth_parallel']:.4g} layers"
    )
    return LawSet("off-critical", statement, laws, constants)


def _finite_width(
    at: KernelValues, common: Uniform, parallel: float, K_star: float, K: Array, layer: Array
) -> dict[str, Law]:
    if K_star == 0:
        grown = Law(2 * layer * K**2, "2 l K^2", "derived", "relative O(1/l)")
        return {"V": grown, "fluctuation": Law(2 * layer, "2 l / n", "derived", "O(1) / n")}
    V = common.C_W**2 * float(at.fourth - at.square**2) / (1 - parallel**2)
    G1 = 0.5 * common.C_W * float(at.square_bend) * V / (1 - parallel)
    decay = "O(l chi_parallel^l)"
    flat = np.ones_like(layer)
    return {
        "V": Law(V * flat, "C_W^2 [<s^4> - <s^2>^2] / (1 - chi_parallel^2) at K*", "(5.109)", decay),
        "G1": Law(G1 * flat, "C_W g'' V / (2 (1 - chi_parallel)) at K*", "(5.110)", decay),
        "fluctuation": Law(V / K_star**2 * flat, "V / (n K*^2)", "(5.109)", decay),
    }


def half_stable_laws(
    act: Activation, point: CriticalPoint, common: Uniform, start: Nearby, layer: Array
) -> LawSet:
    """K, V, G1 and the pair components; nan past the depth at which a start on the repelling side is lost."""
    assert point.K_star is not None
    K_star, part = point.K_star, common.remaining
    a_1, h = part * point.coefficients["a_1"], part * point.coefficients["h"]
    x, t = -a_1 * (start.K00 - K_star), layer - 1
    s = 1 + x * t
    s = np.where(s > 0, s, np.nan)
    off = "relative O(x, (K - K*) / reach)"
    # K2' = (1 + 2 h (K - K*)) K2 + h K1^2 along the flow.
    power = 2 * h / a_1
    log = np.log(s)
    exponent = (power - 3) * log
    # (s^(p-3) - 1) / ((p-3) x) -> t as x -> 0.
    small = np.abs(exponent) < 1e-8
    denominator = np.where(small, 1.0, (power - 3) * x)
    fed = np.where(small, t, np.expm1(exponent) / denominator)
    laws = {
        "K": Law(K_star + (start.K00 - K_star) / s, "K* + (K1 - K*) / s", "(5.103), derived", off),
        "K1": Law(start.K1 / s**2, "K1 / s^2", "derived", off),
        "K2": Law(
            np.asarray(np.exp(-power * log) * (start.K2 + h * start.K1**2 * fed)),
            "K2 s^(-2h/a_1) + ...",
            "derived",
            off,
        ),
    }
    if not common.gamma:
        source, e = point.coefficients["source"], x * t
        V = source * t * (1 + 2 * e + 2 * e**2 + e**3 + e**4 / 5) / s**4
        # t (t - 1) where the continuous flow has t^2: exact at K*.
        G1 = a_1 * source * t * (t - 1) * (10 + 10 * e + 5 * e**2 + e**3) / (20 * s**3)
        laws |= {
            "V": Law(V, "S* (s^5 - 1) / (5 x s^4): S* t near K*, S* t / 5 far on", "derived", off),
            "G1": Law(
                G1, "a_1 S* (s^5 - 5 s + 4) / (20 x^2 s^3): a_1 S* t (t-1) / 2 near K*", "derived", off
            ),
            "fluctuation": Law(V / K_star**2, "V / (n K*^2)", "derived", off),
        }
    side = "attracting" if x > 0 else "repelling" if x < 0 else "fixed"
    # |K - K*| up to which the quadratic term of the flow outweighs the cubic one: 3 |g'' / g'|.
    step = 1e-3 * K_star
    low, middle, high = shared_functions(act).at(K_star + np.array([-step, 0.0, step])).square_bend
    reach = float(abs(3 * middle * 2 * step / (high - low)))
    constants = {"K_star": K_star, "a_1": a_1, "x": x, "reach": reach}
    statement = f"half-stable at K* = {K_star:.8g}, {point.stability}; the input starts on the {side} side"
    return LawSet("half-stable", statement, laws, constants)


_MEANINGS = {
    **MEANINGS,
    "K1": "dK_[1], half the difference of the variances of two nearby inputs",
    "K2": "ddK_[2], a quarter of the squared distance of two nearby inputs",
    "G1_tuned": "next-to-leading metric at C_W (1 + 2 / 3 n) in layers 2 and up (5.142)",
    "fluctuation": "variance of the metric over its square, V / (n K^2)",
}
_SAME = 1e-8
_CLEARLY_STABLE = 0.99  # chi_parallel below it rules criticality out without a search


def asymptotics(mlp: MLP, x: ArrayLike, delta_x: ArrayLike | None = None) -> xr.Dataset:
    """Laws of K, V, G1, V/(nK^2) in depth beside the exact recursion, for one input (section 5.3, 5.4).

    Every variable has the dimensions ``law`` ("exact", "asymptotic") and ``layer``, and says in its attributes
    its formula, its equation number and the order of what is left out. The dataset's attributes name the class
    and hold the data constants, such as l_0. With ``delta_x`` there are also the components K1 and K2 of the
    nearby inputs x ± delta_x / 2.

    The hyperparameters must be equal in all layers after the first. Off criticality the laws are the exponential
    approach to the fixed point. A residual network has laws for K, K1 and K2 in its layers 1..L-1.

    Examples
    --------
    >>> laws = asymptotics(MLP("tanh", depth=1000, width=100), [1.0])
    >>> laws.attrs["universality_class"], round(laws.attrs["l_0"], 4)
    ('K*=0', 0.3439)
    """
    vector = one_input(x)
    # The hyperparameters of layers 2..L, or 2..L-1 where skip connections end before the output.
    inner = mlp.layers[1:-1] if mlp.is_residual else mlp.layers[1:]
    if not inner:
        raise InputError("asymptotic laws need a network of depth 2 or more.")
    if len({(layer.C_b, layer.C_W, layer.gamma) for layer in inner}) > 1:
        raise NotSupportedError(
            "C_b, C_W or gamma differ between layers after the first, where no law is known: use foretrain.flow."
        )
    if len(set(mlp.hidden_widths)) > 1:
        raise NotSupportedError(
            "the hidden widths differ, but the laws are stated for equal ones: use foretrain.flow."
        )
    common = Uniform(inner[0].C_b, inner[0].C_W, inner[0].gamma)
    gap = np.zeros_like(vector) if delta_x is None else real_array("delta_x", delta_x)
    start = first_layer(mlp, vector, gap)
    if start.K00 <= 0:
        raise InputError(
            "the input has no signal at layer 1 (x = 0 with C_b = 0): there is no flow to describe."
        )
    layer = np.arange(1.0, mlp.depth + (0 if common.gamma else 1))
    found = _laws(mlp.activation, common, start, layer)
    if delta_x is None:
        found = found.without("K1", "K2")
    nearby, variables = propagate(mlp, start), {}
    exact = {"K": nearby["K00"].values, "K1": nearby["K1"].values, "K2": nearby["K2"].values}
    if not common.gamma:
        exact |= single_input_flow(mlp, start.K00)
        exact["fluctuation"] = exact["V"] / exact["K"] ** 2
        if "G1_tuned" in found.laws:
            exact["G1_tuned"] = single_input_flow(mlp, start.K00, C_W_1=found.constants["c_W_1"])["G1"]
    for name, law in found.laws.items():
        dims, rows, about = law.beside(exact[name][: len(layer)], _MEANINGS[name])
        variables[name] = dims, rows / (mlp.hidden_widths[0] if name == "fluctuation" else 1), about
    return found.dataset(mlp, variables, found.constants)


def _laws(act: Activation, common: Uniform, start: Nearby, layer: Array) -> LawSet:
    if act.slopes is not None:
        return scale_invariant_laws(act, common, start, layer)
    coefficients = _expansion_at_zero(act, common)
    if coefficients:
        return _at_zero(act, coefficients, common, start, layer)
    K_star = flows_to(act, common.C_b, common.C_W, start.K00, common.gamma)
    if math.isfinite(K_star) and abs(_response(act, common, K_star)) < _CLEARLY_STABLE:
        return off_critical_laws(act, K_star, common, start, layer)
    point = _critical_point(act, common)
    if point is not None and point.kind == "half-stable":
        return half_stable_laws(act, point, common, start, layer)
    if point is not None and point.coefficients:
        return _at_zero(act, point.coefficients, common, start, layer)
    return _off_critical(act, common, start, layer)


def _at_zero(
    act: Activation, coefficients: dict[str, float], common: Uniform, start: Nearby, layer: Array
) -> LawSet:
    leading = leading_term(act, coefficients)
    if leading is None or leading.coefficient > 0:
        return _off_critical(act, common, start, layer)
    if leading.power == 1:
        return zero_fixed_point_laws(act, coefficients, common, start, layer)
    return fine_tuned_laws(act, leading, common, start, layer)


def _off_critical(act: Activation, common: Uniform, start: Nearby, layer: Array) -> LawSet:
    K_star = flows_to(act, common.C_b, common.C_W, start.K00, common.gamma)
    if not math.isfinite(K_star) or abs(_response(act, common, K_star)) > 1 - _SAME:
        end = "it grows without bound" if math.isinf(K_star) else "it does not settle exponentially"
        raise NotSupportedError(
            f"no law is known for the kernel of this input, for {end}: lower C_W, or take the critical values of "
            "foretrain.criticality."
        )
    return off_critical_laws(act, K_star, common, start, layer)


def _response(act: Activation, common: Uniform, K: float) -> float:
    """chi_parallel (B.15)."""
    return common.gamma**2 + common.C_W * float(shared_functions(act).at(K).square_slope)


def _expansion_at_zero(act: Activation, common: Uniform) -> dict[str, float]:
    """a_1, a_2, b_1 if the network is critical at K* = 0, which the Taylor series decides without a search."""
    try:
        s = np.asarray(act.taylor(5), dtype=np.float64)
    except NotSupportedError:
        return {}
    critical = common.C_b == 0 and s[0] == 0 and abs(common.C_W * s[1] ** 2 - common.remaining) <= _SAME
    return taylor_coefficients(s) if critical else {}


def _critical_point(act: Activation, common: Uniform) -> CriticalPoint | None:
    """The critical point whose (C_b, C_W), times 1 - gamma^2, are those of the network."""
    found = criticality(act)
    for point in (found.point, *found.others):
        if point is None:
            continue
        C_b, C_W = common.remaining * point.C_b, common.remaining * point.C_W
        if abs(common.C_W - C_W) <= _SAME * C_W and abs(common.C_b - C_b) <= _SAME * C_b:
            return point
    return None
