"""The mean of one network's prediction over an ensemble, by explicit sums over outputs and by sampled kernels."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

import foretrain as ft
from foretrain.theory.prediction.algorithms import Plan, named_algorithm
from foretrain.theory.prediction.finite_width import Projectors
from foretrain.theory.prediction.finite_width.corrections import (
    ENTRIES,
    Changes,
    Store,
    covariance_parts,
    mean_terms,
)
from foretrain.theory.prediction.finite_width.one_network import OneNetwork
from foretrain.theory.prediction.infinite_width import OutputKernels

TRAINED, SAMPLES = 2, 3
A = slice(0, TRAINED)


class Ensemble:
    """Random tensors with the symmetries of those of an ensemble, and a store that holds them."""

    def __init__(self, outputs: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.outputs = outputs
        self.K, self.Theta = (_positive(rng) for _ in range(2))
        self.y = rng.normal(size=(TRAINED, outputs))
        T = {name: rng.normal(size=(SAMPLES,) * 4) for name in "ABPQRSTUDF"}
        orders = {
            "A": [(1, 0, 2, 3), (0, 1, 3, 2), (2, 3, 0, 1)],
            "B": [(1, 0, 3, 2), (2, 3, 0, 1)],
            "D": [(1, 0, 2, 3), (0, 1, 3, 2)],
            "F": [(2, 3, 0, 1)],
            "P": [(0, 2, 1, 3)],
            "R": [(0, 1, 3, 2)],
            "T": [(3, 2, 1, 0)],
            "U": [(2, 3, 0, 1)],
        }
        for name, exchanges in orders.items():
            for order in exchanges:
                T[name] = (T[name] + T[name].transpose(order)) / 2
        T["S"] = (T["S"] + T["S"].transpose(1, 0, 3, 2)) / 2
        self.T = T
        self.shift = _positive(rng)

    def store(self) -> Store:
        mlp = ft.MLP("sin", 2, 1, n_in=1, n_out=self.outputs)
        kernels = OutputKernels.from_matrices(self.K, self.Theta, TRAINED)
        inputs = np.arange(1.0, SAMPLES + 1)[:, None]
        found = Store(mlp, inputs[A], inputs[TRAINED:], kernels, 1e-10)
        parts = {entry: np.moveaxis(self.T[entry[0]], entry[1], 0)[:, A, A, A] for entry in ENTRIES}
        found.__dict__["training"] = {entry: part[A] for entry, part in parts.items()}
        found.__dict__["tests"] = {entry: part[TRAINED:] for entry, part in parts.items()}
        found.__dict__["shift"] = self.shift[A, A], self.shift[TRAINED:, A]
        return found

    def pairs(self) -> dict[tuple[str, tuple[int, int]], np.ndarray]:
        """Entries of two samples at any two places, with training samples at the others."""
        return {
            (name, places): np.moveaxis(tensor, places, (0, 1))[..., A, A]
            for name, tensor in self.T.items()
            for places in combinations(range(4), 2)
        }

    def tensors(self) -> dict[str, np.ndarray]:
        """Means of products on legs (sample, output), by the decompositions (8.82), (11.45), (∞.11), (∞.12)."""
        legs = list(product(range(SAMPLES), range(self.outputs)))
        found = {name: np.zeros((len(legs),) * 4) for name in ("HH", "zzH", "dHz", "I", "II")}
        T = self.T
        for place in product(range(len(legs)), repeat=4):
            (a, i), (b, j), (c, k), (d, m) = (legs[leg] for leg in place)
            ij_km, ik_jm, im_jk = (i == j) * (k == m), (i == k) * (j == m), (i == m) * (j == k)
            found["HH"][place] = (
                ij_km * T["A"][a, b, c, d] + ik_jm * T["B"][a, c, b, d] + im_jk * T["B"][a, d, b, c]
            )
            found["zzH"][place] = (
                ij_km * T["D"][a, b, c, d] + ik_jm * T["F"][a, c, b, d] + im_jk * T["F"][a, d, b, c]
            )
            found["dHz"][place] = (
                im_jk * T["P"][a, b, c, d] + ij_km * T["Q"][a, b, c, d] + ik_jm * T["Q"][a, c, b, d]
            )
            found["I"][place] = (
                ij_km * T["R"][a, b, c, d] + ik_jm * T["R"][a, c, d, b] + im_jk * T["R"][a, d, b, c]
            )
            found["II"][place] = (
                ij_km * T["S"][a, b, c, d] + ik_jm * T["T"][a, c, d, b] + im_jk * T["U"][a, d, b, c]
            )
        return found


def _positive(rng: np.random.Generator) -> np.ndarray:
    root = rng.normal(size=(SAMPLES, 2 * SAMPLES))
    return root @ root.T / SAMPLES


def _random_projectors(rng: np.random.Generator) -> Projectors:
    pairs = [rng.normal(size=(TRAINED,) * 2) for _ in range(2)]
    return Projectors(*pairs, *(rng.normal(size=(TRAINED,) * 3) for _ in range(4)))


def _upstairs(Z: np.ndarray, vectors: np.ndarray, outputs: int) -> np.ndarray:
    """Z with both sample indices of each mode, between legs: (legs,) * 2 * Z.ndim."""
    rows = np.repeat(vectors, outputs, axis=0)
    same = np.equal.outer(np.arange(len(rows)) % outputs, np.arange(len(rows)) % outputs)
    pairs = np.einsum("ap,bp,ab->abp", rows, rows, same)
    if Z.ndim == 2:
        return np.einsum("pq,acp,bdq->abcd", Z, pairs, pairs)
    return np.einsum("pqr,adp,beq,cfr->abcdef", Z, pairs, pairs, pairs, optimize=True)


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_sums_over_outputs_are_explicit_ones(outputs: int) -> None:
    """(∞.141) averaged leg by leg, for projectors without any symmetry."""
    given, rng = Ensemble(outputs), np.random.default_rng(4)
    store, Z = given.store(), _random_projectors(rng)
    means, vectors = given.tensors(), store.modes.vectors
    legs = slice(0, TRAINED * outputs)
    y, one = given.y.ravel(), np.eye(outputs)
    K = np.kron(given.K[A, A], one)
    up = {
        name: _upstairs(getattr(Z, name), vectors, outputs) for name in ("A", "B", "IA", "IB", "IIA", "IIB")
    }
    z_y = -np.einsum("abcd,f->abcdf", means["dHz"][..., legs], y)  # dH_abc z_d eps_f
    both = z_y + z_y.swapaxes(3, 4)
    cubic = -sum(np.einsum(f"{p},{q}{r}->abc", y, K) for p, q, r in ("abc", "bca", "cab"))
    cubic = cubic - np.einsum("a,b,c->abc", y, y, y)
    solved = np.linalg.inv(np.kron(given.Theta[A, A], one))
    raw = {
        "ntk_variance": -np.einsum("dabc,ab,ce,e->d", means["HH"][:, legs, legs, legs], solved, solved, y),
        "dntk": np.einsum("adbce,abce->d", both[legs][:, :, legs], up["A"])
        + np.einsum("dabce,abce->d", both[:, legs][:, :, legs], up["B"]),
        "ddntk_1": np.einsum(
            "adbc,abcefg,efg->d", means["I"][legs, :, legs, legs], up["IA"], cubic, optimize=True
        )
        + np.einsum("dabc,abcefg,efg->d", means["I"][:, legs, legs, legs], up["IB"], cubic, optimize=True),
        "ddntk_2": np.einsum(
            "abdc,abcefg,efg->d", means["II"][legs, legs, :, legs], up["IIA"], cubic, optimize=True
        )
        + np.einsum("dabc,abcefg,efg->d", means["II"][:, legs, legs, legs], up["IIB"], cubic, optimize=True),
    }
    back = np.kron(given.Theta[TRAINED:, A], one) @ solved
    found = mean_terms(store, given.y, Plan("", store.modes.values, projectors=Z))
    for name, value in raw.items():
        expected = value[TRAINED * outputs :] - back @ value[legs]
        np.testing.assert_allclose(found[name].ravel(), expected, rtol=1e-10, atol=1e-10, err_msg=name)


@pytest.mark.slow(after=3)
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize(
    ("algorithm", "eta", "time"),
    [("gradient_descent", 0.3, 3), ("flow", None, 0.4), ("two_step", None, None)],
)
def test_change_of_the_kernel_is_the_mean_of_that_of_one_network(
    outputs: int, algorithm: str, eta: float | None, time: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Differentials that are sums of products with outputs, averaged over signs and directions of the outputs."""
    given = Ensemble(outputs, seed=2)
    store, means = given.store(), given.tensors()
    monkeypatch.setattr(Store, "pairs", lambda self, names: given.pairs())
    plan = named_algorithm(algorithm, eta, time).plan(store.modes.values)
    found = Changes(store, given.y, plan).ntk_change().values
    z, one = np.zeros((SAMPLES, outputs)), np.eye(outputs)
    H = _by_sample(np.kron(given.Theta, one), outputs)
    I, II = (_by_sample(means[name], outputs) for name in ("I", "II"))  # noqa: E741
    none = np.zeros((SAMPLES,) * 3 + (outputs,) * 3)

    def change(start: np.ndarray, dH: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        network = OneNetwork.of(start, given.y, H, dH, first, second)
        return network.trained(named_algorithm(algorithm, eta, time)).ntk - H

    # E[eps eps] = K + y y: outputs at both signs of the columns of a root of K, for each output in turn.
    root = np.linalg.cholesky(given.K)
    expected, zero = np.zeros_like(found), np.zeros_like(I)
    columns = [np.multiply.outer(root[:, k], one[j]) for k in range(SAMPLES) for j in range(outputs)]
    count = len(columns)
    for column in columns:
        for sign in (1, -1):
            expected += change(sign * np.sqrt(count) * column, none, I, II) / (2 * count)
    # E[dH z]: for every leg d, dH = E[dH z_d] with z_d alone moved.
    for leg in product(range(SAMPLES), range(outputs)):
        z = np.zeros((SAMPLES, outputs))
        z[leg] = 1.0
        dH = _by_sample(means["dHz"][..., leg[0] * outputs + leg[1]], outputs)
        for sign in (1, -1):
            expected += change(sign * z, sign * dH, zero, zero) / 2
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_covariance_is_summed_over_outputs(outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every part but that of the metric, leg by leg, for projectors without any symmetry."""
    given, Z = Ensemble(outputs, seed=9), _random_projectors(np.random.default_rng(10))
    store, means, one = given.store(), given.tensors(), np.eye(outputs)
    monkeypatch.setattr(Store, "pairs", lambda self, names: given.pairs())
    plan = Plan("", store.modes.values, projectors=Z)
    found = covariance_parts(store, given.y, plan)
    legs, solved = slice(0, TRAINED * outputs), np.kron(np.linalg.inv(given.Theta[A, A]), one)
    y, K = given.y.ravel(), np.kron(given.K, one)
    squares = K[legs, legs] + np.outer(y, y)
    up = {name: _upstairs(getattr(Z, name), store.modes.vectors, outputs) for name in "AB"}
    front, between = (np.einsum("abcd,cd->ab", up[name], squares) for name in "BA")
    crossed = -np.einsum("xbya,ab->xy", means["zzH"][:, legs, :, legs], solved)
    moved = np.einsum("xaby,ab->xy", means["dHz"][:, legs, legs], front)
    moved += np.einsum("axby,ab->xy", means["dHz"][legs, :, legs], between)
    raw = {
        "ntk_and_output": crossed + crossed.T,
        "ntk_variance": np.einsum("xayb,ab->xy", means["HH"][:, legs, :, legs], solved @ squares @ solved),
        "dntk_and_output": moved + moved.T,
    }
    back = np.kron(given.Theta[TRAINED:, A], one) @ solved
    project = np.hstack([-back, np.eye(len(back))])
    for name, part in raw.items():
        expected = (project @ part @ project.T).reshape(-1, outputs, SAMPLES - TRAINED, outputs)
        np.testing.assert_allclose(
            found[name], expected.transpose(0, 2, 1, 3), rtol=1e-9, atol=1e-9, err_msg=name
        )
    meets = K[legs] @ project.T  # E[z_a u_y]
    response, size = np.zeros((outputs, outputs)), 1e-5
    for output in range(outputs):
        shift = size * meets[:, output].reshape(TRAINED, outputs)
        there, here = (sum(mean_terms(store, given.y + s * shift, plan).values()) for s in (1, -1))
        response[:, output] = -(there - here)[0] / (2 * size)
    np.testing.assert_allclose(found["mean_response"][0, 0], response + response.T, rtol=1e-6, atol=1e-6)


def _by_sample(legs: np.ndarray, outputs: int) -> np.ndarray:
    split = legs.reshape((SAMPLES, outputs) * legs.ndim)
    return split.transpose((*range(0, 2 * legs.ndim, 2), *range(1, 2 * legs.ndim, 2)))


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize(("algorithm", "eta", "time"), [("gradient_descent", 0.3, 3), ("flow", None, 0.4)])
def test_interaction_on_the_way_is_the_mean_of_that_of_one_network(
    outputs: int, algorithm: str, eta: float | None, time: float
) -> None:
    """The dNTK term at a finite time, from networks with dH = E[dH z_d] whose output d alone is moved."""
    given = Ensemble(outputs, seed=3)
    store, means = given.store(), given.tensors()
    plan = named_algorithm(algorithm, eta, time).plan(store.modes.values)
    found = mean_terms(store, given.y, plan)
    H = _by_sample(np.kron(given.Theta, np.eye(outputs)), outputs)
    expected, none = np.zeros((SAMPLES, outputs)), np.zeros((SAMPLES,) * 4 + (outputs,) * 4)
    for leg in product(range(SAMPLES), range(outputs)):
        z = np.zeros((SAMPLES, outputs))
        z[leg] = 1.0
        dH = _by_sample(means["dHz"][..., leg[0] * outputs + leg[1]], outputs)
        for sign in (1, -1):
            state = OneNetwork.of(sign * z, given.y, H, sign * dH, none, none).trained(
                named_algorithm(algorithm, eta, time)
            )
            expected += (state.outputs - state.free_outputs) / 2
    np.testing.assert_allclose(found["dntk"], expected[TRAINED:], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("algorithm", "eta", "time"), [("gradient_descent", 0.3, 3), ("flow", None, 0.4)])
def test_second_differentials_on_the_way(algorithm: str, eta: float | None, time: float) -> None:
    """Their mean with E[eps eps eps], from Gaussian outputs by a cubature that is exact for cubics."""
    given = Ensemble(1, seed=5)
    store, means = given.store(), given.tensors()
    found = mean_terms(store, given.y, named_algorithm(algorithm, eta, time).plan(store.modes.values))
    H, none = given.Theta[..., None, None], np.zeros((SAMPLES,) * 3 + (1,) * 3)
    I, II = (_by_sample(means[name], 1) for name in ("I", "II"))  # noqa: E741
    root = np.linalg.cholesky(given.K) * np.sqrt(SAMPLES)
    for name, pair in (("ddntk_1", (I, 0 * II)), ("ddntk_2", (0 * I, II))):
        expected = np.zeros((SAMPLES, 1))
        for column, sign in product(root.T, (1, -1)):
            state = OneNetwork.of(sign * column, given.y, H, none, *pair).trained(
                named_algorithm(algorithm, eta, time)
            )
            expected += (state.outputs - state.free_outputs) / (2 * SAMPLES)
        np.testing.assert_allclose(found[name], expected[TRAINED:], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("algorithm", "eta", "time"), [("gradient_descent", 0.2, 4), ("flow", None, 0.6), ("flow", None, None)]
)
def test_fluctuations_of_the_kernel_on_the_way(algorithm: str, eta: float | None, time: float | None) -> None:
    """E[Theta f(Theta)] y to second order in kernels that scatter, by differences; likewise a shift of the mean."""
    given, rng, size = Ensemble(1, seed=7), np.random.default_rng(8), 1e-3
    scatter = [_positive(rng) for _ in range(5)]
    given.T["A"] = np.mean([np.einsum("ab,cd->abcd", part, part) for part in scatter], axis=0)
    given.T["B"] = np.zeros_like(given.T["B"])
    store = given.store()
    found = mean_terms(store, given.y, named_algorithm(algorithm, eta, time).plan(store.modes.values))

    def fitted(kernel: np.ndarray) -> np.ndarray:
        values, vectors = np.linalg.eigh(kernel[A, A])
        done = named_algorithm(algorithm, eta, time).plan(values).course().mean
        return np.asarray(kernel[TRAINED:, A] @ ((vectors * done) @ vectors.T) @ given.y)

    middle, curved = fitted(given.Theta), []
    for part in scatter:
        curved.append(
            (fitted(given.Theta + size * part) + fitted(given.Theta - size * part) - 2 * middle)
            / (2 * size**2)
        )
    np.testing.assert_allclose(found["ntk_variance"], np.mean(curved, axis=0), rtol=2e-4, atol=1e-6)
    slope = (fitted(given.Theta + size * given.shift) - fitted(given.Theta - size * given.shift)) / (2 * size)
    np.testing.assert_allclose(found["ntk_mean"], slope, rtol=1e-4, atol=1e-7)
