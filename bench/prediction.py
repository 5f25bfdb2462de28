"""What `ft.predict` costs at infinite width: mean and covariance on test inputs, from the inputs to the numbers.

The peer is neural-tangents' predictor of a trained ensemble (or of the posterior), in double precision like ours and
in its usual single precision. Errors are those of mean and covariance against closed kernels written out here and
plain solves, relative to the largest entry.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

import foretrain as ft
from bench.harness.jobs import Arrays, Job, PeerCall, Scaling
from bench.harness.rates import Work

TRAIN, TESTS, DIMENSION, DEPTH = 2000, 300, 20, 3
VARIANCES = {"relu": (0.1, 2.0), "erf": (0.1, 1.5)}
PEER = "neural-tangents"

Matrix = npt.NDArray[np.float64]


def jobs() -> list[Job]:
    """All rows."""
    return [_job(name, learner) for name in VARIANCES for learner in ("gradient_descent", "bayes")]


def _data(count: int) -> dict[str, Matrix]:
    rng = np.random.default_rng(0)
    x_train, x_test = rng.standard_normal((count, DIMENSION)), rng.standard_normal((TESTS, DIMENSION))
    return {"x_train": x_train, "y_train": np.sin(x_train[:, :1]), "x_test": x_test}


def _ours(name: str, learner: Any, count: int) -> Callable[[], Arrays]:
    C_b, C_W = VARIANCES[name]
    # The rates by which neural-tangents trains: those of weights and biases of unit variance.
    mlp = ft.MLP(name, depth=DEPTH, width=100, C_b=C_b, C_W=C_W, lambda_b=C_b, lambda_W=C_W)
    data = _data(count)

    def call() -> Arrays:
        found = ft.predict(mlp, data["x_train"], data["y_train"], data["x_test"], learner=learner)
        assert found.covariance is not None
        return {"mean": found.mean.values, "covariance": found.covariance.values}

    return call


def _job(name: str, learner: str) -> Job:
    def error(found: Arrays) -> float:
        expected = _reference(name, learner)
        return max(
            float(np.abs(np.asarray(found[part]).reshape(value.shape) - value).max() / np.abs(value).max())
            for part, value in expected.items()
        )

    return Job(
        name=f"predict {name}, {learner.replace('_', ' ')}, {TRAIN} training and {TESTS} test inputs",
        how="float64 at 1e-10 / closed form, in float64 and in float32",
        ours=_ours(name, learner, TRAIN),
        work=_work(name, learner),
        peer={f"{PEER} {dtype}": _peer(name, learner, dtype) for dtype in ("float64", "float32")},
        aim={f"{PEER} float64": 1.5},
        error=error,
        peer_error=error,
        sizes={"training inputs": TRAIN, "test inputs": TESTS, "layers": DEPTH},
        precision="float64",
        scalings=(Scaling("N", {n: _ours(name, learner, n) for n in (500, 1000, 2000)}),),
    )


def _peer(name: str, learner: str, dtype: str) -> PeerCall:
    C_b, C_W = VARIANCES[name]
    options = {"activation": name, "route": "closed", "depth": DEPTH, "C_b": C_b, "C_W": C_W, "dtype": dtype}
    return PeerCall(
        PEER, "prediction", _data(TRAIN), options | {"get": "nngp" if learner == "bayes" else "ntk"}
    )


def _work(name: str, learner: str) -> Work:
    """Kernels of all pairs once, one Cholesky factor, triangular solves, and the products of the covariance."""
    size, inner = TRAIN + TESTS, DEPTH - 1
    pairs, kernels = size * (size + 1) / 2, 1 if learner == "bayes" else 2
    flops = kernels * pairs * 2 * DIMENSION + TRAIN**3 / 3
    if learner == "bayes":
        flops += TRAIN**2 * TESTS + TRAIN * TESTS**2
    else:
        flops += 2 * TRAIN**2 * TESTS + 2 * TRAIN**2 * TESTS + 4 * TRAIN * TESTS**2
    evaluations = {"arcsin": inner * pairs, "sqrt": inner * pairs}
    return Work("float64", flops=flops, moved=8 * kernels * 2 * inner * pairs, evaluations=evaluations)


@cache
def _reference(name: str, learner: str) -> dict[str, Matrix]:
    """Closed kernels (10.83)-(10.86), or the arcsine's, then (10.40), (10.41) or (6.64), (6.57) by plain solves."""
    (C_b, C_W), data = VARIANCES[name], _data(TRAIN)
    x = np.concatenate([data["x_train"], data["x_test"]])
    K = C_b + C_W * x @ x.T / DIMENSION
    Theta = K.copy()
    for _ in range(DEPTH - 1):
        signal, slope = _relu(K) if name == "relu" else _erf(K)
        K = C_b + C_W * signal
        Theta = K + C_W * slope * Theta
    M = K if learner == "bayes" else Theta
    weights = np.linalg.solve(M[:TRAIN, :TRAIN], M[:TRAIN, TRAIN:]).T
    Q = np.concatenate([-weights, np.eye(TESTS)], axis=1)
    return {"mean": weights @ data["y_train"], "covariance": Q @ K @ Q.T}


def _relu(K: Matrix) -> tuple[Matrix, Matrix]:
    size = np.sqrt(np.diagonal(K))
    angle = np.arccos(np.clip(K / np.outer(size, size), -1, 1))
    np.fill_diagonal(angle, 0.0)
    signal = np.outer(size, size) * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi)
    return signal, (np.pi - angle) / (2 * np.pi)


def _erf(K: Matrix) -> tuple[Matrix, Matrix]:
    norm = 1 + 2 * np.diagonal(K)
    signal = 2 / np.pi * np.arcsin(2 * K / np.sqrt(np.outer(norm, norm)))
    return signal, 4 / np.pi / np.sqrt(np.outer(norm, norm) - 4 * K**2)
