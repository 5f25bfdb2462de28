"""``spectrum`` and ``condition_number``: what a tangent kernel can learn, and how unequally fast."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from foretrain.empirical.fields.spectra import effective_rank, entropy_rank
from foretrain.empirical.kernel_analysis.arguments import (
    LANCZOS_MODES,
    PROBES,
    checked_probes,
    checked_ridge,
    checked_top,
    plus_minus,
    refuse_zero,
)
from foretrain.empirical.kernel_analysis.matrices import (
    Array,
    ByProducts,
    Kernel,
    MatrixLayout,
    layout_of,
    positive,
    products_of,
    square,
    written_out,
)
from foretrain.empirical.kernel_analysis.modes import (
    all_modes,
    leading_modes,
    operator_extremes,
    rest_of_norms,
    stored_extremes,
)
from foretrain.empirical.kernel_operator import NTKOperator
from foretrain.empirical.kernel_operator.operator import standard_error
from foretrain.empirical.stored_kernel.reading import StoredKernel
from foretrain.operators.estimators.modes import spectrum_figure
from foretrain.support.answers import Answer, Result, Table, labelled, picked
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
    if isinstance(kernel, ByProducts):
        kernel.require_symmetric("spectrum")
    layout = layout_of(kernel)
    wanted = checked_top(top, LANCZOS_MODES if isinstance(kernel, ByProducts) else 0, layout.size)
    if isinstance(kernel, StoredKernel):
        return _stored_spectrum(kernel, layout, wanted, seed)
    if isinstance(kernel, NTKOperator):
        if wanted < layout.size:
            return _operator_spectrum(kernel, layout, wanted, probes, seed)
        kernel = written_out(kernel)
    values, modes = all_modes(square(kernel, "a spectrum").matrix, with_vectors=wanted > 0)
    counted = positive(values, layout)
    refuse_zero(float(values[0]))
    return KernelSpectrum(
        eigenvalues=np.ascontiguousarray(values),
        modes=_as_modes(modes[:, :wanted], layout),
        size=layout.size,
        trace=float(values.sum()),
        trace_error=0.0,
        effective_rank=effective_rank(counted),
        effective_rank_error=0.0,
        entropy_rank=entropy_rank(counted),
        rounding=layout.resolves(float(values[0])),
    )


def condition_number(kernel: Kernel, ridge: float = 0.0, seed: Seed = 0) -> float:
    """(largest + ridge) / (smallest + ridge) eigenvalue; inf if the smallest cannot be told from zero.

    It bounds how much longer gradient descent takes for the slowest mode than for the fastest. The larger the answer,
    the more often a stored kernel is read, up to 300 times; its relative error is below 1e-4, or a warning says so.
    """
    ridge = checked_ridge(ridge)
    layout = layout_of(kernel)
    if isinstance(kernel, StoredKernel):
        kernel.require_symmetric("condition number")
        largest, smallest = stored_extremes(kernel, ridge, layout.resolves, seed)
    elif isinstance(kernel, NTKOperator) and layout.size > 2:
        kernel.require_symmetric("condition number")
        largest, smallest = operator_extremes(kernel, seed)
    else:
        values = spectrum(kernel, top=layout.size if isinstance(kernel, NTKOperator) else None).eigenvalues
        largest, smallest = float(values[0]), float(values[-1])
    if smallest <= layout.resolves(largest):
        smallest = 0.0
    return (largest + ridge) / (smallest + ridge) if smallest + ridge > 0 else float("inf")


def _stored_spectrum(kernel: StoredKernel, layout: MatrixLayout, top: int, seed: Seed) -> KernelSpectrum:
    found = leading_modes(kernel, top, seed)
    refuse_zero(float(found.values[0]))
    trace, squares = kernel.norms
    complete = len(found.values) == layout.size
    return KernelSpectrum(
        eigenvalues=np.ascontiguousarray(found.values),
        modes=_as_modes(found.modes, layout),
        size=layout.size,
        trace=trace,
        trace_error=0.0,
        effective_rank=trace**2 / squares,
        effective_rank_error=0.0,
        entropy_rank=entropy_rank(positive(found.values, layout)) if complete else float("nan"),
        rounding=layout.resolves(float(found.values[0])),
        residuals=found.residuals,
        readings=found.products,
    )


def _operator_spectrum(
    operator: NTKOperator, layout: MatrixLayout, top: int, probes: int, seed: Seed
) -> KernelSpectrum:
    modes_seed, probes_seed = spawn(seed, 2)
    found = leading_modes(operator, top, modes_seed)
    values, modes = found.values, found.modes
    refuse_zero(float(values[0]))
    diagonal, squares = rest_of_norms(products_of(operator), modes, checked_probes(probes), probes_seed)
    trace = float(values.sum() + diagonal.mean())
    squared = float((values**2).sum() + squares.mean())
    ratio = trace**2 / squared
    return KernelSpectrum(
        eigenvalues=np.ascontiguousarray(values),
        modes=_as_modes(modes, layout),
        size=layout.size,
        trace=trace,
        trace_error=standard_error(diagonal),
        effective_rank=ratio,
        effective_rank_error=standard_error(2 * ratio / trace * diagonal - ratio / squared * squares),
        entropy_rank=float("nan"),
        rounding=layout.resolves(float(values[0])),
        residuals=found.residuals,
    )


def _as_modes(columns: Array, layout: MatrixLayout) -> Array:
    return np.ascontiguousarray(columns.T).reshape(columns.shape[1], layout.samples[0], layout.width)
