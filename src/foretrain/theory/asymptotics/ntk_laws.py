"""Laws in depth for the tangent kernel and its statistics, beside the exact recursion (sections 9.2, 9.3).

Scale-invariant networks at criticality have closed forms at leading order in 1/n that are exact in depth; networks
at K* = 0 have the leading power of the layer, with relative corrections of order log l / l.

Laws in depth for the dNTK and the ddNTKs, beside the exact recursion (sections 11.3, ∞.1), and dimensionless
ratios of all finite-width tensors against depth, of any network: how large its 1/n effects are.

Scale-invariant networks at criticality have closed forms at leading order in 1/n that are exact in depth: P = 0 and
Q, and of linear ones S and T. Networks at K* = 0 have the leading power of the layer, with relative corrections of
order log l / l; the book states R, S, T, U for odd activations, and the other laws follow from the same recursions.

Of deep linear networks also the tangent kernel of one input, exact in the width, and closed forms of its
differentials. With s = a z, q = |z|^2 / n, t = tr H / n, u = tr H^2 / n and s = z^T H z / n of a hidden layer, a
Gaussian average over the next weights closes on five means. c = lambda_b + lambda_W a^2 q is what the next layer's
own parameters add to its tangent kernel, and C = a^2 C_W. A deep linear network is linear in its input but not in its
parameters, so that Q, S and T do not vanish: it learns representations, while a network of one layer does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from foretrain.activations import Activation
from foretrain.support.answers import labelled
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.architecture import MLP
from foretrain.theory.arguments import one_input
from foretrain.theory.asymptotics.kernel_laws import Law, LawSet
from foretrain.theory.criticality import taylor_coefficients
from foretrain.theory.flow import flow
from foretrain.theory.recursions.kinks import slope_jumps
from foretrain.theory.tensors import DNTK_MEASURES, MEANINGS, NTK_MEASURES, Measure

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
        twice, cubic = layer * (layer - 1) / 2, layer * (layer - 1) * (2 * layer - 1) / 6
        c = _square_coefficient(a_4, b, w)
        D = twice * K * ((a_4 - 1) * b + (4 * a_4 - 2) * w)
        A = cubic * c + twice * (a_4 - 1) * w * (b + w)
        laws |= {
            "Theta": Law((b + w) * layer, "(b + w) l, b = lambda_b, w = lambda_W A_2 K*", "(9.44)", "none"),
            "D": Law(D, "l(l-1)/2 K* [(a_4 - 1) b + (4 a_4 - 2) w]", "(9.49)", "none"),
            "F": Law(twice * a_4 * (b + w) * K, "l(l-1)/2 a_4 (b + w) K*", "(9.50)", "none"),
            "B": Law(cubic * a_4 * (b + w) ** 2, "l(l-1)(2l-1)/6 a_4 (b + w)^2", "(9.51)", "none"),
            "A": Law(
                A,
                "l(l-1)(2l-1)/6 c + l(l-1)/2 (a_4 - 1) w (b + w), "
                "c = (a_4 - 1) b^2 + 3 (a_4 - 1) b w + (5 a_4 - 3) w^2",
                "(9.52) completed",
                "none",
            ),
        }
        # Leading coefficients of l/n of the measures; those that need a tangent kernel only where there is
        # one.
        found = {"V/(nK^2)": 3 * a_4 - 1}
        if b + w:
            found |= {
                "D/(nKTheta)": ((a_4 - 1) * b + (4 * a_4 - 2) * w) / (2 * (b + w)),
                "F/(nKTheta)": a_4 / 2,
                "B/(nTheta^2)": a_4 / 3,
                "A/(nTheta^2)": _square_coefficient(a_4, b, w) / (3 * (b + w) ** 2),
            }
        constants |= {"b": b, "w": w, **found}
    else:
        laws |= _sums(layer, a_4, K, biases, weights)
    return LawSet("scale-invariant", "critical: powers of the layer, exact in depth", laws, constants)


def _square_coefficient(a_4: float, b: float, w: float) -> float:
    return (a_4 - 1) * b**2 + 3 * (a_4 - 1) * b * w + (5 * a_4 - 3) * w**2


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
        # Rates (9.70): b = lambda_b l^p, w = lambda_W l^(p-1) sigma_1^2 / (-a_1).
        t, m = b + w, p * b + (p - 1) * w
        power, cubic = layer ** (1 - p), layer ** (3 - 2 * p)
        found = {
            "Theta": Law(t * power, "t l^(1-p), t = b + w", "(9.71)", rest),
            "D": Law(
                -2 * m / (9 * a) * power, "-2 m / (9 (-a_1)) l^(1-p), m = p b + (p - 1) w", "(9.84)", rest
            ),
            "F": Law(t / ((5 - p) * a) * power, "t / ((5 - p)(-a_1)) l^(1-p)", "(9.81)", rest),
            "B": Law(t**2 / 3 * cubic, "t^2 / 3 l^(3-2p)", "(9.82)", rest),
            "A": Law(4 * m**2 / 27 * cubic, "4 m^2 / 27 l^(3-2p)", "(9.86)", rest),
        }
        more = {"b": b, "w": w, "t": t, "m": m, "F/(nKTheta)": 1 / (5 - p), "B/(nTheta^2)": 1 / 3}
        if t:
            more |= {"D/(nKTheta)": -2 * m / (9 * t), "A/(nTheta^2)": 4 * m**2 / (27 * t**2)}
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


_NEEDED = ("K", "Theta", "F", "B")
_ODD = 1e-9  # of 1 - p_perp
_REST = "relative O(log l / l)"


def dntk_laws(mlp: MLP, x: ArrayLike) -> xr.Dataset:
    """Laws of P, Q and, where the slope of the activation does not jump, R, S, T, U in depth, for one input.

    Every variable has the dimensions ``law`` ("exact": the recursion, "asymptotic") and ``layer``, and says in its
    attributes its formula, equation number and the order of what is left out. K, Theta, F and B come along. The
    measures P/(nTheta^2), ..., RK/(nTheta^3), ... (11.62), (∞.21) include the 1/n. Attributes of the dataset are the
    leading coefficients of l/n of the measures, and exponents p_P to p_U of tensors ~ l^(-p).

    The network must be critical in all layers with equal hidden widths, and its rates as in :func:`ntk_laws`.

    Examples
    --------
    >>> laws = dntk_laws(MLP("linear", depth=10, width=100, lambda_b=0.1, lambda_W=0.1), [1.0])
    >>> laws["S"].sel(layer=10).values.round(12)
    array([3.3, 3.3])
    """
    vector = checked_input(mlp, x)
    base = laws_of(mlp, vector)
    if base.universality_class == "scale-invariant":
        laws, constants = _dntk_scale_invariant(mlp, base)
    elif "m" in base.constants:
        # Rates (11.91): b = lambda_b l^p, w = lambda_W l^(p-1) sigma_1^2 / (-a_1), t = b + w, m = p t - w.
        a, p, w, t, m = (base.constants[name] for name in ("a_1", "p_perpendicular", "w", "t", "m"))
        a, rest = -a, 5 - p
        bent = w + 4 * (1 - p) * t  # of lambda_W <s' s'> + C_W Theta <s'' s''>, over (-a_1) l^(1-p)
        coefficients = {
            "P": -(2 - p) / (3 * rest) * t**2,
            "Q": -m * t / rest**2,
            "R": -a * t**2 * (3 * (4 - 3 * p) * t + (2 - p) * bent) / (3 * rest**2),
            "S": a * t**2 * bent / (3 * rest),
            "T": 2 * a * t * m**2 / rest**3,
            "U": 4 * a * (1 - p) * t**3 / (4 - p) if 1 - p > _ODD else a * t**3 / 2,
        }
        powers = dict.fromkeys("PQ", 3 - 2 * p) | dict.fromkeys("RST", 5 - 3 * p)
        powers["U"] = 4 - 3 * p if 1 - p > _ODD else 0.0
        formulas = {
            "P": ("-(2-p)/(3(5-p)) t^2 l^(3-2p), t = b + w", "(11.98)"),
            "Q": ("-m t/(5-p)^2 l^(3-2p), m = p t - w", "(11.101)"),
            "R": ("a_1 t^2 [3(4-3p) t + (2-p)(w + 4(1-p) t)]/(3(5-p)^2) l^(5-3p)", "(∞.30) at p = 1"),
            "S": ("-a_1 t^2 (w + 4(1-p) t)/(3(5-p)) l^(5-3p)", "(∞.31) at p = 1"),
            "T": ("-2 a_1 t m^2/(5-p)^3 l^(5-3p)", "(∞.32) at p = 1"),
            "U": ("-4 a_1 (1-p) t^3/(4-p) l^(4-3p), or -a_1 t^3/2 where p = 1", "(∞.33) at p = 1"),
        }
        laws, constants = _powers_of_depth(mlp, coefficients, powers, formulas, a, t)
    else:
        laws, constants = _dntk_constant_rates(mlp, base.constants)
    if slope_jumps(mlp.activation):
        laws = {name: laws[name] for name in "PQ"}
    kept = {name: base.laws[name] for name in _NEEDED} | laws
    named = {key: value for key, value in base.constants.items() if "/" not in key}
    found = replace(base, laws=kept, constants=named | constants)
    return law_dataset(mlp, vector, found, DNTK_MEASURES, "(11.62), (∞.21), (∞.22)")


def dimensionless_ratios(mlp: MLP, x: ArrayLike, target_square: float = 0.0) -> xr.Dataset:
    """V/(nK^2), A/(nTheta^2), .., RK/(nTheta^3), .. of one input at every layer (11.62), (∞.21), (∞.22), (∞.170).

    These include the 1/n, with the width before each layer, and hold for any hyperparameters and widths, critical or
    not. Where they are not small, neither is what the expansion in 1/n leaves out. R to U are absent where the slope
    of the activation jumps.

    Parameters
    ----------
    target_square
        The mean over outputs of y^2, for targets that are not as small as the outputs: R to U then have K + this.

    Examples
    --------
    >>> found = dimensionless_ratios(MLP("linear", depth=10, width=100, lambda_b=0.1, lambda_W=0.1), [1.0])
    >>> found["SK/(nTheta^3)"].values[-1].round(8)  # 3.3 / (100 * 2^3)
    np.float64(0.004125)
    """
    vector = one_input(x)
    if not (math.isfinite(target_square) and target_square >= 0):
        raise InputError(f"target_square is {target_square!r}: give a mean square, zero or more.")
    absent = set("RSTU") if slope_jumps(mlp.activation) else set()
    measures = {k: m for k, m in (NTK_MEASURES | DNTK_MEASURES).items() if m.tensor not in absent}
    tensors = flow(mlp, vector[None], ["K", "Theta", *(measure.tensor for measure in measures.values())])
    values = {name: tensor.values.reshape(mlp.depth) for name, tensor in tensors.items()}
    seen = values | {"K": values["K"] + target_square}
    before = np.array([1, *mlp.hidden_widths], dtype=np.float64)  # at layer 1 all tensors vanish
    ratios = {k: m.of(seen if m.tensor in "RSTU" else values, before) for k, m in measures.items()}
    named = {name: ("layer", ratio) for name, ratio in ratios.items()}
    return labelled(named, {"network": repr(mlp)}, counted=("layer",))


def _dntk_scale_invariant(mlp: MLP, base: LawSet) -> tuple[dict[str, Law], dict[str, float]]:
    """Each tensor sums what the layers below add; R to U are those of linear activations."""
    K, Theta, F, B = (base.laws[name].values for name in _NEEDED)
    weights = np.array(mlp.lambda_W) * base.constants["A_2"]
    Q = np.cumsum(weights * F)
    nothing = np.zeros(mlp.depth)
    laws = {
        "P": Law(nothing, "0", "(11.74)", "none"),
        "Q": Law(
            Q, "A_2 sum lambda_W F; l(l^2-1)/6 a_4 w (b + w) at uniform rates", "(11.76)-(11.81)", "none"
        ),
    }
    S = np.cumsum(weights * _below(Theta**2 + B))
    T = np.cumsum(weights**2 * _below(K * Theta + F) + 2 * weights * _below(Q))
    laws |= {
        "R": Law(nothing, "0", "(∞.45)-(∞.51)", "none"),
        "S": Law(S, "l^2(l^2-1)/12 (b + w)^2 lambda_W A_2 at uniform rates", "(∞.47)", "none"),
        "T": Law(T, "l^2(l^2-1)/12 (b + w) (lambda_W A_2)^2 K at uniform rates", "(∞.48)", "none"),
        "U": Law(nothing, "0", "(∞.45)-(∞.51)", "none"),
    }
    return laws, _uniform_coefficients(base.constants, linear=not slope_jumps(mlp.activation))


def _below(values: Array) -> Array:
    """What a layer takes from the one below it."""
    return np.concatenate([[0.0], values[:-1]])


def _uniform_coefficients(constants: dict[str, float], *, linear: bool) -> dict[str, float]:
    """Exponents, and leading coefficients of l/n of the measures (11.81), (∞.45)-(∞.51), if rates are uniform."""
    if not constants.get("b", 0.0) + constants.get("w", 0.0):
        return {}
    share = constants["w"] / (constants["b"] + constants["w"])
    found = {"p_Q": -3.0, "P/(nTheta^2)": 0.0, "Q/(nTheta^2)": constants["a_4"] * share / 6}
    if linear:
        found |= {"p_S": -4.0, "p_T": -4.0, "SK/(nTheta^3)": share / 12, "TK/(nTheta^3)": share**2 / 12}
    return found


def _dntk_constant_rates(mlp: MLP, constants: dict[str, float]) -> tuple[dict[str, Law], dict[str, float]]:
    """Uniform rates: biases win, Theta = t l with t = lambda_b / (1 + p)."""
    a, p, t = -constants["a_1"], constants["p_perpendicular"], constants["t"]
    odd = 1 - p <= _ODD
    # Where p = 1, what is left of lambda_W <s' s'> + C_W Theta <s'' s''> does not grow with the layer.
    left = mlp.lambda_W[0] / mlp.C_W[0] + a * t
    coefficients = {
        "P": -(2 - p) * t**2 / ((3 + 2 * p) * (5 + p)),
        "Q": -p * t**2 / (5 * (5 + p)),
        "R": -a * t**3 * ((4 - 3 * p) + 4 * (1 - p) * (2 - p) / (3 + 2 * p)) / ((5 + p) * (5 + 2 * p)),
        "S": left * t**2 / 30 if odd else 4 * a * (1 - p) * t**3 / ((3 + 2 * p) * (5 + 2 * p)),
        "T": 2 * a * p**2 * t**3 / (5 * (5 + p) * (5 + 2 * p)),
        "U": a * t**3 / 5 if odd else 4 * a * (1 - p) * t**3 / (4 + 2 * p),
    }
    powers = {"P": 3.0, "Q": 3.0, "R": 5.0, "S": 4.0 if odd else 5.0, "T": 5.0, "U": 3.0 if odd else 4.0}
    formulas = {
        "P": ("-(2-p) t^2/((3+2p)(5+p)) l^3, t = lambda_b/(1+p)", "derived"),
        "Q": ("-p t^2/(5(5+p)) l^3", "derived"),
        "R": ("a_1 t^3 [4 - 3p + 4(1-p)(2-p)/(3+2p)]/((5+p)(5+2p)) l^5", "derived"),
        "S": (
            "-4 a_1 (1-p) t^3/((3+2p)(5+2p)) l^5, or (lambda_W sigma_1^2 - a_1 t) t^2/30 l^4 if p = 1",
            "derived",
        ),
        "T": ("-2 a_1 p^2 t^3/(5(5+p)(5+2p)) l^5", "derived"),
        "U": ("-4 a_1 (1-p) t^3/(4+2p) l^4, or -a_1 t^3/5 l^3 where p = 1", "derived"),
    }
    return _powers_of_depth(mlp, coefficients, powers, formulas, a, t)


def _powers_of_depth(
    mlp: MLP,
    coefficients: dict[str, float],
    powers: dict[str, float],
    formulas: dict[str, tuple[str, str]],
    a: float,
    t: float,
) -> tuple[dict[str, Law], dict[str, float]]:
    """Coefficients times powers of the layer, with what follows for the measures of those that grow as l/n."""
    layer = np.arange(1.0, mlp.depth + 1)
    laws = {
        name: Law(coefficients[name] * layer ** powers[name], *formulas[name], _REST) for name in coefficients
    }
    constants = {f"p_{name}": 0.0 - power for name, power in powers.items()}
    for name, measure in DNTK_MEASURES.items():
        scale = 1 / t**2 if measure.power_of_K == 0 else 1 / (a * t**3)
        if t and (measure.power_of_K == 0 or powers[measure.tensor] == powers["R"]):
            constants[name] = coefficients[measure.tensor] * scale
    return laws, constants


_NAMES = ("K", "V", "Theta", "D", "F", "A", "B")


class _Means(NamedTuple):
    """Means over networks of one hidden layer."""

    q: float
    q_q: float
    t: float
    q_t: float
    t_t: float
    s: float
    u: float


def exact_linear_ntk(mlp: MLP, x: ArrayLike) -> xr.Dataset:
    """K, V, Theta, D, F, A, B of a linear network at every layer, exact at any widths, for one input.

    They are defined by (4.117), (8.67) and (8.82), without the 1/n_{l-1}; K and Theta are means without corrections.
    Needs C_b = 0 and no skip connections.

    Examples
    --------
    >>> mlp = MLP("linear", depth=4, width=8, lambda_b=0.4, lambda_W=1.3)
    >>> round(exact_linear_ntk(mlp, [0.7**0.5])["B"].sel(layer=4).item(), 8)
    26.78720781
    """
    vector = one_input(x)
    slopes = mlp.activation.slopes
    if slopes is None or slopes[0] != slopes[1] or any(mlp.C_b) or mlp.is_residual:
        raise NotSupportedError(
            "the exact statistics are those of linear networks with C_b = 0 and no skip connections: for others use "
            "foretrain.flow, which is leading order in 1/n."
        )
    signal = float(np.mean(mlp.check_inputs(vector[None])[0] ** 2))
    rows = _layers(mlp, slopes[0] ** 2, signal)
    return labelled(
        {
            name: ("layer", np.array([row[place] for row in rows]), MEANINGS[name])
            for place, name in enumerate(_NAMES)
        },
        {"network": repr(mlp)},
        counted=("layer",),
    )


def _layers(mlp: MLP, square: float, signal: float) -> list[tuple[float, ...]]:
    """The seven numbers of every layer, in the order of the names; fluctuations vanish in the first."""
    first = mlp.layers[0]
    K, Theta = first.C_W * signal, first.lambda_b + first.lambda_W * signal
    rows: list[tuple[float, ...]] = [(K, 0.0, Theta, 0.0, 0.0, 0.0, 0.0)]
    if mlp.depth == 1:
        return rows
    n = first.width
    means = _Means(K, K**2 * (1 + 2 / n), Theta, K * Theta, Theta**2, K * Theta, Theta**2)
    for layer in mlp.layers[1:]:
        q, q_q, t, q_t, t_t, s, u = means
        # Means of c = lambda_b + lambda_W a^2 q with itself and the rest.
        b, w, C = layer.lambda_b, layer.lambda_W * square, square * layer.C_W
        c, q_c, c_t = b + w * q, b * q + w * q_q, b * t + w * q_t
        c_c = b**2 + 2 * b * w * q + w**2 * q_q
        # The tensors of this layer, which follows a hidden layer of width n.
        Theta = c + C * t
        V = n * C**2 * (q_q - q**2)
        D = n * C * (q_c + C * q_t - q * Theta)
        A = n * (c_c + 2 * C * c_t + C**2 * t_t - Theta**2)
        rows.append((C * q, V, Theta, D, C**2 * s, A, C**2 * u))
        # The means over networks of this layer, if it is hidden.
        both, pair, follow = c_c + 2 * C * c_t, 2 / (n * layer.width), (layer.width + 1) / n
        means = _Means(
            C * q,
            C**2 * (1 + 2 / layer.width) * q_q,
            Theta,
            C * q_c + C**2 * (q_t + pair * s),
            both + C**2 * (t_t + pair * u),
            C * q_c + C**2 * (q_t + follow * s),
            both + C**2 * (t_t + follow * u),
        )
        n = layer.width
    return rows


def linear_dntk(K: ArrayLike, layer: int, lambda_b: float = 1.0, lambda_W: float = 1.0) -> dict[str, Array]:
    """F, B, P, Q, R, S, T, U (N, N, N, N) of a critical linear network at a layer, in stored order.

    For s(z) = z with C_b = 0, C_W = 1, uniform learning rates and equal hidden widths: K (N, N) is then that of the
    data, x.x / n_0. With h = lambda_b + lambda_W K, so that Theta = l h, from (8.79), (8.89), (11.52),
    (∞.179), (∞.180): F_1324 = l(l-1)/2 K_12 h_34, B_1324 = l(l-1)(2l-1)/6 h_12 h_34,
    Q_0123 = l(l^2-1)/6 lambda_W K_13 h_02, S_1234 = l^2(l^2-1)/12 lambda_W h_13 h_24,
    T_1342 = l^2(l^2-1)/12 lambda_W^2 h_12 K_34, and P = R = U = 0.

    Examples
    --------
    >>> round(linear_dntk([[1.0]], 10, 0.1, 0.1)["T"].item(), 12)
    1.65
    """
    kernel = np.asarray(K, dtype=float)
    if kernel.ndim != 2 or kernel.shape[0] != kernel.shape[1]:
        raise InputError(f"K has shape {kernel.shape}: give a square matrix, one row for each input.")
    if layer < 1:
        raise InputError(f"layer is {layer}: give a positive whole number.")
    h = lambda_b + lambda_W * kernel
    crossed = np.einsum("ac,bd->abcd", h, h)
    quartic = layer**2 * (layer**2 - 1) / 12
    nothing = np.zeros_like(crossed)
    return {
        "F": layer * (layer - 1) / 2 * np.einsum("ac,bd->abcd", kernel, h),
        "B": layer * (layer - 1) * (2 * layer - 1) / 6 * crossed,
        "P": nothing,
        "Q": layer * (layer**2 - 1) / 6 * lambda_W * np.einsum("bd,ac->abcd", kernel, h),
        "R": nothing,
        "S": quartic * lambda_W * crossed,
        "T": quartic * lambda_W**2 * np.einsum("ad,bc->abcd", h, kernel),
        "U": nothing,
    }
