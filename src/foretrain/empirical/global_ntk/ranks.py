"""Bounds on the rank of what gradient descent can do to the states in one step (Prop. 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from foretrain.empirical.global_ntk.dynamics import places_of
from foretrain.support.answers import Answer, Result, fields_answer
from foretrain.support.errors import NotSupportedError
from foretrain.support.memory import require_memory

if TYPE_CHECKING:
    from foretrain.empirical.global_ntk.kernel import GlobalNTK


@dataclass(frozen=True, repr=False)
class RankBounds(Result):
    """Ranks of delta h = NTK_S err as a matrix (batch * time, units), and of what bounds it.

    Ranks of kernels count eigenvalues above ``tolerance`` of the largest. Since delta h delta h^T <= E tr_unit(NTK_S)
    with E = <err, NTK_S err> (Cauchy-Schwarz), and likewise for the units, the rank of the change counts singular
    values whose squares are above E times the larger of those two limits: what is counted there is counted here.

    ``sites`` is the rank of V V*; it bounds the change only where P acts alike on all units and K is V V* on each of
    them (``separable``): a curved activation between weights and states is enough to lift the rank above it.
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

    def answer(self) -> Answer:
        """Whether the bounds hold, and all ranks."""
        kept = "hold" if self.holds else "are BROKEN"
        return fields_answer(
            self, f"The bounds on the rank of the change {kept} at tolerance {self.tolerance:g}."
        )


def rank_bounds(kernel: GlobalNTK, err: Any, tolerance: float) -> RankBounds:
    """All ranks by dense decompositions of the reduced kernels: for states that are not too many."""
    places = places_of(kernel.domain, "a bound on ranks").size
    units = kernel.size // places
    require_memory(
        8 * 4 * (places**2 + units**2) + 8 * places * units * 16,
        f"the ranks of kernels of {places} and {units} rows",
        "use fewer samples or steps, or kernel.temporal().effective_rank() instead",
    )
    err = kernel._flat_vector(err, kernel.domain)
    change = kernel.apply(err)
    # In double precision, because ranks need it.
    space = kernel.domain.plain("a bound on ranks")
    reduced = (
        kernel.partial_trace(over=over, normalize=True, method="exact")
        for over in (space.names[-1:], space.names[:-1])
    )
    temporal, spatial = (torch.linalg.eigvalsh(view.dense().double()) for view in reduced)
    largest = max(float(temporal.max()) * units, float(spatial.max()) * places)
    try:
        rows: Tensor | None = kernel.site_rows()
    except NotSupportedError:
        rows = None
    # E = <err, NTK_S err>, or what rounding leaves of it where the kernel does not see err.
    rounding = torch.finfo(err.dtype).eps * largest * float((err.double() ** 2).sum())
    decrease = max(float((err.double() * change.double()).sum()), rounding)
    floor = tolerance * largest * decrease
    return RankBounds(
        change=int((torch.linalg.svdvals(change.view(places, units).double()) ** 2 > floor).sum()),
        temporal=_count(temporal, tolerance),
        spatial=_count(spatial, tolerance),
        sites=None if rows is None else _count(torch.linalg.svdvals(rows.double()), tolerance),
        columns=None if rows is None else rows.shape[1],
        separable=rows is not None and _is_separable(kernel, rows, units),
        tolerance=tolerance,
    )


def _count(values: Tensor, tolerance: float) -> int:
    return int((values > tolerance * values.max()).sum())


def _is_separable(kernel: GlobalNTK, rows: Tensor, units: int) -> bool:
    """Whether P is an operator on the places and K is V V*, the same on every unit: seen on one random vector."""
    places = len(rows)
    if kernel.P.domain.size != places * units or kernel.K.domain.size != places * units:
        return False
    generator = torch.Generator().manual_seed(0)
    draw = torch.randn(places, generator=generator, dtype=torch.float64).to(kernel.dynamics.values)
    at_first_and_last = torch.zeros(2, places, units, dtype=kernel.dtype, device=kernel.device)
    at_first_and_last[0, :, 0] = draw
    at_first_and_last[1, :, -1] = draw
    expected = rows.to(kernel.dynamics.values) @ (rows.to(kernel.dynamics.values).mT @ draw)
    moved, local = (
        operator.apply(at_first_and_last.view(2, -1)).view(2, places, units)
        for operator in (kernel.P, kernel.K)
    )
    return _acts_alike(moved, moved[0, :, 0]) and _acts_alike(local, expected)


def _acts_alike(images: Tensor, expected: Tensor) -> bool:
    """Whether a vector at the first and at the last unit became the expected one there, and nothing elsewhere."""
    wanted = torch.zeros_like(images)
    wanted[0, :, 0] = expected
    wanted[1, :, -1] = expected
    return float((images - wanted).abs().max()) <= 1e-6 * float(images.abs().max())
