"""The factors of a gradient that may explode or vanish with depth (9.87)-(9.93)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.flow.kinks import inputs_on_kinks, warn_of_kinks
from foretrain.theory.ntk_shares.terms import Diagonal, diagonal

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

_EXPONENTIAL = 3.0  # depth times the rate at the output; powers of depth that occur at criticality stay below


def gradients(mlp: MLP, X: ArrayLike) -> xr.Dataset:
    """The factors of a gradient (9.87)-(9.90) as mean squares over networks, for every layer and input.

    ``chain`` is the product of chi_perp from a layer to the output (9.93), the mean square of the derivative of one
    output along a random direction of the layer, times its width. ``signal`` is the mean square of the trivial factor
    of the weights (1 for biases). ``kernel`` of the last layer sizes the error factor. ``chi_parallel`` and
    ``chi_perpendicular`` are those of the step to the next layer. The attribute ``verdict`` says what explodes or
    vanishes.
    """
    import xarray as xr

    check_network(mlp)
    inputs = mlp.check_inputs(X)
    found = diagonal(mlp, inputs)
    warn_of_kinks(mlp, inputs_on_kinks(mlp, inputs))
    pad = np.full((1, found.parallel.shape[1]), np.nan)
    meanings = {
        "chain": (found.factors.growth, "prod chi_perp to the output (9.93)"),
        "signal": (found.factors.signals, "mean square of the signal that enters the layer (9.90)"),
        "kernel": (
            found.factors.kernels,
            "variance of a preactivation; of an output in the last layer (9.92)",
        ),
        "chi_parallel": (np.concatenate([found.parallel, pad]), "growth of norms to the next layer"),
        "chi_perpendicular": (
            np.concatenate([found.perpendicular, pad]),
            "growth of distances to the next layer",
        ),
    }
    return xr.Dataset(
        {name: (("layer", "input"), values, {"meaning": told}) for name, (values, told) in meanings.items()},
        coords={"layer": np.arange(1, mlp.depth + 1)},
        attrs={"verdict": _gradient_verdict(found)},
    )


def _gradient_verdict(found: Diagonal) -> str:
    """From the last step of all: what runs as a power of depth has a rate of order 1 / L there."""
    steps = len(found.perpendicular)
    if not steps:
        return "one layer: there is no chain of layers to explode or vanish."
    kernels = found.factors.kernels
    with np.errstate(divide="ignore", invalid="ignore"):
        chain = _last_rate(found.perpendicular)
        size = _last_rate(kernels[1:] / kernels[:-1])
    parts = []
    if abs(chain) * steps > _EXPONENTIAL:
        word = "explode" if chain > 0 else "vanish"
        parts.append(f"gradients of early layers {word}, by e every {1 / abs(chain):.3g} layers (chi_perp)")
    if size * steps > _EXPONENTIAL:
        parts.append(
            f"outputs and with them error factors grow by e every {1 / size:.3g} layers (chi_parallel)"
        )
    elif size * steps < -_EXPONENTIAL:
        parts.append(
            f"signals shrink by e every {-1 / size:.3g} layers and starve the weights (chi_parallel)"
        )
    if not parts:
        return "neither gradients nor signals change exponentially with depth."
    return "; ".join(parts) + ": take the critical C_b and C_W of foretrain.criticality."


def _last_rate(ratios: Array) -> float:
    """The mean over inputs of the logarithm of their last ratio (steps, inputs) that is a number.

    Inputs that are zero have none, and beyond what floats can hold there is none either.
    """
    usable = np.isfinite(ratios) & (ratios > 0)
    rates = [np.log(column[chosen][-1]) for column, chosen in zip(ratios.T, usable.T) if chosen.any()]
    return float(np.mean(rates)) if rates else 0.0
