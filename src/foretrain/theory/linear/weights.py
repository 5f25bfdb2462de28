"""Weights that are not Gaussian: the four-point of a deep linear network, exact in width."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.linear.network import DeepLinear, by_layer

if TYPE_CHECKING:
    import xarray as xr


def nongaussian_weights(network: DeepLinear, x: ArrayLike, excess_kurtosis: float) -> xr.Dataset:
    """G_2, G_4, D and the fluctuation by layer, for one input x (n_0,) and weights of the given kurtosis.

    E[z_1 z_2 z_3 z_4] = (3 pairings) G_4 + delta_1234 D. D does not pile up with depth: the sense in which the
    law of the weights does not matter. ``theory.ensembles.weight_law(name).excess_kurtosis`` knows the usual laws.
    Offered without biases.
    """
    import xarray as xr

    if any(network.biases):
        raise NotSupportedError("non-Gaussian weights are offered without biases: set C_b = 0.")
    vector = np.asarray(x, dtype=np.float64)
    if vector.ndim != 1 or not vector.size or not np.isfinite(vector).all():
        raise InputError("one input is needed: a finite vector x of shape (n_0,).")
    if not excess_kurtosis >= -2:
        raise InputError(f"an excess kurtosis of {excess_kurtosis} does not exist: it is at least -2.")
    first = network.gains[0]
    G2 = first * float((vector**2).mean())
    G4, D = G2**2, excess_kurtosis * first**2 * float((vector**4).mean()) / vector.size
    rows = [(G2, G4, D)]
    for n, gain in zip(network.widths, network.gains[1:]):
        G2, G4, D = (
            gain * G2,
            gain**2 * ((1 + 2 / n) * G4 + D / n),
            excess_kurtosis * gain**2 * (3 * G4 + D) / n,
        )
        rows.append((G2, G4, D))
    table = np.array(rows)
    widths = np.array(network.widths)
    spread = (1 + 2 / widths) * table[:, 1] + table[:, 2] / widths - table[:, 0] ** 2
    named = {"G2": table[:, 0], "G4": table[:, 1], "D": table[:, 2], "fluctuation": spread}
    return xr.Dataset({name: by_layer(network, values, name) for name, values in named.items()})
