from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_integrals import SMOOTH, check, pair, random_covariance, sines, size

from foretrain.gaussian import expectation, expectations_at, factor, gram, products_at, z
from foretrain.gaussian.factors import Factor
from foretrain.gaussian.quadrature import Products, Stack
from foretrain.support.errors import InputError

quick = settings(deadline=None, max_examples=12)
K5 = random_covariance(np.random.default_rng(0), 5, 2.0)
K5[4] = K5[1]
K5[:, 4] = K5[:, 1]
K5[4, 4] = K5[1, 4] = K5[4, 1] = K5[1, 1]


class TestValues:
    def test_sines_on_all_quadruples(self) -> None:
        rows = np.array(list(itertools.product(range(3), repeat=4)))
        found = expectations_at(["sin", "sin", "cos", "cos"], K5, rows)
        for row, value in zip(rows, found.value):
            assert value == pytest.approx(sines([True, True, False, False], K5[np.ix_(row, row)]), abs=1e-12)

    @pytest.mark.parametrize("names", [("tanh",) * 4, ("relu", "relu", ("relu", 1), ("relu", 1))])
    def test_agree_with_single_expectations(self, names: tuple[Any, ...]) -> None:
        rows = np.random.default_rng(1).integers(0, 5, (25, 4))
        found = expectations_at(names, K5, rows)
        for row, value, error in zip(rows, found.value, found.error):
            alone = expectation(names, K5[np.ix_(row, row)])
            assert abs(value - float(alone)) <= error + float(alone.error) + 1e-14

    def test_a_repeated_input_is_one_variable(self) -> None:
        found = expectations_at(["tanh", "gelu", "tanh"], K5, [[2, 2, 2], [2, 0, 2]])
        cube = expectation([factor("tanh") ** 2 * factor("gelu")], [[K5[2, 2]]])
        assert found.value[0] == pytest.approx(float(cube), rel=1e-8)
        K = K5[np.ix_([2, 0], [2, 0])]
        f = [lambda t: np.tanh(t) ** 2, SMOOTH["gelu"][0]]
        check(expectation([factor("tanh") ** 2, "gelu"], K), pair(*f, K), size(f, K), 1e-10)
        assert found.value[1] == pytest.approx(pair(*f, K), abs=1e-8)

    def test_duplicated_inputs_under_different_names(self) -> None:
        found = expectations_at(["relu"] * 3, K5, [[1, 4, 0], [1, 1, 0], [4, 4, 0]])
        assert found.value[1:] == pytest.approx(found.value[0], rel=1e-9)

    @pytest.mark.parametrize("slots", [1, 2, 3])
    def test_fewer_slots(self, slots: int) -> None:
        rows = np.array(list(itertools.product(range(3), repeat=slots)))
        found = expectations_at(["softplus"] * slots, K5, rows)
        for row, value in zip(rows, found.value):
            alone = expectation(["softplus"] * slots, K5[np.ix_(row, row)])
            assert value == pytest.approx(float(alone), rel=3e-8)

    def test_polynomial_and_delta_slots(self) -> None:
        found = expectations_at([z, ("relu", 2), "tanh"], K5, [[0, 1, 2], [1, 1, 2], [2, 1, 2]])
        for row, value in zip([[0, 1, 2], [1, 1, 2], [2, 1, 2]], found.value):
            if len(set(row)) == 3:
                alone = expectation([z, ("relu", 2), "tanh"], K5[np.ix_(row, row)])
                assert value == pytest.approx(float(alone), abs=1e-9)
        assert found.value[1] == pytest.approx(0.0, abs=1e-15)


