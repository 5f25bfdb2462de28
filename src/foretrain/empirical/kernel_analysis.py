"""What a tangent kernel can learn: its spectrum, its condition, and how targets lie in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrain.empirical.fields.spectra import effective_rank, participation_ratio
from foretrain.empirical.kernel_blocks import Leading
from foretrain.empirical.kernel_matrices import (
    Array,
    ByProducts,
    ExactProducts,
    Kernel,
    Layout,
    Targets,
    Written,
    as_targets,
    exact_products,
    layout_of,
    positive,
    products_of,
    square,
    written_out,
)
from foretrain.empirical.kernel_modes import (
    Apply,
    centred,
    leading_modes,
    rest_of_norms,
    smallest_eigenvalue,
    standard_error,
    stored_extremes,
    stored_modes,
)
from foretrain.empirical.kernel_products import NTKOperator
from foretrain.empirical.stored_kernel.reading import StoredKernel
from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed, spawn

if TYPE_CHECKING:
    import xarray as xr

_LANCZOS_MODES = 10  # of operators, where nothing is said
_PROBES = 64


@dataclass(frozen=True, repr=False, eq=False)
class KernelSpectrum:
    """Eigenvalues from the largest down, and how many of them count.

    ``modes`` (modes, samples, outputs) belong to the largest. Of operators and stored kernels only these are known,
    and the effective rank is nan. Of an operator, trace and participation ratio are estimates with a standard error;
    of a stored kernel they are exact, ``residuals`` are |K u - value u| of the modes, and ``readings`` says how often
    the store was read.
    """

    eigenvalues: Array
    modes: Array
    size: int
    trace: float
    trace_error: float
    participation_ratio: float
    participation_error: float
    effective_rank: float
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

    def to_xarray(self) -> xr.Dataset:
        """Labelled, with the modes that are known."""
        import xarray as xr

        return xr.Dataset(
            {
                "eigenvalue": (("mode",), self.eigenvalues),
                "amplitude": (("leading_mode", "input", "output"), self.modes),
            },
            coords={"mode": np.arange(1, len(self.eigenvalues) + 1)},
            attrs={
                name: getattr(self, name)
                for name in (
                    "size",
                    "trace",
                    "trace_error",
                    "participation_ratio",
                    "participation_error",
                    "effective_rank",
                    "rounding",
                )
            },
        )

    def __repr__(self) -> str:
        largest = ", ".join(f"{value:.4g}" for value in self.eigenvalues[:5])
        known = "all known" if self.complete else f"the {len(self.eigenvalues)} largest known, by Lanczos"
        known += "" if self.readings is None else f", in {self.readings} readings of the store"
        ratio = f"participation ratio {self.participation_ratio:.4g}{_error(self.participation_error)}"
        lines = [
            f"KernelSpectrum of {self.size} eigenvalues ({known}): {largest}{', ...' if self.size > 5 else ''}",
            f"  trace {self.trace:.6g}{_error(self.trace_error)}, the largest has {self.shares[0]:.1%} of it",
            f"  {ratio}" + (f", effective rank {self.effective_rank:.4g}" if self.complete else ""),
        ]
        if self.complete:
            lines.append(
                f"  rank {self.rank}: gradient flow moves outputs only along modes above {self.rounding:.2g}"
            )
        return "\n".join(lines)


def spectrum(kernel: Kernel, top: int | None = None, probes: int = _PROBES, seed: Seed = 0) -> KernelSpectrum:
    """Eigenvalues of the symmetric (N*C, N*C) matrix of a kernel, or (N, N) of a trace.

    ``top``: how many modes are wanted. Of a kernel that is there, all eigenvalues are found and the ``top`` largest
    come with their modes (by default none); of an operator, the ``top`` largest (by default 10) are found by Lanczos,
    and ``probes`` random vectors estimate the trace and the norm of the rest. Of a stored kernel the ``top`` largest
    (10) are found by block Lanczos, to residuals of 1e-10 of the largest; it is read 5 to 20 times, more often where
    eigenvalues lie close.

    Examples
    --------
    >>> import numpy as np
    >>> spectrum(np.diag([3.0, 1.0])).participation_ratio
    1.6
    """
    if isinstance(kernel, NTKOperator):
        kernel.require_symmetric("spectrum")
    layout = layout_of(kernel)
    wanted = _checked_top(top, layout, _LANCZOS_MODES if isinstance(kernel, ByProducts) else 0)
    if isinstance(kernel, StoredKernel):
        return _stored_spectrum(kernel, layout, wanted, seed)
    if isinstance(kernel, NTKOperator):
        if wanted < layout.size:
            return _operator_spectrum(kernel, layout, wanted, probes, seed)
        kernel = written_out(kernel)
    values, modes = _decomposed(square(kernel, "a spectrum").matrix, wanted > 0)
    counted = positive(values, layout)
    _refuse_zero(float(values[0]))
    return KernelSpectrum(
        eigenvalues=np.ascontiguousarray(values),
        modes=_as_modes(modes[:, :wanted], layout),
        size=layout.size,
        trace=float(values.sum()),
        trace_error=0.0,
        participation_ratio=participation_ratio(counted),
        participation_error=0.0,
        effective_rank=effective_rank(counted),
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
        ends = stored_extremes(kernel, ridge, layout.resolves, seed)
        largest, smallest = ends.largest, ends.smallest
    elif isinstance(kernel, NTKOperator) and layout.size > 2:
        kernel.require_symmetric("condition number")
        largest = float(leading_modes(kernel, 1, seed)[0][0])
        smallest = smallest_eigenvalue(kernel, largest, seed)
    else:
        values = spectrum(kernel, top=layout.size if isinstance(kernel, NTKOperator) else None).eigenvalues
        largest, smallest = float(values[0]), float(values[-1])
    if smallest <= layout.resolves(largest):
        smallest = 0.0
    return (largest + ridge) / (smallest + ridge) if smallest + ridge > 0 else float("inf")


@dataclass(frozen=True, repr=False, eq=False)
class KernelAlignment:
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
            raise InputError(f"share is {share}, but it must be above 0 and at most 1.")
        reached = np.nonzero(self.cumulative >= share * (1 - 1e-12))[0]
        return int(reached[0]) + 1 if len(reached) else None

    def to_xarray(self) -> xr.Dataset:
        """Labelled by mode."""
        import xarray as xr

        return xr.Dataset(
            {
                "eigenvalue": (("mode",), self.eigenvalues),
                "energy": (("mode",), self.energies),
                "cumulative_energy": (("mode",), self.cumulative),
            },
            coords={"mode": np.arange(1, len(self.eigenvalues) + 1)},
            attrs={
                name: getattr(self, name)
                for name in ("alignment", "alignment_error", "centred", "centred_error", "size")
            }
            | {"one_hot": int(self.one_hot)},
        )

    def __repr__(self) -> str:
        needed = self.modes_for(0.9)
        reach = (
            f"{needed} of {self.size} modes" if needed else f"more than the {len(self.energies)} known modes"
        )
        return "\n".join(
            [
                f"KernelAlignment {self.alignment:.4g}{_error(self.alignment_error)} with the targets"
                + (" (labels as one-hot vectors)" if self.one_hot else "")
                + f", centred {self.centred:.4g}{_error(self.centred_error)}",
                f"  the first mode holds {self.energies[0]:.1%} of the targets' energy; 90 % needs {reach}",
                "  .cumulative: the more energy in leading modes, the faster gradient descent fits the targets",
            ]
        )


def alignment(
    kernel: Kernel, y: Any, top: int | None = None, probes: int = _PROBES, seed: Seed = 0
) -> KernelAlignment:
    """<K, y y^T> / (|K| |y y^T|) (Cristianini et al. 2001), also centred (Cortes et al. 2012), and energies by mode.

    ``y``: (N,) for one output, (N, C), or whole-number labels (N,), which become one-hot vectors. With a trace kernel
    y y^T is summed over the columns of y. ``top``: how many modes are kept (all; 10 of an operator, whose norm is
    estimated with ``probes`` random vectors; 10 of a stored kernel, which is read twice more than for ``spectrum``,
    and whose norms are exact).
    """
    layout = layout_of(kernel)
    if isinstance(kernel, ByProducts):
        kernel.require_symmetric("alignment")
    targets = directed_targets(y, layout)
    wanted = _checked_top(top, layout, _LANCZOS_MODES if isinstance(kernel, ByProducts) else layout.size)
    if isinstance(kernel, StoredKernel):
        source = exact_products(kernel, "alignment")
        return aligned(source, stored_modes(kernel, wanted, seed), targets)
    if isinstance(kernel, NTKOperator) and wanted < layout.size:
        found = _sampled(kernel, wanted, probes, seed)
    else:
        found = _written(written_out(kernel) if isinstance(kernel, NTKOperator) else kernel)
    return _aligned(found, layout, targets, wanted)


def aligned(source: ExactProducts, modes: Leading, targets: Targets) -> KernelAlignment:
    """Alignment with modes that are known already, by two products; norms are exact.

    With E the mean over samples of each output, |H K H|^2 = |K|^2 - 2 |K E|^2 / N + |E^T K E|^2 / N^2.
    """
    samples, width, squares = source.layout.samples[0], source.layout.width, source.squares
    means = np.tile(np.eye(width), (samples, 1))
    applied = source.apply(means)
    about_mean = squares - 2 * np.sum(applied**2) / samples + np.sum((means.T @ applied) ** 2) / samples**2
    middle = float(about_mean) if about_mean > squares * np.finfo(np.float64).eps else 0.0
    found = _Decomposed(source.apply, modes.values, modes.modes, (squares, 0.0), (middle, 0.0))
    return _aligned(found, source.layout, targets, len(modes.values))


def _aligned(found: _Decomposed, layout: Layout, targets: Targets, wanted: int) -> KernelAlignment:
    _refuse_zero(float(found.eigenvalues[0]))
    columns = targets.vectors(layout)
    energies = np.sum((found.modes.T @ columns) ** 2, axis=1) / np.sum(columns**2)
    about_mean = centred(columns, layout.samples[0])
    applied, applied_to_centred = np.hsplit(found.apply(np.hstack([columns, about_mean])), 2)
    plain, plain_error = _cosine(applied, columns, found.norm)
    centred_value, centred_error = _cosine(applied_to_centred, about_mean, found.centred_norm)
    return KernelAlignment(
        alignment=plain,
        alignment_error=plain_error,
        centred=centred_value,
        centred_error=centred_error,
        eigenvalues=np.ascontiguousarray(found.eigenvalues[:wanted]),
        energies=energies[:wanted],
        size=layout.size,
        one_hot=targets.one_hot,
    )


@dataclass(frozen=True)
class _Decomposed:
    """Products, leading modes, and squared norms (with standard errors) of a kernel and of the centred one."""

    apply: Apply
    eigenvalues: Array
    modes: Array  # columns
    norm: tuple[float, float]
    centred_norm: tuple[float, float]


def _written(kernel: Written) -> _Decomposed:
    found = square(kernel, "an alignment")
    matrix, samples = found.matrix, found.layout.samples[0]
    middle = centred(centred(matrix, samples).T, samples)
    values, modes = _decomposed(matrix, True)
    norms = (float(np.sum(matrix**2)), 0.0), (float(np.sum(middle**2)), 0.0)
    return _Decomposed(matrix.__matmul__, values, modes, *norms)


def _sampled(operator: NTKOperator, top: int, probes: int, seed: Seed) -> _Decomposed:
    """Norms are exact on the leading modes, and sampled beside them."""
    modes_seed, probes_seed = spawn(seed, 2)
    apply = products_of(operator)
    samples = operator.samples[0]
    values, modes = leading_modes(operator, top, modes_seed)

    def middle(columns: Array) -> Array:
        return centred(apply(centred(columns, samples)), samples)

    def squared(function: Apply) -> tuple[float, float]:
        _, rest = rest_of_norms(function, modes, _checked_probes(probes), probes_seed)
        return float(np.sum(function(modes) ** 2) + rest.mean()), standard_error(rest)

    return _Decomposed(apply, values, modes, squared(apply), squared(middle))


def _cosine(applied: Array, columns: Array, squared_norm: tuple[float, float]) -> tuple[float, float]:
    """<K, y y^T> / (|K| |y y^T|) and its standard error; nan where one of them is zero."""
    squared, error = squared_norm
    size = float(np.linalg.norm(columns.T @ columns)) * squared**0.5
    if size == 0:
        return float("nan"), float("nan")
    found = float(np.sum(columns * applied)) / size
    return found, abs(found) * error / (2 * squared)


def _stored_spectrum(kernel: StoredKernel, layout: Layout, top: int, seed: Seed) -> KernelSpectrum:
    kernel.require_symmetric("spectrum")
    found = stored_modes(kernel, top, seed)
    _refuse_zero(float(found.values[0]))
    trace, squares = kernel.norms
    complete = len(found.values) == layout.size
    return KernelSpectrum(
        eigenvalues=np.ascontiguousarray(found.values),
        modes=_as_modes(found.modes, layout),
        size=layout.size,
        trace=trace,
        trace_error=0.0,
        participation_ratio=trace**2 / squares,
        participation_error=0.0,
        effective_rank=effective_rank(positive(found.values, layout)) if complete else float("nan"),
        rounding=layout.resolves(float(found.values[0])),
        residuals=found.residuals,
        readings=found.products,
    )


def _operator_spectrum(
    operator: NTKOperator, layout: Layout, top: int, probes: int, seed: Seed
) -> KernelSpectrum:
    modes_seed, probes_seed = spawn(seed, 2)
    values, modes = leading_modes(operator, top, modes_seed)
    _refuse_zero(float(values[0]))
    diagonal, squares = rest_of_norms(products_of(operator), modes, _checked_probes(probes), probes_seed)
    trace = float(values.sum() + diagonal.mean())
    squared = float((values**2).sum() + squares.mean())
    ratio = trace**2 / squared
    return KernelSpectrum(
        eigenvalues=np.ascontiguousarray(values),
        modes=_as_modes(modes, layout),
        size=layout.size,
        trace=trace,
        trace_error=standard_error(diagonal),
        participation_ratio=ratio,
        participation_error=standard_error(2 * ratio / trace * diagonal - ratio / squared * squares),
        effective_rank=float("nan"),
        rounding=layout.resolves(float(values[0])),
    )


def _decomposed(matrix: Array, with_modes: bool) -> tuple[Array, Array]:
    """Eigenvalues from the largest down, and modes as columns (none if not wanted)."""
    from scipy.linalg import eigh, eigvalsh

    if not with_modes:
        return np.asarray(eigvalsh(matrix)[::-1]), np.zeros((len(matrix), 0))
    values, modes = eigh(matrix)
    return np.asarray(values[::-1]), np.asarray(modes[:, ::-1])


def directed_targets(y: Any, layout: Layout) -> Targets:
    """Targets that are not zero."""
    targets = as_targets(y, layout)
    if not targets.values.any():
        raise InputError("y is zero everywhere: it has no direction that a kernel could align with.")
    return targets


def _as_modes(columns: Array, layout: Layout) -> Array:
    return np.ascontiguousarray(columns.T).reshape(columns.shape[1], layout.samples[0], layout.width)


def _checked_top(top: int | None, layout: Layout, otherwise: int) -> int:
    if top is None:
        return min(otherwise, layout.size)
    if not isinstance(top, int) or isinstance(top, bool) or top < 1:
        raise InputError(f"top is {top!r}, but it must be a number of modes from 1 on.")
    return min(top, layout.size)


def _checked_probes(probes: int) -> int:
    if not isinstance(probes, int) or probes < 2:
        raise InputError(f"probes is {probes!r}, but a standard error needs at least 2.")
    return probes


def checked_ridge(ridge: float) -> float:
    """A finite number that is not negative."""
    if not (np.isfinite(ridge) and ridge >= 0):
        raise InputError(f"ridge is {ridge}, but it must be finite and not negative.")
    return float(ridge)


def _refuse_zero(largest: float) -> None:
    if largest <= 0:
        raise InputError("the kernel is zero: no chosen parameter changes the outputs.")


def _error(error: float) -> str:
    return f" ± {error:.2g}" if error > 0 else ""
