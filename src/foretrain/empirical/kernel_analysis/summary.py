"""What there is to know of a kernel at a glance, from the records of its tiles and a few products with it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from foretrain.empirical.any_kernel import routes_taken
from foretrain.empirical.kernel_analysis.arguments import (
    LANCZOS_MODES,
    Array,
    Kernel,
    as_kernel,
    checked_top,
    directed_targets,
    refuse_zero,
)
from foretrain.empirical.kernel_analysis.modes import BLOCK, Leading
from foretrain.empirical.kernel_analysis.target_alignment import KernelAlignment, aligned
from foretrain.empirical.models.arguments import as_batch
from foretrain.empirical.stored_kernel.reading import StoredKernel
from foretrain.empirical.tangent_kernel.kernel import ntk
from foretrain.empirical.tangent_kernel.written_kernel import TangentKernel, shares_of
from foretrain.operators.estimators import SpectralDensity
from foretrain.operators.estimators.density import density_of, probed
from foretrain.operators.estimators.estimate import KernelEstimate, plus_minus, stated_seed
from foretrain.operators.estimators.probes import in_double
from foretrain.support.answers import (
    GREEN,
    Answer,
    Axis,
    Figure,
    Part,
    Result,
    Table,
    labelled,
    picked,
    with_others,
)
from foretrain.support.errors import NotSupportedError
from foretrain.support.memory import available_bytes, human_bytes
from foretrain.support.progress import Progress, track
from foretrain.support.seeds import Seed

_FEWEST_STEPS, _MOST_STEPS = 8, 16  # readings of a store
_MOST_STEPS_IN_MEMORY = 64
_RESIDUAL = 1e-8  # of modes, in units of the largest eigenvalue, at which it may end early
_SHARE = 0.3  # of the available memory, for the Krylov basis
_MOST_LAYERS, _MOST_BARS = 25, 16  # of a table and of a picture; the others are put together
_TOGETHER = 16  # samples whose kernel gives the layers' shares


@dataclass(frozen=True, repr=False, eq=False)
class KernelSummary(Result):
    """A kernel of samples with themselves: trace, ranks, leading eigenvalues, density, layers' shares, alignment.

    ``trace``, ``effective_rank`` (the participation ratio, trace^2 over the sum of squares) and
    ``layer_shares`` (of the trace) are exact. ``entropy_rank`` is the exponential of the entropy of
    eigenvalue / trace, estimated. ``residuals`` are |K u - value u| of the leading eigenvalues. ``seconds``
    are those that the tiles took, of all workers together.
    """

    samples: int
    outputs: tuple[int, ...]
    traced: bool
    dtype: str
    bytes: int
    trace: float
    effective_rank: float
    entropy_rank: KernelEstimate
    eigenvalues: Array
    residuals: Array
    density: SpectralDensity
    layer_shares: Mapping[str, float]
    alignment: KernelAlignment | None
    readings: int
    seconds: float  # nan in memory
    summary_seconds: float
    path: str | None
    routes: Mapping[str, str]
    seed: int
    note: str | None = None  # what was left out, and why
    title: str = "Tangent kernel"

    @property
    def size(self) -> int:
        """Rows of the matrix."""
        return self.density.size

    def answer(self) -> Answer:
        """All of it, in the order in which it is asked: ranks, modes, layers, how many eigenvalues, targets."""
        rank, found = self.entropy_rank, self.alignment
        form = "summed over" if self.traced else "of"
        above = self.density.counts([self.density.resolution, np.inf])
        modes = {
            "mode": np.arange(1, len(self.eigenvalues) + 1),
            "eigenvalue": self.eigenvalues,
            "share of the trace": self.eigenvalues / self.trace,
            "residual": self.residuals,
        }
        modes |= {"energy of y": found.energies} if found else {}
        parts: list[Part] = [
            *([f"Parameters: {routes_taken(self.routes)}."] if self.routes else []),
            f"Trace {self.trace:.6g}. Effective rank {self.effective_rank:.4g} (trace² / sum of squares), "
            f"entropy rank {rank.value:.4g}{plus_minus(rank.standard_error)}.",
            Table.of(modes),
            self._figure,
        ]
        if self.layer_shares:
            shares = with_others(self.layer_shares, _MOST_LAYERS)
            columns = {
                "layer": [name or "(whole model)" for name in shares],
                "share of the trace": shares.values(),
            }
            parts.append(Table.of(columns))
        parts.append(
            f"Eigenvalues above {self.density.resolution:.3g}: {above.value[0]:.4g}"
            f"{plus_minus(above.standard_error[0])} of {self.size}."
        )
        if found is not None:
            needed = found.modes_for(0.9)
            most = f"more than {len(self.eigenvalues)} modes are needed for"
            reach = f"{needed} modes hold" if needed else most
            parts.append(
                f"Alignment with the targets {found.alignment:.4g}, centred {found.centred:.4g}; {reach} 90 % of "
                "their energy."
            )
        parts += [self.note] if self.note else []
        if self.path is not None:
            parts.append(
                f"In {self.path}, computed in {self.seconds:.3g} s of work and read {self.readings} times in "
                f"{self.summary_seconds:.3g} s. In Python: foretrain.load({self.path!r})."
            )
        statement = (
            f"Tangent kernel of {self.samples} samples, {form} {len(self.outputs)} outputs: {self.size} x "
            f"{self.size} in {self.dtype}, {human_bytes(self.bytes)}."
        )
        # What machines read; what was not asked for is None.
        density, found = self.density.to_dataset(), self.alignment
        names = (
            "samples outputs traced size dtype bytes trace effective_rank eigenvalues residuals layer_shares"
        )
        record = {
            **picked(self, f"{names} routes seconds readings summary_seconds seed note"),
            "store": self.path,
            "entropy_rank": self.entropy_rank.value,
            "entropy_rank_error": self.entropy_rank.standard_error,
            "density": {name: density[name].values for name in ("lower", "upper", "count", "count_error")}
            | {"below": density.attrs["below"], "probes": self.density.probes},
            "alignment": found
            and {"plain": found.alignment, "centred": found.centred, "energies": found.energies},
        }
        return Answer(statement, parts, self._data, record)

    def _data(self) -> Any:
        found = self.alignment
        notes = picked(self, "samples size dtype bytes trace effective_rank readings seconds summary_seconds")
        notes |= picked(self, "outputs traced entropy_rank path")
        notes |= {} if found is None else {"alignment": found.alignment, "centred_alignment": found.centred}
        variables = {
            "eigenvalue": ("mode", self.eigenvalues),
            "residual": ("mode", self.residuals),
            "energy": ("mode", None if found is None else found.energies),
            "layer_share": ("layer", list(self.layer_shares.values())),
        }
        data = labelled(variables, notes, ["mode"], layer=np.array([*self.layer_shares], dtype=str))
        density = self.density.to_dataset()
        return data.merge(density.drop_attrs()).assign_attrs(
            {f"density_{name}": value for name, value in density.attrs.items()}
        )

    def _figure(self) -> Figure:
        """Spectrum and density, and where they are known the layers' shares of the trace and the targets' energy."""
        count = 2 + bool(self.layer_shares) + (self.alignment is not None)
        figure = Figure(self.title, columns=3 if count == 3 else 2)
        self.density.draw(figure)
        if self.layer_shares:
            shares = with_others(self.layer_shares, _MOST_BARS)
            panel = figure.panel("Share of each layer in the trace", "percent", Axis(reverse=True))
            names = [name or "(whole model)" for name in shares]
            panel.bars(names, 100 * np.array([*shares.values()]), color=GREEN, horizontal=True)
        if self.alignment is not None:
            self.alignment.draw(figure)
        return figure


def summarise(
    kernel: Kernel,
    y: Any = None,
    top: int = 10,
    seed: Seed = 0,
    *,
    layer_shares: Mapping[str, float] | None = None,
    note: str | None = None,
    title: str = "Tangent kernel",
) -> KernelSummary:
    """Summarise a kernel on disk or in memory; ``y`` (as for ``regression``) adds its alignment.

    One block Krylov space of 16 random probes, ``top`` if that is more, serves the leading modes and the density. A
    store is read 8 times, up to 16 where the ``top`` modes need it, and twice more for an alignment; nothing is read
    for trace, effective rank and layers' shares. ``layer_shares`` are those of a kernel in memory whose
    contributions are not apart. ``note`` and ``title`` are shown with it.
    """
    kernel = as_kernel(kernel)
    if not isinstance(kernel, TangentKernel | StoredKernel):
        raise NotSupportedError(
            "a summary is of a kernel that is there: use ntk(...), or .spectrum() and .spectral_density()."
        )
    start = time.perf_counter()
    kernel.require_symmetric("summary")
    matrix = kernel.matrix_in_memory("a summary")
    trace, squares = kernel.exact_norms()
    refuse_zero(trace)
    wanted = checked_top(top, LANCZOS_MODES, kernel.size)
    targets = None if y is None else directed_targets(y, kernel)
    number = stated_seed(seed)
    whole = None if matrix is None else torch.from_numpy(matrix)
    product = in_double(kernel) if whole is None else lambda rows: rows @ whole
    # The Krylov space of as many probes as modes are wanted: fewer would not see all copies of an eigenvalue. Of a
    # store every step is one reading: it ends early, when the leading modes are good.
    probes = max(BLOCK, wanted)
    most = _MOST_STEPS if kernel.streamed else _MOST_STEPS_IN_MEMORY
    fitting = int(_SHARE * available_bytes() / (8.0 * kernel.size * probes))
    steps = max(2, min(most, fitting))
    krylov = probed(product, kernel.size, probes, steps, number)
    with Progress("spectrum", total=steps) as bar:
        for step in range(1, steps + 1):
            krylov.extend()
            bar.advance()
            if krylov.exhausted:
                break
            if kernel.streamed and step >= _FEWEST_STEPS:
                values, _, residuals = krylov.ritz()
                if len(values) >= wanted and float(residuals[:wanted].max() / values[0]) <= _RESIDUAL:
                    break
    values, coordinates, residuals = (part[..., :wanted] for part in krylov.ritz())
    vectors = krylov.vectors(coordinates).numpy().T
    modes = Leading(values.numpy(), vectors, residuals.numpy(), krylov.products, converged=True)
    density = density_of(krylov, kernel.resolves, number)
    apply = kernel.multiply if matrix is None else matrix.__matmul__
    return KernelSummary(
        samples=kernel.samples[0],
        outputs=kernel.outputs,
        traced=kernel.traced,
        dtype=kernel.entry_type,
        bytes=kernel.nbytes,
        trace=trace,
        effective_rank=trace**2 / squares,
        entropy_rank=density.entropy_rank(trace),
        eigenvalues=modes.values,
        residuals=modes.residuals,
        density=density,
        layer_shares=kernel.layer_shares if layer_shares is None else layer_shares,
        alignment=None if targets is None else aligned(kernel, modes, targets, squares, apply),
        readings=(krylov.products + 2 * (targets is not None)) if kernel.streamed else 0,
        seconds=kernel.seconds,
        summary_seconds=time.perf_counter() - start,
        path=None if kernel.path is None else str(kernel.path),
        routes={name: str(route) for name, route in kernel.routes.items()},
        seed=number,
        note=note,
        title=title,
    )


def trace_shares(
    model: Any, x: Any, outputs: Literal["full", "trace"] | list[int] = "full", **options: Any
) -> dict[str, float]:
    """Each layer's share of the trace, from kernels of a few samples at a time; arguments are those of ``ntk``."""
    batch = as_batch(x, options.get("batch_axis", 0), options.get("shared", ()))
    total: dict[str, float] = {}
    for start in track(range(0, batch.count, _TOGETHER), "layers' shares of the trace"):
        part = batch.pick(slice(start, start + _TOGETHER))
        found = ntk(model, part.arguments, outputs=outputs, **{**options, "by": "layer"})
        for label, value in found.contribution_traces().items():
            total[label] = total.get(label, 0.0) + value
    return shares_of(total)
