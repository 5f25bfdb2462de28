"""A mask of the loss in the doctor: outputs and targets that do not count are as if they were not there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from foretrain.doctor.examine import Training, make_setup
from foretrain.doctor.output_kernel import forecast_modes, output_kernel
from foretrain.doctor.setup import Case
from foretrain.support.errors import InputError, NotSupportedError


def test_a_mask_of_outputs_is_a_network_with_fewer() -> None:
    torch.manual_seed(0)
    model, x = (
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double(),
        torch.randn(20, 4).double(),
    )
    y, mask = torch.randn(20, 3).double(), np.broadcast_to([[1.0, 0.0, 1.0]], (20, 3))
    fewer = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    with torch.no_grad():
        for own, given in zip(fewer.parameters(), model.parameters()):
            own.copy_(given if own.shape == given.shape else given[[0, 2]])
    options = {"optimizer": 0.1, "seed": 0}
    case = Case(make_setup(model, x, y, Training(mask=mask, **options)))
    alone = Case(make_setup(fewer, x, y[:, [0, 2]], Training(**options)))
    assert case.task.value(case.model) == pytest.approx(alone.task.value(alone.model))
    left, expected = (forecast_modes(output_kernel(one)) for one in (case, alone))
    np.testing.assert_allclose(left.half_times, expected.half_times, rtol=1e-6)
    assert all(
        bool((given == kept).all()) for given, kept in zip(model.parameters(), case.model.parameters())
    )
    assert not model._forward_hooks


def test_masks_that_the_doctor_does_not_take() -> None:
    model, x, y = nn.Linear(4, 2), torch.randn(6, 4), torch.randn(6, 2)
    ones = torch.ones(6, 2)
    with pytest.raises(NotSupportedError, match="differs between samples"):
        make_setup(model, x, y, Training(mask=ones * torch.arange(6)[:, None]))
    with pytest.raises(NotSupportedError, match="squared errors"):
        make_setup(model, x, y, Training(mask=ones, loss="l1_loss"))
    with pytest.raises(InputError, match="mask"):
        make_setup(model, x, y, Training(mask=torch.ones(5)))
