"""Bounds on the rank of what gradient descent can do to the states in one step (Prop. 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from foretrain.empirical.global_ntk.axes import places_of
from foretrain.support.errors import NotSupportedError
from foretrain.support.memory import require_memory

if TYPE_CHECKING:
    from foretrain.empirical.global_ntk.kernel import GlobalNTK


@dataclass(frozen=True)
class RankBounds:
    """Ranks of delta h = NTK_S err as a matrix (batch * time, units), and of what bounds it.

    ``sites`` is the rank of V V*; it bounds the change only where P acts alike on all units (``separable``).
    ``columns`` is the number of columns of all sites, which bounds the rank of V V*: for an attention block with an
    MLP 3 n_in + n_attn + (L - 1) n_mlp and one for every bias. None where there are no such sites.
    """

    change: int
    temporal: int
    spatial: int
    sites: int | None
    columns: int | None
    separable: bool
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether every bound that applies is kept."""
        kept = self.change <= min(self.temporal, self.spatial)
        if self.sites is not None and self.columns is not None:
            kept = kept and self.sites <= self.columns
            kept = kept and (not self.separable or self.change <= self.sites)
        return kept

    def __repr__(self) -> str:
        sites = "" if self.sites is None else f"; sites {self.sites} of {self.columns} columns"
        return (
            f"RankBounds(change {self.change} <= temporal {self.temporal}, spatial {self.spatial}{sites}; "
            f"{'hold' if self.holds else 'BROKEN'} at relative tolerance {self.tolerance:g})"
        )


def rank_bounds(kernel: GlobalNTK, err: Any, tolerance: float) -> RankBounds:
    """All ranks by dense decompositions of the reduced kernels: for states that are not too many."""
    places = places_of(kernel.domain, "a bound on ranks").size
    units = kernel.size // places
    _require_decompositions(kernel, places, units)
    change = kernel.apply(kernel._flat_vector(err, kernel.domain)).view(places, units)
    temporal = kernel.temporal(method="exact").dense()
    spatial = kernel.spatial(method="exact").dense()
    try:
        rows: Tensor | None = kernel.site_rows()
    except NotSupportedError:
        rows = None
    return RankBounds(
        change=_rank(change, tolerance),
        temporal=_rank(temporal, tolerance),
        spatial=_rank(spatial, tolerance),
        sites=None if rows is None else _rank(rows, tolerance),
        columns=None if rows is None else rows.shape[1],
        separable=_is_separable(kernel, places, units),
        tolerance=tolerance,
    )


def _rank(matrix: Tensor, tolerance: float) -> int:
    """Singular values above a share of the largest; in double precision, because ranks need it."""
    values = torch.linalg.svdvals(matrix.double())
    return int((values > tolerance * values.max()).sum())


def _is_separable(kernel: GlobalNTK, places: int, units: int) -> bool:
    """Whether P is an operator on the places times the identity on the units: seen on one random vector of places."""
    if kernel.P.domain.size != places * units:
        return False
    generator = torch.Generator().manual_seed(0)
    draw = torch.randn(places, generator=generator, dtype=torch.float64).to(kernel.dynamics.values)
    ones = torch.zeros(2, places, units, dtype=kernel.dtype, device=kernel.device)
    ones[0, :, 0] = draw
    ones[1, :, -1] = draw
    first, last = kernel.P.apply(ones.view(2, -1)).view(2, places, units)
    scale = float(first.abs().max())
    alone = float(first[:, 1:].abs().max()) if units > 1 else 0.0
    return alone <= 1e-6 * scale and float((first[:, 0] - last[:, -1]).abs().max()) <= 1e-6 * scale


def _require_decompositions(kernel: GlobalNTK, places: int, units: int) -> None:
    require_memory(
        8 * 4 * (places**2 + units**2) + 8 * places * units * 16,
        f"the ranks of kernels of {places} and {units} rows",
        "use fewer samples or steps, or effective_rank() of kernel.temporal() instead",
    )
