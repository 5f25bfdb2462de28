"""The mean prediction at order 1/n, n times each of its parts (∞.160)-(∞.165), corrected.

The mean of output i on a sample d is a sum over tensors, over places of d among their four indices, and over training
samples on the other three: sum_abc tensor[.. d ..]_abc weight_i,abc. The weights hold all that depends on the targets
and on the algorithm. With [m]_b = m_b - Theta_bA Theta_AA^-1 m_A, training adds [m]_b to a test output, and
Theta_bA Theta_AA^-1 times what it has added to the training outputs, which is nothing at the end.

For more training samples than all entries allow, sets of three are drawn with probabilities in proportion to the
weights that they have in the sum. All orders of a drawn set are summed, with exact tensors, and all test and training
samples at the fourth place. So the mean over draws has no bias, and its scatter is the standard error.

With u = [z] the part of the initial outputs that training leaves, and l = -[H - Theta] Theta^-1 eps, an output ends
at Theta_bA Theta_AA^-1 y + u + l + c, where c are the terms of the mean prediction before their average. To order
1/n the covariance has u with u (the 1/n part of the metric), u with l (D, F), l with l (A, B), and u with c: there
u meets an initial output in an error, which makes a derivative of the mean by the targets, or it meets a dNTK (P,
Q). The book prints one part of it (∞.167).

Training samples stand at three places of a tensor, any sample at the fourth. Test samples never meet one another:
N_A^4 entries for the training samples and N_A^3 for every test sample are enough, and are computed a few test samples
at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.arguments import Array, whole_number
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.memory import require_memory
from foretrain.support.progress import Progress, track
from foretrain.support.seeds import Seed, generator
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.flow import flow
from foretrain.theory.prediction.algorithms import Course, Plan
from foretrain.theory.prediction.cholesky import Modes, spectrum_of
from foretrain.theory.prediction.kernels import OutputKernels, Spread, output_kernels
from foretrain.theory.recursions.kinks import slope_jumps

if TYPE_CHECKING:
    import xarray as xr


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
        size = len(self.train)
        triples = np.indices((size,) * 3).reshape(3, -1).T
        found = {entry: np.empty((len(self.test), *(size,) * 3)) for entry in ENTRIES}
        with Progress("test inputs", total=len(self.test)) as bar:
            together = max(1, _TOGETHER // (4 * len(triples)))
            for start in range(0, len(self.test), together):
                part = slice(start, min(start + together, len(self.test)))
                for entry, values in at_triples(
                    self.mlp, self.train, self.test[part], triples, self.tolerance
                ).items():
                    found[entry][part] = values.reshape(-1, *(size,) * 3)
                bar.advance(part.stop - part.start)
        return found

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
        N, A = len(samples), len(self.train)
        kinds = sorted({places for chosen in wanted.values() for places in chosen})
        require_time(self.mlp, N * (N + 1) / 2 * math.comb(A + 1, 2), "use fewer training or test inputs")
        require_memory(
            8.0 * N**2 * A**2 * sum(map(len, wanted.values())) + _BYTES_PER_QUADRUPLE * len(kinds) * N * A**2,
            f"the tensors of all pairs of {N:,} samples with {A:,} training inputs",
            "use fewer training or test inputs",
        )
        second, left, right = np.indices((N, A, A)).reshape(3, -1)
        inputs = np.concatenate([self.train, samples])
        found = {
            (name, places): np.empty((N, N, A, A)) for name, chosen in wanted.items() for places in chosen
        }
        with Progress("samples", total=N) as bar:
            for number in range(N):
                pair = np.full(len(second), A + number), second + A
                quadruples = []
                for places in kinds:  # the pair at two places, and two training samples at those that remain
                    remaining = [place for place in range(4) if place not in places]
                    columns = dict(zip((*places, *remaining), (*pair, left, right), strict=True))
                    quadruples.append(np.stack([columns[place] for place in range(4)], axis=1))
                chosen = np.concatenate(quadruples)
                values = flow(self.mlp, inputs, tuple(wanted), quadruples=chosen, tolerance=self.tolerance)
                for name, places in found:
                    whole = values[name].values[-1].reshape(len(kinds), N, A, A)
                    found[name, places][number] = whole[kinds.index(places)]
                bar.advance()
        return found


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


Weights = dict[Entry, Array]

ORIGINS = ("ntk_mean", "ntk_variance", "dntk", "ddntk_1", "ddntk_2")
"""The parts of the correction, in the order of (∞.160)."""
FOURFOLD = ORIGINS[1:]
"""Those of them that come from tensors of four samples."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Errors before training along the modes of the training kernel: means -y (outputs, M), covariance K (M, M)."""

    y: Array
    K: Array

    @property
    def outputs(self) -> int:
        """n_L."""
        return len(self.y)

    def cubic(self) -> Array:
        """-E[eps_i4 sum_j eps_j5 eps_j6] without what three independent outputs leave out: w_i;456."""
        y, K = self.y, self.K
        pairs = np.einsum("jb,jc->bc", y, y) + self.outputs * K
        return np.asarray(
            np.einsum("ia,bc->iabc", y, pairs)
            + np.einsum("ib,ca->iabc", y, K)
            + np.einsum("ic,ab->iabc", y, K)
        )


