"""Fixed points planted in a GRU, by the construction (17) of Hazelden et al.

A GRU at rest obeys h = n with n = tanh(W_in x + b_in + r * (W_hn h + b_hn)): the gate z says only how fast it comes
to rest. The gate r of a wanted point is known beforehand, so that W_hn has to send every h_i to
q_i = (artanh(h_i) - b_in) / r(h_i) - b_hn:

    W_hn <- Q H+ + W_hn (1 - H H+),    H = (h_1 ... h_m),  Q = (q_1 ... q_m),

with the pseudo-inverse H+, which is H* / |h|^2 where the points are orthogonal. Points have entries ±k, the same k in
all units: the slope along one of them at another is about (1 - k^2) artanh(k) / k < 1, and they can be stable. Points
k e_i on single units are not, since such a unit leaves zero by itself: only those with all of these units on are.

A GRU is not odd, since r(-h) = 1 - r(h) without biases: mirror images of the points are not fixed points, but there
are some near them, and mixtures may be stable too. ``find_fixed_points`` tells how many there are altogether.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.seeds import Seed, torch_generator
from foretrain.training.fixed_points.search import FixedPoints, Step, described

_DRAWS = 100
_ROUNDING = 1e-3  # how far single precision may move a point


def plant_fixed_points(
    gru: nn.RNNBase, count: int = 5, *, amplitude: float = 0.6, seed: Seed = 0
) -> FixedPoints:
    """Change the recurrent weights of a GRU's candidate so that it has stable fixed points at zero input.

    Each is a random pattern of ±amplitude; other weights stay. Patterns are drawn again, up to 100 times, until all
    are stable: they often are not if there are few units for each or the amplitude is small. Near 1 they are steep
    wells that inputs hardly choose between; smaller ones lie in a landscape with slow directions. Returned are the
    points after rounding to the module's precision, in float64; mirror images and mixtures are not among them.
    """
    step = Step.of(gru, None)
    if not isinstance(gru, nn.GRU):
        raise NotSupportedError("plant_fixed_points changes the candidate of a GRU: give it an nn.GRU.")
    units = gru.hidden_size
    if not 1 <= count <= units:
        raise InputError(f"count is {count}, but a GRU of {units} units has room for 1 to {units} points.")
    if not 0 < amplitude < 1:
        raise InputError(
            f"amplitude is {amplitude}, but states of a GRU lie between -1 and 1: choose e.g. 0.9."
        )
    weight = gru.get_parameter("weight_hh_l0")
    source, before = torch_generator(seed), weight.detach().clone()
    for _ in range(_DRAWS):
        signs = torch.randint(0, 2, (count, units), generator=source)
        patterns = amplitude * (2 * signs - 1).double()
        _write_candidate(gru, patterns, step)
        found = described(Step.of(gru, None), patterns, torch.ones(count, dtype=torch.int64))
        if bool(found.stable.all()) and float((found.points.abs() - amplitude).abs().max()) < _ROUNDING:
            return found
    weight.data.copy_(before)
    raise InputError(
        f"no {_DRAWS} draws of {count} points of amplitude {amplitude} in {units} units were all stable: choose an "
        "amplitude nearer to 1, fewer points, more units or smaller recurrent weights."
    )


def _write_candidate(gru: nn.RNNBase, patterns: Tensor, step: Step) -> None:
    """W_hn such that every pattern is its own candidate at zero input."""
    units = gru.hidden_size
    reset = torch.sigmoid(step.products(patterns) + step.given)[:, :units]
    bias, given = (part[2 * units :] for part in (step.bias, step.given))
    wanted = (torch.atanh(patterns) - given) / reset - bias
    inverse = torch.linalg.pinv(patterns.t())
    old = step.weight[2 * units :]
    new = wanted.t() @ inverse + old - old @ patterns.t() @ inverse
    weight = gru.get_parameter("weight_hh_l0")
    with torch.no_grad():
        weight[2 * units :] = new.to(weight)
