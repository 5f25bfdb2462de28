"""Partial traces and sums over pairs, exact and sampled, against index sums over the dense tensor."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_operators import (
    DOUBLE,
    assert_close,
    assert_is_matrix,
    normal,
    positive_operator,
    random_operator,
    symmetric_operator,
)
from torch import Tensor

from foretrain.operators import Operator, Space, SumSpace, identity, kron
from foretrain.operators.reductions import PartialTrace, SampledPartialTrace
from foretrain.support.errors import AccuracyWarning, InputError, NotSupportedError

STATES = Space.of(batch=2, time=3, unit=4)
PROPER = [names for count in (1, 2) for names in combinations(STATES.names, count)]


def traced(matrix: Tensor, space: Space, over: tuple[str, ...]) -> Tensor:
    """Sum over equal indices, written out with einsum letters."""
    left = "abcdef"[: len(space.names)]
    right = "".join(a if name in over else a.upper() for a, name in zip(left, space.names))
    kept = "".join(a for a, name in zip(left, space.names) if name not in over)
    whole = torch.einsum(f"{left}{right}->{kept}{kept.upper()}", matrix.reshape(space.shape * 2))
    size = space.without(over).size
    return whole.reshape(size, size)


def summed(matrix: Tensor, space: Space, over: tuple[str, ...]) -> Tensor:
    """Sum over all pairs of indices."""
    positions = [i for i, name in enumerate(space.names) if name in over]
    count = len(space.names)
    whole = matrix.reshape(space.shape * 2).sum([*positions, *(count + i for i in positions)])
    size = space.without(over).size
    return whole.reshape(size, size)


@pytest.mark.parametrize("over", PROPER)
@pytest.mark.parametrize("make", [random_operator, symmetric_operator, positive_operator])
def test_partial_traces_contract_equal_indices(over: tuple[str, ...], make: Any) -> None:
    operator = make(STATES)
    expected = traced(operator.matrix, STATES, over)
    reduced = operator.partial_trace(over=over)
    assert isinstance(reduced, PartialTrace)
    assert reduced.domain == STATES.without(over)
    assert (reduced.symmetric, reduced.positive) == (operator.symmetric, operator.positive)
    assert_is_matrix(reduced, expected)
    dimension = STATES.only(over).size
    assert_is_matrix(operator.partial_trace(over=over, normalize=True), expected / dimension)
    assert operator.largest_block == 3


@pytest.mark.parametrize("over", PROPER)
def test_sums_over_pairs_are_something_else(over: tuple[str, ...]) -> None:
    operator = positive_operator(STATES)
    expected = summed(operator.matrix, STATES, over)
    assert_is_matrix(operator.pair_sum(over=over), expected)
    assert operator.pair_sum(over=over).positive
    pairs = STATES.only(over).size ** 2
    assert_is_matrix(operator.pair_sum(over=over, normalize=True), expected / pairs)
    assert not torch.allclose(expected, traced(operator.matrix, STATES, over), rtol=0.05)


def test_expanding_and_averaging_is_the_pair_sum() -> None:
    """Published code expands x along the traced axis and averages the result: pair_sum / |y|."""
    operator = positive_operator(STATES)
    vector = normal(2, 3)
    expanded = operator @ vector[:, :, None].expand(2, 3, 4).contiguous()
    assert_close(expanded.mean(-1), (operator.pair_sum("unit") / 4) @ vector)


def test_the_partial_trace_of_a_product_factors() -> None:
    A, B = random_operator(Space.of(batch=2, time=3)), random_operator(Space.of(unit=4), seed=1)
    product = kron(A, B)
    assert_is_matrix(product.partial_trace("unit"), A.matrix * B.matrix.trace())
    assert_is_matrix(product.partial_trace(("time", "batch")), B.matrix * A.matrix.trace())
    assert_is_matrix(identity(STATES).partial_trace("unit"), 4 * torch.eye(6, dtype=DOUBLE))


def test_partial_traces_can_be_taken_one_after_the_other() -> None:
    operator = random_operator(STATES)
    assert_close(
        operator.partial_trace("unit").partial_trace("batch").dense(),
        operator.partial_trace(("unit", "batch")).dense(),
    )


def test_kept_axes_may_differ_and_traced_axes_may_stand_elsewhere() -> None:
    domain, codomain = Space.of(time=3, unit=2, batch=2), Space.of(batch=2, output=4, time=3)
    operator = random_operator(domain, codomain)
    tensor = operator.matrix.reshape(2, 4, 3, 3, 2, 2)
    expected = torch.einsum("bottub->ou", tensor)
    assert_is_matrix(operator.partial_trace(("time", "batch")), expected)
    assert_is_matrix(operator.partial_trace(("batch", "time")), expected)
    over_time = torch.einsum("bottuc->bouc", tensor).reshape(8, 4)
    assert_is_matrix(operator.partial_trace("time"), over_time)
    assert_is_matrix(operator.pair_sum("time"), tensor.sum((2, 3)).reshape(8, 4))


@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(st.integers(1, 3), min_size=2, max_size=4), seed=st.integers(0, 10**6), data=st.data())
def test_any_axes_of_any_operator(sizes: list[int], seed: int, data: st.DataObject) -> None:
    space = Space(*((f"axis_{i}", size) for i, size in enumerate(sizes)))
    count = data.draw(st.integers(1, len(sizes) - 1))
    over = tuple(data.draw(st.permutations(space.names))[:count])
    operator = random_operator(space, seed=seed)
    assert_is_matrix(operator.partial_trace(over), traced(operator.matrix, space, over))
    assert_is_matrix(operator.pair_sum(over), summed(operator.matrix, space, over))


def test_sampled_partial_traces_are_fixed_operators_with_inherited_structure() -> None:
    for make in (random_operator, symmetric_operator, positive_operator):
        operator = make(STATES)
        sampled = operator.partial_trace("unit", method="stochastic", probes=7, seed=3)
        assert isinstance(sampled, SampledPartialTrace)
        assert (sampled.symmetric, sampled.positive) == (operator.symmetric, operator.positive)
        assert_is_matrix(sampled, sampled.T.dense().T)
        again = operator.partial_trace("unit", method="stochastic", probes=7, seed=3)
        assert torch.equal(sampled.dense(), again.dense())
        assert not torch.equal(
            sampled.dense(), operator.partial_trace("unit", method="stochastic", probes=7, seed=4).dense()
        )
        assert "7 probes (seed 3)" in repr(sampled)


def test_all_sign_patterns_together_give_the_exact_partial_trace() -> None:
    operator = random_operator(Space.of(time=3, unit=2))
    sampled = operator.partial_trace("unit", method="stochastic", probes=4, normalize=True)
    assert isinstance(sampled, SampledPartialTrace)
    sampled._signs = torch.tensor([[1, 1], [1, -1], [-1, 1], [-1, -1]])
    assert_is_matrix(sampled, traced(operator.matrix, Space.of(time=3, unit=2), ("unit",)) / 2)


def test_standard_errors_are_those_of_the_mean_over_probes() -> None:
    space = Space.of(time=3, unit=20)
    operator = positive_operator(space)
    sampled = operator.partial_trace("unit", method="stochastic", probes=50, normalize=True)
    tensor = operator.matrix.reshape(3, 20, 3, 20)
    signs = sampled._signs.double()
    assert set(signs.unique().tolist()) == {-1, 1}
    each = torch.einsum("py,tysz,pz->pts", signs, tensor, signs) / 20
    assert_close(sampled.dense(), each.mean(0))
    vector = normal(3, seed=1)
    assert_close(sampled.standard_error(vector), (each @ vector).std(0) / np.sqrt(50))


@pytest.mark.slow
def test_standard_errors_cover_the_truth_at_the_nominal_rate() -> None:
    space = Space.of(time=2, unit=30)
    operator = positive_operator(space, rank=5)
    truth = traced(operator.matrix, space, ("unit",))
    inside = []
    for seed in range(200):
        sampled = operator.partial_trace("unit", method="stochastic", probes=60, seed=seed)
        first = torch.tensor([1.0, 0.0], dtype=torch.float64)
        error = sampled.standard_error(first)[0]
        inside.append(bool((sampled.dense() - truth)[0, 0].abs() < error))
    # The share within one standard error of Student's t with 59 degrees of freedom, within three binomial errors.
    assert abs(np.mean(inside) - 0.679) < 3 * np.sqrt(0.679 * 0.321 / 200)


class Coupled(Operator):
    """Identity plus a rank-one part on a space that is too large for exact traces by default."""

    def __init__(self, space: Space, strength: float) -> None:
        super().__init__(space, dtype=DOUBLE, positive=True, best_block=64)
        self.direction = strength * normal(space.size) / np.sqrt(space.size)

    def _apply(self, flat: Tensor) -> Tensor:
        return flat + (flat @ self.direction)[:, None] * self.direction


def of_trace_norm_and_rank(matrix: Tensor) -> list[float]:
    trace, norm = float(matrix.trace()), float(matrix.norm())
    return [trace, norm, trace**2 / norm**2]


@pytest.mark.parametrize("every", [256, 8])  # dimensions that are seen whole
def test_estimates_of_sampled_partial_traces_have_the_error_of_the_sample(
    every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretrain.operators.reductions._EVERY_DIRECTION", every)
    space = Space.of(time=12, unit=30)
    operator = positive_operator(space, rank=40)
    truth = of_trace_norm_and_rank(traced(operator.matrix, space, ("unit",)))
    scores = []
    for seed in range(60):
        sampled = operator.partial_trace("unit", method="stochastic", probes=24, seed=seed)
        found = [sampled.trace(), sampled.frobenius_norm(), sampled.effective_rank()]
        assert all("probes" in repr(each) and each.standard_error > 0 for each in found)
        scores.append([(each.value - true) / each.standard_error for each, true in zip(found, truth)])
    # Sixty scores have a mean with a standard error of 0.13, and a root mean square with about 0.1.
    assert np.abs(np.mean(scores, 0)).max() < 0.5
    spread = np.sqrt(np.square(scores).mean(0))
    assert spread.min() > 0.6
    assert spread.max() < 1.6


def test_an_accuracy_that_probes_do_not_have_is_warned_of() -> None:
    sampled = positive_operator(STATES).partial_trace("unit", method="stochastic", probes=3)
    with pytest.warns(AccuracyWarning, match="state more"):
        sampled.effective_rank(accuracy=1e-6)


@pytest.mark.slow
def test_the_expected_error_is_the_error() -> None:
    space = Space.of(time=3, unit=40)
    operator = positive_operator(space, rank=8)
    truth = traced(operator.matrix, space, ("unit",))
    squares = []
    for seed in range(60):
        sampled = operator.partial_trace("unit", method="stochastic", probes=100, seed=seed, normalize=True)
        distance = float((sampled.dense() - truth / 40).norm() / (truth.norm() / 40))
        squares.append((distance / sampled.relative_error(seed=seed)) ** 2)
    assert abs(np.mean(squares) - 1) < 3 * np.std(squares) / np.sqrt(60)


def test_sampling_reaches_the_accuracy_it_is_asked_for() -> None:
    space = Space.of(time=3, unit=400)
    operator = Coupled(space, 6.0)
    truth = traced(operator.dense(), space, ("unit",))
    counts = []
    for accuracy in (0.04, 0.01):
        sampled = operator.partial_trace("unit", method="stochastic", accuracy=accuracy)
        assert isinstance(sampled, SampledPartialTrace)
        counts.append(sampled.probe_count)
        assert sampled.relative_error() < 1.3 * accuracy
        assert float((sampled.dense() - truth).norm() / truth.norm()) < 3 * accuracy
    assert 16 <= counts[0] < counts[1] < 400


def test_the_automatic_choice() -> None:
    space = Space.of(time=4, unit=1500)
    assert isinstance(Coupled(space, 1.0).partial_trace("time"), PartialTrace)
    weak = Coupled(space, 1.0).partial_trace("unit", accuracy=0.05)
    assert isinstance(weak, SampledPartialTrace)
    assert weak.probe_count < 1500
    strong = Coupled(space, 200.0).partial_trace("unit", accuracy=1e-5)
    assert isinstance(strong, PartialTrace)
    with pytest.raises(InputError, match="method='exact'"):
        Coupled(space, 200.0).partial_trace("unit", accuracy=1e-5, method="stochastic")


def test_tracing_everything_gives_the_trace() -> None:
    operator = random_operator(STATES)
    whole = operator.partial_trace(over=STATES.names)
    assert float(whole.value) == pytest.approx(float(operator.matrix.trace()), rel=1e-10)
    share = operator.partial_trace(over=("unit", "time", "batch"), normalize=True, method="exact")
    assert float(share.value) == pytest.approx(float(operator.matrix.trace()) / 24, rel=1e-10)
    turned = random_operator(Space.of(a=2, b=3), Space.of(b=3, a=2))
    expected = torch.einsum("baab->", turned.matrix.reshape(3, 2, 2, 3))
    assert float(turned.partial_trace(("a", "b")).value) == pytest.approx(float(expected), rel=1e-10)
    sampled = positive_operator(STATES).partial_trace(
        STATES.names, method="stochastic", probes=20, normalize=True, accuracy=0.1
    )
    truth = float(positive_operator(STATES).matrix.trace()) / 24
    assert sampled.standard_error > 0
    assert abs(float(sampled.value) - truth) < 4 * sampled.standard_error


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: random_operator(STATES).partial_trace("units"), InputError, "did you mean 'unit'"),
        (lambda: random_operator(STATES).partial_trace(("unit", "unit")), InputError, "named twice"),
        (lambda: random_operator(STATES).partial_trace("unit", method="exactly"), InputError, "'exact'"),
        (lambda: random_operator(STATES).partial_trace("unit", accuracy=0.0), InputError, "accuracy"),
        (
            lambda: random_operator(STATES).partial_trace("unit", method="stochastic", probes=1),
            InputError,
            "at least 2",
        ),
        (lambda: random_operator(STATES).pair_sum("units"), InputError, "did you mean 'unit'"),
        (
            lambda: random_operator(Space.of(a=2), Space.of(a=3)).partial_trace("a"),
            InputError,
            "equal on both sides",
        ),
        (
            lambda: random_operator(Space.of(a=2), Space.of(b=2)).partial_trace("a"),
            InputError,
            "unknown axis",
        ),
        (
            lambda: random_operator(Space.of(a=2), Space.of(a=2, b=3)).partial_trace("a"),
            InputError,
            "fewer axes",
        ),
        (
            lambda: random_operator(SumSpace({"a": STATES})).partial_trace("unit"),
            NotSupportedError,
            "restrict_to",
        ),
        (lambda: random_operator(SumSpace({"a": STATES})).pair_sum("unit"), NotSupportedError, "restrict_to"),
    ],
)
def test_bad_input(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
