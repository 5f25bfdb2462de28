from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial import Polynomial
from reference_integrals import FUNCTIONS

from foretrain.activations import activation
from foretrain.gaussian import Factor, factor, one, z
from foretrain.gaussian.factors import as_factor
from foretrain.support.errors import InputError, NotSupportedError

quick = settings(deadline=None, max_examples=30)
GRID = np.array([-3.0, -1.1, -0.4, 0.3, 0.9, 2.5])
NAMES = sorted(FUNCTIONS)


def hard_tanh(t: np.ndarray) -> np.ndarray:
    return np.clip(t, -1, 1)


class TestValues:
    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("order", [0, 1, 2])
    def test_agree_with_formulas_written_apart(self, name: str, order: int) -> None:
        expected = FUNCTIONS[name][order](GRID)
        assert np.allclose(factor(name, order=order)(GRID), expected, rtol=1e-12, atol=1e-14)

    def test_products_powers_and_polynomials(self) -> None:
        product = 3 * z**2 * factor("tanh", order=1) * factor("tanh") ** 3
        expected = 3 * GRID**2 * (1 - np.tanh(GRID) ** 2) * np.tanh(GRID) ** 3
        assert np.allclose(product(GRID), expected, rtol=1e-12)
        assert np.allclose((z * "sin")(GRID), GRID * np.sin(GRID))
        assert np.array_equal(one(GRID), np.ones_like(GRID))
        assert np.array_equal((factor("tanh") ** 0)(GRID), np.ones_like(GRID))

    def test_float32_stays_float32(self) -> None:
        assert (z * factor("tanh"))(GRID.astype(np.float32)).dtype == np.float32

    def test_the_mean_of_both_sides_at_a_kink(self) -> None:
        assert factor("perceptron").mean_value(np.zeros(1))[0] == 0.5
        assert factor("relu", order=1).mean_value(np.array([0.0, 1.0, -1.0])).tolist() == [0.5, 1.0, 0.0]
        assert factor("sign").mean_value(np.zeros(1))[0] == 0.0
        slope = factor(activation(hard_tanh), order=1)
        assert slope.mean_value(np.array([-1.0, 0.0, 1.0])).tolist() == [0.5, 1.0, 0.5]


class TestAlgebra:
    def test_the_order_of_factors_does_not_matter(self) -> None:
        a, b = factor("tanh"), factor("relu", order=1)
        assert a * b == b * a
        assert hash(a * b) == hash(b * a)
        assert a * a == a**2 == factor("tanh", power=2)

    def test_parameters_tell_factors_apart(self) -> None:
        assert factor("leaky_relu(slope=0.1)") != factor("leaky_relu(slope=0.2)")
        product = factor("leaky_relu(slope=0.1)") * factor("leaky_relu(slope=0.2)")
        assert product(np.array([-1.0]))[0] == pytest.approx(0.02)

    @pytest.mark.parametrize(
        "spec",
        ["tanh", activation("tanh"), np.tanh, ("tanh", 0), factor("tanh")],
    )
    def test_ways_to_say_tanh(self, spec: object) -> None:
        assert as_factor(spec) == factor("tanh")

    def test_numbers_and_polynomials(self) -> None:
        assert as_factor(2).is_constant
        assert as_factor(2.5)(GRID).tolist() == [2.5] * 6
        cubic = as_factor(Polynomial([1, 0, 0, 2], domain=[0, 1], window=[-1, 1]))
        assert np.allclose(cubic(GRID), 1 + 2 * (2 * GRID - 1) ** 3)
        assert cubic.is_polynomial
        assert not cubic.is_constant

    @pytest.mark.parametrize(
        ("build", "words"),
        [
            (lambda: factor("tanh", order=-1), "order must be"),
            (lambda: factor("tanh", order=1.5), "order must be"),
            (lambda: factor("tanh", power=0), "power 1, 2"),
            (lambda: factor("tanh") ** -1, "raised to"),
            (lambda: factor("tanh") ** 0.5, "raised to"),
            (lambda: factor("tanhh"), "did you mean 'tanh'"),
            (lambda: factor(3), "cannot make an activation"),
            (lambda: factor("tanh") * [1], "cannot make an activation"),
        ],
    )
    def test_bad_input(self, build: Callable[[], Factor], words: str) -> None:
        with pytest.raises(InputError, match=words):
            build()

    def test_repr_reads_like_the_formula(self) -> None:
        assert repr(z * factor("tanh", order=1) * factor("tanh") ** 2) == "(1 z) tanh**2 tanh'"
        assert repr(one) == "(1)"
        assert "^(5)" in repr(factor("sin", order=5))


class TestDerivative:
    @pytest.mark.parametrize("name", ["tanh", "gelu", "softsign", "selu"])
    def test_product_rule(self, name: str) -> None:
        f = z**2 * factor(name) ** 3 * factor("sin")
        h = 1e-6
        slope = sum(part(GRID) for part in f.derivative())
        assert np.allclose(slope, (f(GRID + h) - f(GRID - h)) / (2 * h), rtol=1e-6, atol=1e-7)

    def test_constants_have_none(self) -> None:
        assert one.derivative() == ()
        assert as_factor(3.0).derivative() == ()
        assert z.derivative() == (one,)


