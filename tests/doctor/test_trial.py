"""Short trainings: what is continued is what would have been trained at once, and nothing is trained twice."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from planted_networks import regression
from torch import nn

from foretrain.doctor import trials
from foretrain.doctor.examine import Training, make_setup
from foretrain.doctor.setup import Setup
from foretrain.doctor.trials import best_of, trial


def setup(rate: float = 0.05) -> Setup:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    return make_setup(model, *regression(), Training(optimizer=optimizer, batch_size=16))


def test_a_training_goes_on_where_it_ended() -> None:
    """With dropout, momentum and batches, of which each has a state of its own."""
    parts = trials._Training(setup())
    first = parts.until(7)
    torch.rand(5)  # what others draw in between changes nothing
    assert np.array_equal(parts.until(30).losses, trial(setup(), 30).losses)
    assert np.array_equal(first.losses, trial(setup(), 7).losses)


def test_the_stream_of_random_numbers_is_left_alone() -> None:
    given = setup()
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    trial(given, 4)
    assert torch.equal(torch.rand(3), wanted)


def test_nothing_is_trained_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    given, real, calls = setup(), trials.descend, list[int]()
    monkeypatch.setattr(trials, "descend", lambda *parts: (calls.append(1), real(*parts))[1])
    long = trial(given, 20)
    assert len(calls) == 21
    assert np.array_equal(trial(given, 10).losses, long.losses[:11])
    assert len(calls) == 21
    other = trial(given.with_recipe(given.recipe.scaled(2.0)), 10)
    assert len(calls) == 32
    assert not np.array_equal(other.losses, long.losses[:11])
    assert np.array_equal(trial(given.rescaled({"0.weight": 2.0}), 10).losses.shape, (11,))
    assert len(calls) == 43  # other weights: nothing of it is known


def test_after_a_divergence_all_is_infinite() -> None:
    wild = setup(1e6)
    parts = trials._Training(wild)
    assert np.isinf(parts.until(40).losses[-1])
    longer = parts.until(60).losses
    assert len(longer) == 61
    assert np.isinf(longer[40:]).all()


def test_the_best_of_some_rates_is_that_of_a_search_by_hand() -> None:
    given = setup()
    setups = [given.with_recipe(given.recipe.scaled(factor)) for factor in (100.0, 1.0, 0.01)]
    place, found = best_of(setups)
    ends = [trial(one, found.steps).end for one in setups]
    assert place == int(np.argmin(ends)) == 1
    assert found.end == ends[1]