class TestSeveralProducts:
    @pytest.mark.parametrize("name", ["tanh", "relu", "elu"])
    def test_agree_with_one_at_a_time(self, name: str) -> None:
        s, slope = factor(name), factor(name, 1)
        size = 3 if name == "elu" else 5
        rows = np.random.default_rng(2).integers(0, size, (12, 4))
        products = [[s] * 4, [s, s, slope, slope], [slope] * 4]
        requests = [(f, part) for f, part in zip(products, (rows, rows[:5], rows[3:]), strict=True)]
        for found, (f, part) in zip(products_at(requests, K5), requests, strict=True):
            alone = expectations_at(f, K5, part)
            assert found.value.shape == (len(part),)
            assert (np.abs(found.value - alone.value) <= found.error + alone.error + 1e-14).all()

    def test_the_same_inputs_are_integrated_together(self, monkeypatch: pytest.MonkeyPatch) -> None:
        computed = []
        original = Stack.totals

        def counted(self: Stack, products: list[list[Factor]]) -> Any:
            computed.append((len(self.K), len(products)))
            return original(self, products)

        monkeypatch.setattr(Stack, "totals", counted)
        s, slope = factor("tanh"), factor("tanh", 1)
        rows = np.array(list(itertools.permutations([0, 1, 2, 3])))
        products_at([([s] * 4, rows), ([s, s, slope, slope], rows), ([slope] * 4, rows)], K5)
        assert computed == [(1, 8)]

    def test_products_of_fewer_factors_have_ones(self) -> None:
        requests = [(["tanh"] * 4, [[0, 1, 2, 3]]), (["tanh"] * 2, [[0, 1], [4, 4]]), ([("tanh", 1)], [[2]])]
        four, two, alone = products_at(requests, K5, tolerance=1e-10)
        assert float(four.value[0]) == pytest.approx(float(expectation(["tanh"] * 4, K5[:4, :4])), abs=1e-8)
        assert two.value == pytest.approx(gram("tanh", K5).value[[0, 4], [1, 4]], abs=1e-10)
        assert float(alone.value[0]) == pytest.approx(
            float(expectation([("tanh", 1)], K5[2:3, 2:3])), abs=1e-12
        )


class TestShapesAndWork:
    def test_shape_follows_the_indices(self) -> None:
        rows = np.zeros((2, 3, 2), dtype=int)
        found = expectations_at(["tanh", "tanh"], K5, rows)
        assert found.value.shape == found.error.shape == (2, 3)
        assert expectations_at(["tanh", "tanh"], K5, [0, 1]).value.shape == ()
        assert expectations_at(["tanh", "tanh"], K5, np.zeros((0, 2), dtype=int)).value.shape == (0,)

    def test_symmetric_entries_are_computed_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        computed = []
        original = Stack.totals

        def counted(self: Stack, products: Products) -> Any:
            computed.append((len(self.K), len(products)))
            return original(self, products)

        monkeypatch.setattr(Stack, "totals", counted)
        rows = np.array(list(itertools.permutations([0, 1, 2, 3])))
        found = expectations_at(["relu"] * 4, K5, rows)
        assert computed == [(1, 1)]
        assert np.ptp(found.value) == 0

    def test_only_inputs_with_the_same_factor_are_exchanged(self) -> None:
        found = expectations_at(["relu", ("relu", 1)], K5, [[0, 1], [1, 0]])
        assert found.value[0] != pytest.approx(found.value[1], rel=1e-3)

    def test_integers_of_any_kind(self) -> None:
        rows = np.array([[0, 1]], dtype=np.uint8)
        assert expectations_at(["tanh", "tanh"], K5, rows).value == pytest.approx(
            expectations_at(["tanh", "tanh"], K5, [[1, 0]]).value
        )


@quick
@given(
    rows=st.lists(st.tuples(*[st.integers(0, 4)] * 4), min_size=1, max_size=4),
    order=st.permutations(range(4)),
)
def test_permuting_slots_with_their_factors(rows: list[tuple[int, ...]], order: list[int]) -> None:
    factors = ["relu", "relu", ("relu", 1), "abs"]
    a = expectations_at(factors, K5, rows)
    b = expectations_at([factors[i] for i in order], K5, np.array(rows)[:, order])
    assert np.allclose(a.value, b.value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: expectations_at(["tanh"] * 2, K5, [[0, 5]]), "inputs 0 to 5"),
        (lambda: expectations_at(["tanh"] * 2, K5, [[-1, 0]]), "name inputs"),
        (lambda: expectations_at(["tanh"] * 2, K5, [[0, 1, 2]]), r"shape \(..., 2\)"),
        (lambda: expectations_at(["tanh"] * 2, K5, [[0.0, 1.0]]), "integers"),
        (lambda: expectations_at(["tanh"] * 2, K5, 0), "integers of shape"),
        (lambda: expectations_at([], K5, [[0]]), "1 to 4 factors"),
        (lambda: expectations_at(["tanh"] * 5, K5, [[0] * 5]), "1 to 4 factors"),
        (lambda: expectations_at(["tanh"], [[1.0, 2.0], [2.0, 1.0]], [[0]]), "not positive semidefinite"),
        (lambda: expectations_at(["tanh"], K5, [[0]], tolerance=2.0), "tolerance"),
    ],
)
def test_bad_input_gives_one_clear_sentence(call: Callable[[], object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()
