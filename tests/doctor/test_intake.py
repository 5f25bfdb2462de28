"""What the doctor takes: several inputs, batches in many forms, wrapped models, and losses as they are given."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import foretrain as ft
from foretrain.doctor.examine import Training, make_setup
from foretrain.doctor.setup import Case, work_of
from foretrain.doctor.trials import trial
from foretrain.support.errors import InputError, NotSupportedError

SOURCE = torch.Generator().manual_seed(0)
X, TOKENS = torch.randn(48, 5, generator=SOURCE), torch.arange(48) % 7
Y = X[:, :1] + (TOKENS[:, None] > 3)
RATE = Training(optimizer=0.05)


def network(outputs: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, outputs))


class Mixed(nn.Module):
    """Tokens and numbers, with a parameter of no dimension, a bag of words and a recurrent layer of time first."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.linear, self.scale = (
            nn.EmbeddingBag(7, 4),
            nn.Linear(5, 4),
            nn.Parameter(torch.ones(())),
        )
        self.steps, self.readout = nn.GRU(4, 4), nn.Linear(4, 1)

    def forward(self, tokens: Tensor, numbers: Tensor) -> Tensor:
        hidden = torch.stack([self.table(tokens[:, None]), self.linear(numbers)])
        readout: Tensor = self.readout(self.steps(hidden)[0][-1])
        return readout * self.scale


@pytest.mark.parametrize("form", ["dict", "tuple", "arrays", "loader of pairs", "loader of triples", "dicts"])
def test_several_inputs_train_as_one_would_by_hand(form: str) -> None:
    named = {"tokens": TOKENS, "numbers": X}
    given: dict[str, tuple[Any, Any]] = {
        "dict": (named, Y),
        "tuple": ((TOKENS, X), Y),
        "arrays": ({name: value.numpy() for name, value in named.items()}, Y.numpy()),
        "loader of pairs": ([(named, Y)], None),
        "loader of triples": (DataLoader(TensorDataset(TOKENS, X, Y), 48), None),
        "dicts": ([{**named, "label": Y}], None),
    }
    setup = make_setup(Mixed(), *given[form], RATE)
    assert len(setup.task.x) == 48
    losses, model = list[float](), Mixed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(6):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(TOKENS, X), Y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    np.testing.assert_allclose(trial(setup, 5).losses, losses, rtol=1e-5)
    assert work_of(setup).total > 0


def test_layers_without_second_derivatives_need_an_optimizer() -> None:
    with pytest.raises(NotSupportedError, match=r"embedding_bag.*give optimizer="):
        make_setup(Mixed(), {"tokens": TOKENS, "numbers": X}, Y)


class Embedded(Mixed):
    def forward(self, tokens: Tensor, numbers: Tensor) -> Tensor:
        readout: Tensor = self.readout(self.table.weight[tokens] + self.linear(numbers))
        return readout * self.scale


@pytest.mark.slow
def test_all_checks_answer_or_say_that_inputs_are_several() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # a check that fails warns
        found = ft.doctor(Embedded(), {"tokens": TOKENS, "numbers": X}, Y, optimizer=0.05)
    assert "several tensors" in found.examinations["inputs"].skipped
    assert found.examinations["learning_rate"].findings


class Stream(IterableDataset[Any]):
    """Never ends."""

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield X[0], Y[0]


class Padded:
    """Batches of sequences, each padded to its own length."""

    def __iter__(self) -> Iterator[Any]:
        for length in (5, 3, 5):
            yield torch.zeros(8, length), torch.zeros(8, 1)


def test_batches_come_in_many_forms() -> None:
    pairs = TensorDataset(X, Y)
    for given in (DataLoader(pairs, 16), pairs, [(X[:24], Y[:24]), (X[24:], Y[24:])], (X, Y), [X, Y]):
        task = make_setup(network(), given, training=RATE).task
        assert torch.equal(task.x, X)
        assert torch.equal(task.y, Y)
    assert make_setup(network(), DataLoader(pairs, 16), training=RATE).batch_size == 16
    endless = make_setup(network(), DataLoader(Stream(), 32), training=RATE)
    assert 1000 < len(endless.task.x) < 10_000
    assert "first" in endless.notes[0]


