"""What is asked of a tangent kernel, whether it is written out, on disk, or known by its products."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from foretrain.operators.estimators.modes import spectrum_figure
from foretrain.support.answers import Axis, Figure, Part, Result
from foretrain.support.errors import ForetrainError, InputError
from foretrain.support.seeds import Seed

if TYPE_CHECKING:
    from foretrain.empirical.kernel_analysis import (
        KernelAlignment,
        KernelRegression,
        KernelSpectrum,
        KernelSummary,
        SpectralDensity,
    )

MORE = ".summary(), .spectrum(), .spectral_density(), .alignment(y) and .regression(y) say more."
_SMALL = 400  # rows of a matrix whose eigenvalues are found to be shown
_DRAWN = 200  # samples along a side of a picture


class AnyKernel(Result):
    """The questions; of a kernel on disk or known by products each says how often it is read or multiplied."""

    def spectrum(self, top: int | None = None, seed: Seed = 0) -> KernelSpectrum:
        """Eigenvalues and the modes of the largest; a store is usually read 5 to 20 times, its norm is exact."""
        from foretrain.empirical.kernel_analysis import spectrum

        return spectrum(cast("Any", self), top, seed=seed)

    def spectral_density(self, probes: int = 16, steps: int = 16, seed: Seed = 0) -> SpectralDensity:
        """How many eigenvalues lie where, with standard errors, in ``steps`` readings or products."""
        from foretrain.empirical.kernel_analysis import spectral_density

        return spectral_density(cast("Any", self), probes, steps, seed)

    def condition_number(self, ridge: float = 0.0, seed: Seed = 0) -> float:
        """Largest over smallest eigenvalue; the readings of a store grow like the root of the answer."""
        from foretrain.empirical.kernel_analysis import condition_number

        return condition_number(cast("Any", self), ridge, seed)

    def alignment(self, y: Any, top: int | None = None, seed: Seed = 0) -> KernelAlignment:
        """How targets lie in the kernel: two readings of a store more than ``spectrum``."""
        from foretrain.empirical.kernel_analysis import alignment

        return alignment(cast("Any", self), y, top, seed=seed)

    def regression(
        self, y: Any, ridge: float = 0.0, test: Any = None, initial_outputs: Any = None, **options: Any
    ) -> KernelRegression:
        """Where gradient flow of the linearised model ends, or is at ``time=``: see ``regression``."""
        from foretrain.empirical.kernel_analysis import regression

        return regression(cast("Any", self), y, ridge, test, initial_outputs, **options)

    def summary(self, y: Any = None, top: int = 10, seed: Seed = 0) -> KernelSummary:
        """What there is to know at a glance, in about 16 readings of a store."""
        from foretrain.empirical.kernel_analysis import summarise

        return summarise(cast("Any", self), y, top, seed)

    def require_symmetric(self, what: str) -> None:
        """Refuse what only a kernel of samples with themselves has."""
        if not cast("Any", self).symmetric:
            raise InputError(f"a {what} needs the kernel of x with itself: leave `x2` out.")

    def plot(self, ax: Any = None, *, path: Any = None) -> Any:
        """Draw the kernel, or of one that is not written out its leading eigenvalues."""
        shown = self if self.answer().has_figure else self.spectrum()
        return Result.plot(shown, ax, path=path)


def kernel_parts(kernel: AnyKernel, values: Any, rows: int) -> list[Part]:
    """The picture of a kernel that is there and, unless it is large, its eigenvalues, or why it has none."""
    if rows > _SMALL:
        return [MORE, partial(kernel_figure, values, None)]
    try:
        found = kernel.spectrum()
    except ForetrainError as error:
        return [f"No eigenvalues: {error}", partial(kernel_figure, values, None)]
    said = found.answer()
    return [said.statement, *said.tables, partial(kernel_figure, values, found.eigenvalues)]


def kernel_figure(values: Any, eigenvalues: Any) -> Figure:
    """A kernel (N, N2) or (N, N2, C, C) in colours, by samples: the mean over equal outputs, of many samples some."""
    rows, columns = (
        np.unique(np.linspace(0, size - 1, _DRAWN).astype(int)) if size > _DRAWN else np.arange(size)
        for size in values.shape[:2]
    )
    chosen = np.asarray(values[rows][:, columns], dtype=np.float64)
    means = chosen if chosen.ndim == 2 else np.einsum("abcc->ab", chosen) / chosen.shape[-1]
    figure = Figure("Tangent kernel", columns=2) if eigenvalues is not None else Figure("Tangent kernel")
    panel = figure.panel("", "sample of x2", Axis("sample of x", reverse=True), equal=True)
    label = "entry" if chosen.ndim == 2 else "mean over outputs"
    panel.heat_map(means, columns, rows, label, diverging=bool(means.min() < 0))
    if eigenvalues is not None:
        figure.panels += spectrum_figure(eigenvalues[eigenvalues > 0], "eigenvalue").panels
    return figure


def routes_taken(routes: Mapping[str, Any]) -> str:
    """How many parameters went which way."""
    ways = Counter(str(route).partition(":")[0] for route in routes.values())
    return ", ".join(f"{count} by {way}" for way, count in ways.items())
