"""⟨σσ⟩ and ⟨σ'σ'⟩ of all pairs of N = 1000 inputs, beside neural-tangents on the same covariance.

Three covariances: inputs spread in direction and norm, nearly parallel ones as deep layers have, and
inputs of which many are duplicates. Errors are against an independent float64 reference at the very numbers
given (for float32: the rounded covariance), relative to √(⟨σ²⟩⟨σ²⟩).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.gaussian_reference import ACTIVATIONS, DERIVATIVE, VALUE, Function, Reference
from bench.harness.jobs import Arrays, Job, PeerCall
from bench.harness.rates import Work
from foretrain.gaussian import gram

SIZE = 1000
DIMENSION = 100
PEER = "neural-tangents"
DEGREE = 25  # what neural-tangents' documentation recommends to start with
TOLERANCES = {"float32": 1e-6, "float64": 1e-10}
FASTER = {"float32": 3.0, "float64": 1.5}  # than the peer in float32
WITHIN_TEN = 0.1
CLOSED = ("erf", "relu", "gelu")

Matrix = npt.NDArray[np.float64]


def spread() -> Matrix:
    """Independent directions, norms spread by a lognormal factor."""
    generator = np.random.default_rng(0)
    factors = np.exp(0.3 * generator.standard_normal((SIZE, 1)))
    return _covariance(factors * generator.standard_normal((SIZE, DIMENSION)))


def parallel() -> Matrix:
    """One direction with a little noise of very different sizes: 1 - ρ from about 1e-6 to 1e-2."""
    generator = np.random.default_rng(1)
    noise = 10 ** generator.uniform(-3, -1, (SIZE, 1)) * generator.standard_normal((SIZE, DIMENSION))
    factors = np.exp(0.1 * generator.standard_normal((SIZE, 1)))
    return _covariance(factors * (generator.standard_normal(DIMENSION) + noise))


def duplicates() -> Matrix:
    """A fifth of the inputs, each five times; entries of duplicates are equal to the last digit."""
    chosen = np.random.default_rng(2).permutation(np.arange(SIZE) % (SIZE // 5))
    return np.ascontiguousarray(spread()[np.ix_(chosen, chosen)])


VARIANTS: dict[str, Callable[[], Matrix]] = {
    "spread": spread,
    "parallel": parallel,
    "duplicates": duplicates,
}


def jobs() -> list[Job]:
    """All rows, the ones with an aim first."""
    rows = [
        _beside_peer(variant, name, dtype, "closed" if name in CLOSED else "numerical")
        for variant in VARIANTS
        for name in ("tanh", "erf", "relu", "gelu")
        for dtype in ("float32", "float64")
    ]
    rows += [_beside_peer("spread", "erf", "float32", "autodiff")]
    rows += [_beside_peer("spread", name, "float32", "numerical") for name in ("erf", "relu", "gelu", "mish")]
    return rows + list(_arbitrary_activations())


def _beside_peer(variant: str, name: str, dtype: str, route: str) -> Job:
    """Ours in float32 or float64 beside the peer in float32."""
    K = _rounded(variant, dtype)
    degree = f", {DEGREE} nodes" if route == "numerical" else ""
    return Job(
        name=f"pairs {variant} {name} {dtype}" + (f" / {route}" if route != _best_route(name) else ""),
        how=f"closed form / {route}{degree}" if name in CLOSED else f"numerical / {route}{degree}",
        ours=_ours(_ours_name(name), K),
        sizes={"inputs": SIZE},
        precision=dtype,
        peer_precision="float32",
        work=_work(name, variant, dtype),
        peer=PeerCall(
            PEER,
            "pairs",
            {"K": _rounded(variant, "float32")},
            {"activation": name, "route": route, "degree": DEGREE},
        ),
        aim=FASTER[dtype],
        tolerance=TOLERANCES[dtype],
        error=_reference(variant, name, dtype).error,
        peer_error=_reference(variant, name, "float32").error,
    )


def _arbitrary_activations() -> Iterator[Job]:
    """A smooth activation known only as a callable, beside our own closed form for erf."""
    for variant in VARIANTS:
        for name in ("tanh", "mish"):
            for dtype in ("float32", "float64"):
                K = _rounded(variant, dtype)
                yield Job(
                    name=f"pairs {variant} anonymous {name} {dtype}",
                    how="callable / our closed form for erf",
                    ours=_ours(_anonymous(ACTIVATIONS[name].value), K),
                    sizes={"inputs": SIZE},
                    precision=dtype,
                    work=_work(name, variant, dtype),
                    peer=_ours("erf", K),
                    aim=WITHIN_TEN,
                    tolerance=TOLERANCES[dtype],
                    error=_reference(variant, name, dtype).error,
                    peer_error=_reference(variant, "erf", dtype).error,
                )


def _best_route(name: str) -> str:
    return "closed" if name in CLOSED else "numerical"


def _ours_name(name: str) -> str | Function:
    """Mish has no name in the package on purpose here: it stands for any activation of a user."""
    return _anonymous(ACTIVATIONS[name].value) if name == "mish" else name


def _anonymous(function: Function) -> Function:
    """A callable that nothing can recognise by name or identity."""
    return lambda z: function(z)


def _ours(activation: str | Function, K: npt.NDArray[Any]) -> Callable[[], Arrays]:
    products = [(activation, activation), ((activation, 1), (activation, 1))]

    def call() -> Arrays:
        found = gram(products, K, tolerance=TOLERANCES[K.dtype.name])
        assert isinstance(found, list)  # a list of products gives a list
        return {VALUE: found[0].value, DERIVATIVE: found[1].value}

    return call


def _work(name: str, variant: str, dtype: str) -> Work:
    """Half of K read, both kernels written; a closed form needs one arcsin and one root a pair of inputs,
    another activation as many terms of Mehler's series as this covariance asks for, by matrix products."""
    pairs = SIZE * (SIZE + 1) / 2
    moved = (pairs + 2 * SIZE**2) * np.dtype(dtype).itemsize
    if name in CLOSED:
        return Work(dtype, moved=moved, evaluations={"arcsin": pairs, "sqrt": pairs})
    terms = sum(_series_terms(name, variant, TOLERANCES[dtype], order) for order in (VALUE, DERIVATIVE))
    return Work(dtype, flops=2 * pairs * terms, moved=moved)


