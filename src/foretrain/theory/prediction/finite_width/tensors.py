"""The tensors of four samples that a prediction needs: training samples at three places, any sample at the fourth.

Test samples never meet one another: N_A^4 entries for the training samples and N_A^3 for every test sample are
enough, and are computed a few test samples at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from foretrain.support.errors import NotSupportedError
from foretrain.support.memory import require_memory
from foretrain.support.progress import Progress
from foretrain.theory.architecture import MLP
from foretrain.theory.flow import flow
from foretrain.theory.prediction.finite_width.weights import Entry

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Places = tuple[int, int]

NAMES = tuple("ABPQRSTU")
ENTRIES: tuple[Entry, ...] = (
    *((name, 0) for name in NAMES),
    *((name, 1) for name in "PQRT"),
    *((name, 2) for name in "QS"),
    *((name, 3) for name in "RU"),
)
"""The places at which the predicted sample occurs in (∞.162)-(∞.165)."""

# Of what the recursions look up for a quadruple, and the index sets of its products.
_BYTES_PER_QUADRUPLE = 15_000
_TOGETHER = 20_000  # quadruples
_SECONDS_PER_SET = 0.1  # for four different inputs at one layer, by quadrature on one core
_MOST_SECONDS = 6 * 3600.0
WAY_OUT = "use fewer training or test inputs, or draws= for a sampled sum"


def training_tensors(mlp: MLP, train: Array, tolerance: float) -> dict[Entry, Array]:
    """All entries among training samples: (A, A, A, A), the axis of the predicted one first."""
    found = flow(mlp, train, NAMES, tolerance=tolerance)
    last = {name: found[name].values[-1] for name in NAMES}
    return {(name, place): np.moveaxis(last[name], place, 0) for name, place in ENTRIES}


def sample_tensors(mlp: MLP, train: Array, others: Array, tolerance: float) -> dict[Entry, Array]:
    """Entries of other samples with training samples at the three remaining places: (N, A, A, A)."""
    size = len(train)
    triples = np.indices((size,) * 3).reshape(3, -1).T
    found = {entry: np.empty((len(others), *(size,) * 3)) for entry in ENTRIES}
    with Progress("test inputs", total=len(others)) as bar:
        for part in _parts(len(others), 4 * len(triples)):
            for entry, values in at_triples(mlp, train, others[part], triples, tolerance).items():
                found[entry][part] = values.reshape(-1, *(size,) * 3)
            bar.advance(part.stop - part.start)
    return found


def at_triples(
    mlp: MLP, train: Array, others: Array, triples: Indices, tolerance: float
) -> dict[Entry, Array]:
    """Entries (N, T) of other samples with chosen triples (T, 3) of training samples."""
    numbers = len(train) + np.arange(len(others))
    legs = np.broadcast_to(triples, (len(others), *triples.shape))
    own = np.broadcast_to(numbers[:, None], legs.shape[:2])
    placed = [np.insert(legs, place, own, axis=2) for place in range(4)]
    quadruples = np.stack(placed).reshape(-1, 4)
    values = flow(mlp, np.concatenate([train, others]), NAMES, quadruples=quadruples, tolerance=tolerance)
    shape = (4, len(others), len(triples))
    return {(name, place): values[name].values[-1].reshape(shape)[place] for name, place in ENTRIES}


def pair_tensors(
    mlp: MLP, train: Array, samples: Array, wanted: Mapping[str, tuple[Places, ...]], tolerance: float
) -> dict[tuple[str, Places], Array]:
    """Entries (N, N, A, A) of pairs of samples at the two places ``wanted``, and training samples at the others."""
    N, A = len(samples), len(train)
    kinds = sorted({places for chosen in wanted.values() for places in chosen})
    require_time(mlp, N * (N + 1) / 2 * math.comb(A + 1, 2), "use fewer training or test inputs")
    require_memory(
        8.0 * N**2 * A**2 * sum(map(len, wanted.values())) + _BYTES_PER_QUADRUPLE * len(kinds) * N * A**2,
        f"the tensors of all pairs of {N:,} samples with {A:,} training inputs",
        "use fewer training or test inputs",
    )
    second, left, right = np.indices((N, A, A)).reshape(3, -1)
    inputs = np.concatenate([train, samples])
    found = {(name, places): np.empty((N, N, A, A)) for name, chosen in wanted.items() for places in chosen}
    with Progress("samples", total=N) as bar:
        for number in range(N):
            pair = np.full(len(second), A + number), second + A
            quadruples = []
            for places in kinds:  # the pair at two places, and two training samples at those that remain
                remaining = [place for place in range(4) if place not in places]
                columns = dict(zip((*places, *remaining), (*pair, left, right), strict=True))
                quadruples.append(np.stack([columns[place] for place in range(4)], axis=1))
            chosen = np.concatenate(quadruples)
            values = flow(mlp, inputs, tuple(wanted), quadruples=chosen, tolerance=tolerance)
            for name, places in found:
                whole = values[name].values[-1].reshape(len(kinds), N, A, A)
                found[name, places][number] = whole[kinds.index(places)]
            bar.advance()
    return found


def require_resources(mlp: MLP, training: int, tests: int) -> None:
    """Refuse tensors that do not fit into memory, or into a few hours."""
    sets = math.comb(training, 4) + tests * math.comb(training, 3)
    require_time(mlp, sets, WAY_OUT)
    kept = 8.0 * (len(ENTRIES) * tests + (len(NAMES) * mlp.depth + 160) * training) * training**3
    together = max(_TOGETHER, 4 * training**3) if tests else 0
    require_memory(
        kept + _BYTES_PER_QUADRUPLE * together,
        f"the finite-width tensors of {training:,} training and {tests:,} test inputs",
        WAY_OUT,
    )


def require_time(mlp: MLP, sets: float, way_out: str) -> None:
    """Refuse integrals over this many sets of four inputs that would take hours."""
    seconds = _SECONDS_PER_SET * sets * (mlp.depth - 1)
    if seconds > _MOST_SECONDS:
        layers = f"{mlp.depth - 1:,} hidden layer{'s' * (mlp.depth != 2)}"
        raise NotSupportedError(
            f"the integrals over {sets:,.0f} sets of four inputs in {layers} may take about "
            f"{seconds / 3600:,.0f} hours: {way_out}."
        )


def _parts(count: int, quadruples: int) -> Iterator[slice]:
    size = max(1, _TOGETHER // quadruples)
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))
