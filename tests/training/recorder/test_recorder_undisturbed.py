"""A training with a recorder ends with the same weights, to the last bit, as one without."""

from __future__ import annotations

import random
import warnings
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


@pytest.mark.slow(after=1)
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
        Recorder(tmp_path / "run", model, [half_way, "weight_spectra"], batch=data(), budget=None).close()
    assert torch.equal(model[0].weight, weight)
    assert not model.training


class Stateful(nn.Module):
    """A recurrent model that keeps its hidden state from batch to batch, in plain attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.readout = nn.RNNCell(4, 5), nn.Linear(5, 2)
        self.state: Tensor | None = None
        self.mean = torch.zeros(5)  # changed in place
        self.seen: list[float] = []
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        before = torch.zeros(len(x), 5) if self.state is None else self.state
        state = self.cell(x, before) - 0.1 * self.mean
        self.state = state.detach()
        self.mean += self.state.mean(0)
        self.seen.append(float(self.mean.sum()))
        self.calls += 1
        found: Tensor = self.readout(state)
        return found


def test_states_that_a_model_keeps_between_batches_are_put_back(tmp_path: Path) -> None:
    def trained_weights(recorded: bool) -> tuple[Stateful, Tensor]:
        torch.manual_seed(0)
        model = Stateful()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        observables = ["loss", "gradient_norm"]
        options = {"batch": (2 * data()[0], data()[1]), "loss": MSE, "optimizer": optimizer, "every": 1}
        found = Recorder(tmp_path / "run", model, observables, budget=None, **options) if recorded else None
        for _ in range(4):
            optimizer.zero_grad()
            MSE(model(data()[0]), data()[1]).backward()
            optimizer.step()
        if found is not None:
            found.close()
        return model, torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    (alone, weights), (watched, same_weights) = trained_weights(False), trained_weights(True)
    assert torch.equal(weights, same_weights)
    assert watched.calls == 4
    assert watched.seen == alone.seen
    loss = read(tmp_path / "run")["loss"]
    assert loss.sizes["step"] == 5
    assert loss.notnull().all()


def test_a_hook_that_an_observable_forgot_is_gone(tmp_path: Path) -> None:
    def forgetful(model: nn.Module, batch: Any) -> float:
        model[0].register_forward_hook(lambda *_: None)
        model.add_module("extra", nn.Linear(2, 2))
        return 1.0

    model = network()
    Recorder(tmp_path / "run", model, forgetful, batch=data(), budget=None).close()
    assert not model[0]._forward_hooks
    assert len(model) == 5


def test_sparse_buffers_and_scripted_models(tmp_path: Path) -> None:
    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.readout = nn.Linear(4, 2)
            self.register_buffer("adjacency", torch.eye(12).to_sparse())

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.readout(torch.sparse.mm(self.adjacency, x))
            return found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5)))
    for name, model in {"sparse": Graph(), "scripted": scripted}.items():
        model.train()
        options = {"batch": data(), "loss": MSE, "every": 1, "budget": None}
        with Recorder(tmp_path / name, model, ["loss", "gradient_norm"], **options) as found:
            found.step()
        assert model.training
        loss = read(tmp_path / name)["loss"].values
        assert loss[0] == loss[1] > 0  # in evaluation mode, without dropout