def weights_of(course: Course, errors: Moments) -> dict[str, Weights]:
    """The weights along modes (outputs, M, M, M), by the origin of the contribution."""
    Z = course.projectors
    first, second = second_differential_weights(Z.IA, Z.IB, Z.IIA, Z.IIB, errors.cubic())
    return {
        "ntk_variance": variance_weights(course.variance, errors),
        "dntk": dntk_weights(Z.A, Z.B + Z.B.T, errors),
        "ddntk_1": first,
        "ddntk_2": second,
    }


def variance_weights(variance: Array, errors: Moments) -> Weights:
    """Of A_(d1)(23) + B_d213 + n_L B_d312, where 1 and 2 share a mode (∞.162)."""
    same = np.einsum("pr,pq,iq->iprq", np.eye(len(variance)), variance, errors.y)
    return {("A", 0): same, ("B", 0): same + errors.outputs * np.einsum("iprq->iqpr", same)}


def dntk_weights(Z_A: Array, Z_B_twice: Array, errors: Moments) -> Weights:
    """(∞.163): -(P_d123 + Q_d123 + n_L Q_d213) Z_B-part y_4 - (n_L P_1d23 + Q_1d23 + Q_12d3) Z_A^1234 y_4
    - (P_1d23 + n_L Q_1d23 + Q_12d3) Z_A^1243 y_4.
    """
    one, outputs = np.eye(len(Z_A)), errors.outputs
    front = -np.einsum("pr,pq,iq->ipqr", one, Z_B_twice, errors.y)
    crossed = -np.einsum("pr,pq,iq->ipqr", one, Z_A, errors.y)
    straight = -np.einsum("qr,pq,ip->ipqr", one, Z_A, errors.y)
    return {
        ("P", 0): front,
        ("Q", 0): front + outputs * np.einsum("ipqr->iqpr", front),
        ("P", 1): outputs * crossed + straight,
        ("Q", 1): crossed + outputs * straight,
        ("Q", 2): crossed + straight,
    }


def second_differential_weights(
    Z_IA: Array, Z_IB: Array, Z_IIA: Array, Z_IIB: Array, cubic: Array
) -> tuple[Weights, Weights]:
    """(∞.164) of R, and (∞.165) of S, T, U with the index orders of T and U the right way round."""
    turned, back = np.einsum("irpq->ipqr", cubic), np.einsum("iqrp->ipqr", cubic)
    first: Weights = {
        ("R", 0): -(Z_IB + _cycled(Z_IB) + _cycled(_cycled(Z_IB))) * cubic,
        ("R", 1): -Z_IA * cubic,
        ("R", 3): -Z_IA * turned - np.einsum("ipqr->iprq", Z_IA * back),
    }
    second: Weights = {
        ("S", 0): -Z_IIB * cubic,
        ("T", 0): -_cycled(_cycled(Z_IIB)) * cubic,
        ("U", 0): -_cycled(Z_IIB) * cubic,
        ("S", 2): -Z_IIA * turned,
        ("T", 1): -np.einsum("ipqr->iprq", Z_IIA * cubic),
        ("U", 3): -np.einsum("ipqr->iprq", Z_IIA * back),
    }
    return first, second


def on_samples(weights: Weights, vectors: Array) -> Weights:
    """The same for the training samples (outputs, A, A, A), from those along modes."""
    return {
        entry: np.einsum("ipqr,ap,bq,cr->iabc", cube, vectors, vectors, vectors, optimize=True)
        for entry, cube in weights.items()
    }


def _cycled(Z: Array) -> Array:
    """Z(q, r, p) at p, q, r: the order 231564 of its indices."""
    return np.asarray(np.einsum("qrp->pqr", Z))


