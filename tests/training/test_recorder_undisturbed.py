"""A training with a recorder ends with the same weights, to the last bit, as one without."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recorded_runs import MSE, data
from torch import Tensor, nn

from foretrain.training.recorder import Recorder, read
from foretrain.training.recorder.isolation import undisturbed


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))


def rude(model: nn.Module, batch: Any) -> float:
    """Touches everything there is to touch."""
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    torch.set_default_dtype(torch.float64)
    model.train()
    model(batch[0])
    MSE(model(batch[0]), batch[1]).backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(3)
        parameter.requires_grad_(False)
        parameter.data.mul_(2)
    model[1].running_mean = torch.ones(8)
    model.double()
    model[0].weight = nn.Parameter(torch.zeros(8, 4))
    return float(model[1].running_var.sum())


def tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    momenta = [state["momentum_buffer"] for state in optimizer.state.values()]
    return [value.clone() for value in (*model.state_dict().values(), *momenta)]


def trained(recorded: Any) -> tuple[list[Tensor], list[float]]:
    """Dropout, batch norm, shuffled loader, accumulated gradients, scheduler, and numbers from three sources."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=4, shuffle=True)
    drawn = []
    with recorded(model, optimizer):
        for _ in range(4):
            for number, (x, y) in enumerate(loader):
                noise = float(np.random.rand()) + random.random()  # noqa: NPY002
                drawn.append(noise)
                MSE(model(x + noise), y).backward()
                if number != 1:
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=number == 0)
            scheduler.step()
    return tensors(model, optimizer), drawn


class Nothing:
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    "observables",
    [["loss", "gradient_norm", "learning_rate", "weight_spectra", "ntk_shares", "global_ntk_rank"], rude],
)
def test_the_weights_are_the_same_to_the_last_bit(tmp_path: Path, observables: Any) -> None:
    def recorded(model: nn.Module, optimizer: torch.optim.Optimizer) -> Recorder:
        return Recorder(
            tmp_path / "run",
            model,
            observables,
            batch=data(),
            loss=MSE,
            optimizer=optimizer,
            every=1,
            budget=None,
        )

    alone, drawn = trained(Nothing)
    watched, drawn_too = trained(recorded)
    assert drawn == drawn_too
    for first, second in zip(alone, watched, strict=True):
        assert first.dtype == second.dtype
        assert torch.equal(first, second)
    records = read(tmp_path / "run")
    assert records.sizes["step"] == 9
    assert "failures" not in records.attrs


def test_everything_is_put_back() -> None:
    model = network()
    model[2].eval()
    model[4].bias.requires_grad_(False)
    before = MSE(model(data()[0]), data()[1])
    before.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    values = [value.clone() for value in model.state_dict().values()]
    owners = [*model.parameters(), *model.buffers()]
    with torch.inference_mode(), undisturbed(model) as snapshot:
        snapshot.lend()
        assert not any(module.training for module in model.modules())
        assert torch.equal(model[0].weight.grad, gradients[0])  # what the step left may be read
        rude(model, data())
        snapshot.restore()
        assert not model[2].training
        assert model[3].training
    assert torch.get_default_dtype() == torch.float32
    assert [parameter.grad is gradient for parameter, gradient in zip(model.parameters(), gradients)] == [
        True
    ] * 6
    assert [parameter.requires_grad for parameter in model.parameters()] == [True] * 5 + [False]
    assert all(own is now for own, now in zip(owners, [*model.parameters(), *model.buffers()], strict=True))
    for value, now in zip(values, model.state_dict().values(), strict=True):
        assert value.dtype == now.dtype
        assert torch.equal(value, now)


def test_an_observable_that_raises_leaves_nothing_behind(tmp_path: Path) -> None:
    def half_way(model: nn.Module, batch: Any) -> float:
        model.train()
        with torch.no_grad():
            model[0].weight.zero_()
        raise ValueError("half way")

    model = network().eval()
    weight = model[0].weight.detach().clone()
    with pytest.warns(UserWarning, match="half way"):
        Recorder(tmp_path / "run", model, half_way, batch=data(), budget=None).close()
    assert torch.equal(model[0].weight, weight)
    assert not model.training
