from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrain.empirical.stored_kernel.grid import (
    Grid,
    Needs,
    stored_bytes,
    strip_height,
    strips,
    tile_sides,
)

counts = st.integers(1, 60)


@given(st.tuples(counts, counts), st.tuples(counts, counts), st.booleans(), st.integers(1, 20))
def test_strips_hold_every_tile_once(
    samples: tuple[int, int], sides: tuple[int, int], symmetric: bool, height: int
) -> None:
    if symmetric:
        samples, sides = (samples[0],) * 2, (sides[0],) * 2
    grid = Grid(samples, sides, symmetric)
    parts = [tile for strip in strips(grid, height) for j in strip.columns for tile in strip.tiles(grid, j)]
    assert sorted(parts) == grid.tiles
    assert all(len(strip.rows) <= height for strip in strips(grid, height))
    covered = {(a, b) for i, j in parts for a in grid.chunk(0, i) for b in grid.chunk(1, j)}
    if symmetric:
        covered |= {(b, a) for a, b in covered}
    assert len(covered) == samples[0] * samples[1]


@given(st.integers(1, 10**6), st.floats(1e3, 1e7), st.floats(4, 4e4), st.floats(1e8, 1e11))
def test_tiles_leave_room_for_several_chunks(count: int, factors: float, entry: float, room: float) -> None:
    needs = Needs(factors, factors, entry)
    side, other = tile_sides((count, count), needs, room)
    assert 1 <= side == other <= min(count, 1024)
    if side > 1:
        assert needs.working(side) + side * factors <= room
    assert count / -(-count // side) > side - 1  # no chunk is much smaller than the others


def test_small_jobs_are_cut_for_several_workers_and_tiny_ones_are_not() -> None:
    needs = Needs(1e4, 1e4, 4)
    assert tile_sides((4000, 4000), needs, 4e9) == (500, 500)
    assert tile_sides((60, 60), needs, 4e9) == (60, 60)
    assert tile_sides((100_000, 30), needs, 4e9) == (1021, 30)


def test_strips_are_as_high_as_the_memory_and_at_least_one_per_worker() -> None:
    needs, grid = Needs(1e5, 1e5, 4), Grid((10_000, 10_000), (500, 500), True)
    assert strip_height(grid, needs, 4e9, workers=1) == 20
    assert strip_height(grid, needs, 4e9, workers=2) == 10
    room = needs.working(500) + 7.5 * 500 * 1e5
    assert strip_height(grid, needs, room, workers=2) == 7
    assert strip_height(grid, needs, 1e3, workers=2) == 1


def test_bytes_on_disk_are_those_of_whole_tiles(tmp_path: Path) -> None:
    assert stored_bytes(Grid((23, 9), (5, 4), False), 36) == 25 * 12 * 36
    with pytest.raises(ZeroDivisionError):
        Grid((3, 3), (0, 0), True).count(0)