def errors_of(store: Store, targets: Array) -> Moments:
    """Errors before training along the modes of the training kernel."""
    basis = store.modes.vectors
    return Moments((basis.T @ targets).T, basis.T @ store.kernels.K_train @ basis)


def interpolation(store: Store) -> Array:
    """Theta_BA Theta_AA^-1 acting on modes: (B, M)."""
    return np.asarray(store.kernels.Theta_cross @ store.modes.vectors / store.modes.values)


def projection(store: Store) -> Array:
    """[..] on all samples, training samples first: (-Theta_BA Theta_AA^-1, 1), (B, D)."""
    back = interpolation(store) @ store.modes.vectors.T
    return np.concatenate([-back, np.eye(len(back))], axis=1)


def pairs_of_errors(store: Store, targets: Array, Z: Array) -> Array:
    """Z E[eps_j eps_k] on training samples: (outputs, outputs, A, A)."""
    errors, basis = errors_of(store, targets), store.modes.vectors
    moments = np.einsum("jp,kq->jkpq", errors.y, errors.y)
    moments += np.einsum("jk,pq->jkpq", np.eye(errors.outputs), errors.K)
    return np.asarray(np.einsum("pq,jkpq,ap,bq->jkab", Z, moments, basis, basis, optimize=True))


def mean_terms(store: Store, targets: Array, plan: Plan) -> dict[str, Array]:
    """n times every term of the correction to the mean on the tests: (tests, outputs)."""
    errors, course = errors_of(store, targets), plan.course()
    found = {"ntk_mean": shift_term(store, errors, course.mean)}
    found |= {origin: bracket(store, weights) for origin, weights in weights_of(course, errors).items()}
    if plan.time is None:
        return found
    closing, back = _on_training_modes(store, errors, plan), interpolation(store)
    return {origin: value + back @ closing[origin] for origin, value in found.items()}


def bracket(store: Store, weights: Weights) -> Array:
    """[m]_b of the sum of tensors with weights along modes: (tests, outputs)."""
    basis = store.modes.vectors
    there = on_samples(weights, basis)
    trained = basis.T @ contracted(store.training, there)
    return np.asarray(contracted(store.tests, there) - interpolation(store) @ trained)


def contracted(tensors: dict[Entry, Array], weights: Weights) -> Array:
    """The sum over training samples on all other legs: (samples, outputs)."""
    parts = [
        np.einsum("dabc,iabc->di", tensors[entry], cube, optimize=True) for entry, cube in weights.items()
    ]
    return np.asarray(sum(parts))


def shift_term(store: Store, errors: Moments, mean: Array) -> Array:
    """(h_BA - Theta_BA Theta_AA^-1 h_AA) f(Theta_AA) y, with h the 1/n part of the mean tangent kernel."""
    basis, (train, cross) = store.modes.vectors, store.shift
    fitted = basis @ (mean[:, None] * errors.y.T)
    return np.asarray(cross @ fitted - interpolation(store) @ (basis.T @ (train @ fitted)))


def _on_training_modes(store: Store, errors: Moments, plan: Plan) -> dict[str, Array]:
    """What training has added to the training outputs along their modes (M, outputs), on the way to the end."""
    basis, values = store.modes.vectors, store.modes.values
    tensors = {entry: np.einsum("dabc,dk->kabc", cube, basis) for entry, cube in store.training.items()}
    shift = basis.T @ store.shift[0] @ basis
    found: dict[str, list[Array]] = {}
    for k, rate in enumerate(track(values, "modes")):
        course = plan.course(float(rate))
        found.setdefault("ntk_mean", []).append(errors.y @ (course.mean * shift[k]))
        own = {entry: cube[k : k + 1] for entry, cube in tensors.items()}
        for origin, weights in weights_of(course, errors).items():
            found.setdefault(origin, []).append(contracted(own, on_samples(weights, basis))[0])
    return {origin: np.stack(rows) for origin, rows in found.items()}


_SAMPLED_TOGETHER = 20_000  # quadruples
_WAY_OUT = "use fewer draws= or fewer training and test inputs"


class Sampled(NamedTuple):
    """n times every term (tests, outputs), and the standard error of their sum."""

    terms: dict[str, Array]
    standard_error: Array


