"""Models that checks have stumbled over: each check works, or says in a sentence why it is left out."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import foretrain as ft
from foretrain.doctor.finding import all_of
from foretrain.doctor.intake import bare_model

X = torch.randn(100, 5, generator=torch.Generator().manual_seed(0))
SEQUENCES = torch.randn(60, 9, 4, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randint(50, (100, 7), generator=torch.Generator().manual_seed(0))


class WithScalars(nn.Module):
    """Parameters without any axis, and layers that are small enough for a plateau."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(5, 16), nn.Linear(16, 16), nn.Linear(16, 1)])
        self.gain, self.shift = nn.Parameter(torch.tensor(0.1)), nn.Parameter(torch.tensor(0.0))
        for layer in self.layers:
            nn.init.normal_(layer.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.gain * self.layers[0](x))
        return self.layers[2](torch.tanh(self.layers[1](hidden))) + self.shift


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.readout = nn.EmbeddingBag(50, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.words(x))


class Recurrent(nn.Module):
    """A layer that takes time first; ``swap`` says whether it gets it."""

    def __init__(self, swap: bool) -> None:
        super().__init__()
        self.layer, self.readout, self.swap = nn.GRU(4, 12), nn.Linear(12, 2), swap

    def forward(self, x: Tensor) -> Tensor:
        if self.swap:
            return self.readout(self.layer(x.transpose(0, 1))[0][-1])
        return self.readout(self.layer(x)[0][:, -1])


