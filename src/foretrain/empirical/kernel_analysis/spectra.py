"""``spectrum`` and ``condition_number``: what a tangent kernel can learn, and how unequally fast."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from foretrain.empirical.any_kernel import AnyKernel
from foretrain.empirical.fields.spectra import effective_rank, entropy_rank
from foretrain.empirical.kernel_analysis.arguments import (
    LANCZOS_MODES,
    PROBES,
    Array,
    Kernel,
    as_kernel,
    checked_top,
    positive,
    refuse_zero,
)
from foretrain.empirical.kernel_analysis.modes import (
    all_modes,
    extreme_eigenvalues,
    leading_modes,
    rest_of_norms,
)
from foretrain.empirical.tangent_kernel.written_kernel import TangentKernel
from foretrain.operators.estimators import SpectralDensity
from foretrain.operators.estimators.estimate import plus_minus, standard_error
from foretrain.operators.estimators.modes import spectrum_figure
from foretrain.support.answers import Answer, Result, Table, labelled, picked
from foretrain.support.arguments import not_negative, whole_number
from foretrain.support.seeds import Seed, spawn

_SHOWN = 12  # eigenvalues of a table


@dataclass(frozen=True, repr=False, eq=False)
class KernelSpectrum(Result):
    """Eigenvalues from the largest down, and how many of them count.

    ``effective_rank`` is the participation ratio trace^2 / sum of squares, ``entropy_rank`` the exponential of the
    entropy of eigenvalue / trace. ``modes`` (modes, samples, outputs) belong to the largest. Of operators and
    stored kernels only these are known, ``residuals`` are their |K u - value u|, and the entropy rank is nan. Of an
    operator, trace and effective rank are estimates with a standard error; of a stored kernel they are exact, and
    ``readings`` says how often the store was read.
    """

    eigenvalues: Array
    modes: Array
    size: int
    trace: float
    trace_error: float
    effective_rank: float
    effective_rank_error: float
    entropy_rank: float
    rounding: float  # eigenvalues below this cannot be told from zero
    residuals: Array | None = None
    readings: int | None = None

    @property
    def complete(self) -> bool:
        """Whether all eigenvalues are known."""
        return len(self.eigenvalues) == self.size

    @property
    def rank(self) -> int:
        """How many of the known eigenvalues are above rounding."""
        return int(np.sum(self.eigenvalues > self.rounding))

    @property
    def shares(self) -> Array:
        """Each eigenvalue's share of the trace."""
        return self.eigenvalues / self.trace

    def answer(self) -> Answer:
        """The eigenvalues, and how many of them count."""
        known = "all known" if self.complete else f"the {len(self.eigenvalues)} largest known, by Lanczos"
        known += "" if self.readings is None else f", in {self.readings} readings of the store"
        entropy = f", entropy rank {self.entropy_rank:.4g}" if self.complete else ""
        statement = (
            f"{self.size} eigenvalues ({known}): effective rank {self.effective_rank:.4g}"
            f"{plus_minus(self.effective_rank_error)} (trace² / squares){entropy}; trace {self.trace:.6g}"
            f"{plus_minus(self.trace_error)}, of which the largest has {self.shares[0]:.1%}."
        )
        if self.complete:
            statement += (
                f" Gradient flow moves outputs only along the {self.rank} modes above {self.rounding:.2g}:"
            )
            statement += f" rank {self.rank}."
        data = labelled(
            {
                "eigenvalue": ("mode", self.eigenvalues),
                "amplitude": ("leading_mode input output", self.modes),
                "residual": ("mode", self.residuals),
            },
            picked(self, "size trace trace_error effective_rank effective_rank_error entropy_rank rounding"),
            ["mode"],
        )
        columns = {
            "mode": data["mode"].values,
            "eigenvalue": self.eigenvalues,
            "share of the trace": self.shares,
        }
        columns |= {} if self.residuals is None else {"residual": self.residuals}
        shown = self.eigenvalues[self.eigenvalues > self.rounding]
        return Answer(
            statement,
            [Table.of(columns).thinned(_SHOWN), partial(spectrum_figure, shown, "eigenvalue")],
            data,
        )


