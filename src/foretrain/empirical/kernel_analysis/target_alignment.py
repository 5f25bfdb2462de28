"""``alignment``: how targets lie in a tangent kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from foretrain.empirical.any_kernel import AnyKernel
from foretrain.empirical.kernel_analysis.arguments import (
    LANCZOS_MODES,
    PROBES,
    Array,
    Kernel,
    Targets,
    as_kernel,
    checked_top,
    directed_targets,
    refuse_zero,
)
from foretrain.empirical.kernel_analysis.modes import (
    Apply,
    Leading,
    all_modes,
    centred,
    leading_modes,
    rest_of_norms,
)
from foretrain.empirical.kernel_analysis.spectra import written_out
from foretrain.operators.estimators.estimate import plus_minus, standard_error
from foretrain.support.answers import (
    INK,
    ORANGE,
    Answer,
    Axis,
    Figure,
    Result,
    dataset_table,
    labelled,
    picked,
)
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed, spawn

_SHOWN = 12  # modes of a table


@dataclass(frozen=True, repr=False, eq=False)
class KernelAlignment(Result):
    """How targets lie in a kernel: 1 if the kernel is y y^T, and how much of y each eigenmode holds.

    ``energies[i]``: share of |y|^2 in the mode of ``eigenvalues[i]``; modes with equal eigenvalues share theirs in
    an arbitrary way. Errors are standard errors, zero for kernels that are there.
    """

    alignment: float
    alignment_error: float
    centred: float
    centred_error: float
    eigenvalues: Array
    energies: Array
    size: int
    one_hot: bool

    @property
    def cumulative(self) -> Array:
        """Share of |y|^2 in the first 1, 2, ... modes."""
        return np.cumsum(self.energies)

    def modes_for(self, share: float) -> int | None:
        """How many leading modes hold this share of |y|^2; None if the known ones do not."""
        if not 0 < share <= 1:
            raise InputError(f"`share` is {share}, but it must be above 0 and at most 1.")
        reached = np.nonzero(self.cumulative >= share * (1 - 1e-12))[0]
        return int(reached[0]) + 1 if len(reached) else None

    def answer(self) -> Answer:
        """The alignment, and how much of the targets each mode holds."""
        needed = self.modes_for(0.9)
        reach = (
            f"{needed} of {self.size} modes" if needed else f"more than the {len(self.energies)} known modes"
        )
        labels = " (labels as one-hot vectors)" if self.one_hot else ""
        statement = (
            f"Alignment {self.alignment:.4g}{plus_minus(self.alignment_error)} with the targets{labels}, centred "
            f"{self.centred:.4g}{plus_minus(self.centred_error)}; the first mode holds {self.energies[0]:.1%} of the "
            f"targets' energy, 90 % needs {reach}: the more in leading modes, the faster gradient descent fits them."
        )
        data = labelled(
            {
                "eigenvalue": ("mode", self.eigenvalues),
                "energy": ("mode", self.energies),
                "cumulative_energy": ("mode", self.cumulative),
            },
            picked(self, "alignment alignment_error centred centred_error size one_hot"),
            ["mode"],
        )
        return Answer(statement, [dataset_table(data, "mode").thinned(_SHOWN), self.draw], data)

    def draw(self, figure: Figure | None = None) -> Figure:
        """Draw the energy of the targets in every mode, and up to it; a figure that is given gets one more panel."""
        figure = figure or Figure(size=(5.6, 4.0))
        modes = np.arange(1, len(self.energies) + 1)
        title = f"Energy of the targets (alignment {self.alignment:.3g})"
        panel = figure.panel(title, Axis("mode", whole=True), Axis("share", low=0.0))
        panel.bars(modes, self.energies, "of each mode", ORANGE)
        panel.curve(modes, self.cumulative, ".-", "up to it", INK)
        return figure


def alignment(
    kernel: Kernel, y: Any, top: int | None = None, probes: int = PROBES, seed: Seed = 0
) -> KernelAlignment:
    """<K, y y^T> / (|K| |y y^T|) (Cristianini et al. 2001), also centred (Cortes et al. 2012), and energies by mode.

    ``y``: (N,) for one output, (N, C), or whole-number labels (N,), which become one-hot vectors. With a trace kernel
    y y^T is summed over the columns of y. ``top``: how many modes are kept (all; 10 of an operator, whose norm is
    estimated with ``probes`` random vectors; 10 of a stored kernel, which is read twice more than for ``spectrum``,
    and whose norms are exact).
    """
    kernel = as_kernel(kernel)
    kernel.require_symmetric("alignment")
    targets = directed_targets(y, kernel)
    matrix = kernel.matrix_in_memory("an alignment")
    wanted = checked_top(top, LANCZOS_MODES if matrix is None else kernel.size, kernel.size)
    norms = kernel.exact_norms() if matrix is None else None
    if norms is not None:
        return aligned(kernel, leading_modes(kernel, wanted, seed), targets, norms[1], kernel.multiply)
    if matrix is None and wanted == kernel.size:
        matrix = written_out(kernel).matrix_in_memory("an alignment")
    samples = kernel.samples[0]
    if matrix is not None:
        middle = centred(centred(matrix, samples).T, samples)
        norm, centred_norm = (float(np.sum(matrix**2)), 0.0), (float(np.sum(middle**2)), 0.0)
        return _aligned(kernel, targets, matrix.__matmul__, *all_modes(matrix), norm, centred_norm, wanted)
    # Norms are exact on the leading modes, and sampled beside them.
    probes = whole_number("probes", probes, least=2)
    modes_seed, probes_seed = spawn(seed, 2)
    found = leading_modes(kernel, wanted, modes_seed)

    def about_mean(columns: Array) -> Array:
        return centred(kernel.multiply(centred(columns, samples)), samples)

    def squared(apply: Apply) -> tuple[float, float]:
        _, rest = rest_of_norms(apply, found.modes, probes, probes_seed)
        return float(np.sum(apply(found.modes) ** 2) + rest.mean()), standard_error(rest)

    norm, centred_norm = squared(kernel.multiply), squared(about_mean)
    return _aligned(kernel, targets, kernel.multiply, found.values, found.modes, norm, centred_norm, wanted)


def aligned(
    kernel: AnyKernel, modes: Leading, targets: Targets, squares: float, apply: Apply
) -> KernelAlignment:
    """Alignment with modes that are known already, by two products; ``squares`` is the exact |K|^2.

    With E the mean over samples of each output, |H K H|^2 = |K|^2 - 2 |K E|^2 / N + |E^T K E|^2 / N^2.
    """
    samples = kernel.samples[0]
    means = np.tile(np.eye(kernel.width), (samples, 1))
    applied = apply(means)
    about_mean = squares - 2 * np.sum(applied**2) / samples + np.sum((means.T @ applied) ** 2) / samples**2
    middle = float(about_mean) if about_mean > squares * np.finfo(np.float64).eps else 0.0
    norms = (squares, 0.0), (middle, 0.0)
    return _aligned(kernel, targets, apply, modes.values, modes.modes, *norms, len(modes.values))


def _aligned(
    kernel: AnyKernel,
    targets: Targets,
    apply: Apply,
    eigenvalues: Array,
    modes: Array,
    norm: tuple[float, float],
    centred_norm: tuple[float, float],
    wanted: int,
) -> KernelAlignment:
    """By leading modes as columns, and squared norms (with standard errors) of the kernel and of the centred one."""
    refuse_zero(float(eigenvalues[0]))
    columns = targets.vectors(kernel)
    energies = np.sum((modes.T @ columns) ** 2, axis=1) / np.sum(columns**2)
    about_mean = centred(columns, kernel.samples[0])
    applied, applied_to_centred = np.hsplit(apply(np.hstack([columns, about_mean])), 2)
    plain, plain_error = _cosine(applied, columns, norm)
    centred_value, centred_error = _cosine(applied_to_centred, about_mean, centred_norm)
    return KernelAlignment(
        alignment=plain,
        alignment_error=plain_error,
        centred=centred_value,
        centred_error=centred_error,
        eigenvalues=np.ascontiguousarray(eigenvalues[:wanted]),
        energies=energies[:wanted],
        size=kernel.size,
        one_hot=targets.one_hot,
    )


def _cosine(applied: Array, columns: Array, squared_norm: tuple[float, float]) -> tuple[float, float]:
    """<K, y y^T> / (|K| |y y^T|) and its standard error; nan where one of them is zero."""
    squared, error = squared_norm
    size = float(np.linalg.norm(columns.T @ columns)) * squared**0.5
    if size == 0:
        return float("nan"), float("nan")
    found = float(np.sum(columns * applied)) / size
    return found, abs(found) * error / (2 * squared)
