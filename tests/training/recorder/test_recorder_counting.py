"""Every step of an optimizer is counted once, when it is over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recorded_runs import MSE, data, network, sgd, train
from torch import nn

from foretrain.training.recorder import Recorder, read


class Derived(torch.optim.Adam):
    """Calls the step of its base class, and does more afterwards."""

    inner_steps = 1

    def step(self, closure: Any = None) -> Any:
        for _ in range(self.inner_steps):
            super().step()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.fill_(0.5)
        if closure is not None:
            closure()


class Twice(Derived):
    inner_steps = 2


def halves(model: nn.Module, batch: Any) -> float:
    return float(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).mean())


@pytest.mark.parametrize("kind", [Derived, Twice])
@pytest.mark.parametrize("base_is_known", [False, True])
def test_a_step_that_calls_its_base_class_counts_once(
    tmp_path: Path, kind: type[Derived], base_is_known: bool
) -> None:
    model = network()
    optimizer = kind(model.parameters())
    with Recorder(tmp_path / "run", model, halves, optimizer=optimizer, every=1, budget=None) as found:
        if base_is_known:  # from here on torch runs the hooks for the base class too
            torch.optim.Adam([nn.Parameter(torch.zeros(1))])
        train(model, optimizer, 3)
    assert found.steps == 3
    np.testing.assert_array_equal(read(tmp_path / "run")["halves"][1:], 0.5)  # as the whole step left it


def test_counting_goes_on_after_a_step_that_raised(tmp_path: Path) -> None:
    def broken() -> None:
        raise RuntimeError("no gradient")

    model = network()
    torch.optim.Adam([nn.Parameter(torch.zeros(1))])
    optimizer = Derived(model.parameters())
    with Recorder(tmp_path / "run", model, halves, optimizer=optimizer, every=1, budget=None) as found:
        with pytest.raises(RuntimeError, match="no gradient"):
            optimizer.step(broken)
        train(model, optimizer, 2)
    assert found.steps == 2


def test_steps_that_a_scaler_leaves_out_are_no_steps(tmp_path: Path) -> None:
    model = network()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1000)
    x, y = data()
    made = 0
    with Recorder(
        tmp_path / "run", model, "loss", batch=(x, y), loss=MSE, optimizer=optimizer, every=1, budget=None
    ) as found:
        for _ in range(12):
            before = model[0].weight.detach().clone()
            optimizer.zero_grad()
            scaler.scale(MSE(3 * model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
            made += not torch.equal(before, model[0].weight)
    assert 0 < made < 12
    assert found.steps == made
