"""What a prediction needs of a network and its inputs, whatever the targets: kernels, and tensors of four samples.

Training samples stand at three places of a tensor, any sample at the fourth. Test samples never meet one another:
N_A^4 entries for the training samples and N_A^3 for every test sample are enough, and are computed a few test samples
at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.arguments import Array
from foretrain.support.errors import NotSupportedError
from foretrain.support.memory import require_memory
from foretrain.support.progress import Progress
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.flow import flow
from foretrain.theory.prediction.cholesky import Modes, spectrum_of
from foretrain.theory.prediction.kernels import OutputKernels, Spread, output_kernels
from foretrain.theory.recursions.kinks import slope_jumps

Indices = NDArray[np.intp]

Places = tuple[int, int]
Entry = tuple[str, int]
"""A tensor, and at which of its places the sample stands that is predicted."""

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


def sample_tensors(mlp: MLP, train: Array, others: Array, tolerance: float) -> dict[Entry, Array]:
    """Entries of other samples with training samples at the three remaining places: (N, A, A, A)."""
    size = len(train)
    triples = np.indices((size,) * 3).reshape(3, -1).T
    found = {entry: np.empty((len(others), *(size,) * 3)) for entry in ENTRIES}
    with Progress("test inputs", total=len(others)) as bar:
        together = max(1, _TOGETHER // (4 * len(triples)))
        for start in range(0, len(others), together):
            part = slice(start, min(start + together, len(others)))
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


_STILL = 1e-12  # of the largest eigenvalue: along smaller ones no network of the ensemble moves
_TESTS_TOGETHER = 500  # test inputs, since their tangent kernels with one another are not wanted


@dataclass(frozen=True, eq=False, repr=False)
class Store:
    """Kernels and tensors of the output layer; what is not asked for is not computed."""

    mlp: MLP
    train: Array  # (A, n_in)
    test: Array  # (B, n_in)
    kernels: OutputKernels
    tolerance: float

    @classmethod
    def of(cls, mlp: MLP, X_train: ArrayLike, X_test: ArrayLike, spread: Spread, tolerance: float) -> Store:
        """From inputs, or an error if the theory does not hold for such a network."""
        check_network(mlp)
        check_kind(mlp)
        train = mlp.check_inputs(X_train, "X_train")
        mlp = mlp.with_inputs(train)
        test = mlp.check_inputs(X_test, "X_test")
        return cls(mlp, train, test, output_kernels(mlp, train, test, spread=spread), tolerance)

    def rescaled(self, mlp: MLP) -> Store:
        """The same for a network with other widths in the same ratios, with all that is known already."""
        found = replace(self, mlp=mlp)
        for name in ("modes", "training", "tests", "shift", "alone"):
            if name in self.__dict__:
                found.__dict__[name] = self.__dict__[name]
        return found

    @property
    def width(self) -> int:
        """n_{L-1}, which divides all corrections."""
        return self.mlp.widths[-2]

    @cached_property
    def modes(self) -> Modes:
        """The eigenbasis of Theta_AA, without the directions in which repeated inputs never move."""
        values, vectors = spectrum_of(self.kernels.Theta_train)
        if not values[-1] > 0:
            raise NotSupportedError(
                "the tangent kernel is zero, so that nothing is learned: give positive learning rates."
            )
        moving = values > _STILL * values[-1]
        return Modes(values[moving], vectors[:, moving])

    @cached_property
    def training(self) -> dict[Entry, Array]:
        """Tensors among training inputs (A, A, A, A), the axis of the predicted one first."""
        require_resources(self.mlp, len(self.train), 0)
        found = flow(self.mlp, self.train, NAMES, tolerance=self.tolerance)
        last = {name: found[name].values[-1] for name in NAMES}
        return {(name, place): np.moveaxis(last[name], place, 0) for name, place in ENTRIES}

    @cached_property
    def tests(self) -> dict[Entry, Array]:
        """Tensors of a test input with training inputs (B, A, A, A)."""
        require_resources(self.mlp, len(self.train), len(self.test))
        return sample_tensors(self.mlp, self.train, self.test, self.tolerance)

    @cached_property
    def shift(self) -> tuple[Array, Array]:
        """n times the 1/n part of the mean tangent kernel, H1_AA and H1_BA."""
        size, parts = len(self.train), []
        for start in range(0, max(1, len(self.test)), _TESTS_TOGETHER):
            inputs = np.concatenate([self.train, self.test[start : start + _TESTS_TOGETHER]])
            parts.append(flow(self.mlp, inputs, ["H1"], tolerance=self.tolerance)["H1"].values[-1])
        return parts[0][:size, :size], np.concatenate([part[size:, :size] for part in parts])

    @cached_property
    def alone(self) -> dict[str, Array]:
        """Every tensor with the same training input on all its legs: (A,)."""
        quadruples = np.repeat(np.arange(len(self.train))[:, None], 4, axis=1)
        found = flow(self.mlp, self.train, NAMES, quadruples=quadruples, tolerance=self.tolerance)
        return {name: found[name].values[-1] for name in NAMES}

    def pairs(self, wanted: Mapping[str, tuple[Places, ...]]) -> dict[tuple[str, Places], Array]:
        """Tensors of pairs of samples, training and test, with training inputs on two legs (D, D, A, A)."""
        samples = np.concatenate([self.train, self.test])
        return pair_tensors(self.mlp, self.train, samples, wanted, self.tolerance)


def check_kind(mlp: MLP) -> None:
    """An error if the theory does not hold for such a network."""
    if mlp.is_residual:
        raise NotSupportedError(
            "training at finite width is known for networks without skip connections only: leave `gamma` out, or "
            'predict with regime="infinite".'
        )
    if slope_jumps(mlp.activation):
        raise NotSupportedError(
            f"training at finite width is not an expansion in 1/n for {mlp.activation.label}, whose slope jumps: "
            'choose a smooth activation, such as gelu or swish, or predict with regime="infinite".'
        )
