"""Quadratic models: the reference's toy, brute force with explicit tensors, real training, and bad input."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares

from foretrain.support.errors import AccuracyWarning, InputError, NotEnoughMemoryError, NotSupportedError
from foretrain.theory.prediction.nearly_kernel import (
    ALGORITHMS,
    FeatureModel,
    QuadraticModel,
    Solution,
    counts,
    descend_in_sample_space,
    one_sided_kernel,
    order_of_error,
    preconditioned,
    predict_as_printed,
    predict_one_sided,
    projectors,
    solve,
    spectrum,
    symmetric_kernel_as_printed,
    train,
)

J = np.arange(6)
SUM = np.add.outer(J, J)
X_A, Y, X_B = np.array([0.1, 0.7, 1.5]), np.array([0.5, -0.2, 0.9]), np.array([1.0])
TWO = np.stack([Y, [0.3, 0.8, -0.6]], axis=1)
ETA = {"gradient_descent": 0.1}


def phi(x: Any) -> Any:
    return np.cos(np.multiply.outer(x, J))


def psi(x: Any) -> Any:
    return np.sin(np.multiply.outer(x, SUM)) / (1 + SUM)


def toy(epsilon: float = 0.05) -> FeatureModel:
    return QuadraticModel.from_features(phi, psi, epsilon)


def solved(algorithm: str, epsilon: float = 0.05, y: Any = Y) -> Solution:
    return solve(toy(epsilon), X_A, y, algorithm, ETA.get(algorithm))


def test_kernels_of_the_toy() -> None:
    found = spectrum(toy().kernel(X_A, X_A))
    assert found.values == pytest.approx([2.63514858, 3.60932866, 5.94234170], abs=1e-8)
    assert toy().kernel(X_B, X_A)[0] == pytest.approx([-0.16913317, 2.19254884, 1.12960613], abs=1e-8)
    assert toy().meta_kernel(X_B, X_A, X_A)[0, 0, 0] == pytest.approx(0.0348342867, abs=1e-10)
    assert toy().meta_kernel(X_A, X_B, X_A)[0, 0, 1] == pytest.approx(-0.0047768136, abs=1e-10)


@pytest.mark.parametrize(
    ("algorithm", "value"),
    [
        ("direct", 0.2306664411),
        ("gradient_descent", 0.2319236067),
        ("flow", 0.2321899540),
        ("ridgeless", 0.2335664865),
    ],
)
def test_predictions_of_the_toy_by_features_kernels_and_arrays(algorithm: str, value: float) -> None:
    model = toy()
    everything = np.concatenate([X_A, X_B])
    dual = QuadraticModel.from_kernels(model.kernel, model.meta_kernel)
    table = QuadraticModel.from_arrays(
        model.kernel(everything, everything), model.meta_kernel(everything, everything, X_A)
    )
    assert solved(algorithm).predict(X_B) == pytest.approx([value], abs=1e-10)
    assert solved(algorithm).predict_linear(X_B) == pytest.approx([0.2325193171], abs=1e-10)
    by_kernels = solve(dual, X_A, Y, algorithm, ETA.get(algorithm))
    assert by_kernels.predict(X_B) == pytest.approx([value], abs=1e-10)
    by_arrays = solve(table, np.arange(3), Y, algorithm, ETA.get(algorithm))
    assert by_arrays.predict(np.array([3])) == pytest.approx([value], abs=1e-10)
    assert by_arrays.effective_kernel(np.arange(4)) == pytest.approx(
        solved(algorithm).effective_kernel(everything), abs=1e-12
    )


@pytest.mark.parametrize(
    ("algorithm", "value"),
    [("direct", 0.2306671439), ("gradient_descent", 0.2319103904), ("ridgeless", 0.2335329581)],
)
def test_real_training_of_the_toy(algorithm: str, value: float) -> None:
    found = train(toy(), X_A, Y, algorithm, ETA.get(algorithm))
    assert found.predict(X_B) == pytest.approx([value], abs=1e-10)
    assert found.residual < (1e-5 if algorithm == "direct" else 1e-11)


def test_trained_kernels_of_the_toy() -> None:
    found = solved("direct")
    assert predict_as_printed(found, X_B) == pytest.approx([0.2321179179], abs=1e-10)
    assert predict_one_sided(found, X_B) == pytest.approx([0.23066686], abs=1e-8)
    printed = symmetric_kernel_as_printed(found, X_B, X_A)
    assert printed == pytest.approx(0.5 * (toy().kernel(X_B, X_A) + found.effective_kernel(X_B, X_A)))
    moved = 0.5 * (phi(X_B) + found.effective_features(X_B)[0]) @ phi(X_A).T
    assert one_sided_kernel(found, X_B, X_A)[0] == pytest.approx(moved, abs=1e-14)


def full_projectors(algorithm: str, k: np.ndarray, eta: float) -> tuple[np.ndarray, np.ndarray]:
    """Z_A and Z_B as tensors with four indices, X_II by inverting an N² x N² matrix (11.134)-(11.136)."""
    size, inverse, one = len(k), np.linalg.inv(k), np.eye(len(k))
    both = np.einsum("ac,bd->abcd", inverse, inverse)
    if algorithm in ("direct", "ridgeless"):
        return (algorithm == "ridgeless") * both, both / 2
    operator = np.kron(k, one) + np.kron(one, k) - eta * np.kron(k, k)
    X_II = np.linalg.inv(operator).reshape(size, size, size, size)
    A = both - np.einsum("be,aecd->abcd", inverse, X_II)
    return A, A + eta / 2 * X_II


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_against_tensors_with_four_indices(algorithm: str) -> None:
    model, eta = toy(), 0.1 if algorithm == "gradient_descent" else 0.0
    k, k_B = model.kernel(X_A, X_A), model.kernel(X_B, X_A)
    mu, R = model.meta_kernel(X_A, X_A, X_A), k_B @ np.linalg.inv(k)
    bracket_B = model.meta_kernel(X_B, X_A, X_A) - np.einsum("bc,cde->bde", R, mu)
    bracket_A = model.meta_kernel(X_A, X_B, X_A).swapaxes(0, 1) - np.einsum("bc,dce->bde", R, mu)
    Z_A, Z_B = full_projectors(algorithm, k, eta)
    parts = solved(algorithm, y=TWO).parts(X_B)
    for column in range(2):
        pair = np.multiply.outer(TWO[:, column], TWO[:, column])
        part = parts.isel(output=column, input=0)
        for name, bracket, Z in (("A", bracket_A, Z_A), ("B", bracket_B, Z_B)):
            expected = np.einsum("bcd,cdef,ef->b", bracket, Z, pair)[0]
            assert float(part[name]) == pytest.approx(expected, abs=1e-14)
        assert float(part["kernel"]) == pytest.approx(float(R[0] @ TWO[:, column]), abs=1e-14)
    assert parts["prediction"].values == pytest.approx(solved(algorithm, y=TWO).predict(X_B))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_algorithms_share_the_symmetric_part_of_the_second_projector(algorithm: str) -> None:
    w = np.array([0.3, 1.1, 4.0])
    B = projectors(algorithm, w, 0.45 if algorithm == "gradient_descent" else None).B
    assert pytest.approx(1 / (2 * np.multiply.outer(w, w)), abs=1e-14) == (B + B.T) / 2


def test_gradient_descent_in_one_step_is_direct_optimisation() -> None:
    """Where η w = 1 for every eigenvalue, (1 − η w_1) removes the A term."""
    found = projectors("gradient_descent", np.full(4, 2.0), 0.5)
    expected = projectors("direct", np.full(4, 2.0))
    assert pytest.approx(expected.A, abs=1e-15) == found.A
    assert pytest.approx(expected.B, abs=1e-15) == found.B


def test_the_error_falls_as_epsilon_squared_for_every_algorithm() -> None:
    tests = np.array([1.0, 0.3, 2.2])
    for eta in (0.05, 0.2, 0.32):  # 0.3, 1.2 and 1.9 over the largest eigenvalue
        algorithms = ALGORITHMS if eta == 0.2 else ("gradient_descent",)
        data = order_of_error(
            QuadraticModel.from_features(phi, psi), X_A, TWO, tests, eta=eta, algorithms=algorithms
        )
        ratio = (
            data.error.isel(epsilon=slice(None, -1)).values / data.error.isel(epsilon=slice(1, None)).values
        )
        assert np.abs(ratio - 4).max() < 0.2
        kernel_error = data.kernel_error.values
        assert np.abs(kernel_error[:, :-1] / kernel_error[:, 1:] - 4).max() < 0.2
        assert (data.correction > 10 * data.error).all()
        assert data.order.values == pytest.approx(2.0, abs=0.05)


def test_orders_of_the_trained_kernels() -> None:
    """The one-sided kernel is right to second order; the printed one lies between direct and ridgeless."""
    wrong, right, halfway = [], [], []
    for epsilon in (0.04, 0.02, 0.01):
        direct, ridgeless = (solved(name, epsilon).predict(X_B)[0] for name in ("direct", "ridgeless"))
        found = solved("direct", epsilon)
        wrong.append(abs(predict_as_printed(found, X_B)[0] - direct))
        right.append(abs(predict_one_sided(found, X_B)[0] - direct))
        halfway.append(abs(predict_as_printed(found, X_B)[0] - (direct + ridgeless) / 2))
    for errors, ratio in ((wrong, 2), (right, 4), (halfway, 4)):
        assert np.divide(errors[:-1], errors[1:]) == pytest.approx(ratio, rel=0.03)


def test_sample_space_descent_agrees_to_first_order_and_moves_the_kernel() -> None:
    errors, kernel_errors = [], []
    for epsilon in (0.04, 0.02, 0.01):
        model = toy(epsilon)
        found = descend_in_sample_space(model, X_A, TWO, X_B, 0.1)
        closed = solve(model, X_A, TWO, "gradient_descent", 0.1)
        errors.append(np.abs(found.predictions - closed.predict(X_B)).max())
        both = np.concatenate([X_A, X_B])
        kernel_errors.append(np.abs(found.effective_kernel - closed.effective_kernel(both, X_A)).max())
    assert np.divide(errors[:-1], errors[1:]) == pytest.approx(4, rel=0.05)
    assert np.divide(kernel_errors[:-1], kernel_errors[1:]) == pytest.approx(4, rel=0.05)
    assert found.losses[0] == pytest.approx(0.5 * np.sum(TWO**2))
    assert found.losses[-1] < 1e-22
    short = descend_in_sample_space(toy(), X_A, Y, X_B, 0.1, steps=7)
    assert short.steps == 7
    assert "How many were made." in repr(short)


def test_first_step_of_sample_space_descent_is_exact() -> None:
    """From W = 0, one step of the parameters gives the same outputs to all orders in ε (11.106)."""
    model = toy(0.5)
    found = descend_in_sample_space(model, X_A, Y, X_B, 0.1, steps=1)
    weights = 0.1 * Y @ phi(X_A)
    assert found.predictions == pytest.approx(model.outputs(X_B, weights[None])[:, 0], abs=1e-14)


def test_ridge_tends_to_the_ridgeless_end_not_to_direct_optimisation() -> None:
    model, tests = toy(0.5), np.array([2.2])
    ends = []
    for ridge in (1e-3, 1e-4, 1e-5):

        def residuals(w: np.ndarray, a: float = ridge) -> np.ndarray:
            """Half their square is L + a |W|²."""
            return np.append(model.outputs(X_A, w[None])[:, 0] - Y, np.sqrt(2 * a) * w)

        best = least_squares(residuals, np.zeros(6), xtol=1e-15, ftol=1e-15, gtol=1e-15)
        ends.append(model.outputs(tests, best.x[None])[0, 0])
    goal = train(model, X_A, Y, "ridgeless").predict(tests)[0]
    far = train(model, X_A, Y, "direct").predict(tests)[0]
    distance = np.abs(np.array(ends) - goal)
    assert distance[-1] < 0.02 * distance[0]
    assert abs(ends[-1] - far) > 100 * distance[-1]


def test_the_rest_is_exact() -> None:
    """(11.106), z = ½ Σ W (φ + φ^E) and the effective kernel, for arbitrary parameters."""
    rng, model = np.random.default_rng(3), toy(0.7)
    W, step = rng.normal(size=(2, 2, 6))
    z, moved = model.outputs(X_A, W), model.outputs(X_A, W + step)
    slopes = model.effective_features(X_A, W)
    bend = 0.35 * np.einsum("ij,ik,njk->ni", step, step, psi(X_A))
    assert moved - z == pytest.approx(np.einsum("ij,inj->ni", step, slopes) + bend, abs=1e-13)
    assert z == pytest.approx(0.5 * np.einsum("ij,inj->ni", W, phi(X_A) + slopes), abs=1e-13)
    kernel = model.effective_kernel(X_A, X_A, W)
    assert kernel == pytest.approx(np.einsum("inj,imj->inm", slopes, slopes), abs=1e-13)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_training_samples_are_interpolated_and_order_does_not_matter(algorithm: str) -> None:
    found = solved(algorithm, y=TWO)
    assert found.predict(X_A) == pytest.approx(TWO, abs=1e-13)
    turned = solve(toy(), X_A[::-1], TWO[::-1], algorithm, ETA.get(algorithm))
    assert turned.predict(X_B) == pytest.approx(found.predict(X_B), abs=1e-13)


def test_the_first_bracket_vanishes_inside_the_span_of_the_training_features() -> None:
    mixed = np.array([0.4, -1.2, 0.7])

    def wider(x: Any) -> Any:
        return np.where(np.isnan(x)[:, None], mixed @ phi(X_A), phi(np.nan_to_num(x)))

    def bends(x: Any) -> Any:
        return psi(np.where(np.isnan(x), 0.9, x))

    model = QuadraticModel.from_features(wider, bends, 0.05)
    parts = solve(model, X_A, Y, "ridgeless").parts(np.array([np.nan, 1.0]))
    assert abs(float(parts["A"][0, 0])) < 1e-15 < abs(float(parts["A"][1, 0]))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(ALGORITHMS), st.floats(0.2, 5.0))
def test_units_of_features_do_not_matter(seed: int, algorithm: str, scale: float) -> None:
    """φ → s φ, ψ → s² ψ is a change of the units of W: predictions stay, if η goes with s⁻²."""
    rng = np.random.default_rng(seed)
    Phi, Psi = rng.normal(size=(5, 9)), rng.normal(size=(5, 9, 9))
    Psi = Psi + Psi.swapaxes(1, 2)
    y, eta = rng.normal(size=3), 1 / np.linalg.eigvalsh(Phi[:3] @ Phi[:3].T)[-1]
    found = []
    for s in (1.0, scale):
        model = QuadraticModel.from_features(
            lambda places, s=s: s * Phi[places], lambda places, s=s: s**2 * Psi[places], 1e-3
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AccuracyWarning)
            solution = solve(model, np.arange(3), y, algorithm, eta / s**2)
        found.append((solution.predict(np.arange(5)), solution.expansion_parameter))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-6, abs=1e-7)
    assert found[1][1] == pytest.approx(found[0][1], rel=1e-6)


def wired(epsilon: float) -> tuple[FeatureModel, np.ndarray, np.ndarray]:
    """Two outputs that share eight parameters (11.150), three training samples of five."""
    rng = np.random.default_rng(11)
    Phi, Psi = rng.normal(size=(5, 2, 8)), rng.normal(size=(5, 2, 8, 8)) / 3
    Psi = Psi + Psi.swapaxes(-1, -2)
    start = rng.normal(size=(5, 2)) / 2
    model = QuadraticModel.from_features(
        lambda places: Phi[places], lambda places: Psi[places], epsilon, lambda places: start[places]
    )
    return model, rng.normal(size=(3, 2)), start


def test_wired_outputs_with_offset_against_training() -> None:
    errors, kernels = [], []
    places, tests = np.arange(3), np.array([3, 4])
    for epsilon in (2e-3, 1e-3, 5e-4):
        model, y, start = wired(epsilon)
        formula, trained = solve(model, places, y, "flow"), train(model, places, y, "flow")
        assert formula.predict(places) == pytest.approx(y, abs=1e-12)
        errors.append(np.abs(formula.predict(tests) - trained.predict(tests)).max())
        kernels.append(np.abs(formula.effective_kernel(tests) - trained.effective_kernel(tests)).max())
    assert formula.effective_kernel(tests).shape == (1, 4, 4)
    assert np.divide(errors[:-1], errors[1:]) == pytest.approx(4, rel=0.1)
    assert np.divide(kernels[:-1], kernels[1:]) == pytest.approx(4, rel=0.1)
    assert model.outputs(places, np.zeros((1, 8))) == pytest.approx(start[:3])


def test_wired_kernels_with_axes_of_outputs_are_flattened() -> None:
    model, y, start = wired(1e-3)

    def kernel(x1: Any, x2: Any) -> Any:
        return model.kernel(x1, x2).reshape(len(x1), 2, len(x2), 2).transpose(0, 2, 1, 3)

    def meta_kernel(x0: Any, x1: Any, x2: Any) -> Any:
        shape = (len(x0), 2, len(x1), 2, len(x2), 2)
        return model.meta_kernel(x0, x1, x2).reshape(shape).transpose(0, 2, 4, 1, 3, 5)

    dual = QuadraticModel.from_kernels(kernel, meta_kernel, lambda places: start[places])
    places, tests = np.arange(3), np.array([3, 4])
    for algorithm in ALGORITHMS:
        found, expected = (solve(each, places, y, algorithm).predict(tests) for each in (dual, model))
        assert found == pytest.approx(expected, abs=1e-12)
    with pytest.raises(InputError, match="2 that share"):
        solve(dual, places, y[:, :1])
    broken = QuadraticModel.from_kernels(kernel, lambda x0, x1, x2: np.zeros((len(x0), len(x1), len(x2))))
    with pytest.raises(InputError, match="meta-kernel has rows"):
        solve(broken, places, y)


def test_learning_rates_per_parameter_are_features_in_other_units() -> None:
    """Descent W ← W − η Λ dL/dW in the old parameters, beside the formula in the new ones."""
    rates, eta = np.array([1.0, 0.5, 2.0, 0.3, 0.7, 1.1]), 0.1
    tensor = np.diag(rates) + 0.05
    for given_rates, full in ((rates, np.diag(rates)), (tensor, tensor)):
        errors = []
        for epsilon in (0.04, 0.02):
            features, meta_features = preconditioned(phi, psi, given_rates)
            model = QuadraticModel.from_features(features, meta_features, epsilon)
            W, Phi, Psi = np.zeros(6), phi(X_A), epsilon * psi(X_A)
            for _ in range(600):
                error = Phi @ W + 0.5 * Psi @ W @ W - Y
                W = W - eta * full @ (error @ (Phi + Psi @ W))
            prediction = solve(model, X_A, Y, "gradient_descent", eta).predict(X_B)
            errors.append(abs(prediction[0] - toy(epsilon).outputs(X_B, W[None])[0, 0]))
        assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)
    assert preconditioned(phi, None, rates)[1] is None
    with pytest.raises(InputError, match="symmetric"):
        preconditioned(phi, psi, np.ones((2, 3)))
    with pytest.raises(InputError, match="climb"):
        preconditioned(phi, psi, [1.0, -1.0])


def test_counts() -> None:
    found = counts(features=6, outputs=3)
    assert (found.parameters, found.linear_functions, found.quadratic_functions) == (18, 6, 6 + 21)
    assert "18" in repr(found)
    with pytest.raises(InputError, match="at least one"):
        counts(0)


def test_a_linear_model_is_its_kernel_regression() -> None:
    model = QuadraticModel.from_features(phi)
    k, k_B = phi(X_A) @ phi(X_A).T, phi(X_B) @ phi(X_A).T
    for algorithm in ALGORITHMS:
        assert solve(model, X_A, Y, algorithm).predict(X_B) == pytest.approx(k_B @ np.linalg.solve(k, Y))
    dual = QuadraticModel.from_kernels(lambda x1, x2: phi(x1) @ phi(x2).T)
    assert solve(dual, X_A, Y, "flow").predict(X_B) == pytest.approx(k_B @ np.linalg.solve(k, Y))
    assert solve(dual, X_A, Y, "flow").expansion_parameter == 0.0


def test_what_is_not_small_or_not_regular_is_told() -> None:
    with pytest.warns(AccuracyWarning, match="not small"):
        solved("flow", epsilon=3.0)
    with pytest.warns(AccuracyWarning, match="added to its diagonal"):
        found = solve(toy(1e-9), np.array([0.1, 0.1, 1.5]), [0.5, 0.5, 0.9], "direct")
    assert found.spectrum.jitter > 0
    assert "jitter" in repr(found)
    with pytest.warns(AccuracyWarning, match="nearly singular"):
        solve(toy(1e-12), np.array([0.1, 0.1 + 1e-6, 1.5]), [0.5, 0.5, 0.9], "direct")
    assert "expansion parameter" in repr(solved("flow"))
    assert "0.1" in repr(train(toy(), X_A, Y, "gradient_descent", 0.1))


@pytest.mark.parametrize("eta", [0.0, -0.1, 0.34, float("nan"), "0.1", True])
def test_rates_at_which_gradient_descent_does_not_converge(eta: Any) -> None:
    message = r"2 / lambda_max = 0\.33656" if eta == 0.34 else f"eta is {eta!r}: give "
    for function in (solve, train):
        with pytest.raises(InputError, match=message):
            function(toy(), X_A, Y, "gradient_descent", eta)
    assert solve(toy(), X_A, Y).eta == pytest.approx(1 / 5.94234170)


def test_a_linear_model_may_have_many_features() -> None:
    """No parameters by parameters: 10⁵ features of three samples."""
    model = QuadraticModel.from_features(lambda x: np.tile(phi(x), 20_000) / np.sqrt(20_000))
    small = QuadraticModel.from_features(phi)
    for algorithm in ALGORITHMS:
        found, expected = (solve(each, X_A, Y, algorithm) for each in (model, small))
        assert found.predict(X_B) == pytest.approx(expected.predict(X_B), abs=1e-10)
        assert found.effective_kernel(X_B) == pytest.approx(small.kernel(X_B, X_B)[None], abs=1e-10)
    assert train(model, X_A, Y, "gradient_descent").predict(X_B) == pytest.approx(
        expected.predict(X_B), abs=1e-9
    )


def test_models_can_be_pickled() -> None:
    k, mu = toy().kernel(X_A, X_A), toy().meta_kernel(X_A, X_A, X_A)
    arrays = solve(QuadraticModel.from_arrays(k, mu, Y), np.arange(3), Y + 0.1, "flow")
    rescaled = solve(
        QuadraticModel.from_features(*preconditioned(phi, psi, np.arange(1.0, 7)), 0.01), X_A, Y, "flow"
    )
    for found, x in ((arrays, np.arange(3)), (rescaled, X_B)):
        assert (pickle.loads(pickle.dumps(found)).predict(x) == found.predict(x)).all()
    assert "phi" in repr(toy())
    assert "meta_kernel_of=None" in repr(QuadraticModel.from_arrays(k))


def test_kernels_without_their_symmetry_are_refused() -> None:
    model = toy()
    bent = QuadraticModel.from_kernels(
        lambda x1, x2: model.kernel(x1, x2) + np.asarray(x1)[:, None], model.meta_kernel
    )
    with pytest.raises(InputError, match="not symmetric"):
        solve(bent, X_A, Y)
    turned = QuadraticModel.from_kernels(
        model.kernel, lambda x0, x1, x2: model.meta_kernel(x2, x1, x0).transpose(2, 1, 0)
    )
    with pytest.raises(InputError, match="twice differentiated one first"):
        solve(turned, X_A, Y)


def test_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    model = toy()
    for x in ([5], [-1], [0.0], [[0]]):
        with pytest.raises(InputError, match="positions in the kernel"):
            QuadraticModel.from_arrays(np.eye(3)).kernel(np.array(x), np.arange(2))
    with pytest.raises(InputError, match=r"\(D, D\)"):
        QuadraticModel.from_arrays(np.eye(3), np.zeros((3, 3)))
    with pytest.raises(InputError, match="offset has shape"):
        QuadraticModel.from_arrays(np.eye(3), None, np.zeros(2))
    for steps in (-1, 1.5):
        with pytest.raises(InputError, match="whole number"):
            descend_in_sample_space(model, X_A, Y, X_B, steps=steps)  # type: ignore[arg-type]
    for tolerance in (0, -1.0):
        with pytest.raises(InputError, match="tolerance is"):
            train(model, X_A, Y, tolerance=tolerance)
    with pytest.raises(InputError, match="6 features for 7"):
        train(model, np.linspace(0, 2, 7), np.ones(7))
    with pytest.raises(InputError, match="3 rates"):
        QuadraticModel.from_features(*preconditioned(phi, psi, np.ones(3))).kernel(X_A, X_A)
    with pytest.raises(InputError, match=r"unknown algorithm 'Flow'.*'flow'"):
        solve(model, X_A, Y, "Flow")
    with pytest.raises(InputError, match="unknown algorithm"):
        train(model, X_A, Y, "bayes")
    with pytest.raises(InputError, match="y has shape"):
        solve(model, X_A, Y[:2])
    with pytest.raises(InputError, match="not finite"):
        solve(model, X_A, [np.nan, 0, 1])
    with pytest.raises(InputError, match="6 features for 7"):
        solve(model, np.linspace(0, 2, 7), np.ones(7))
    with pytest.raises(InputError, match="not symmetric"):
        QuadraticModel.from_features(phi, lambda x: np.arange(36.0).reshape(6, 6) + 0 * psi(x)).points(X_A)
    with pytest.raises(InputError, match="meta_features have shape"):
        QuadraticModel.from_features(phi, lambda x: psi(x)[:, :4, :4]).points(X_A)
    with pytest.raises(InputError, match="features have shape"):
        QuadraticModel.from_features(lambda x: phi(x)[:2]).points(X_A)
    with pytest.raises(InputError, match="epsilon is inf"):
        QuadraticModel.from_features(phi, psi, np.inf)
    with pytest.raises(InputError, match="weights have shape"):
        model.outputs(X_A, np.zeros(6))
    with pytest.raises(InputError, match="offset has shape"):
        solve(QuadraticModel.from_features(phi, psi, 0.1, lambda x: np.zeros((1, 1))), X_A, Y)
    with pytest.raises(InputError, match=r"\(D, D\)"):
        QuadraticModel.from_arrays(np.eye(3), np.zeros((2, 2, 2)))
    with pytest.raises(InputError, match="positive"):
        solve(QuadraticModel.from_arrays(np.diag([1.0, -1.0])), np.arange(2), [1.0, 1.0])
    with pytest.raises(InputError, match="the kernel has shape"):
        solve(QuadraticModel.from_kernels(lambda x1, x2: np.zeros((len(x1), len(x2), 1))), X_A, Y)
    arrays = QuadraticModel.from_arrays(np.eye(3), np.zeros((3, 3, 2)))
    with pytest.raises(InputError, match="only 2 samples"):
        solve(arrays, np.arange(3), np.ones(3), "flow")
    with pytest.raises(InputError, match="steps for eigenvalues"):
        train(model, X_A, Y, "gradient_descent", 1e-9)
    with pytest.raises(InputError, match="two different"):
        order_of_error(QuadraticModel.from_features(phi, psi), X_A, Y, X_B, epsilons=[0.1])
    dual = QuadraticModel.from_kernels(model.kernel, model.meta_kernel)
    with pytest.raises(NotSupportedError, match="no parameters to train"):
        train(dual, X_A, Y)
    with pytest.raises(NotSupportedError, match="no parameters"):
        _ = solve(dual, X_A, Y).weights
    monkeypatch.setenv("FORETRAIN_MEMORY", "1kB")
    with pytest.raises(NotEnoughMemoryError, match="fewer samples"):
        solve(model, X_A, Y)
