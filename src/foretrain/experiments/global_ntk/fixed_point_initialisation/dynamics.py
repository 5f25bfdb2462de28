"""Networks h <- W tanh(h) with added fixed points, and what random starts come to in them.

Two families of points with orthogonal images: k e_i, one unit each as in the source ("basis"), and k times orthogonal
vectors of signs, where every unit takes part ("signs"). The gain is the spectral radius of the random part W_perp.
"""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from foretrain.support.seeds import spawn

if TYPE_CHECKING:
    import torch

    from foretrain.training.fixed_points import FixedPointWeights

SIZE = 1.5  # k
FAMILIES = ("basis", "signs")
ADDED = (0, 1, 2, 3)
SHOWN_GAIN = {"basis": 0.9, "signs": 1.25}  # of the trajectories in the picture
SAME = 1e-3  # largest distance of a unit within one attractor
_SETTLED = 1e-8  # largest change of a unit in one step at which a network has come to rest
_TANGENT_STEPS = 200
_FOLLOWED = 16  # states whose Lyapunov exponents are averaged


def weights_of(
    family: str, added: int, gain: float, units: int, seed: np.random.SeedSequence, size: float = SIZE
) -> FixedPointWeights:
    """The matrix with this number of points of a family."""
    from foretrain.training.fixed_points import basis_points, fixed_point_weights, sign_points

    # The first vector of signs is that of ones, which is left out: the others are balanced.
    points = (
        basis_points(units, added, size) if family == "basis" else sign_points(units, added + 1, size)[1:]
    )
    return fixed_point_weights(points, gain=gain, seed=seed)


def random_starts(count: int, units: int, seed: np.random.SeedSequence) -> torch.Tensor:
    """States with independent standard normal entries, (count, units)."""
    import torch

    from foretrain.support.seeds import torch_generator

    return torch.randn(count, units, dtype=torch.float64, generator=torch_generator(seed))


def run_to_rest(matrix: torch.Tensor, h: torch.Tensor, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The last states, and which of them rest; stops when all do."""
    import torch

    change = torch.full((len(h),), math.inf)
    for _ in range(steps):
        after = torch.tanh(h) @ matrix.t()
        change, h = (after - h).abs().amax(1), after
        if float(change.max()) < _SETTLED:
            break
    return h, change < _SETTLED


def attractors_among(ends: torch.Tensor) -> list[torch.Tensor]:
    """The different states among those at rest."""
    found: list[torch.Tensor] = []
    for end in ends:
        if all(float((end - other).abs().max()) > SAME for other in found):
            found.append(end)
    return found


def lyapunov_exponent(matrix: torch.Tensor, h: torch.Tensor) -> float:
    """The largest exponent per step: the mean growth of a small change along the way, over all states."""
    import torch

    change, grown = torch.ones_like(h), []
    for _ in range(_TANGENT_STEPS):
        shown = torch.tanh(h)
        change = (change * (1 - shown**2)) @ matrix.t()
        length = change.norm(dim=1, keepdim=True)
        change, h = change / length, shown @ matrix.t()
        grown.append(float(length.log().mean()))
    return float(np.mean(grown[_TANGENT_STEPS // 4 :]))


def measured(
    weights: FixedPointWeights, starts: int, steps: int, seed: np.random.SeedSequence
) -> dict[str, float]:
    """What random starts come to: numbers of attractors, shares, exponents, and distances from the points."""
    h = random_starts(starts, len(weights.matrix), spawn(seed, 1)[0])
    ends, rests = run_to_rest(weights.matrix, h, steps)
    attractors = attractors_among(ends[rests])
    has_points = bool(len(weights.points))
    return {
        "attractors": len(attractors),
        "settled": float(rests.double().mean()),
        "lyapunov": lyapunov_exponent(weights.matrix, ends[:_FOLLOWED]),
        "residual": float(weights.residual.max()) if has_points else 0.0,
        "radius": _radius(weights) if has_points else math.nan,
        "to_point": _furthest(attractors, weights.points),
        "to_sum": _furthest(attractors, _sums(weights.points)),
    }


def _radius(weights: FixedPointWeights) -> float:
    """The spectral radius at the first point: the others are alike."""
    from foretrain.training.fixed_points import spectral_radii

    return float(spectral_radii(weights.matrix, weights.points[:1], weights.activation)[0])


def _sums(points: torch.Tensor) -> torch.Tensor:
    """All sums of plus or minus every point; the list holds the points and then their mirror images."""
    half = points[: len(points) // 2]
    return half.new_tensor(list(product((1.0, -1.0), repeat=len(half)))) @ half


def _furthest(attractors: list[torch.Tensor], expected: torch.Tensor) -> float:
    """How far the attractors are from the nearest of the expected states, at most."""
    if not attractors or not len(expected):
        return math.nan
    return max(float((expected - end).abs().amax(1).min()) for end in attractors)


def predicted_loss(family: str, size: float) -> float:
    """The gain at which W_perp takes over.

    Near h = 0 the overlap with a point grows by k / tanh(k) per step and the rest by the gain: sign points are
    reached up to where both are equal. With k e_i all other units rest at 0, where W_perp alone decides.
    """
    return 1.0 if family == "basis" else size / math.tanh(size)


def told(family: str) -> str:
    """A family in words."""
    return {"basis": "points k e_i", "signs": "points k × signs"}[family]
