"""Several widths of one network, and the limit of infinite width from them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP

Array = NDArray[np.float64]

TERMS = 3  # value, 1/n and 1/n²
_LADDERS = ((0.25, 0.5, 1.0), (0.5, 1.0, 2.0), (1.0, 2.0, 4.0))
WIDTH_OVER_DEPTH = 6.0  # of the narrowest network, where it can be chosen
TRUSTED_DEPTH_TO_WIDTH = 0.25  # of the narrowest network: beyond it a quadratic in 1/n does not suffice


def default_scales(mlp: MLP, width_over_depth: float = WIDTH_OVER_DEPTH) -> tuple[float, ...]:
    """Three widths a factor 2 apart, the own one among them, the narrowest wide enough for the depth if possible."""
    for ladder in _LADDERS[:-1]:
        narrowest = ladder[0] * min(mlp.hidden_widths)
        divisible = all((scale * width).is_integer() for scale in ladder for width in mlp.hidden_widths)
        if divisible and narrowest >= width_over_depth * mlp.depth:
            return ladder
    return _LADDERS[-1]


def check_scales(
    mlp: MLP, scales: Sequence[float] | None, width_over_depth: float = WIDTH_OVER_DEPTH
) -> tuple[float, ...]:
    """The multipliers of the hidden widths, increasing."""
    if not mlp.hidden_widths:
        raise InputError(
            "depth 1 has no hidden layer, so nothing depends on the width: give depth 2 or more."
        )
    if scales is None:
        chosen = default_scales(mlp, width_over_depth)
    else:
        chosen = _sorted_numbers(scales)
    if len(set(chosen)) < TERMS or chosen[0] <= 0 or not np.isfinite(chosen).all():
        raise InputError(
            f"`scales` are {list(chosen)}: give at least {TERMS} different positive multipliers."
        )
    for scale in chosen:
        widths = [scale * width for width in mlp.hidden_widths]
        if len(set(mlp.hidden_widths)) > 1 and not all(width.is_integer() for width in widths):
            raise InputError(
                f"scale {scale:g} makes the hidden widths {widths}: unequal widths keep their ratios only if all "
                "products are whole numbers."
            )
        if min(map(round, widths)) < 2:
            raise InputError(
                f"scale {scale:g} leaves fewer than two neurons in a layer: give larger `scales`."
            )
    widths_drawn = sorted({round(scale * mlp.hidden_widths[0]) for scale in chosen})
    if len(widths_drawn) < TERMS:
        raise InputError(
            f"scales {list(chosen)} make only the widths {widths_drawn}: give at least {TERMS} that differ by a "
            "neuron or more."
        )
    return chosen


def _sorted_numbers(scales: object) -> tuple[float, ...]:
    try:
        return tuple(sorted(np.asarray(scales, dtype=np.float64).reshape(-1).tolist()))
    except (TypeError, ValueError):
        raise InputError(
            f"`scales` are {scales!r}: give at least {TERMS} different positive multipliers."
        ) from None


def scaled(mlp: MLP, scale: float) -> MLP:
    """The same network with all hidden widths multiplied."""
    return mlp.replace(width=[round(scale * width) for width in mlp.hidden_widths])


def inverse_widths(mlp: MLP, scales: Sequence[float]) -> Array:
    """1/n in units of the own width: 1 / scale, up to rounding of equal widths."""
    own = mlp.hidden_widths[0]
    return np.array([own / round(scale * own) for scale in scales])


def extrapolation_weights(inverse: Array, standard_error: Array) -> Array:
    """(widths, entries): what each measurement contributes to the value at 1/n = 0.

    Least squares with a quadratic in 1/n, weighted by the standard errors (widths, entries); with three widths it
    passes through the points.
    """
    design = np.stack([inverse**power for power in range(TERMS)], axis=1)
    largest = standard_error.max(axis=0)
    relative = np.where(largest > 0, standard_error / np.where(largest > 0, largest, 1.0), 1.0)
    weight = 1 / np.maximum(relative, 1e-6)  # (widths, entries)
    weighted = design[None] * weight.T[:, :, None]  # (entries, widths, terms)
    return np.asarray((np.linalg.pinv(weighted)[:, 0, :] * weight.T).T)


def share_draws(inverse: Array, costs: Array, draws: int) -> list[int]:
    """Draws per width with the given mean, so that the noise of the limit is least for the time they take."""
    weights = extrapolation_weights(inverse, np.ones((len(inverse), 1)))[:, 0]
    shares = np.abs(weights) / np.sqrt(costs)
    return [max(1, round(share)) for share in draws * shares / shares.mean()]
