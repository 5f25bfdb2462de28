"""How large a deviation is whose entries are noisy, and with which power of the width it falls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from foretrain.compare.slope import Slope

Array = NDArray[np.float64]

_SEEN = 2.0  # standard errors: at two widths at least, or no power is fitted


@dataclass(frozen=True, eq=False)
class Sizes:
    """Mean squares over entries, by width, freed of noise: negative by chance where all is noise."""

    square: Array
    standard_error: Array

    @property
    def root(self) -> Array:
        """Root mean squares; zero where the mean square is negative."""
        return np.sqrt(np.maximum(self.square, 0.0))

    @property
    def root_error(self) -> Array:
        """Standard errors of the roots, not more than the root of that of the square."""
        slope = np.maximum(2 * self.root, np.sqrt(self.standard_error))
        return np.asarray(self.standard_error / np.where(slope > 0, slope, 1.0))


def sizes_of(deviations: Array, covariances: Sequence[Array]) -> Sizes:
    """From deviations (widths, entries) and the covariance of each width's.

    The mean square of noisy numbers is that of the true ones d plus their variances; its own variance is
    2 tr C² + 4 d C d over the squared number of entries, and noise adds 4 tr C² to the last term on average.
    """
    entries = deviations.shape[1]
    squares, errors = [], []
    for deviation, covariance in zip(deviations, covariances, strict=True):
        squares.append((deviation @ deviation - np.trace(covariance)) / entries)
        noise = 2 * float((covariance**2).sum())
        variance = max(4 * float(deviation @ covariance @ deviation) - noise, noise)
        errors.append(np.sqrt(variance) / entries)
    return Sizes(np.array(squares), np.array(errors))


def power_of(widths: Array, sizes: Sizes) -> Slope | None:
    """The power p of n in sizes, by least squares weighted with the errors of their squares; None if noise hides it.

    Sizes are c n^p, with four widths or more c n^p (1 + b/n), whose last factor is the next order of the expansion.
    """
    if (sizes.square > _SEEN * sizes.standard_error).sum() < 2:
        return None
    n = np.asarray(widths, dtype=float) / float(widths[0])
    unit = float(np.abs(sizes.square).max())
    values = sizes.square / unit
    errors = np.maximum(sizes.standard_error / unit, 1e-12)
    terms = 3 if len(n) > 3 else 2

    def residuals(point: Array) -> Array:
        level, power, *bend = point
        model = np.exp(level) * n**power * (1 + sum(bend) / n)
        return np.asarray((model**2 - values) / errors)

    start = np.array([np.log(max(values[0], 1e-3)) / 2, -1.0, 0.0][:terms])
    fit = least_squares(residuals, start)
    slopes = np.asarray(fit.jac, dtype=np.float64)
    information = np.linalg.pinv(slopes.T @ slopes)
    spread = max(1.0, 2 * fit.cost / max(1, len(n) - terms))  # less well known where the form does not fit
    return Slope(float(fit.x[1]), float(np.sqrt(spread * information[1, 1])))
