"""How far an ensemble of networks is from independent Gaussian neurons, layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.seeds import Seed
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.ensembles.checks import check_layers
from foretrain.theory.ensembles.correlators import moment_sums
from foretrain.theory.ensembles.moments import Moment
from foretrain.theory.ensembles.sampling import Ensemble

if TYPE_CHECKING:
    import xarray


_NAMES = ("second_moment", "excess_kurtosis", "neuron_correlation")


def diagnose(
    mlp: MLP, X: ArrayLike, draws: int = 10_000, *, law: str = "gaussian", seed: Seed = 0
) -> xarray.Dataset:
    """Departure from a Gaussian with independent neurons, for every layer and input, with standard errors.

    ``second_moment`` is E[z²], ``excess_kurtosis`` is κ_4/κ_2² of one neuron, ``neuron_correlation`` is the
    correlation of z_i² and z_j² of two neurons. ``inverse_width`` is Σ 1/n over the hidden layers before, the
    scale of both; the attribute ``depth_to_width`` is that of the whole network. For Gaussian parameters
    without skip connections the average over each layer's own weights is exact; otherwise it runs over the
    layer's neurons, and a layer with one neuron has no correlation (nan).
    """
    import xarray

    exact = law == "gaussian" and not mlp.is_residual
    ensemble = Ensemble(
        mlp, X, draws, method="conditional" if law == "gaussian" else "weights", law=law, seed=seed
    )
    layers = check_layers(mlp, None)
    estimator = "wick" if exact else "neurons"
    sums = moment_sums(ensemble, layers, _moments(len(ensemble.X)), estimator)
    value, error = sums.estimate(_statistics)
    before = np.concatenate([[0.0], np.cumsum([1.0 / n for n in mlp.hidden_widths])])
    variables: dict[str, tuple[tuple[str, ...], FloatArray]] = {"inverse_width": (("layer",), before)}
    for index, name in enumerate(_NAMES):
        variables[name] = (("layer", "input"), value[..., index])
        variables[f"{name}_standard_error"] = (("layer", "input"), error[..., index])
    return xarray.Dataset(
        variables,
        coords={"layer": list(layers)},
        attrs={"depth_to_width": mlp.depth_to_width, "estimator": estimator, **ensemble.labels},
    )


def _moments(inputs: int) -> list[Moment]:
    """For each input: z² of one neuron, z⁴ of one neuron, z² z² of two neurons."""
    return [moment for a in range(inputs) for moment in (((a, a),), ((a,) * 4,), ((a, a), (a, a)))]


def _statistics(means: FloatArray) -> FloatArray:
    second, fourth, pair = np.moveaxis(means.reshape(*means.shape[:-1], -1, 3), -1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):  # a layer that is identically zero has neither
        kurtosis = fourth / second**2 - 3.0
        correlation = (pair - second**2) / (fourth - second**2)
    return np.stack([second, kurtosis, correlation], axis=-1)