class TestWhatIsKnown:
    @pytest.mark.parametrize(
        ("f", "parity"),
        [
            (factor("tanh"), -1),
            (factor("tanh", order=1), 1),
            (factor("tanh", order=2), -1),
            (factor("tanh") ** 2, 1),
            (z * factor("tanh"), 1),
            (z**3, -1),
            (z**2, 1),
            (as_factor(Polynomial([1, 1])), 0),
            (factor("gelu"), 0),
            (factor("relu") ** 2, 0),
            (factor("abs"), 1),
            (factor("sign"), -1),
            (factor("cos", order=1), -1),
            (one, 1),
        ],
    )
    def test_parity(self, f: Factor, parity: int) -> None:
        assert f.parity == parity
        if parity:
            assert np.allclose(f(-GRID), parity * f(GRID))

    @quick
    @given(
        name=st.sampled_from(["relu", "abs", "leaky_relu", "sign", "perceptron", "quadratic", "linear"]),
        order=st.integers(0, 2),
        power=st.integers(1, 3),
        degree=st.integers(0, 2),
    )
    def test_pieces_are_the_factor_on_each_side(self, name: str, order: int, power: int, degree: int) -> None:
        f = factor(name, order=order, power=power) * z**degree
        assert f.pieces is not None
        minus, plus = (np.polynomial.polynomial.polyval(GRID, piece) for piece in f.pieces)
        assert np.allclose(f(GRID), np.where(GRID < 0, minus, plus), rtol=1e-13, atol=1e-15)

    def test_no_pieces_where_a_side_is_no_polynomial(self) -> None:
        assert factor("elu").pieces is None
        assert (factor("relu") * factor("tanh")).pieces is None

    def test_kinks(self) -> None:
        assert factor("tanh").kinks == ()
        assert (factor("relu") * factor("tanh")).kinks == (0.0,)
        assert (factor(hard_tanh) * factor("relu")).kinks == (-1.0, 0.0, 1.0)

    def test_the_strip_is_that_of_the_nearest_singularity(self) -> None:
        assert factor("tanh").strip == pytest.approx(math.pi / 2)
        assert (factor("sigmoid") * factor("tanh")).strip == pytest.approx(math.pi / 2)
        assert z.strip == math.inf


class TestDeltas:
    def test_smooth_factors_and_first_derivatives_have_none(self) -> None:
        assert factor("tanh", order=3).deltas == ()
        assert factor("relu", order=1).deltas == ()
        assert factor("softsign", order=2).deltas == ()

    @pytest.mark.parametrize(
        ("name", "order", "expected"),
        [
            ("relu", 2, [(0.0, 0, 1.0)]),
            ("relu", 3, [(0.0, 1, 1.0)]),
            ("abs", 2, [(0.0, 0, 2.0)]),
            ("leaky_relu(slope=0.25)", 2, [(0.0, 0, 0.75)]),
            ("perceptron", 1, [(0.0, 0, 1.0)]),
            ("perceptron", 2, [(0.0, 1, 1.0)]),
            ("sign", 1, [(0.0, 0, 2.0)]),
            ("softsign", 3, [(0.0, 0, -4.0)]),
            ("elu(alpha=2.0)", 2, [(0.0, 0, -1.0)]),
            ("elu(alpha=2.0)", 3, [(0.0, 1, -1.0), (0.0, 0, -2.0)]),
        ],
    )
    def test_are_the_jumps(self, name: str, order: int, expected: list[tuple[float, int, float]]) -> None:
        found = [(d.location, d.order, d.weight) for d in factor(name, order=order).deltas]
        assert found == expected

    def test_kinks_away_from_zero(self) -> None:
        deltas = factor(hard_tanh, order=2).deltas
        assert [(d.location, d.order) for d in deltas] == [(-1.0, 0), (1.0, 0)]
        assert [d.weight for d in deltas] == pytest.approx([1.0, -1.0], abs=1e-12)

    def test_pointwise_leaves_them_out(self) -> None:
        f = factor("relu", order=2) * z
        assert f.pointwise().deltas == ()
        assert np.array_equal(f.pointwise()(GRID), np.zeros(6))

    def test_across_its_own_step(self) -> None:
        (delta,) = (factor("relu", order=2) * factor("relu", order=1) ** 2).deltas
        assert delta.weight == pytest.approx(1 / 3)
        (delta,) = (
            factor("leaky_relu(slope=0.5)", order=2) * factor("leaky_relu(slope=0.5)", order=1)
        ).deltas
        assert delta.weight == pytest.approx((1 - 0.25) / 2)

    @pytest.mark.parametrize(
        "f",
        [
            factor("relu", order=2) * factor("abs", order=2),
            factor("relu", order=2) * factor("perceptron"),
            factor("relu", order=3) * factor("relu", order=1),
        ],
    )
    def test_products_without_a_value_are_refused(self, f: Factor) -> None:
        with pytest.raises(NotSupportedError, match="value"):
            _ = f.deltas

    def test_squares_of_deltas_are_infinite(self) -> None:
        assert factor("relu", order=2, power=2).is_infinite
        assert not factor("relu", order=1, power=2).is_infinite
        assert not factor("tanh", order=2, power=2).is_infinite