def diagnosed(model: nn.Module, x: Tensor, y: Tensor) -> ft.doctor.Diagnosis:
    """By Adam; a check that fails is an error."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*This check failed", RuntimeWarning)
        return ft.doctor(model, x, y, optimizer=torch.optim.Adam(model.parameters(), lr=1e-2))


def test_parameters_without_an_axis() -> None:
    torch.manual_seed(0)
    found = diagnosed(WithScalars(), X, X[:, :1])
    assert found.examinations["plateau"].findings


def test_a_bag_of_embeddings_has_no_second_derivative() -> None:
    torch.manual_seed(0)
    found = diagnosed(Bag(), TOKENS, TOKENS[:, 0] % 3)
    assert "torch lacks a derivative that this check needs" in found.examinations["conditioning"].skipped
    assert found.examinations["gradients"].findings


@pytest.mark.slow
@pytest.mark.parametrize("swap", [True, False])
def test_a_recurrent_layer_that_takes_time_first(swap: bool) -> None:
    torch.manual_seed(0)
    states = diagnosed(Recurrent(swap), SEQUENCES, (SEQUENCES[:, 0, 0] > 0).long()).examinations["states"]
    if swap:
        assert states.findings
    else:
        assert "given 9 sequences where there are 60 samples" in states.skipped


@pytest.mark.parametrize("part", ["whole", "inside"])
def test_compiled_models_are_examined_without_a_compiler(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(module: nn.Module) -> nn.Module:
        def no_compiler(graph: object, inputs: object) -> object:
            raise RuntimeError("no compiler is installed")

        return torch.compile(module, backend=no_compiler)  # type: ignore[return-value, arg-type]

    torch.manual_seed(0)
    body, readout = nn.Sequential(nn.Linear(5, 16), nn.Tanh()), nn.Linear(16, 1)
    whole = nn.Sequential(body, readout)
    given = compiled(whole) if part == "whole" else nn.Sequential(compiled(body), readout)
    found = diagnosed(given, X, X[:, :1])
    assert found.outcome is not None
    assert not any(one.failed for one in found.examinations.values())
    names = [name for name, _ in found.setup.model.named_parameters()]
    assert names == [name for name, _ in whole.named_parameters()]
    assert next(bare_model(given).parameters()) is body[0].weight
    assert type(given[0] if part == "inside" else given).__name__ == "OptimizedModule"  # type: ignore[index]


def streams() -> list[object]:
    """Where the global streams of random numbers are."""
    kind, *of_numpy = np.random.get_state()  # noqa: NPY002 - the global one
    return [
        torch.get_rng_state().tolist(),
        random.getstate(),
        str(kind),
        [np.array(p).tolist() for p in of_numpy],
    ]


def test_what_writes_in_place_writes_into_copies() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
    y = X.clamp_min(0)[:, :1].clone()

    def shrinking(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets.mul_(0.5)).square().mean()

    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (model(batch[0].mul_(0.5)) - batch[1].mul_(0.5)).square().mean()

    x, array, targets = X.clone(), X.numpy().copy(), y.clone()
    for data, loss in (
        ((x, targets), {"loss": shrinking}),
        ((array, targets), {}),
        ((x, targets), {"step": step}),
    ):
        found = ft.doctor(model, *data, optimizer=0.1, checks=["outcome", "samples"], **loss)
        assert torch.equal(x, X)
        assert torch.equal(torch.from_numpy(array), X)
        assert torch.equal(targets, y)
        assert torch.equal(found.setup.task.x, X)  # nor do passes change what later ones see
        assert torch.equal(found.setup.task.y, y)


def test_random_numbers_of_the_user_go_on_as_before() -> None:
    class Drawing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            noise = random.random() + np.random.rand() + torch.randn(1)  # noqa: NPY002
            return super().forward(x) + 1e-3 * noise

    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (model(batch[0] + 0.1 * torch.randn_like(batch[0])) - batch[1]).square().mean()

    drawing, linear = Drawing(5, 1), nn.Linear(5, 1)
    before = streams()
    ft.doctor(drawing, X, X[:, :1], optimizer=0.1, checks="outcome")
    found = ft.doctor(linear, X, X[:, :1], step=step, optimizer=0.1, checks="outcome,samples")
    found.plan()
    assert streams() == before


def test_ctrl_c_before_anything_is_known_leaves_all_as_it_was() -> None:
    class Interrupted(nn.Linear):
        passes = 0

        def forward(self, x: Tensor) -> Tensor:
            type(self).passes += 1
            if self.passes == 2:
                raise KeyboardInterrupt
            return super().forward(x + torch.randn_like(x))

    model = Interrupted(5, 1)
    before = streams()
    with pytest.raises(KeyboardInterrupt):
        ft.doctor(model, X, X[:, :1], optimizer=0.1)
    assert streams() == before
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_the_generator_of_a_loader_goes_on_as_before() -> None:
    own = torch.Generator().manual_seed(3)
    data = torch.utils.data.TensorDataset(X, X[:, :1])
    loader = torch.utils.data.DataLoader(data, 20, shuffle=True, generator=own)
    before = own.get_state()
    ft.doctor(nn.Linear(5, 1), loader, optimizer=0.1, checks="samples")
    assert torch.equal(own.get_state(), before)


def test_sparse_gradients_are_measured_like_others() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 8, sparse=True), nn.Flatten(), nn.Linear(56, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        found = ft.doctor(
            model, TOKENS, TOKENS[:, :1] / 50, optimizer=0.1, checks="outcome,gradients,conditioning"
        )
    assert found.outcome is not None
    assert set(found.made) >= {"outcome", "gradients"}
    assert model[0].sparse


class Raising(nn.Module):
    """It fails in training, or where there are many samples."""

    def __init__(self, error: Exception, most: int = 0) -> None:
        super().__init__()
        self.layer, self.error, self.most = nn.Linear(5, 1), error, most

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > self.most if self.most else self.training:
            raise self.error
        outputs: Tensor = self.layer(x)
        return outputs


FAILURES = {
    "ZeroDivisionError: division by zero": Raising(ZeroDivisionError("division by zero")),
    "MemoryError: too large": Raising(MemoryError("too large"), 40),
    "KeyError: 'many'": Raising(KeyError("many"), 32),
}


@pytest.mark.filterwarnings("ignore:.*This check failed")
@pytest.mark.parametrize("error", FAILURES)
def test_what_cannot_be_trained_is_told_first(error: str) -> None:
    found = ft.doctor(FAILURES[error], X, X[:, :1], optimizer=0.1)
    assert found.headline.startswith(f"It cannot be trained: {error} (")
    assert found.findings[0].severity is ft.doctor.Severity.CRITICAL
    assert found.healthy is False
    assert f"It cannot be trained: {error}" in str(found)


def test_a_model_that_takes_no_more_than_a_batch_is_looked_at_in_batches() -> None:
    found = ft.doctor(
        Raising(KeyError("many"), 20),
        X,
        X[:, :1],
        optimizer=0.1,
        batch_size=20,
        checks="outcome,loss,samples",
    )
    assert found.headline.startswith("Healthy: it learns")


def test_one_sample_cannot_be_judged() -> None:
    torch.manual_seed(0)
    found = ft.doctor(nn.Linear(5, 1), X[:1], X[:1, :1], optimizer=0.1)
    assert found.headline.startswith("One sample cannot be judged")
    assert not found.healthy
    assert "nan" not in str(found)


def test_numbers_of_one_have_a_singular() -> None:
    torch.manual_seed(0)
    found = ft.doctor(nn.Linear(1, 1, bias=False), X[:, :1], 2 * X[:, :1], optimizer=0.1)
    assert "Linear with 1 parameter on 100 samples" in str(found)
    assert "1 parameters" not in str(found)
    assert all_of(2, "layer") == "both layers"
    assert all_of(3, "weight matrix", "weight matrices") == "all 3 weight matrices"
