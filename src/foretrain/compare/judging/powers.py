"""With which power of the width n a size falls: of noisy deviations, and of sizes that scatter over networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import least_squares

from foretrain.support.answers import Result
from foretrain.theory.architecture import FloatArray

if TYPE_CHECKING:
    import xarray


_ALLOWED = 3.0  # standard errors
_SEEN = 2.0  # standard errors: at two widths at least, or no power is fitted


@dataclass(frozen=True, repr=False)
class Slope(Result):
    """A power of the width with its standard error."""

    value: float
    standard_error: float

    def agrees(self, expected: float) -> bool:
        """Whether it is the expected power, within three standard errors."""
        return abs(self.value - expected) <= _ALLOWED * self.standard_error

    def __str__(self) -> str:
        return f"{self.value:.2f} ± {self.standard_error:.2f}"


@dataclass(frozen=True, eq=False)
class Sizes:
    """Mean squares over entries, by width, freed of noise: negative by chance where all is noise."""

    square: FloatArray
    standard_error: FloatArray

    @property
    def root(self) -> FloatArray:
        """Root mean squares; zero where the mean square is negative."""
        return np.sqrt(np.maximum(self.square, 0.0))

    @property
    def root_error(self) -> FloatArray:
        """Standard errors of the roots, not more than the root of that of the square."""
        slope = np.maximum(2 * self.root, np.sqrt(self.standard_error))
        return np.asarray(self.standard_error / np.where(slope > 0, slope, 1.0))


def sizes_of(deviations: FloatArray, covariances: Sequence[FloatArray]) -> Sizes:
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


def power_of(widths: FloatArray, sizes: Sizes) -> Slope | None:
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

    def residuals(point: FloatArray) -> FloatArray:
        level, power, *bend = point
        model = np.exp(level) * n**power * (1 + sum(bend) / n)
        return np.asarray((model**2 - values) / errors)

    start = np.array([np.log(max(values[0], 1e-3)) / 2, -1.0, 0.0][:terms])
    fit = least_squares(residuals, start)
    slopes = np.asarray(fit.jac, dtype=np.float64)
    information = np.linalg.pinv(slopes.T @ slopes)
    spread = max(1.0, 2 * fit.cost / max(1, len(n) - terms))  # less well known where the form does not fit
    return Slope(float(fit.x[1]), float(np.sqrt(spread * information[1, 1])))


def log_root_mean_square(sizes: FloatArray, over: FloatArray | None = None) -> tuple[FloatArray, FloatArray]:
    """The logarithm of the root mean square over the last axis, or of a ratio of two, and its standard error.

    Sizes are sums of products of several Gaussian numbers, whose typical value is much slower to reach its power of
    1/n than its root mean square is.
    """
    squares = [sizes**2] if over is None else [sizes**2, over**2]
    means = [each.mean(axis=-1) for each in squares]
    signs = (0.5, -0.5)
    value = sum(sign * np.log(mean) for sign, mean in zip(signs, means))
    influence = sum(sign * each / mean[..., None] for sign, each, mean in zip(signs, squares, means))
    return np.asarray(value), np.std(influence, axis=-1, ddof=1) / np.sqrt(sizes.shape[-1])


def slope_of(sizes: xarray.DataArray, over: xarray.DataArray | None = None) -> Slope:
    """The power p of n in a root mean square, or in a ratio of two, fitted by a + p log n + b / n."""
    known = sizes.dropna("width")
    n = known.width.values.astype(float)
    both = [
        each.sel(width=known.width).transpose("width", "draw").values
        for each in (sizes, over)
        if each is not None
    ]
    values, errors = log_root_mean_square(*both)
    # One error for all widths: an own one is small where large sizes happened not to be drawn, and would pull there.
    error = max(float(np.sqrt(np.mean(errors**2))), 1e-12)
    design = np.stack([np.ones_like(n), np.log(n / n[0]), n[0] / n], axis=1)
    inverse = np.linalg.pinv(design)[1]
    return Slope(float(inverse @ values), error * float(np.linalg.norm(inverse)))
