"""What there is to know of a kernel at a glance, from the records of its tiles and a few products with it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from foretrain.empirical.kernel_analysis.block_lanczos import BLOCK, BlockKrylov, Leading
from foretrain.empirical.kernel_analysis.checks import LANCZOS_MODES, checked_top, plus_minus, refuse_zero
from foretrain.empirical.kernel_analysis.density import SpectralDensity, density_of, probed
from foretrain.empirical.kernel_analysis.matrices import Array, ExactProducts, exact_products
from foretrain.empirical.kernel_analysis.target_alignment import KernelAlignment, aligned
from foretrain.empirical.kernel_analysis.targets import directed_targets
from foretrain.empirical.kernel_operator.estimate import KernelEstimate, stated_seed
from foretrain.empirical.models.batches import as_batch
from foretrain.empirical.stored_kernel.reading import StoredKernel
from foretrain.empirical.tangent_kernel.entry import ntk
from foretrain.empirical.tangent_kernel.result import TangentKernel
from foretrain.support.memory import available_bytes, human_bytes
from foretrain.support.progress import Progress, track
from foretrain.support.seeds import Seed

if TYPE_CHECKING:
    import xarray as xr

_FEWEST_STEPS, _MOST_STEPS = 8, 16  # readings of a store
_MOST_STEPS_IN_MEMORY = 64
_RESIDUAL = 1e-8  # of modes, in units of the largest eigenvalue, at which it may end early
_SHARE = 0.3  # of the available memory, for the Krylov basis
_TOGETHER = 16  # samples whose kernel gives the layers' shares


@dataclass(frozen=True, repr=False, eq=False)
class KernelSummary:
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

    @property
    def size(self) -> int:
        """Rows of the matrix."""
        return self.density.size

    def to_dataset(self) -> xr.Dataset:
        """All that it holds, labelled."""
        import xarray as xr

        found = xr.Dataset(
            {
                "eigenvalue": (("mode",), self.eigenvalues),
                "residual": (("mode",), self.residuals),
                "layer_share": (("layer",), np.array(list(self.layer_shares.values()))),
            },
            coords={
                "mode": np.arange(1, len(self.eigenvalues) + 1),
                "layer": np.array([*self.layer_shares], dtype=str),
            },
            attrs={name: getattr(self, name) for name in _ATTRIBUTES}
            | {
                "outputs": list(self.outputs),
                "traced": int(self.traced),
                "entropy_rank": float(self.entropy_rank.value),
                "entropy_rank_error": float(self.entropy_rank.standard_error),
                "path": self.path or "",
            },
        )
        if self.alignment is not None:
            found["energy"] = ("mode", self.alignment.energies)
            found.attrs |= {
                "alignment": self.alignment.alignment,
                "centred_alignment": self.alignment.centred,
            }
        density = self.density.to_dataset()
        return found.merge(density.drop_attrs()).assign_attrs(
            {f"density_{name}": value for name, value in density.attrs.items()}
        )

    def __repr__(self) -> str:
        form = "trace over" if self.traced else "of"
        where = "in memory" if self.path is None else f"at {self.path}, read {self.readings} times"
        largest = ", ".join(f"{value:.4g}" for value in self.eigenvalues[:5])
        shares = ", ".join(f"{layer} {share:.1%}" for layer, share in _largest_first(self.layer_shares)[:6])
        rank = self.entropy_rank
        lines = [
            f"KernelSummary {form} {len(self.outputs)} outputs, {self.samples} samples: {self.size} eigenvalues, "
            f"{human_bytes(self.bytes)} {where}",
            f"  trace {self.trace:.6g}; largest eigenvalues {largest} (residuals up to {self.residuals.max():.1g})",
            f"  effective rank {self.effective_rank:.4g} (trace² / squares), "
            f"entropy rank {rank.value:.4g}{plus_minus(rank.standard_error)}",
        ]
        if shares:
            lines.append(f"  layers' shares of the trace: {shares}")
        if self.alignment is not None:
            lines.append(f"  alignment with the targets {self.alignment.alignment:.4g}, see .alignment")
        return "\n".join(
            [*lines, "  foretrain.report.kernels.kernel_figure(this) draws it; .density has the rest"]
        )


_ATTRIBUTES = (
    "samples",
    "size",
    "dtype",
    "bytes",
    "trace",
    "effective_rank",
    "readings",
    "seconds",
    "summary_seconds",
)


def summarise(
    kernel: StoredKernel | TangentKernel,
    y: Any = None,
    top: int = 10,
    seed: Seed = 0,
    *,
    layer_shares: Mapping[str, float] | None = None,
) -> KernelSummary:
    """Summarise a kernel on disk or in memory; ``y`` (as for ``regression``) adds its alignment.

    One block Krylov space of 16 random probes, ``top`` if that is more, serves the leading modes and the density. A
    store is read 8 times, up to 16 where the ``top`` modes need it, and twice more for an alignment; nothing is read
    for trace, effective rank and layers' shares. ``layer_shares`` are those of a kernel in memory whose
    contributions are not apart.
    """
    start = time.perf_counter()
    stored = isinstance(kernel, StoredKernel)
    source = exact_products(kernel, "summary")
    refuse_zero(source.trace)
    wanted = checked_top(top, LANCZOS_MODES, source.layout.size)
    targets = None if y is None else directed_targets(y, source.layout)
    number = stated_seed(seed)
    krylov = _explored(source, number, wanted, ends_early=stored)
    modes = _leading(krylov, wanted)
    density = density_of(krylov, source.layout, number)
    return KernelSummary(
        samples=source.layout.samples[0],
        outputs=kernel.outputs,
        traced=kernel.trace,
        dtype=str(kernel.dtype if isinstance(kernel, StoredKernel) else kernel.values.dtype).removeprefix(
            "torch."
        ),
        bytes=kernel.nbytes if isinstance(kernel, StoredKernel) else kernel.values.nbytes,
        trace=source.trace,
        effective_rank=source.trace**2 / source.squares,
        entropy_rank=density.entropy_rank(source.trace),
        eigenvalues=modes.values,
        residuals=modes.residuals,
        density=density,
        layer_shares=_shares(kernel) if layer_shares is None else layer_shares,
        alignment=None if targets is None else aligned(source, modes, targets),
        readings=(krylov.products + 2 * (targets is not None)) if stored else 0,
        seconds=_seconds(kernel),
        summary_seconds=time.perf_counter() - start,
        path=str(kernel.path) if isinstance(kernel, StoredKernel) else None,
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
        for label, value in _traces(found).items():
            total[label] = total.get(label, 0.0) + value
    return _normalised(total)


def _explored(source: ExactProducts, seed: int, top: int, *, ends_early: bool) -> BlockKrylov:
    """The Krylov space of the probes, as many as modes are wanted: fewer would not see all copies of an eigenvalue.

    It may end early, when the leading modes are good: of a store every step is one reading.
    """
    size, probes = source.layout.size, max(BLOCK, top)
    most = _MOST_STEPS if ends_early else _MOST_STEPS_IN_MEMORY
    fitting = int(_SHARE * available_bytes() / (8.0 * size * probes))
    steps = max(2, min(most, fitting))
    krylov = probed(source.apply, size, probes, steps, seed)
    with Progress("spectrum", total=steps) as bar:
        for step in range(1, steps + 1):
            krylov.extend()
            bar.advance()
            if krylov.exhausted:
                break
            if ends_early and step >= _FEWEST_STEPS and _leading_residual(krylov, top) <= _RESIDUAL:
                break
    return krylov


def _leading_residual(krylov: BlockKrylov, top: int) -> float:
    """In units of the largest eigenvalue."""
    values, _, residuals = krylov.eigenpairs()
    return float(residuals[:top].max() / values[0]) if len(values) >= top else np.inf


def _leading(krylov: BlockKrylov, top: int) -> Leading:
    values, vectors, residuals = krylov.eigenpairs()
    count = min(top, krylov.count)
    modes = krylov.basis @ vectors[:, :count]
    return Leading(values[:count], modes, residuals[:count], krylov.products, converged=True)


def _shares(kernel: StoredKernel | TangentKernel) -> dict[str, float]:
    if isinstance(kernel, StoredKernel):
        return kernel.layer_shares
    return _normalised(_traces(kernel)) if kernel.by == "layer" else {}


def _traces(kernel: TangentKernel) -> dict[str, float]:
    """Of each contribution."""
    diagonals = kernel.values.detach().double().diagonal(dim1=1, dim2=2)
    if not kernel.trace:
        diagonals = diagonals.diagonal(dim1=1, dim2=2)
    sums = diagonals.flatten(1).sum(1).tolist()
    return dict(zip(kernel.labels or (), sums, strict=True))


def _normalised(traces: Mapping[str, float]) -> dict[str, float]:
    whole = sum(traces.values())
    return {label: value / whole for label, value in traces.items()} if whole > 0 else {}


def _seconds(kernel: StoredKernel | TangentKernel) -> float:
    if not isinstance(kernel, StoredKernel):
        return float("nan")
    return sum(float(record["seconds"]) for record in kernel.records.values())


def _largest_first(shares: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(shares.items(), key=lambda item: -item[1])
