"""All pairs at once: every route against the rules for two inputs and against oracles."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from gram_checks import compare, inputs, single
from reference_integrals import FUNCTIONS, KINKED, SMOOTH, line, pair

from foretrain.gaussian import Factor, factor, gram, grams, mehler, z
from foretrain.support.errors import InputError


class TestRoutes:
    @pytest.mark.parametrize("kind", ["plain", "spread", "near", "wide", "tiny", "repeated"])
    @pytest.mark.parametrize("name", ["relu", "leaky_relu(slope=0.1)", "gelu", "erf", "sin", "cos"])
    def test_closed_forms(self, name: str, kind: str) -> None:
        K = inputs(9, kind)
        results = gram([(name, name), ((name, 1), (name, 1))], K)
        assert isinstance(results, list)
        for order, found in enumerate(results):
            assert found.rule == "closed form"
            if kind != "repeated" or order == 0:
                compare((name, order), (name, order), K, found, 1e-12)

    @pytest.mark.parametrize("name", ["perceptron", "sign"])
    def test_steps(self, name: str) -> None:
        for kind in ("plain", "spread", "wide"):
            K = inputs(9, kind)
            compare(name, name, K, single((name, name), K), 1e-12)

    @pytest.mark.slow(after=3)
    @pytest.mark.parametrize("kind", ["plain", "spread", "near", "wide", "tiny", "repeated"])
    @pytest.mark.parametrize("name", ["tanh", "swish", "softplus"])
    def test_hermite_series(self, name: str, kind: str) -> None:
        K = inputs(8, kind)
        s, slope = factor(name), factor(name, order=1)
        products = [(s, s), (slope, slope), (s, slope), (s**2, z * slope), (factor(name, order=2), s)]
        results = gram(products, K)
        assert isinstance(results, list)
        for (f, g), found in zip(products, results):
            assert "Hermite series" in found.rule
            compare(f, g, K, found, 1e-10, entries=6)

    @pytest.mark.slow(after=3)
    @pytest.mark.parametrize("name", ["selu", "softsign", "elu"])
    @pytest.mark.parametrize("kind", ["plain", "repeated", "wide"])
    def test_kinked_series(self, name: str, kind: str) -> None:
        K = inputs(4, kind)
        products = [(factor(name),) * 2, (factor(name), factor(name, order=1))]
        if kind != "wide":
            products.append((factor(name, order=1),) * 2)
        results = gram(products, K)
        assert isinstance(results, list)
        for (f, g), found in zip(products, results):
            compare(f, g, K, found, 1e-10, entries=2)

    def test_kinks_are_split_off_nearly_parallel_pairs(self) -> None:
        K = inputs(12, "near")
        for f, g in [("selu", "selu"), (("elu", 1), "elu"), (factor("selu") ** 2, ("selu", 1))]:
            found = single((f, g), K)
            assert "split kinks" in found.rule
            compare(f, g, K, found, 1e-10, entries=12)

    @pytest.mark.slow(after=1)
    @pytest.mark.parametrize(
        "f", [factor("selu"), factor("selu", order=1), factor("softsign", order=1)], ids=str
    )
    def test_nearly_parallel_pairs_of_kinked_factors(self, f: Factor) -> None:
        K = inputs(5, "near")
        compare(f, f, K, single((f, f), K), 1e-10)
        compare(f, "elu", K, single((f, "elu"), K), 1e-10, entries=3)

    def test_few_pairs_one_by_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mehler, "split_pairs", lambda *_: None)
        K = inputs(5, "near")
        found = single(("selu", "selu"), K)
        assert "two-input rules" in found.rule
        compare("selu", "selu", K, found, 1e-10)

    @pytest.mark.slow
    def test_many_pairs_by_interpolation(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mehler, "split_pairs", lambda *_: None)
        monkeypatch.setattr(grams, "_FEW", 100)
        K = inputs(30, "near")
        found = single(("elu", "elu"), K)
        assert "interpolated" in found.rule
        compare("elu", "elu", K, found, 1e-10, entries=25)

    def test_wide_and_nearly_parallel(self) -> None:
        K = 50 * inputs(4, "near")
        compare("tanh", ("tanh", 2), K, single(("tanh", ("tanh", 2)), K), 1e-10, entries=4)

    def test_piecewise_polynomials_and_deltas(self) -> None:
        K = inputs(6, "spread")
        for f, g in [
            ("relu", ("relu", 1)),
            (factor("relu") ** 2, "abs"),
            (("relu", 2), "relu"),
            ("relu", "sign"),
        ]:
            compare(f, g, K, single((f, g), K), 1e-11)

    def test_kinks_away_from_zero(self) -> None:
        def hard_tanh(t: np.ndarray) -> np.ndarray:
            return np.clip(t, -1, 1)

        f = factor(hard_tanh)
        for kind in ("spread", "repeated"):
            K = inputs(6, kind)
            compare(f, f, K, single((f, f), K), 1e-10)
            compare(f, "tanh", K, single((f, "tanh"), K), 1e-10)

    def test_mixed_activations(self) -> None:
        K = inputs(7, "repeated")
        for f, g in [("tanh", "gelu"), ("relu", "tanh"), (z, "swish"), ("erf", "erf"), (z**3, z**2)]:
            compare(f, g, K, single((f, g), K), 1e-10)

    def test_constants(self) -> None:
        K = inputs(4, "plain")
        assert single((2.0, 3.0), K).value == pytest.approx(6.0)
        mean = np.array([line(SMOOTH["softplus"][0], k) for k in np.diagonal(K)])
        assert single((1.0, "softplus"), K).value == pytest.approx(np.tile(mean, (4, 1)), rel=1e-10)


class TestAgainstOracles:
    @pytest.mark.slow(after=1)
    @pytest.mark.parametrize("name", ["tanh", "swish", "gelu", "relu", "selu", "softsign", "mish"])
    def test_values(self, name: str) -> None:
        K = inputs(4, "spread", seed=3)
        values, slopes = (r.value for r in gram([(name, name), ((name, 1), (name, 1))], K))
        for i in range(4):
            for j in range(i, 4):
                block = K[np.ix_([i, j], [i, j])]
                for order, matrix in enumerate((values, slopes)):
                    f = FUNCTIONS[name][order]
                    if i == j:
                        true = line(lambda t, f=f: f(t) ** 2, K[i, i])
                    else:
                        true = pair(f, f, block)
                    assert matrix[i, j] == pytest.approx(true, abs=1e-10)
                    assert matrix[j, i] == pytest.approx(matrix[i, j], rel=1e-13, abs=1e-15)

    def test_nearly_parallel_slopes_keep_their_digits(self) -> None:
        angle = 1e-6
        K = np.array([[1.0, math.cos(angle)], [math.cos(angle), 1.0]])
        exact = float(np.arctan2(math.sqrt((1 - K[0, 1]) * (1 + K[0, 1])), K[0, 1]))
        slope = single((("relu", 1), ("relu", 1)), K).value[0, 1]
        assert slope == pytest.approx(0.5 - exact / (2 * math.pi), abs=1e-14)

    def test_zero_inputs_of_a_jumping_factor(self) -> None:
        """The limit of vanishing width is the mean of both sides."""
        K = np.diag([0.0, 1.0, 2.0])
        K[1, 2] = K[2, 1] = 0.5
        for name in ("selu", "relu", "leaky_relu(slope=0.1)"):
            slope = KINKED[name][1]
            sides = slope(np.array([-1e-300, 1e-300]))
            found = single(((name, 1), (name, 1)), K).value
            true = sides.mean() * line(slope, 1.0)
            assert found[0, 1] == found[1, 0] == pytest.approx(true, rel=1e-9)
            assert found[0, 0] == pytest.approx((sides**2).mean(), rel=1e-12)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: gram("tanh", [[1.0, 2.0], [2.0, 1.0]]), "not positive semidefinite"),
        (lambda: gram("tanh", [[1.0, 0.5], [0.4, 1.0]]), "not symmetric"),
        (lambda: gram("tanh", [[np.nan]]), "not finite"),
        (lambda: gram("tanh", np.ones((2, 2, 2))), r"\(N, N\)"),
        (lambda: gram("tanh", np.ones(3)), "square"),
        (lambda: gram(["tanh"], np.eye(2)), "pair"),
        (lambda: gram([("tanh", "tanh", "tanh")], np.eye(2)), "pair"),
        (lambda: gram("tanh", np.eye(2), tolerance=1.0), "tolerance"),
        (lambda: gram("unknown", np.eye(2)), "unknown activation"),
    ],
)
def test_bad_input_gives_one_clear_sentence(call: Callable[[], object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()
