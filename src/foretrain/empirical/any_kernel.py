"""What a tangent kernel is and is asked, whether it is written out, on disk, or known by its products alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from foretrain.operators import Operator, Space, Vector
from foretrain.operators.estimators import Estimate, SpectralDensity, effective_rank, spectral_density
from foretrain.operators.estimators.estimate import exact
from foretrain.operators.estimators.modes import spectrum_figure
from foretrain.operators.estimators.probes import in_double
from foretrain.operators.spaces import VectorSpace
from foretrain.support.answers import Axis, Figure, Part, Result
from foretrain.support.errors import ForetrainError, InputError
from foretrain.support.seeds import Seed

if TYPE_CHECKING:
    from foretrain.empirical.kernel_analysis import (
        KernelAlignment,
        KernelRegression,
        KernelSpectrum,
        KernelSummary,
    )

MORE = ".summary(), .spectrum(), .spectral_density(), .alignment(y) and .regression(y) say more."
_SMALL = 400  # rows of a matrix whose eigenvalues are found to be shown
_DRAWN = 200  # samples along a side of a picture


class AnyKernel(Operator):
    """An operator from vectors over the samples of x2 (those of x, if there are none) to vectors over those of x.

    Vectors have the axes (sample, output), or only samples for a kernel that is ``traced`` over outputs; results have
    the form of what was given, flat or not. What a kind offers decides how its questions are answered: exactly, if it
    holds its matrix; with exact norms, if it knows them; in few products with many columns, if it is ``streamed``,
    where every product is a reading of the disk; else by products, with stated errors. Each question says how often
    it reads or multiplies.
    """

    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    scipy_dtype = np.float64  # of vectors there; products have the kernel's precision
    streamed = False

    def __init__(
        self,
        samples: tuple[int, int],
        outputs: tuple[int, ...],
        *,
        traced: bool,
        symmetric: bool,
        dtype: torch.dtype,
        device: str | torch.device = "cpu",
        best_block: int = 16,
    ) -> None:
        self.samples, self.outputs, self.traced = samples, outputs, traced
        last = () if traced else (("output", len(outputs)),)
        codomain, domain = (Space(("sample", count), *last) for count in samples)
        super().__init__(
            domain, codomain, dtype=dtype, device=device, positive=symmetric, best_block=best_block
        )

    @property
    def width(self) -> int:
        """Rows of the matrix for each sample: its outputs, or 1 for a trace."""
        return 1 if self.traced else len(self.outputs)

    def exact_norms(self) -> tuple[float, float] | None:
        """Trace and sum of squares of the matrix, where they are known without products."""
        return None

    def multiply(self, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        """K V for columns (size, many), in double precision as far as the kernel has it."""
        rows = torch.from_numpy(np.ascontiguousarray(columns.reshape(len(columns), -1).T))
        found: NDArray[np.float64] = in_double(self)(rows).numpy().T
        return found.reshape(-1, *columns.shape[1:])

    def quadratic(self, v: Any) -> float:
        """v . K v."""
        self.require_symmetric("quadratic form")
        vector = self._flat_vector(v, self.domain)
        return float((vector.double() * self.apply(vector).double()).sum())

    def matvec(self, vector: Vector) -> Tensor:
        """K v, in the form of v."""
        return _like(super().matvec(vector), vector)

    def rmatvec(self, vector: Vector) -> Tensor:
        """K^T v for v over the samples of x, in the form of v."""
        return _like(super().rmatvec(vector), vector)

    def _flat_vector(self, vector: Vector, space: VectorSpace) -> Tensor:
        return super()._flat_vector(self._own(vector), space)

    def _flat_block(self, block: Vector, space: VectorSpace) -> Tensor:
        return super()._flat_block(self._own(block), space)

    def _own(self, values: Any) -> Tensor:
        """Vectors from anywhere in the kernel's precision and place."""
        given = as_tensor(values).to(dtype=self.dtype, device=self.device)
        if not bool(torch.isfinite(given).all()):
            raise InputError("the vector has entries that are not finite: remove nan and inf first.")
        return given

    def effective_rank(self, **options: Any) -> Estimate:
        """The participation ratio trace² / sum of squares, exactly where norms are known; see ``effective_rank``."""
        norms = None if options.keys() & {"kind", "share"} else self.exact_norms()
        if norms is None:
            return effective_rank(self, **options)
        trace, squares = norms
        return exact(trace**2 / squares if squares > 0 else float("nan"), 0, options.get("seed", 0))

    def trace_by_structure(self, most_flops: float) -> tuple[float, int] | None:
        """From the norms, where they are known."""
        norms = self.exact_norms() if self.symmetric else None
        return None if norms is None else (norms[0], 0)

    def spectrum(self, top: int | None = None, seed: Seed = 0) -> KernelSpectrum:
        """Eigenvalues and the modes of the largest; a store is usually read 5 to 20 times, its norm is exact."""
        from foretrain.empirical.kernel_analysis import spectrum

        return spectrum(self, top, seed=seed)

    def spectral_density(
        self, probes: int = 16, steps: int | None = 16, seed: Seed = 0, **options: Any
    ) -> SpectralDensity:
        """How many eigenvalues lie where, with standard errors, in ``steps`` readings or products."""
        self.require_symmetric("spectral density")
        return spectral_density(self, probes, steps, seed=seed, **options)

    def condition_number(self, ridge: float = 0.0, seed: Seed = 0) -> float:
        """Largest over smallest eigenvalue; the readings of a store grow like the root of the answer."""
        from foretrain.empirical.kernel_analysis import condition_number

        return condition_number(self, ridge, seed)

    def alignment(self, y: Any, top: int | None = None, seed: Seed = 0) -> KernelAlignment:
        """How targets lie in the kernel: two readings of a store more than ``spectrum``."""
        from foretrain.empirical.kernel_analysis import alignment

        return alignment(self, y, top, seed=seed)

    def regression(
        self, y: Any, ridge: float = 0.0, test: Any = None, initial_outputs: Any = None, **options: Any
    ) -> KernelRegression:
        """Where gradient flow of the linearised model ends, or is at ``time=``: see ``regression``."""
        from foretrain.empirical.kernel_analysis import regression

        return regression(self, y, ridge, test, initial_outputs, **options)

    def summary(self, y: Any = None, top: int = 10, seed: Seed = 0) -> KernelSummary:
        """What there is to know at a glance, in about 16 readings of a store."""
        from foretrain.empirical.kernel_analysis import summarise

        return summarise(self, y, top, seed)

    def require_symmetric(self, what: str) -> None:
        """Refuse what only a kernel of samples with themselves has."""
        if not self.symmetric:
            article = "an" if what[0] in "aeiou" else "a"
            raise InputError(f"{article} {what} needs a symmetric kernel, of x with itself: leave `x2` out.")

    def plot(self, ax: Any = None, *, path: Any = None) -> Any:
        """Draw the kernel, or of one that is not written out its leading eigenvalues."""
        shown = self if self.answer().has_figure else self.spectrum()
        return Result.plot(shown, ax, path=path)


