"""Counting the numbers of the trained distribution."""

from __future__ import annotations

from itertools import product

import pytest

from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP
from foretrain.theory.complexity import SYMMETRIES, independent_entries, model_complexity, regime


def test_counts_of_the_reference() -> None:
    assert model_complexity(0, n_data=30, n_train=20, n_out=3).total == 990
    assert model_complexity(1, n_data=30).counts["V"] == 108345


@pytest.mark.parametrize("name", SYMMETRIES)
def test_independent_entries_by_merging_equal_ones(name: str) -> None:
    """Join index sets that a symmetry maps onto each other, and count what remains."""
    size = 3
    label = {index: index for index in product(range(size), repeat=4)}
    for _ in range(4):
        for index in label:
            for swap in SYMMETRIES[name]:
                other = tuple(index[i] for i in swap)
                label[index] = label[other] = min(label[index], label[other])
    assert independent_entries(size, SYMMETRIES[name]) == len(set(label.values()))


@pytest.mark.parametrize("size", [1, 2, 7, 30])
def test_closed_forms(size: int) -> None:
    pairs = size * (size + 1) // 2
    counts = model_complexity(1, n_data=size, n_out=2).counts
    assert counts["y"] == 2 * size
    assert counts["G"] == counts["H"] == pairs
    assert counts["V"] == counts["A"] == pairs * (pairs + 1) // 2
    assert counts["D"] == pairs**2
    assert counts["Q"] == size**4
    assert counts["P"] == counts["R"] == size**2 * pairs
    assert counts["F"] == counts["S"] == counts["T"] == counts["U"] == size**2 * (size**2 + 1) // 2
    assert counts["B"] == (size**4 + 3 * size**2) // 4
    assert len(counts) == 3 + 11


def test_growth() -> None:
    assert [model_complexity(k, n_data=5).exponent for k in range(4)] == [2, 4, 6, 8]
    sizes = [model_complexity(1, n_data=n).total for n in (200, 400)]
    assert sizes[1] / sizes[0] == pytest.approx(2**4, rel=0.01)
    assert model_complexity(2, n_data=5).total is None


def test_few_numbers_beside_the_parameters() -> None:
    net = MLP("relu", depth=5, width=1000, n_in=784, n_out=10)
    assert model_complexity(0, n_data=100, n_out=10).total < net.parameter_count // 300


def test_what_is_printed() -> None:
    text = repr(model_complexity(1, n_data=10, n_train=8, n_out=2))
    assert "grow as n_data^4" in text
    assert "total" in text
    assert "U " in text
    assert "total" not in repr(model_complexity(3, n_data=10))


def test_regimes() -> None:
    assert "without representation learning" in regime(0)
    assert "effective theory" in regime(0.05)
    assert "strongly coupled" in regime(3)


def test_bad_input() -> None:
    with pytest.raises(InputError, match="more than all"):
        model_complexity(0, n_data=3, n_train=4)
    with pytest.raises(InputError, match="order"):
        model_complexity(-1, n_data=3)
    with pytest.raises(InputError, match="n_out"):
        model_complexity(0, n_data=3, n_out=0)
    with pytest.raises(InputError, match="aspect ratio"):
        regime(-0.1)
