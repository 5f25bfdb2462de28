from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrain.support import seeds
from foretrain.support.errors import InputError

some_seeds = st.integers(min_value=0, max_value=2**80)


def draw(seed: seeds.Seed) -> float:
    return float(seeds.generator(seed).random())


@given(some_seeds)
@settings(deadline=None, max_examples=25)
def test_the_same_seed_gives_the_same_stream(seed: int) -> None:
    assert draw(seed) == draw(seed) == np.random.default_rng(seed).random()
    assert seeds.integer(seed) == seeds.integer(seed) < 2**63


@given(some_seeds, st.integers(1, 6), st.integers(0, 6))
@settings(deadline=None, max_examples=25)
def test_a_spawned_seed_depends_only_on_its_index(seed: int, count: int, more: int) -> None:
    few, many = seeds.spawn(seed, count), seeds.spawn(seed, count + more)
    assert [draw(child) for child in few] == [draw(child) for child in many[:count]]
    assert len({draw(child) for child in many}) == count + more


def test_seeds_of_chosen_tasks_are_those_of_all_tasks() -> None:
    every = [draw(child) for child in seeds.spawn(7, 9)]
    assert [draw(child) for child in seeds.spawn_some(7, (8, 2, 2))] == [every[8], every[2], every[2]]


def test_spawning_is_what_numpy_calls_spawning_but_can_be_repeated() -> None:
    sequence = np.random.SeedSequence(5)
    expected = [draw(child) for child in np.random.SeedSequence(5).spawn(3)]
    assert [draw(child) for child in seeds.spawn(sequence, 3)] == expected
    assert [draw(child) for child in seeds.spawn(sequence, 3)] == expected


def test_grandchildren_are_independent_of_children() -> None:
    children = seeds.spawn(5, 2)
    values = [draw(s) for s in (*children, *seeds.spawn(children[0], 2), *seeds.spawn(children[1], 2))]
    assert len(set(values)) == 6


def test_a_generator_is_used_as_it_is() -> None:
    source = np.random.default_rng(3)
    assert seeds.generator(source) is source
    first, second = seeds.spawn(source, 2), seeds.spawn(source, 2)
    assert len({draw(child) for child in (*first, *second)}) == 4
    assert seeds.integer(source) != seeds.integer(source)


def test_no_seed_is_fresh_randomness() -> None:
    assert draw(None) != draw(None)
    assert seeds.integer(None) != seeds.integer(None)


@pytest.mark.parametrize("bad", [-1, 1.0, "3", True, np.float64(2), [1]])
def test_bad_seeds_are_refused(bad: Any) -> None:
    for function in (seeds.generator, seeds.integer, lambda seed: seeds.spawn(seed, 2)):
        with pytest.raises(InputError, match="whole number"):
            function(bad)


def test_tasks_get_the_seeds_that_spawn_gives() -> None:
    pairs = seeds.with_seeds({"a": 1, "b": 2}.items(), 5)
    assert [task for task, _ in pairs] == [("a", 1), ("b", 2)]
    assert [draw(own) for _, own in pairs] == [draw(own) for own in seeds.spawn(5, 2)]


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be negative"):
        seeds.spawn(0, -1)


def test_torch_generators_follow_the_seed() -> None:
    import torch

    first, again, other = (torch.rand(3, generator=seeds.torch_generator(s)) for s in (7, 7, 8))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_seeds_do_not_import_torch() -> None:
    code = "import foretrain.support.seeds, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
