"""Laws in depth for the dNTK and the ddNTKs, beside the exact recursion (sections 11.3, ∞.1), and dimensionless
ratios of all finite-width tensors against depth, of any network: how large its 1/n effects are.

Scale-invariant networks at criticality have closed forms at leading order in 1/n that are exact in depth: P = 0 and
Q, and of linear ones S and T. Networks at K* = 0 have the leading power of the layer, with relative corrections of
order log l / l; the book states R, S, T, U for odd activations, and the other laws follow from the same recursions.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.answers import labelled
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP
from foretrain.theory.arguments import one_input
from foretrain.theory.asymptotics.laws import Law, LawSet
from foretrain.theory.asymptotics.ntk_laws import checked_input, law_dataset, laws_of
from foretrain.theory.flow import flow
from foretrain.theory.recursions.kinks import slope_jumps
from foretrain.theory.tensors import DNTK_MEASURES, NTK_MEASURES

if TYPE_CHECKING:
    import xarray as xr


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
        laws, constants = _scale_invariant(mlp, base)
    elif "m" in base.constants:
        laws, constants = _own_rates(mlp, base.constants)
    else:
        laws, constants = _constant_rates(mlp, base.constants)
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


def _scale_invariant(mlp: MLP, base: LawSet) -> tuple[dict[str, Law], dict[str, float]]:
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


def _own_rates(mlp: MLP, constants: dict[str, float]) -> tuple[dict[str, Law], dict[str, float]]:
    """Rates (11.91): b = lambda_b l^p, w = lambda_W l^(p-1) sigma_1^2 / (-a_1), t = b + w, m = p t - w."""
    a, p, w, t, m = (constants[name] for name in ("a_1", "p_perpendicular", "w", "t", "m"))
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
    return _powers_of_depth(mlp, coefficients, powers, formulas, a, t)


def _constant_rates(mlp: MLP, constants: dict[str, float]) -> tuple[dict[str, Law], dict[str, float]]:
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
