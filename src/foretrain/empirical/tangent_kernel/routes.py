"""Which way is cheapest for a weight: Grams, sums over pairs of positions, or per-sample gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Way = Literal["gram", "pairs", "gradient", "sum", "derived", "per sample", "unused"]

# Flops of small or strided products take longer than those of one large matrix product.
_FORMING = 1.5
_PAIRING = 2.0
_LARGE = 1024
_FLOPS_PER_ENTRY = 60.0  # that a machine does while it moves one number to memory and back


@dataclass(frozen=True)
class Route:
    """How the contribution of a parameter is found."""

    way: Way
    note: str = ""

    def __str__(self) -> str:
        return f"{self.way}: {self.note}" if self.note else self.way


@dataclass(frozen=True)
class Job:
    """How large the kernel is: samples, outputs, and whether outputs are summed."""

    rows: int  # samples of x
    columns: int  # samples of x2
    outputs: int
    trace: bool
    symmetric: bool

    @property
    def pairs(self) -> float:
        """Pairs of samples to be computed."""
        return self.rows * (self.rows + 1) / 2 if self.symmetric else float(self.rows * self.columns)

    @property
    def is_large(self) -> bool:
        """Whether a chunk meets so many samples that it pays to look at it more closely."""
        return min(self.rows, self.columns) >= _LARGE

    @property
    def samples(self) -> int:
        """Samples whose gradients are needed."""
        return self.rows if self.symmetric else self.rows + self.columns


@dataclass(frozen=True)
class Site:
    """Sizes of a weight site: groups of (p inputs, q results) at T positions per sample; a table has p rows."""

    groups: int
    p: int
    q: int
    positions: int
    is_table: bool = False

    @property
    def forms_late(self) -> bool:
        """Whether keeping the sensitivities takes less memory than the gradients."""
        return not self.is_table and self.positions < self.p


def costs(job: Job, site: Site) -> dict[Way, float]:
    """Multiplications and additions by each way, weighted by how fast they run, and the numbers it moves."""
    g, p, q, t, c = site.groups, site.p, site.q, site.positions, job.outputs
    across = c if job.trace else c * c  # products of two samples' gradients
    gradient = _FORMING * job.samples * 2 * g * c * t * p * q + job.pairs * 2 * g * across * p * q
    gradient += _FLOPS_PER_ENTRY * job.samples * g * c * p * q
    activity = t * t * (1 if site.is_table else p)
    if t == 1 and not site.is_table:
        rows = 1 if job.trace else c * c
        # Tiles stay in the cache.
        gram = job.pairs * (2 * g * (p + across * q) + _FLOPS_PER_ENTRY / 10 * rows)
        return {"gram": gram, "gradient": gradient}
    second = t * c * q if job.trace else t * c * c * q
    pairs = _PAIRING * job.pairs * 2 * g * (activity + t * t * c * q + second)
    pairs += _FLOPS_PER_ENTRY * job.pairs * g * t * c * q
    return {"pairs": pairs, "gradient": gradient}


def cheapest(job: Job, site: Site) -> Way:
    """The way that costs least."""
    found = costs(job, site)
    return min(found, key=found.__getitem__)
