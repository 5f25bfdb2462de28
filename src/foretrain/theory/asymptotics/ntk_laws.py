"""Laws in depth for the tangent kernel and its statistics, beside the exact recursion (sections 9.2, 9.3).

Scale-invariant networks at criticality have closed forms at leading order in 1/n that are exact in depth; networks
at K* = 0 have the leading power of the layer, with relative corrections of order log l / l.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from foretrain.activations import Activation
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.architecture import MLP
from foretrain.theory.arguments import one_input
from foretrain.theory.asymptotics.laws import Law, LawSet
from foretrain.theory.criticality import taylor_coefficients
from foretrain.theory.flow import flow
from foretrain.theory.tensors import MEANINGS, NTK_MEASURES, Measure

if TYPE_CHECKING:
    import xarray as xr


_SAME = 1e-8


def ntk_laws(mlp: MLP, x: ArrayLike) -> xr.Dataset:
    """Laws of K, V, Theta, D, F, B, A and the dimensionless measures in depth, for one input.

    Every variable has the dimensions ``law`` ("exact": the recursion, "asymptotic") and ``layer``, and says in its
    attributes its formula, equation number and the order of what is left out. The measures V/(nK^2), D/(nKTheta), ...
    (9.23)-(9.25) include the 1/n; their leading coefficients of l/n are attributes of the dataset.

    The network must be critical in all layers with equal hidden widths. Scale-invariant: any learning rates. K* = 0:
    lambda_b ~ l^(-p), lambda_W ~ l^(1-p) with p = p_perp, which includes the recommended rates, or uniform ones.

    Examples
    --------
    >>> laws = ntk_laws(MLP("relu", depth=10, width=100, C_W=2.0), [1.0])
    >>> laws["B"].sel(layer=10).values
    array([2280., 2280.])
    """
    vector = checked_input(mlp, x)
    return law_dataset(mlp, vector, laws_of(mlp, vector), NTK_MEASURES, "(9.23)-(9.25)")


def checked_input(mlp: MLP, x: ArrayLike) -> Array:
    """The input as a vector, or an error if it or the network has no laws."""
    vector = one_input(x)
    if mlp.depth < 2:
        raise InputError("laws in depth need a network of depth 2 or more.")
    if mlp.is_residual or len(set(mlp.hidden_widths)) > 1 or len({*mlp.C_W}) > 1 or any(mlp.C_b):
        raise NotSupportedError(
            "the laws are for plain networks with C_b = 0, one C_W and equal hidden widths: use foretrain.flow."
        )
    if not mlp.check_inputs(vector[None]).any():
        raise InputError("the input is zero, and with C_b = 0 there is no flow to describe.")
    return vector


def laws_of(mlp: MLP, vector: Array) -> LawSet:
    """The laws of the class of a network, for an input that was checked."""
    act, C_W, signal = mlp.activation, mlp.C_W[0], float(np.mean(vector**2))
    if act.slopes is not None:
        A_2 = sum(slope**2 for slope in act.slopes) / 2
        if abs(C_W * A_2 - 1) <= _SAME:
            return _scale_invariant(mlp, signal)
    else:
        series = _critical_series(act, C_W)
        if series is not None:
            return _zero_fixed_point(mlp, *series)
    raise NotSupportedError(
        f"no law is known for the tangent kernel of {act.label} at C_b = 0, C_W = {C_W:g}, which is not critical at "
        "K* = 0 nor scale-invariant and critical: use foretrain.flow."
    )


def _critical_series(act: Activation, C_W: float) -> tuple[float, float, float] | None:
    """sigma_1^2, a_1 and b_1 if C_W is critical at K* = 0 and the flow goes there."""
    try:
        s = np.asarray(act.taylor(5), dtype=np.float64)
    except NotSupportedError:
        return None
    if s[0] or not s[1] or abs(C_W * s[1] ** 2 - 1) > _SAME:
        return None
    found = taylor_coefficients(s)
    return (float(s[1] ** 2), found["a_1"], found["b_1"]) if found["a_1"] < 0 else None


def _scale_invariant(mlp: MLP, signal: float) -> LawSet:
    """Section 9.2, with K* = C_W x.x / n_0."""
    assert mlp.activation.slopes is not None
    minus, plus = mlp.activation.slopes
    A_2, a_4 = (minus**2 + plus**2) / 2, 2 * (minus**4 + plus**4) / (minus**2 + plus**2) ** 2
    K = signal / A_2
    layer = np.arange(1.0, mlp.depth + 1)
    biases, weights = np.array(mlp.lambda_b), np.array(mlp.lambda_W) * A_2 * K
    laws = {
        "K": Law(np.full(mlp.depth, K), "K* = x.x / (n_0 A_2)", "(9.41)", "none"),
        "V": Law((layer - 1) * (3 * a_4 - 1) * K**2, "(l-1)(3 a_4 - 1) K*^2", "(9.42)", "none"),
    }
    constants = {"a_4": a_4, "A_2": A_2}
    if np.ptp(biases) <= _SAME * biases.max() and np.ptp(weights) <= _SAME * weights.max():
        b, w = float(biases[0]), float(weights[0])
        laws |= _uniform_rates(layer, a_4, K, b, w)
        constants |= {"b": b, "w": w, **_coefficients(a_4, b, w)}
    else:
        laws |= _sums(layer, a_4, K, biases, weights)
    return LawSet("scale-invariant", "critical: powers of the layer, exact in depth", laws, constants)


def _uniform_rates(layer: Array, a_4: float, K: float, b: float, w: float) -> dict[str, Law]:
    twice, cubic = layer * (layer - 1) / 2, layer * (layer - 1) * (2 * layer - 1) / 6
    c = _square_coefficient(a_4, b, w)
    D = twice * K * ((a_4 - 1) * b + (4 * a_4 - 2) * w)
    A = cubic * c + twice * (a_4 - 1) * w * (b + w)
    return {
        "Theta": Law((b + w) * layer, "(b + w) l, b = lambda_b, w = lambda_W A_2 K*", "(9.44)", "none"),
        "D": Law(D, "l(l-1)/2 K* [(a_4 - 1) b + (4 a_4 - 2) w]", "(9.49)", "none"),
        "F": Law(twice * a_4 * (b + w) * K, "l(l-1)/2 a_4 (b + w) K*", "(9.50)", "none"),
        "B": Law(cubic * a_4 * (b + w) ** 2, "l(l-1)(2l-1)/6 a_4 (b + w)^2", "(9.51)", "none"),
        "A": Law(
            A,
            "l(l-1)(2l-1)/6 c + l(l-1)/2 (a_4 - 1) w (b + w), c = (a_4 - 1) b^2 + 3 (a_4 - 1) b w + (5 a_4 - 3) w^2",
            "(9.52) completed",
            "none",
        ),
    }


def _square_coefficient(a_4: float, b: float, w: float) -> float:
    return (a_4 - 1) * b**2 + 3 * (a_4 - 1) * b * w + (5 * a_4 - 3) * w**2


def _coefficients(a_4: float, b: float, w: float) -> dict[str, float]:
    """Leading coefficients of l/n of the measures; those that need a tangent kernel only where there is one."""
    found = {"V/(nK^2)": 3 * a_4 - 1}
    if b + w:
        found |= {
            "D/(nKTheta)": ((a_4 - 1) * b + (4 * a_4 - 2) * w) / (2 * (b + w)),
            "F/(nKTheta)": a_4 / 2,
            "B/(nTheta^2)": a_4 / 3,
            "A/(nTheta^2)": _square_coefficient(a_4, b, w) / (3 * (b + w) ** 2),
        }
    return found


def _sums(layer: Array, a_4: float, K: float, biases: Array, weights: Array) -> dict[str, Law]:
    """(9.43), (9.45)-(9.48) with rates of their own in every layer; each tensor sums what the layers below add."""
    Theta = np.cumsum(biases + weights)
    below = np.concatenate([[0.0], Theta[:-1]])
    growth = (3 * a_4 - 1) * (layer - 1) * K * weights  # lambda_W V'
    growth[0] = 0.0
    D = np.cumsum(growth + (a_4 - 1) * K * below)
    A = np.cumsum((2 * weights * D - weights * growth) / K + (a_4 - 1) * below**2)
    rule = "sums over layers"
    return {
        "Theta": Law(Theta, "sum (b + w)", "(9.43)", "none"),
        "D": Law(D, rule, "(9.45)", "none"),
        "F": Law(a_4 * K * np.cumsum(below), "a_4 K* sum Theta", "(9.46)", "none"),
        "B": Law(a_4 * np.cumsum(below**2), "a_4 sum Theta^2", "(9.47)", "none"),
        "A": Law(A, rule, "(9.48)", "none"),
    }


def _zero_fixed_point(mlp: MLP, square: float, a_1: float, b_1: float) -> LawSet:
    """Section 9.3 at its own rates (9.70), or at uniform ones (9.69)."""
    p, layer, a = b_1 / a_1, np.arange(1.0, mlp.depth + 1), -a_1
    biases, weights = np.array(mlp.lambda_b) * layer**p, np.array(mlp.lambda_W) * layer ** (p - 1)
    rest = "relative O(log l / l)"
    laws = {
        "K": Law(1 / (a * layer), "1 / (-a_1 l)", "(9.65)", rest),
        "V": Law(2 / (3 * a**2 * layer), "2 / (3 a_1^2 l)", "(9.66)", rest),
    }
    constants = {"a_1": a_1, "b_1": b_1, "p_perpendicular": p, "V/(nK^2)": 2 / 3}
    if _constant(biases) and _constant(weights):
        b, w = float(biases[-1]), float(weights[-1]) * square / a
        found, more = _own_rates(layer, p, a, b, w, rest)
    elif (
        _constant(np.array(mlp.lambda_b)) and _constant(np.array(mlp.lambda_W)) and p > 0 and mlp.lambda_b[0]
    ):
        found, more = _constant_rates(layer, p, a, mlp.lambda_b[0], mlp.lambda_W[0] * square, rest)
    else:
        raise NotSupportedError(
            f"laws are known for lambda_b ~ l^(-p) with lambda_W ~ l^(1-p), p = {p:.4g}, and for uniform rates with "
            "lambda_b > 0 and p > 0: take foretrain.theory.learning_rates.recommended, or use foretrain.flow."
        )
    statement = f"critical at K* = 0 with p_perp = {p:.4g}"
    return LawSet("K*=0", statement, laws | found, constants | more)


def _constant(values: Array) -> bool:
    return bool(np.ptp(values) <= _SAME * np.abs(values).max())


def _own_rates(
    layer: Array, p: float, a: float, b: float, w: float, rest: str
) -> tuple[dict[str, Law], dict[str, float]]:
    """Rates (9.70): b = lambda_b l^p, w = lambda_W l^(p-1) sigma_1^2 / (-a_1)."""
    t, m = b + w, p * b + (p - 1) * w
    power, cubic = layer ** (1 - p), layer ** (3 - 2 * p)
    laws = {
        "Theta": Law(t * power, "t l^(1-p), t = b + w", "(9.71)", rest),
        "D": Law(-2 * m / (9 * a) * power, "-2 m / (9 (-a_1)) l^(1-p), m = p b + (p - 1) w", "(9.84)", rest),
        "F": Law(t / ((5 - p) * a) * power, "t / ((5 - p)(-a_1)) l^(1-p)", "(9.81)", rest),
        "B": Law(t**2 / 3 * cubic, "t^2 / 3 l^(3-2p)", "(9.82)", rest),
        "A": Law(4 * m**2 / 27 * cubic, "4 m^2 / 27 l^(3-2p)", "(9.86)", rest),
    }
    constants = {"b": b, "w": w, "t": t, "m": m, "F/(nKTheta)": 1 / (5 - p), "B/(nTheta^2)": 1 / 3}
    if t:
        constants |= {"D/(nKTheta)": -2 * m / (9 * t), "A/(nTheta^2)": 4 * m**2 / (27 * t**2)}
    return laws, constants


def _constant_rates(
    layer: Array, p: float, a: float, rate_b: float, rate_W: float, rest: str
) -> tuple[dict[str, Law], dict[str, float]]:
    """Uniform rates: biases win, Theta = t l with t = lambda_b / (1 + p); weights add a constant below it.

    The other tensors from (9.13)-(9.16) with that Theta, all at the leading power of the layer.
    """
    t = rate_b / (1 + p)
    D = -2 * p * t / (3 * (3 + p) * a)
    A = 4 * p**2 * t**2 / (3 * (3 + p) * (3 + 2 * p))
    Theta = t * layer + rate_W / (a * p)
    laws = {
        "Theta": Law(Theta, "lambda_b l / (1 + p) + lambda_W sigma_1^2 / ((-a_1) p)", "from (9.69)", rest),
        "D": Law(D * layer, "-2 p t / (3 (3 + p)(-a_1)) l, t = lambda_b / (1 + p)", "derived", rest),
        "F": Law(t / (5 * a) * layer, "t / (5 (-a_1)) l", "derived", rest),
        "B": Law(t**2 / (3 + 2 * p) * layer**3, "t^2 / (3 + 2p) l^3", "derived", rest),
        "A": Law(A * layer**3, "4 p^2 t^2 / (3 (3 + p)(3 + 2p)) l^3", "derived", rest),
    }
    constants = {
        "t": t,
        "D/(nKTheta)": D * a / t,
        "F/(nKTheta)": 1 / 5,
        "B/(nTheta^2)": 1 / (3 + 2 * p),
        "A/(nTheta^2)": A / t**2,
    }
    return laws, constants


def law_dataset(
    mlp: MLP, vector: Array, found: LawSet, measures: Mapping[str, Measure], equation: str
) -> xr.Dataset:
    """The laws and measures beside the recursion, for one input."""
    tensors = flow(mlp, vector[None], list(found.laws))
    exact = {name: tensors[name].values.reshape(mlp.depth) for name in found.laws}
    variables = {name: law.beside(exact[name], MEANINGS[name]) for name, law in found.laws.items()}
    known = {name: law.values for name, law in found.laws.items()}
    for name, measure in measures.items():
        if measure.tensor in known:
            with np.errstate(divide="ignore", invalid="ignore"):
                rows = np.stack([measure.of(values, mlp.hidden_widths[0]) for values in (exact, known)])
            attributes = {"equation": equation, "remainder": found.laws[measure.tensor].remainder}
            variables[name] = (("law", "layer"), rows, attributes)
    constants = {key: value for key, value in found.constants.items() if math.isfinite(value)}
    return found.dataset(mlp, variables, constants)