@cache
def _series_terms(name: str, variant: str, tolerance: float, order: str) -> int:
    """Terms that count in Σ_k a_k b_k ρ^k for the widest input and the largest correlation below 1."""
    K = _covariance_of(variant)
    deviations = np.sqrt(np.diagonal(K))
    correlations = np.abs(K / np.multiply.outer(deviations, deviations))
    largest = float(correlations[correlations < 1 - 1e-12].max())
    activation = ACTIVATIONS[name]
    function = activation.value if order == VALUE else activation.derivative
    terms = _hermite_squares(function, float(deviations.max()))
    terms = terms * largest ** np.arange(len(terms)) / terms.sum()
    tails = np.cumsum(terms[::-1])[::-1]
    needed = int(np.count_nonzero(tails > tolerance))
    return int(np.count_nonzero(terms[:needed] > 1e-6 * tolerance))


def _hermite_squares(function: Function, deviation: float, count: int = 600) -> Matrix:
    """a_k² of f(√K x) in orthonormal Hermite polynomials, by the functions He_k(x) e^{-x²/4}."""
    x = np.arange(-14.0, 14.0, 0.01)
    weight = 0.01 * np.exp(-(x**2) / 4) / np.sqrt(2 * np.pi)
    values = function(deviation * x) * weight
    before, now = np.zeros_like(x), np.exp(-(x**2) / 4)
    squares = np.empty(count)
    for k in range(count):
        squares[k] = float(values @ now) ** 2
        before, now = now, (x * now - np.sqrt(k) * before) / np.sqrt(k + 1)
    return squares


def _covariance(X: Matrix) -> Matrix:
    return np.asarray(X @ X.T / DIMENSION)


@cache
def _covariance_of(variant: str) -> Matrix:
    return VARIANTS[variant]()


@cache
def _rounded(variant: str, dtype: str) -> npt.NDArray[Any]:
    return _covariance_of(variant).astype(dtype)


@cache
def _reference(variant: str, name: str, dtype: str) -> Reference:
    return Reference(ACTIVATIONS[name], _rounded(variant, dtype))