def sampled_terms(store: Store, targets: Array, plan: Plan, draws: int, seed: Seed) -> Sampled:
    """n times the terms of :func:`mean_terms` at the end of training, from ``draws`` sets of inputs."""
    draws = whole_number("draws", draws, least=2)
    if plan.time is not None:
        raise InputError("`draws=` samples the end of training only: leave `time` out, or `draws`.")
    errors, course, size = errors_of(store, targets), plan.course(), len(store.train)
    require_memory(
        16.0 * len(ENTRIES) * errors.outputs * size**3, f"the weights of {size:,} training inputs", _WAY_OUT
    )
    require_time(store.mlp, draws * (size + len(store.test)), _WAY_OUT)
    by_origin = {
        origin: on_samples(part, store.modes.vectors) for origin, part in weights_of(course, errors).items()
    }
    sets = _sets(store, by_origin)
    drawn = generator(seed).choice(len(sets.probability), size=draws, p=sets.probability)
    chosen, counts = np.unique(drawn, return_counts=True)
    if len(chosen) == 1 < len(sets.probability):
        raise InputError(
            f"all {draws} draws are of the same inputs, so that nothing is known of their error: give more `draws=`, "
            "or leave `draws` out."
        )
    values = _values(store, by_origin, sets, chosen)
    share = counts / draws
    terms = {"ntk_mean": shift_term(store, errors, course.mean)}
    terms |= {name: np.einsum("t,btj->bj", share, values[place]) for place, name in enumerate(FOURFOLD)}
    whole = values.sum(axis=0)
    mean = np.einsum("t,btj->bj", share, whole)
    scatter = np.einsum("t,btj->bj", share, (whole - mean[:, None]) ** 2)
    return Sampled(terms, np.sqrt(scatter / (draws - 1)))


class _Sets(NamedTuple):
    """Sets of three training samples: all orders (A^3, 3) by set, where those of a set start, how likely it is."""

    triples: Indices
    starts: Indices  # with the end of the last
    probability: Array


def _sets(store: Store, by_origin: dict[str, Weights]) -> _Sets:
    """Probabilities from the sum of all weights of a set, each with the size that its tensor has on one input."""
    size = len(store.train)
    total = np.zeros((size,) * 3)
    for weights in by_origin.values():
        for (name, _), cube in weights.items():
            total += np.abs(cube).sum(axis=0) * math.sqrt(float(np.mean(store.alone[name] ** 2)))
    triples = np.indices((size,) * 3).reshape(3, -1).T
    places = np.sort(triples, axis=1) @ np.array([size**2, size, 1])
    order = np.argsort(places, kind="stable")
    starts = np.flatnonzero(np.diff(places[order], prepend=-1))
    likely = np.add.reduceat(total.ravel()[order], starts)
    whole = float(likely.sum())
    likely = likely / whole if whole else np.full(len(starts), 1 / len(starts))
    return _Sets(triples[order], np.append(starts, len(triples)), likely)


