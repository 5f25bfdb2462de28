"""Large kernels in tiles, chunks that are computed anew, and factors one by one."""

from __future__ import annotations

import pytest
import torch
from brute_force import assert_equal, normal, ready
from torch import Tensor, nn

from foretrain.empirical.tangent_kernel import factors, kernel, ntk
from foretrain.empirical.tangent_kernel.factors import Factor, Gradients, Grams, Pairs


def grams(samples: int, rows: int, groups: int = 1, seed: int = 0) -> tuple[Factor, Tensor]:
    """A factor and its per-sample gradients (samples * rows, entries): weight and bias side by side."""
    inputs, slopes = normal(groups, samples, 3, seed=seed), normal(groups, samples, rows, 2, seed=seed + 1)
    weight = torch.einsum("gnp,gnaq->nagpq", inputs, slopes).reshape(samples * rows, -1)
    bias = slopes.permute(1, 2, 0, 3).reshape(samples * rows, -1)
    return Grams(inputs, slopes, 2.0, 0.5), torch.cat([2**0.5 * weight, 0.5**0.5 * bias], 1)


def pairs(samples: int, rows: int, groups: int = 1, seed: int = 0) -> tuple[Factor, Tensor]:
    inputs, slopes = (
        normal(groups, samples, 3, 4, seed=seed),
        normal(groups, samples, rows, 2, 4, seed=seed + 1),
    )
    weight = torch.einsum("gnpt,gnaqt->nagpq", inputs, slopes).reshape(samples * rows, -1)
    return Pairs(inputs, slopes, 3.0), 3**0.5 * weight


def table(samples: int, rows: int, groups: int = 1, seed: int = 0) -> tuple[Factor, Tensor]:
    words = torch.arange(samples * 4).reshape(samples, 4) % 5
    slopes = normal(1, samples, rows, 2, 4, seed=seed + 1)
    one_hot = nn.functional.one_hot(words, 5).double()
    weight = torch.einsum("ntv,naqt->navq", one_hot, slopes[0]).reshape(samples * rows, -1)
    return Pairs(words, slopes, 3.0), 3**0.5 * weight


def gradients(samples: int, rows: int, groups: int = 1, seed: int = 0) -> tuple[Factor, Tensor]:
    found = normal(samples * rows, 6, seed=seed)
    return Gradients(found, rows), found


KINDS = {"grams": grams, "pairs": pairs, "table": table, "gradients": gradients}
each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("groups", [1, 2])
def test_products_of_two_chunks(kind: str, rows: int, groups: int) -> None:
    (left, mine), (right, theirs) = KINDS[kind](5, rows, groups), KINDS[kind](4, rows, groups, seed=7)
    kernel = torch.ones(5 * rows, 4 * rows, dtype=torch.float64)
    factors.add_products(kernel, [left, left], [right, right], rows)
    assert_equal(kernel, 1 + 2 * mine @ theirs.T)


@each_kind
@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize(("leaf", "cached"), [(1, 1), (1, 5), (4, 4), (4, 1000), (1000, 1000)])
def test_products_of_a_chunk_with_itself(
    kind: str, rows: int, leaf: int, cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(factors, "_LEAF_ROWS", leaf)
    monkeypatch.setattr(factors, "_CACHED_ROWS", cached)
    factor, mine = KINDS[kind](7, rows)
    kernel = torch.zeros(7 * rows, 7 * rows, dtype=torch.float64)
    factors.add_symmetric_products(kernel, [factor], rows)
    assert torch.equal(kernel, kernel.T)
    assert_equal(kernel, mine @ mine.T)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("leaf", [1, 2, 5])
def test_tiles_cover_the_upper_triangle_once(count: int, leaf: int) -> None:
    covered = torch.zeros(count, count)
    for across, down in factors._upper(0, count, leaf):
        covered[across, down] += 1
    assert bool((covered.triu() == torch.ones(count, count).triu()).all())
    assert bool((covered <= 1).all())


@pytest.mark.parametrize("limit", [1, 300, 10**9])
def test_pairs_with_little_room(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factors, "_PAIR_BYTES", limit)
    (left, mine), (right, theirs) = pairs(5, 2), pairs(4, 2, seed=7)
    kernel = torch.zeros(10, 8, dtype=torch.float64)
    factors.add_products(kernel, [left], [right], 2)
    assert_equal(kernel, mine @ theirs.T)


def test_a_kernel_of_several_hundred_rows() -> None:
    model = ready(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)))
    x = normal(300, 3)
    kernel = ntk(model, x).values
    assert torch.equal(kernel, kernel.permute(1, 0, 3, 2))
    picked = torch.tensor([0, 57, 150, 299])
    assert_equal(kernel[picked][:, picked], ntk(model, x[picked]).values, 1e-12)
    assert_equal(ntk(model, x, x[picked], batch_size=64).values, kernel[:, picked], 1e-12)


@pytest.mark.parametrize("second", [False, True])
def test_chunks_that_are_not_kept_are_computed_anew(second: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ready(lambda: nn.Sequential(nn.Conv1d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(9, 2)))
    x = normal(7, 2, 4)
    expected = ntk(model, x).values
    original = kernel._Store.__init__

    def without_room(self: kernel._Store, *arguments: object) -> None:
        original(self, *arguments)
        self._room = 0.0

    monkeypatch.setattr(kernel._Store, "__init__", without_room)
    found = ntk(model, x, x if second else None, batch_size=2).values
    assert_equal(found, expected, 1e-12)


def test_memory_held_is_reported() -> None:
    model = ready(lambda: nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 3)))
    all_outputs, one_output = (
        ntk(model, normal(64, 30), outputs=outputs, batch_size=64).working_bytes for outputs in ("full", [0])
    )
    # Inputs (30 + 40) and slopes of three outputs (3 * (40 + 3)) of 64 samples, in eight bytes each.
    assert all_outputs >= 64 * (70 + 3 * 43) * 8
    assert 64 * (70 + 43) * 8 <= one_output < all_outputs
