"""Which random networks are drawn for the observables asked for, and by which method."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from foretrain.compare.ensembles import METHODS
from foretrain.compare.initial.observables import DIFFERENTIAL, TANGENT
from foretrain.compare.judging.ladder import WIDTH_OVER_DEPTH, Ladder, rounded_up, rungs_of, share_draws
from foretrain.support.arguments import whole_number
from foretrain.support.errors import NotSupportedError, unknown_name
from foretrain.theory.architecture import MLP

_BATCHES = 1000
_FEWEST_BATCHES = 50
_TANGENT_WIDTH_OVER_DEPTH = 4.0  # carrying NTKs costs n³: as narrow as a quadratic in 1/n can be trusted
_MOST_NUMBERS = 1e10  # random numbers beyond which weights are not drawn one by one unless asked for


def plan(
    mlp: MLP, inputs: int, draws: int, scales: Sequence[float] | None, method: str, names: Sequence[str]
) -> Ladder:
    """Widths and draws for the observables asked for; NTKs and their differentials are carried by weights."""
    tangent = bool({*names} & {*TANGENT})
    carried = tangent or bool({*names} & {*DIFFERENTIAL})
    narrow = tangent and not {*names} & {*DIFFERENTIAL}
    rungs = rungs_of(mlp, scales, _TANGENT_WIDTH_OVER_DEPTH if narrow else WIDTH_OVER_DEPTH)
    if method not in ("auto", *METHODS):
        raise unknown_name("sampling method", str(method), ("auto", *METHODS))
    if carried and method == "conditional":
        raise NotSupportedError("the NTK is carried by weights: use `method='weights'`.")
    whole_number("draws", draws, least=10 * _FEWEST_BATCHES)
    allowed = (method,) if method != "auto" else ("weights",) if carried else METHODS
    for chosen in allowed:
        numbers = [_numbers_per_draw(network, inputs, chosen) for network in rungs.networks]
        costs = np.array(numbers, dtype=float)
        if tangent:  # products of matrices n × n take the time
            costs *= [max(network.hidden_widths) for network in rungs.networks]
        shares = share_draws(rungs.inverse, costs, int(draws))
        if np.dot(numbers, shares) <= _MOST_NUMBERS:
            break
    batches = max(_FEWEST_BATCHES, min(_BATCHES, min(shares) // 4))
    return Ladder(*rungs, rounded_up(shares, batches), chosen, batches)


def _numbers_per_draw(mlp: MLP, inputs: int, method: str) -> int:
    """Random numbers of one network, up to the last hidden layer."""
    if method == "conditional":
        return inputs * sum(mlp.hidden_widths)
    return sum(n * fan_in for fan_in, n in pairwise(mlp.widths[:-1]))
