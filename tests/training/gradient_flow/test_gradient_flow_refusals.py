"""What gradient flows refuse: sizes beyond memory, functions and data that are not finite, losses below zero."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from foretrain.support.errors import InputError, NotEnoughMemoryError
from foretrain.training.gradient_flow import (
    Problem,
    ansatz,
    escape,
    gaussian_sample,
    gradient_flow,
    scaled_he,
)

SMALL = Problem("tanh", depth=3, width=16, inputs=4)


def test_networks_beyond_memory_are_refused_before_they_are_drawn() -> None:
    with pytest.raises(NotEnoughMemoryError, match="smaller width"):
        scaled_he(Problem("tanh", depth=4, width=10**6, inputs=16), 3, 0.1, seeds=2)
    with pytest.raises(NotEnoughMemoryError, match="fewer networks"):
        scaled_he(SMALL, 3, 0.1, seeds=10**11)
    with pytest.raises(NotEnoughMemoryError, match="smaller width"):
        ansatz(Problem("tanh", depth=4, width=10**7, inputs=16), [0.1] * 4)


def test_samples_beyond_memory_are_refused() -> None:
    with pytest.raises(NotEnoughMemoryError, match="smaller size"):
        gaussian_sample(SMALL, 10**13)


@pytest.mark.parametrize("function", [torch.log, lambda z: z * float("nan")])
def test_an_activation_that_is_not_finite_is_refused_as_such(function: object) -> None:
    with pytest.raises(InputError, match="not finite"):
        Problem(function, depth=3, width=8, inputs=2)  # type: ignore[arg-type]


@pytest.mark.parametrize("threshold", [0.0, -1.0])
def test_a_loss_below_zero_is_not_waited_for(threshold: float) -> None:
    with pytest.raises(InputError, match="positive"):
        escape(SMALL, scaled_he(SMALL, 3, 0.3, seeds=1), thresholds=(threshold,))


def test_the_flow_of_a_model_on_broken_data_is_refused() -> None:
    model, x = nn.Linear(3, 1), torch.full((5, 3), np.nan)
    with pytest.raises(InputError, match="not finite"):
        gradient_flow(model, x, x[:, :1], nn.functional.mse_loss, max_time=1.0)


def test_sizes_are_whole_numbers_also_of_numpy() -> None:
    found = Problem("tanh", depth=np.int64(3), width=np.int32(8), inputs=np.int64(2))  # type: ignore[arg-type]
    assert found == Problem("tanh", depth=3, width=8, inputs=2)
    assert repr(found) == "Problem(tanh, 2 -> 8 x 2 -> 1, betas=(1.0,))"
    with pytest.raises(InputError, match="depth is 1"):
        Problem("tanh", depth=1, width=8, inputs=2)