def spectrum(kernel: Kernel, top: int | None = None, probes: int = PROBES, seed: Seed = 0) -> KernelSpectrum:
    """Eigenvalues of the symmetric (N*C, N*C) matrix of a kernel, or (N, N) of a trace.

    ``top``: how many modes are wanted. Of a kernel that is there, all eigenvalues are found and the ``top`` largest
    come with their modes (by default none). Of an operator or a stored kernel the ``top`` largest (by default 10) are
    found by block Lanczos, to residuals of 1e-10 of the largest. ``probes`` random vectors estimate an operator's
    trace and the norm of the rest; a stored kernel is read 5 to 20 times, more often where eigenvalues lie close.

    Examples
    --------
    >>> import numpy as np
    >>> spectrum(np.diag([3.0, 1.0])).effective_rank
    1.6
    """
    kernel = as_kernel(kernel)
    kernel.require_symmetric("spectrum")
    matrix = kernel.matrix_in_memory("a spectrum")
    wanted = checked_top(top, LANCZOS_MODES if matrix is None else 0, kernel.size)
    if matrix is None and not kernel.streamed and wanted == kernel.size:
        matrix = written_out(kernel).matrix_in_memory("a spectrum")
    if matrix is None:
        return _of_leading(kernel, wanted, probes, seed)
    values, modes = all_modes(matrix, with_vectors=wanted > 0)
    counted = positive(values, kernel)
    refuse_zero(float(values[0]))
    return KernelSpectrum(
        eigenvalues=np.ascontiguousarray(values),
        modes=_as_modes(modes[:, :wanted], kernel),
        size=kernel.size,
        trace=float(values.sum()),
        trace_error=0.0,
        effective_rank=effective_rank(counted),
        effective_rank_error=0.0,
        entropy_rank=entropy_rank(counted),
        rounding=kernel.resolves(float(values[0])),
    )


def spectral_density(kernel: Kernel, probes: int = 16, steps: int = 16, seed: Seed = 0) -> SpectralDensity:
    """Where the eigenvalues of a kernel of samples with themselves lie.

    Of a kernel that is there all eigenvalues are found. Of an operator or a stored kernel, ``probes`` random-sign
    vectors go through ``steps`` products together: a stored kernel is read ``steps`` times. More probes make standard
    errors smaller, more steps resolve the density better.

    Examples
    --------
    >>> import numpy as np
    >>> spectral_density(np.diag([4.0, 1.0, 1.0])).counts([0.5, 2.0, 8.0]).value.tolist()
    [2.0, 1.0]
    """
    return as_kernel(kernel).spectral_density(probes, steps, seed)


def condition_number(kernel: Kernel, ridge: float = 0.0, seed: Seed = 0) -> float:
    """(largest + ridge) / (smallest + ridge) eigenvalue; inf if the smallest cannot be told from zero.

    It bounds how much longer gradient descent takes for the slowest mode than for the fastest. The larger the answer,
    the more often a stored kernel is read, up to 300 times; its relative error is below 1e-4, or a warning says so.
    """
    ridge, kernel = not_negative("ridge", ridge), as_kernel(kernel)
    kernel.require_symmetric("condition number")
    if kernel.matrix_in_memory("a condition number") is not None:
        values = spectrum(kernel).eigenvalues
        largest, smallest = float(values[0]), float(values[-1])
    else:
        largest, smallest = extreme_eigenvalues(kernel, ridge, seed)
    if smallest <= kernel.resolves(largest):
        smallest = 0.0
    return (largest + ridge) / (smallest + ridge) if smallest + ridge > 0 else float("inf")


def written_out(kernel: AnyKernel) -> TangentKernel:
    """A small kernel that is known by products, as one in memory."""
    rows, columns = kernel.samples
    values = kernel.dense().reshape(rows, kernel.width, columns, kernel.width).transpose(1, 2)
    return TangentKernel(values, False, kernel.outputs)


def _of_leading(kernel: AnyKernel, top: int, probes: int, seed: Seed) -> KernelSpectrum:
    """The leading eigenvalues; norms are exact where they are known, and sampled beside the modes if not."""
    norms, modes_seed, probes_seed = kernel.exact_norms(), seed, seed
    if norms is None:
        modes_seed, probes_seed = spawn(seed, 2)
    found = leading_modes(kernel, top, modes_seed)
    refuse_zero(float(found.values[0]))
    if norms is not None:
        (trace, squared), trace_error, rank_error = norms, 0.0, 0.0
    else:
        probes = whole_number("probes", probes, least=2)
        diagonal, squares = rest_of_norms(kernel.multiply, found.modes, probes, probes_seed)
        trace = float(found.values.sum() + diagonal.mean())
        squared = float((found.values**2).sum() + squares.mean())
        ratio, trace_error = trace**2 / squared, standard_error(diagonal)
        rank_error = standard_error(2 * ratio / trace * diagonal - ratio / squared * squares)
    complete = len(found.values) == kernel.size
    return KernelSpectrum(
        eigenvalues=np.ascontiguousarray(found.values),
        modes=_as_modes(found.modes, kernel),
        size=kernel.size,
        trace=trace,
        trace_error=trace_error,
        effective_rank=trace**2 / squared,
        effective_rank_error=rank_error,
        entropy_rank=entropy_rank(positive(found.values, kernel)) if complete else float("nan"),
        rounding=kernel.resolves(float(found.values[0])),
        residuals=found.residuals,
        readings=found.products if kernel.streamed else None,
    )


def _as_modes(columns: Array, kernel: AnyKernel) -> Array:
    return np.ascontiguousarray(columns.T).reshape(columns.shape[1], kernel.samples[0], kernel.width)
