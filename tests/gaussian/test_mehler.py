"""Series of all pairs: coefficients interpolated between deviations, sums by both loops, pairs of one direction."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.gaussian import Factor, cross_gram, expectation, factor, gram, mehler, z

SMOOTH = {
    "tanh": factor("tanh"),
    "slope": factor("tanh", order=1),
    "softplus": factor("softplus"),
    "callable": factor(lambda x: np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0) - 0.2 * np.cos(3 * x)),
    "product": z * factor("swish", order=1),
    "kinked": factor("selu"),
}


def deviations(count: int, spread: float) -> np.ndarray:
    found = np.exp(spread * np.random.default_rng(0).uniform(-1, 1, count))
    found[::50] = 0.0
    return found


@pytest.mark.parametrize("spread", [0.0, 0.3, 2.0, 5.0])
@pytest.mark.parametrize("name", SMOOTH)
def test_coefficients_of_many_inputs_are_those_of_each(
    name: str, spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = deviations(400, spread)
    found = mehler.series(SMOOTH[name], many, 40, 1e-10)
    monkeypatch.setattr(mehler, "_smooth_in_deviation", lambda *_: None)
    expected = mehler.series(SMOOTH[name], many, 40, 1e-10)
    scale = np.maximum(expected.norm, 1e-300)
    np.testing.assert_allclose(found.norm, expected.norm, rtol=1e-13)
    assert (np.abs(found.coefficients - expected.coefficients) <= 1e-13 * scale).all()
    assert (np.abs(found.tail**2 - expected.tail**2) <= 1e-13).all()


def test_interpolation_is_used_and_given_up() -> None:
    """For many inputs of a smooth function; not for few, nor where the deviations have nothing in common."""
    counted = []

    def compute(some: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        counted.append(len(some))
        return np.stack([some, some**2]), some**2 + some**4

    many = deviations(1000, 0.5)
    found = mehler._smooth_in_deviation(compute, many)
    assert found is not None
    np.testing.assert_allclose(found[0], compute(many)[0], rtol=1e-13)
    assert sum(counted[:-1]) < 200
    assert mehler._smooth_in_deviation(compute, many[:90]) is None
    assert mehler._smooth_in_deviation(lambda s: (np.sign(s - 1)[None], np.ones_like(s)), many) is None
    assert mehler._smooth_in_deviation(lambda s: (s[None], 0 * s), many) is None


def covariance(count: int) -> np.ndarray:
    """With inputs that are equal, opposite, scaled, nearly parallel, and zero."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((count, 30)) * np.exp(0.3 * rng.standard_normal((count, 1)))
    X[1], X[2], X[3], X[5] = X[0], -X[0], 1.7 * X[0], 0.0
    X[4] = X[0] + 1e-4 * X[4]
    K = X @ X.T / 30
    return np.asarray((K + K.T) / 2)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    "pair", [("tanh", "tanh"), ("slope", "slope"), ("tanh", "slope"), ("callable", "softplus")]
)
def test_sums_of_both_loops_are_those_of_single_pairs(pair: tuple[str, str], dtype: str, loops: str) -> None:
    f, g = (SMOOTH[name] for name in pair)
    K = covariance(140).astype(dtype)
    tolerance = {"float64": 1e-10, "float32": 1e-6}[dtype]
    found = gram([(f, g)], K)
    assert isinstance(found, list)
    variance = np.diagonal(K).astype(float)
    norms = [np.sqrt(expectation([h * h], variance[:, None, None]).value) for h in (f, g)]
    others = [(i, j) for i in range(6) for j in range(6)] + [(9, 70), (70, 9), (139, 100), (20, 20)]
    for i, j in others:
        alone = float(_alone(f, g, K.astype(float), i, j))
        off = abs(float(found[0].value[i, j]) - alone)
        assert off <= 3 * tolerance * norms[0][i] * norms[1][j] + 1e-300, (i, j)
        assert off <= found[0].error[i, j] + 1e-12, (i, j)


def _alone(f: Factor, g: Factor, K: np.ndarray, i: int, j: int) -> float:
    if i == j:
        return float(expectation([f * g], K[i : i + 1, i : i + 1]).value)
    return float(expectation([f, g], K[np.ix_([i, j], [i, j])]).value)


def test_equal_inputs_have_the_moment_of_one() -> None:
    """However many: no rule is called for each of their pairs."""
    K = np.ones((300, 300)) * np.repeat(np.array([0.5, 2.0]), 150)[:, None] ** 0.5
    K = K * np.repeat(np.array([0.5, 2.0]), 150) ** 0.5
    found = gram("tanh", K)
    assert not isinstance(found, list)
    own = [float(expectation([factor("tanh") ** 2], [[k]]).value) for k in (0.5, 2.0)]
    np.testing.assert_allclose(found.value[:150, :150], own[0], rtol=1e-9)
    np.testing.assert_allclose(found.value[150:, 150:], own[1], rtol=1e-9)
    mixed = float(expectation(["tanh", "tanh"], [[0.5, 1.0], [1.0, 2.0]]).value)
    np.testing.assert_allclose(found.value[:150, 150:], mixed, rtol=1e-9)


def test_two_sets_of_inputs(loops: str) -> None:
    K = covariance(60)
    rows, columns = np.arange(20), np.arange(60)
    whole = gram(("tanh", 1), K)
    cross = cross_gram(("tanh", 1), K[np.ix_(rows, columns)], np.diagonal(K)[rows], np.diagonal(K)[columns])
    assert not isinstance(whole, list)
    assert not isinstance(cross, list)
    np.testing.assert_allclose(cross.value, whole.value[:20], rtol=0, atol=1e-10)