class Mean(nn.Linear):
    """A model that takes sequences of any length."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mean(1, keepdim=True))


def test_batches_of_other_shapes_are_left_out_and_that_is_told() -> None:
    setup = make_setup(Mean(1, 1), Padded(), training=RATE)
    assert len(setup.task.x) == 16
    assert "1 batch was left out because of other shapes" in setup.notes[0]


def squares(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


@pytest.mark.parametrize("training", [RATE, Training(optimizer=0.05, step=squares)])
def test_batches_that_end_a_training_are_refused(training: Training) -> None:
    with pytest.raises(
        InputError, match=r"not one of other shapes, 0 \(8, 3\), 1 \(8, 1\) \(RuntimeError: mat1"
    ):
        make_setup(network(), Padded(), training=training)


def test_a_dict_without_targets_is_refused() -> None:
    with pytest.raises(InputError, match=r"tokens, numbers, of which none is called labels.*step="):
        make_setup(Mixed(), {"tokens": TOKENS, "numbers": X}, training=RATE)


def test_wrapped_models_are_unwrapped_with_their_optimizers() -> None:
    model = network()
    for wrapped in (torch.compile(model), nn.DataParallel(model)):
        optimizer = torch.optim.Adam(wrapped.parameters(), lr=0.01)
        setup = make_setup(wrapped, X, Y, Training(optimizer=optimizer))
        assert type(setup.model) is nn.Sequential
        assert set(setup.recipe.rates) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def difference(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean()


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.functional.mse_loss, difference])
def test_a_loss_that_broadcasts_is_trained_as_it_is_and_told_once(loss: Any) -> None:
    targets = Y[:, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        setup = make_setup(network(), X, targets, Training(loss, 0.05))
        value = trial(setup, 3).losses[0]
    # Every output with every target: the mean over all 48 x 48 pairs.
    pairs = (network()(X).detach() - targets[None]).square().mean()
    assert value == pytest.approx(float(pairs), rel=1e-5)
    assert setup.task.broadcast.startswith(
        "y has shape (48,), which the loss broadcasts against outputs of shape (48, 1)"
    )


@pytest.mark.parametrize("loss", [None, "mse", "l1", lambda outputs, y: (outputs[:, 0] - y).square().mean()])
def test_other_losses_do_not_broadcast(loss: Any) -> None:
    task = make_setup(network(), X, Y[:, 0], Training(loss, 0.05)).task
    assert not task.broadcast
    reference = nn.functional.l1_loss if loss == "l1" else nn.functional.mse_loss
    assert task.value(network()) == pytest.approx(float(reference(network()(X), Y).detach()))


def test_what_torch_would_run_is_not_refused() -> None:
    wide = make_setup(network(), X, torch.randn(48, 3), Training(nn.MSELoss(), 0.05)).task
    assert "(48, 3)" in wide.broadcast
    single = make_setup(
        network(), X, torch.zeros(48, dtype=torch.long), Training(nn.CrossEntropyLoss(), 0.05)
    )
    assert single.task.value(network()) == 0


def test_several_inputs_calibrate_batch_normalisation() -> None:
    class Normalised(Mixed):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(1)

        def forward(self, tokens: Tensor, numbers: Tensor) -> Tensor:
            outputs: Tensor = self.norm(super().forward(tokens, numbers))
            return outputs

    case = Case(make_setup(Normalised(), {"tokens": TOKENS, "numbers": X}, Y, RATE))
    assert float(case.model(case.task.x).detach().std()) == pytest.approx(1, rel=0.1)


def raises(outputs: Tensor, targets: Tensor) -> Tensor:
    raise ZeroDivisionError("division by zero")


REFUSED = {
    "checks are names": ({"checks": 3}, "checks is 3: give names"),
    "only near names are suggested": ({"checks": ["nonsense"]}, "choose one of"),
    "a schedule of nothing": ({"scheduler": lambda step: None}, "no factor for step 0"),
    "a loss of complex numbers": (
        {"loss": lambda out, y: (out - y).square().mean() * 1j},
        "the loss returns a complex",
    ),
    "a loss of nothing": ({"loss": lambda out, y: None}, "the loss returns a NoneType"),
    "a loss without a graph": (
        {"loss": lambda out, y: 1.0},
        "the loss returns a float: let it return a tensor",
    ),
    "a loss that is no number": (
        {"loss": lambda out, y: out.mean() * torch.nan},
        "the loss returns nan: look",
    ),
    "a loss that fails": ({"loss": raises}, "ZeroDivisionError: division by zero"),
    "sparse inputs": ({"x": X.to_sparse()}, r"x is a sparse tensor: give x.to_dense\(\)"),
    "neither fresh nor begun": ({"fresh": "x"}, "fresh is 'x': give True, False"),
    "whole numbers for autocast": ({"autocast": torch.int8}, "autocast is torch.int8: give a type"),
    "a budget in words": ({"budget": "soon"}, "budget is 'soon', which is no duration"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_are_one_sentence(case: str) -> None:
    options, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        ft.doctor(network(), **({"x": X, "y": Y, "optimizer": 0.05} | options))


def test_a_budget_may_have_a_unit() -> None:
    assert ft.doctor(network(), X, Y, optimizer=0.05, checks="samples", budget="2m").account.budget == 120


class Failing(nn.Module):
    """It fails at rest, or with outputs in complex numbers, or by a part that is none of its own."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layers, self.how, self.outside = network(), how, (nn.BatchNorm1d(5),)
        if how == "complex":
            self.phase = nn.Parameter(torch.ones(1, dtype=torch.cfloat))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "rest" and not self.training:
            raise ZeroDivisionError("division by zero")
        outputs: Tensor = self.layers(self.outside[0](x) if self.how == "outside" else x)
        return outputs


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("rest", r"does not take x of shape \(48, 5\) in evaluation mode \(ZeroDivisionError"),
        ("outside", "not a single one .ValueError: Expected more than 1 value per channel"),
        ("complex", "parameter phase is complex: keep its real and imaginary parts"),
    ],
)
def test_models_that_cannot_be_examined_are_refused_in_one_sentence(how: str, message: str) -> None:
    with pytest.raises((InputError, NotSupportedError), match=message):
        ft.doctor(Failing(how), X, Y, optimizer=0.05)


def test_sparse_adam_is_refused() -> None:
    model = nn.EmbeddingBag(7, 1, sparse=True)
    with pytest.raises(NotSupportedError, match="SparseAdam takes sparse gradients only"):
        ft.doctor(model, TOKENS[:, None], Y, optimizer=torch.optim.SparseAdam(model.parameters()))


def test_a_rate_is_chosen_within_the_budget() -> None:
    with pytest.raises(InputError, match="no time to choose a learning rate"):
        ft.doctor(network(), X, Y, budget=1e-9)