def _values(store: Store, by_origin: dict[str, Weights], sets: _Sets, chosen: Indices) -> Array:
    """What every chosen set says about the terms: (origins, tests, sets, outputs)."""
    samples = np.concatenate([store.train, store.test])
    outputs = store.mlp.n_out
    require_memory(
        8.0 * len(FOURFOLD) * len(store.test) * len(chosen) * outputs,
        f"{len(chosen):,} sampled sets",
        _WAY_OUT,
    )
    project = projection(store)
    found = np.empty((len(FOURFOLD), len(store.test), len(chosen), outputs))
    step = max(1, _SAMPLED_TOGETHER // (24 * len(samples)))
    with Progress("sampled sets of inputs", total=len(chosen)) as bar:
        for start in range(0, len(chosen), step):
            part = chosen[start : start + step]
            rows = [sets.triples[sets.starts[each] : sets.starts[each + 1]] for each in part]
            legs, first = np.concatenate(rows), np.cumsum([0, *map(len, rows[:-1])])
            tensors = at_triples(store.mlp, store.train, samples, legs, store.tolerance)
            at = (slice(None), *legs.T)
            for place, name in enumerate(FOURFOLD):
                pieces = [
                    np.einsum("dt,jt->dtj", tensors[entry], cube[at])
                    for entry, cube in by_origin[name].items()
                ]
                summed = np.add.reduceat(sum(pieces), first, axis=1) / sets.probability[part][:, None]
                found[place, :, start : start + step] = np.einsum("bd,dtj->btj", project, summed)
            bar.advance(len(part))
    return found


PairTensors = dict[tuple[str, Places], Array]

FIRST, MIDDLE, LAST = (0, 1), (0, 2), (0, 3)
"""Where two samples stand that are not trained on, in the order of a tensor's indices."""
_IN_FRONT = {"P": (LAST,), "Q": (LAST,)}
_ALL = {
    "A": (MIDDLE,),
    "B": (FIRST, LAST),
    "D": (MIDDLE,),
    "F": (FIRST, LAST),
    "P": (LAST, (1, 3)),
    "Q": (LAST, (1, 3), (2, 3)),
}
_MEANINGS = {
    "metric": "1/n part of the metric of initial outputs",
    "ntk_and_output": "initial outputs with the tangent kernel (D, F)",
    "ntk_variance": "fluctuations of the tangent kernel with each other (A, B)",
    "mean_response": "initial outputs as a shift of the targets in the mean prediction",
    "dntk_and_output": "initial outputs with the dNTK (P, Q), of which (∞.167) is a part",
}


def covariance_parts(store: Store, targets: Array, plan: Plan) -> dict[str, Array]:
    """All parts with their 1/n: (tests, tests, outputs, outputs)."""
    if plan.time is not None:
        raise NotSupportedError(
            "the covariance at order 1/n is known at the end of training only: leave `time` out."
        )
    tensors = store.pairs(_ALL)
    project, one = projection(store), np.eye(targets.shape[1])
    samples = np.concatenate([store.train, store.test])
    metric = flow(store.mlp, samples, ["G1"], tolerance=store.tolerance)["G1"].values[-1]
    values, vectors = store.modes.values, store.modes.vectors
    # -E[z_x H_ya z_b]_c Theta^ab: -(D_xbya + n_L F_xyba + F_xaby) Theta^ab for equal outputs.
    inverse = (vectors / values) @ vectors.T
    joined = tensors["D", MIDDLE] + len(one) * tensors["F", FIRST] + tensors["F", LAST]
    ntk_and_output = -np.einsum("xyab,ab,ij->xyij", joined, inverse, one, optimize=True)
    # E[dH_axb z_y] Z_A E[eps_a eps_b]: Q_abxy for equal outputs, Q_axby straight, P_axby crossed.
    errors = pairs_of_errors(store, targets, plan.course().projectors.A)
    dntk_between = _joined(tensors["Q", (2, 3)], tensors["Q", (1, 3)], tensors["P", (1, 3)], errors)
    # E[H_xa H_yb]_c Theta^-1 Theta^-1 E[eps eps]: B_xyab for equal outputs, A_(xa)(yb) straight, B_xbay crossed.
    errors = pairs_of_errors(store, targets, 1 / np.multiply.outer(values, values))
    crossed = tensors["B", LAST].swapaxes(2, 3)
    across = {
        "ntk_and_output": ntk_and_output,
        "dntk_and_output": dntk_in_front(tensors, store, targets, plan) + dntk_between,
    }
    raw = {
        "metric": np.einsum("xy,ij->xyij", metric, one),
        "ntk_variance": _joined(tensors["B", FIRST], tensors["A", MIDDLE], crossed, errors),
        **{name: part + part.transpose(1, 0, 3, 2) for name, part in across.items()},
    }
    found = {
        name: np.einsum("xa,abij,yb->xyij", project, part, project, optimize=True)
        for name, part in raw.items()
    }
    # -E[z_a u_y] d(mean of x)/dy_a, exact, since the mean is a cubic polynomial of the targets.
    kernels, tests, outputs = store.kernels, len(store.test), targets.shape[1]
    basis = store.modes.vectors
    weights = projection(store)[:, : len(store.train)]
    moved = kernels.K_cross + weights @ kernels.K_train
    moved = moved @ basis @ basis.T
    response = np.empty((tests, tests, outputs, outputs))
    for test in range(tests):
        for output in range(outputs):
            shift = np.multiply.outer(moved[test], np.eye(outputs)[output])
            mean = {k: sum(mean_terms(store, targets + k * shift, plan).values()) for k in (-2, -1, 1, 2)}
            slope = (8 * (mean[1] - mean[-1]) - (mean[2] - mean[-2])) / 12
            response[:, test, :, output] = -slope
    found["mean_response"] = response + response.transpose(1, 0, 3, 2)
    return {name: found[name] / store.width for name in _MEANINGS}


def dntk_of_the_book(store: Store, targets: Array, plan: Plan) -> Array:
    """n times the sum (∞.167) for all samples, without [..]: (D, D, outputs, outputs)."""
    return dntk_in_front(store.pairs(_IN_FRONT), store, targets, plan)


def dntk_in_front(tensors: PairTensors, store: Store, targets: Array, plan: Plan) -> Array:
    """E[dH_xab z_y] Z_B E[eps_a eps_b]."""
    errors = pairs_of_errors(store, targets, plan.course().projectors.B)
    P, Q = tensors["P", LAST], tensors["Q", LAST]
    return _joined(P, Q, Q.swapaxes(2, 3), errors)


def _joined(same: Array, straight: Array, crossed: Array, errors: Array) -> Array:
    """delta_ik same E_jj + straight E_ik + crossed E_ki, summed over training samples."""
    found = np.einsum("xyab,jjab->xy", same, errors, optimize=True)[:, :, None, None] * np.eye(len(errors))
    found = found + np.einsum("xyab,ikab->xyik", straight, errors, optimize=True)
    return np.asarray(found + np.einsum("xyab,kiab->xyik", crossed, errors, optimize=True))


_PAIRS = {
    "P": (FIRST,),
    "Q": (FIRST, MIDDLE),
    "R": (FIRST, MIDDLE, LAST),
    "S": (FIRST, MIDDLE),
    "T": (FIRST, LAST),
    "U": (MIDDLE, LAST),
}


@dataclass(frozen=True, eq=False)
class Changes:
    """What is computed on demand for one prediction."""

    store: Store
    targets: Array
    plan: Plan

    def ntk_change(self) -> xr.DataArray:
        """The mean of H(t) - H(0), with its 1/n: X_ab + X_ba with X_ab = -dH_abc a_c + (ddI + ddII)_abcd Z_B eps eps
        + ddII_acbd Z_A eps eps (∞.117).
        """
        import xarray as xr

        if self.plan.clock is None and not self.plan.leaps:
            raise NotSupportedError(
                "the change of the tangent kernel is known for gradient_descent, flow and two_step only, not for "
                "projectors in general: choose one of these."
            )
        tensors, outputs = self.store.pairs(_PAIRS), self.targets.shape[1]
        # The first differential: -(P_xy12 + n_L Q_xy12 + Q_x1y2) f^12 for equal outputs.
        basis = self.store.modes.vectors
        inverse = (basis * self.plan.course().mean) @ basis.T
        joined = tensors["P", FIRST] + outputs * tensors["Q", FIRST] + tensors["Q", MIDDLE]
        first = -np.einsum("xyab,ab,ik->xyik", joined, inverse, np.eye(outputs), optimize=True)
        # (R + S)_xy12, T_xy21 for equal outputs, (R + T)_x12y, S_x1y2 straight, (R + U)_x2y1, U_x21y crossed.
        projectors, one = self.plan.course().projectors, np.eye(self.targets.shape[1])
        A, B = (pairs_of_errors(self.store, self.targets, each) for each in (projectors.A, projectors.B))
        same = np.einsum("xyab,jjab->xy", tensors["R", FIRST] + tensors["S", FIRST], B, optimize=True)
        same += np.einsum("xyba,jjab->xy", tensors["T", FIRST], A, optimize=True)
        straight = np.einsum("xyab,ikab->xyik", tensors["R", LAST] + tensors["T", LAST], B, optimize=True)
        straight += np.einsum("xyab,ikab->xyik", tensors["S", MIDDLE], A, optimize=True)
        crossed = np.einsum("xyba,kiab->xyik", tensors["R", MIDDLE] + tensors["U", MIDDLE], B, optimize=True)
        crossed += np.einsum("xyba,kiab->xyik", tensors["U", LAST], A, optimize=True)
        half = first + np.asarray(same[:, :, None, None] * one + straight + crossed)
        whole = half + half.transpose(1, 0, 3, 2)
        dims = ("sample_1", "sample_2", "output_1", "output_2")
        meaning = "mean change of the tangent kernel by training, with its 1/n; training samples first"
        return xr.DataArray(
            whole / self.store.width, dims=dims, name="ntk_change", attrs={"meaning": meaning}
        )

    def covariance_correction(self) -> xr.Dataset:
        """All of order 1/n in the covariance at the end of training: its parts and their sum."""
        import xarray as xr

        parts = covariance_parts(self.store, self.targets, self.plan)
        dims = ("test_1", "test_2", "output_1", "output_2")
        total = np.sum(list(parts.values()), axis=0)
        meaning = (
            "all of order 1/n in the covariance of trained outputs, to be added to that at infinite width"
        )
        named = {
            name: (dims, part, {"meaning": f"{_MEANINGS[name]}, with its 1/n"})
            for name, part in parts.items()
        }
        return xr.Dataset({"total": (dims, total, {"meaning": meaning}), **named})