class WrittenKernel(AnyKernel):
    """A kernel with entries, in memory or on disk: an array (N, N2, C, C), or (N, N2) for a trace.

    With contributions apart, ``labels`` come first, along the axis ``by``; as an operator it is their sum. Beside
    arrays it is an array: ``kernel @ V`` is the product of matrices, and ``kernel - other`` an array.
    """

    by: str | None
    labels: tuple[str, ...] | None
    routes: Mapping[str, Any]

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the axes."""
        first = () if self.by is None else (self.by,)
        last = () if self.traced else ("output_1", "output_2")
        return (*first, "input_1", "input_2", *last)

    def __array_ufunc__(  # type: ignore[override]  # other operators leave arrays alone
        self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any
    ) -> Any:
        arrays = [np.asarray(part) if isinstance(part, WrittenKernel) else part for part in inputs]
        return getattr(ufunc, method)(*arrays, **options)

    def __matmul__(self, other: Any) -> Any:
        return np.asarray(self) @ other if isinstance(other, np.ndarray) else super().__matmul__(other)

    def __mul__(self, factor: Any) -> Any:
        return np.asarray(self) * factor if is_array(factor) else super().__mul__(factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> Any:
        return np.asarray(self) / divisor if is_array(divisor) else super().__truediv__(divisor)


def as_tensor(values: Any) -> Tensor:
    """Tensors without their graph; lists and arrays in double precision if they are real."""
    if isinstance(values, Tensor):
        return values.detach()
    return torch.as_tensor(np.require(values, requirements=["C", "W"]))


def _like(found: Tensor, given: ArrayLike | Tensor) -> Tensor:
    return found.flatten() if np.ndim(given) == 1 else found


def is_array(value: Any) -> bool:
    """Whether it is numpy's, scalars included: beside those a kernel is an array."""
    return isinstance(value, np.ndarray | np.generic)


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
