"""What there is to know of a global-state NTK at a glance: ranks, modes, core, weights, and how a target fits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.empirical.global_ntk.alignment import StateAlignment
from foretrain.empirical.global_ntk.axes import feature_axis
from foretrain.empirical.global_ntk.descent import LossDecrease
from foretrain.empirical.global_ntk.kernel import GlobalNTK
from foretrain.empirical.global_ntk.readout import Readout, placed_target
from foretrain.empirical.global_ntk.reduced_views import reduced_view
from foretrain.empirical.global_ntk.trace_shares import Shares, trace_shares
from foretrain.operators import Space, SumSpace, dense_operator
from foretrain.operators.estimators import Estimate
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.progress import Progress
from foretrain.support.seeds import Seed

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]
T = TypeVar("T")

_SPECTRUM = 20  # leading eigenvalues of the reduced kernel and of the core
_TARGET_MODES = 3
_TOLERANCE = 1e-4  # of residuals
_STAGES = 4  # of one member


@dataclass(frozen=True, repr=False, eq=False)
class View:
    """One plain member of the states: its reduced kernels (15), its core, and its alignment with a target.

    ``temporal_modes`` are eigenvectors of NTK_temp, shaped as the places, such as (mode, batch, time), and
    ``temporal_shares`` its leading eigenvalues over its trace. ``core_shares`` are those of V V*, empty without sites
    side by side. ``readout`` says what brings the target to the states; None: the temporal kernel was asked.
    """

    name: str
    axes: Mapping[str, int]
    temporal_rank: Estimate
    spatial_rank: Estimate
    temporal_error: float
    temporal_modes: Array
    temporal_shares: Array
    core_shares: Array
    core_cosine: Estimate | None
    alignment: StateAlignment | None
    loss_decrease: LossDecrease | None
    readout: str | None

    @property
    def along(self) -> str:
        """What the temporal kernel is about: time, or all axes but the last where there is none."""
        places = list(self.axes)[:-1]
        return "time" if "time" in places else " x ".join(places) or "one place"

    def to_dataset(self) -> xr.Dataset:
        """All that it holds, labelled."""
        import xarray as xr

        places = list(self.axes)[:-1]
        found = xr.Dataset(
            {
                "temporal_mode": (("mode", *places), self.temporal_modes),
                "temporal_share": (("rank",), self.temporal_shares),
                "core_share": (("core_rank",), self.core_shares),
            },
            coords={
                "mode": np.arange(1, len(self.temporal_modes) + 1),
                "rank": np.arange(1, len(self.temporal_shares) + 1),
                "core_rank": np.arange(1, len(self.core_shares) + 1),
            },
            attrs={"temporal_error": self.temporal_error, "readout": self.readout or ""},
        )
        for key in ("temporal_rank", "spatial_rank", "core_cosine"):
            estimate = getattr(self, key)
            if estimate is not None:
                found[key], found[f"{key}_error"] = estimate.value, estimate.standard_error
        if self.alignment is not None:
            aligned = self.alignment.to_dataset()
            names = {key: f"target_{key}" for key in (*aligned.variables, "mode")}
            found = found.merge(aligned.rename(names))
        if self.loss_decrease is not None:
            found["loss_decrease"] = self.loss_decrease.to_xarray()
        return found

    def lines(self) -> list[str]:
        """What it says."""
        found = [
            f"rank {_plus_minus(self.temporal_rank)} in {self.along}, {_plus_minus(self.spatial_rank)} in space "
            f"({list(self.axes)[-1]})"
        ]
        if self.core_cosine is not None:
            found.append(f"cosine with the concatenated core {_plus_minus(self.core_cosine)}")
        if self.alignment is not None:
            found.append(repr(self.alignment))
        if self.loss_decrease is not None:
            found.append(repr(self.loss_decrease))
        return found


@dataclass(frozen=True, repr=False, eq=False)
class GlobalSummary:
    """A global-state NTK: trace, effective rank tr(A)^2 / tr(A^2), leading eigenvalues, shares of the parameters.

    ``views`` holds a ``View`` for every member of the states: one, or those of a direct sum by name. Estimates carry
    standard errors; ``residuals`` are |A v - value v|. ``trace_shares`` are the parameters' parts of the trace.
    """

    axes: str
    size: int
    parameters: int
    dtype: str
    trace: Estimate
    effective_rank: Estimate
    eigenvalues: Array
    residuals: Array
    trace_shares: Shares
    views: Mapping[str, View]
    seconds: float
    notes: tuple[str, ...]

    @property
    def eigenvalue_shares(self) -> Array:
        """Leading eigenvalues over the trace."""
        return self.eigenvalues / self.trace.value if self.trace.value else np.zeros_like(self.eigenvalues)

    def to_dataset(self) -> xr.Dataset:
        """All that it holds, labelled; of several members each name ends in that of its member."""
        import xarray as xr

        shares = self.trace_shares
        found = xr.Dataset(
            {
                "eigenvalue": (("eigenmode",), self.eigenvalues),
                "residual": (("eigenmode",), self.residuals),
                "trace_share": (("parameter",), shares.values),
                "trace_share_error": (("parameter",), shares.standard_errors),
                "trace": self.trace.value,
                "trace_error": self.trace.standard_error,
                "effective_rank": self.effective_rank.value,
                "effective_rank_error": self.effective_rank.standard_error,
            },
            coords={
                "eigenmode": np.arange(1, len(self.eigenvalues) + 1),
                "parameter": np.array(shares.names, dtype=str),
            },
            attrs={name: getattr(self, name) for name in ("axes", "size", "parameters", "dtype", "seconds")},
        )
        for name, view in self.views.items():
            part = view.to_dataset()
            if len(self.views) > 1:
                own = {key for key in (*part.variables, *part.dims) if key != "parameter"}
                part = part.rename({key: f"{key}_{name}" for key in own})
            ending = f"_{name}" if len(self.views) > 1 else ""
            found.attrs |= {f"{key}{ending}": value for key, value in part.attrs.items()}
            found = found.merge(part.reindex(parameter=found["parameter"]).drop_attrs())
        return found

    def __repr__(self) -> str:
        largest = ", ".join(f"{value:.4g}" for value in self.eigenvalues[:5])
        shares = ", ".join(f"{name} {share:.1%}" for name, share in self.trace_shares.largest_first()[:6])
        lines = [
            f"GlobalSummary of {self.axes}: {self.size} states, {self.parameters} parameters, {self.dtype}",
            f"  trace {_plus_minus(self.trace)}; effective rank {_plus_minus(self.effective_rank)}",
            f"  largest eigenvalues {largest} (residuals up to {self.residuals.max():.1g})",
            f"  shares of the trace: {shares}",
        ]
        for name, view in self.views.items():
            own = f"{name}: " if len(self.views) > 1 else ""
            lines += [f"  {own}{line}" for line in view.lines()]
        lines += [f"  {note}" for note in self.notes]
        return "\n".join([*lines, "  foretrain.report.global_ntk.global_ntk_figure(this) draws it"])


def global_summary(
    kernel: GlobalNTK,
    y: Any = None,
    readouts: Mapping[str, Readout] | Readout | None = None,
    *,
    modes: int = 5,
    accuracy: float = 0.02,
    seed: Seed = 0,
) -> GlobalSummary:
    """Summarise a kernel, and how a target y lies in it.

    ``y`` is (samples, steps, outputs), or (samples, outputs) for the last step. ``readouts`` (see ``find_readout``),
    by member if there are several, bring it to the states; without one the temporal kernel is asked for its modes.
    ``accuracy`` is the relative standard error of traces and ranks, the absolute one of cosines and shares.
    """
    start = time.perf_counter()
    modes = whole_number("modes", modes)
    members = members_of(kernel)
    by_member = {next(iter(members)): readouts} if isinstance(readouts, Readout) else readouts or {}
    notes: list[str] = []
    with Progress("global-state NTK", total=4 + _STAGES * len(members)) as bar:
        trace = _advanced(bar, kernel.trace(accuracy=accuracy, seed=seed))
        if trace.value <= 0:
            raise InputError("the kernel is zero: no counted parameter changes the states.")
        rank = _advanced(bar, kernel.effective_rank(accuracy=accuracy, seed=seed))
        count = min(modes, kernel.size)
        leading = _advanced(bar, kernel.top_modes(count, tolerance=_TOLERANCE, seed=seed))
        shares = _advanced(bar, trace_shares(kernel, accuracy=accuracy, seed=seed))
        views = {
            name: _view(name, part, y, by_member.get(name), _Asked(modes, accuracy, seed), bar, notes)
            for name, part in members.items()
        }
    return GlobalSummary(
        axes=kernel.domain.describe(),
        size=kernel.size,
        parameters=sum(value.numel() for value in kernel.dynamics.parameters.values()),
        dtype=str(kernel.dtype).removeprefix("torch."),
        trace=trace,
        effective_rank=rank,
        eigenvalues=leading.values.numpy(),
        residuals=leading.residuals.cpu().double().numpy(),
        trace_shares=shares,
        views=views,
        seconds=time.perf_counter() - start,
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class _Asked:
    modes: int
    accuracy: float
    seed: Seed


def members_of(kernel: GlobalNTK) -> dict[str, GlobalNTK]:
    """The kernel of every plain member by name."""
    if not isinstance(kernel.domain, SumSpace):
        names = kernel.members or ()
        return {names[0] if len(names) == 1 else "states": kernel}
    return {name: GlobalNTK(kernel.dynamics, [name]) for name in kernel.domain.names}


def _view(
    name: str,
    kernel: GlobalNTK,
    y: Any,
    readout: Readout | None,
    asked: _Asked,
    bar: Progress,
    notes: list[str],
) -> View:
    space = kernel.domain.plain("a view")
    places = space.without([feature_axis(space)])
    view = partial(reduced_view, kernel, accuracy=asked.accuracy, seed=asked.seed)
    temporal, spatial = _advanced(bar, view("temporal")), _advanced(bar, view("spatial"))
    values, vectors = _leading(temporal.matrix, max(asked.modes, _SPECTRUM))
    core, likeness = _advanced(bar, _core(kernel, asked.accuracy, asked.seed))
    target = _target(y, places, readout, name, notes)
    alignment, decrease = _advanced(bar, _towards(kernel, target, readout, asked))
    return View(
        name=name,
        axes=dict(zip(space.names, space.shape, strict=True)),
        temporal_rank=temporal.rank,
        spatial_rank=spatial.rank,
        temporal_error=temporal.error,
        temporal_modes=vectors[: asked.modes].reshape(-1, *places.shape),
        temporal_shares=values / float(temporal.matrix.diagonal().sum()),
        core_shares=core,
        core_cosine=likeness,
        alignment=alignment,
        loss_decrease=decrease,
        readout=None if readout is None or target is None else repr(readout),
    )


def _leading(matrix: Tensor, count: int) -> tuple[Array, Array]:
    """Leading eigenvalues and eigenvectors, as rows that are positive where they are largest."""
    count = min(count, len(matrix))
    operator = dense_operator(matrix, Space.of(place=len(matrix)), positive=True)
    found = operator.top_modes(count, tolerance=1e-6)
    vectors = found.vectors.cpu().double().numpy()
    signs = np.sign(vectors[np.arange(count), np.abs(vectors).argmax(1)])
    return found.values.numpy(), vectors * signs[:, None]


def _core(kernel: GlobalNTK, accuracy: float, seed: Seed) -> tuple[Array, Estimate | None]:
    """The spectrum of V V* and the cosine with V V* (x) I; nothing where sites cannot stand side by side."""
    try:
        core = kernel.concatenated_core
    except NotSupportedError:
        return np.zeros(0), None
    values = torch.linalg.svdvals(kernel.site_rows().double()).square()
    shares = (values / values.sum())[:_SPECTRUM].cpu().numpy()
    return shares, kernel.cosine(core, accuracy=accuracy, seed=seed)


def _target(y: Any, places: Space, readout: Readout | None, name: str, notes: list[str]) -> Tensor | None:
    """y at the places of the states, or a note that says why not: the kernel is worth its summary without."""
    if y is None:
        return None
    try:
        found = placed_target(y, places, readout)
    except InputError as error:
        notes.append(f"No alignment of {name} with the target: {error}")
        return None
    if not bool(found.any()):
        notes.append(f"No alignment of {name} with the target: it is zero everywhere.")
        return None
    return found


def _towards(
    kernel: GlobalNTK, target: Tensor | None, readout: Readout | None, asked: _Asked
) -> tuple[StateAlignment | None, LossDecrease | None]:
    """The alignment with a target and, where a readout says it, how fast half the sum of squares to it falls."""
    if target is None:
        return None, None
    options = {"modes": _TARGET_MODES, "accuracy": asked.accuracy, "seed": asked.seed}
    if readout is None:
        return kernel.alignment(target, **options), None
    states = kernel.states
    assert isinstance(states, Tensor)  # of a plain member
    decrease = kernel.loss_decrease(readout.error(states, target.to(states)))
    return kernel.alignment(target, readout.weight, **options), decrease


def _advanced(bar: Progress, found: T) -> T:
    bar.advance()
    return found


def _plus_minus(estimate: Estimate) -> str:
    if not estimate.standard_error:
        return f"{estimate.value:.4g}"
    return f"{estimate.value:.4g} ± {estimate.standard_error:.2g}"
