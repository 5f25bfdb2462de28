"""Losses that only the step of a batch knows: who is trained, who is left alone, and what is refused."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import foretrain as ft
from foretrain.doctor.examine import Training, make_setup
from foretrain.doctor.setup import Case, Setup, work_of
from foretrain.doctor.step_task import StepTask, standing_in
from foretrain.doctor.trials import trial
from foretrain.support.errors import InputError, NotSupportedError

X = torch.randn(32, 5, generator=torch.Generator().manual_seed(0))
Y = X[:, :1].tanh()
mse = nn.functional.mse_loss


def network(outputs: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, outputs))


def by_hand(
    model: nn.Module, loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer, steps: int = 5
) -> list[float]:
    """The losses of the loop that a user would write."""
    losses = list[float]()
    model.train()
    for _ in range(steps + 1):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
    return losses


def memory(model: nn.Module) -> dict[str, Any]:
    """Everything that a model holds, to be compared later."""
    values = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = [parameter.grad for parameter in model.parameters()]
    return {"values": values, "gradients": gradients, "parts": [id(vars(part)) for part in model.modules()]}


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before["parts"] == after["parts"]
    assert before["gradients"] == after["gradients"]
    for name, value in before["values"].items():
        assert torch.equal(value, after["values"][name]), name


@pytest.mark.parametrize("form", ["of model and batch", "of a batch", "of a part of the model"])
def test_a_step_trains_the_copy_and_leaves_the_model_alone(form: str) -> None:
    model = network()
    body, head = model[:-1], model[-1]

    def of_both(network: nn.Module, batch: Any) -> Tensor:
        return mse(network(batch[0]), batch[1]) * 2

    steps = {
        "of model and batch": of_both,
        "of a batch": lambda batch: mse(model(batch[0]), batch[1]) * 2,
        "of a part of the model": lambda batch: mse(head(body(batch[0])), batch[1]) * 2,
    }
    before = memory(model)
    setup = make_setup(model, X, Y, Training(step=steps[form], optimizer=0.1))
    measured = trial(setup, 5).losses
    assert_same(before, memory(model))
    assert model.training
    other = network()
    expected = by_hand(other, lambda: mse(other(X), Y) * 2, torch.optim.SGD(other.parameters(), lr=0.1))
    np.testing.assert_allclose(measured, expected, rtol=1e-5)


def test_the_model_is_itself_again_after_an_exception() -> None:
    model = network()
    before, other = memory(model), copy.deepcopy(model)

    def fail() -> None:
        with standing_in(model, other):
            assert model[0].weight is other[0].weight
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert_same(before, memory(model))


def step_setup(**changes: Any) -> Setup:
    model = network()
    return make_setup(
        model, X, Y, Training(**{"step": lambda m, b: mse(m(b[0]), b[1]), "optimizer": 0.1} | changes)
    )


def test_changed_inputs_and_targets_reach_the_step() -> None:
    setup = step_setup()
    task = setup.with_inputs(2 * X).with_targets(3 * Y).task.taken(torch.arange(4, 20))
    model = network().eval()
    assert task.value(model) == pytest.approx(float(mse(model(2 * X[4:20]), 3 * Y[4:20]).detach()))
    with pytest.raises(NotSupportedError, match="no function of outputs and targets"):
        task.loss(X, Y)


def test_the_step_gets_batches_in_the_form_of_the_loader() -> None:
    weights = torch.rand(32)
    batches: dict[str, tuple[Any, Callable[[nn.Module, Any], Tensor]]] = {
        "weighted": ((X, Y, weights), lambda m, b: (b[2] * (m(b[0]) - b[1]).square()[:, 0]).mean()),
        "named": (
            {"image": X, "label": Y, "weight": weights},
            lambda m, b: (b["weight"] * (m(b["image"]) - b["label"]).square()[:, 0]).mean(),
        ),
    }
    expected = float((weights * (network().eval()(X) - Y).square()[:, 0]).mean().detach())
    for name, (batch, step) in batches.items():
        task = make_setup(network(), batch, training=Training(step=step, optimizer=0.1)).task
        assert task.value(network().eval()) == pytest.approx(expected)
        assert torch.equal(task.x, X)  # what the model itself takes
        assert (task.y is None) == (name == "weighted")


class Autoencoder(nn.Module):
    """No forward at all; as Lightning's modules, it has a step and an optimizer of its own."""

    def __init__(self, returned: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.down, self.up = nn.Linear(5, 2), nn.Linear(2, 5)
        self.returned = returned

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        (x,) = batch
        return {"loss": mse(self.up(self.down(x)), x)}

    def configure_optimizers(self) -> Any:
        return (self.returned or torch.optim.Adam)(self.parameters(), lr=0.01)


@pytest.mark.slow
def test_a_model_that_only_its_step_can_call_is_examined() -> None:
    loader = DataLoader(TensorDataset(X), 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # a check that fails warns
        found = ft.doctor(Autoencoder(), loader)
    assert "Adam with rate 0.01, 8 samples in a step" in str(found)
    assert "only training_step knows" in found.examinations["conditioning"].skipped
    curve = found.verify(steps=40).given
    assert curve.final < 0.9 * curve.losses[0]


def test_the_work_of_a_step_is_counted() -> None:
    setup = make_setup(Autoencoder(), DataLoader(TensorDataset(X), 8))
    assert work_of(setup).total == 2 * 5 * 2
    with pytest.raises(NotSupportedError, match="only training_step knows"):
        Case(setup).model(setup.task.x)


class Labelled(nn.Module):
    """Returns its own loss where it gets labels, as models of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(9, 6), nn.Linear(6, 9)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.head(self.table(input_ids))
        if labels is None:
            return {"logits": logits}
        return {"loss": 2 * nn.functional.cross_entropy(logits.movedim(-1, 1), labels), "logits": logits}


def test_a_models_own_loss_is_used_where_batches_have_labels() -> None:
    tokens = torch.arange(64).reshape(16, 4) % 9
    batch = {"input_ids": tokens, "labels": (tokens + 1) % 9}
    setup = make_setup(Labelled(), [batch], training=Training(optimizer=0.1))
    assert isinstance(setup.task, StepTask)
    assert setup.task.loss_name == "the model's own loss"
    assert torch.equal(setup.task.y, batch["labels"])
    assert setup.model(setup.task.x).shape == (16, 9, 4)  # classes where torch's losses have them
    model = Labelled()
    expected = by_hand(model, lambda: model(**batch)["loss"], torch.optim.SGD(model.parameters(), lr=0.1))
    np.testing.assert_allclose(trial(setup, 5).losses, expected, rtol=1e-5)
    given = make_setup(Labelled(), [batch], training=Training(nn.CrossEntropyLoss(), 0.1))
    assert given.task.value(given.model) == pytest.approx(expected[0] / 2, rel=1e-5)


HELD = list(network().parameters())


def stepping(model: nn.Module, batch: Any) -> Tensor:
    loss = mse(model(batch[0]), batch[1])
    loss.backward()
    return loss


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "both": ({"loss": "mse"}, "leave one of them out"),
    "no function": ({"step": 3}, "step is a int"),
    "no optimizer": ({"optimizer": None}, "give optimizer="),
    "a number": ({"step": lambda m, b: 3.0}, "returns a float"),
    "many numbers": ({"step": lambda m, b: (m(b[0]) - b[1]).square()}, r"returns shape \(32, 1\)"),
    "no graph": ({"step": lambda m, b: mse(m(b[0]), b[1]).detach()}, "cannot be differentiated"),
    "its own backward": ({"step": stepping}, "leave backward.. and the optimizer's step to the doctor"),
    "no model": ({"step": lambda m, b: (b[0] @ HELD[0].T).square().mean()}, "does not depend on the model"),
    "raises": ({"step": lambda m, b: m(b["image"])}, "TypeError.*give batches as it takes them"),
    "not a number": ({"step": lambda m, b: m(b[0]).mean() * float("nan")}, "returns nan"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_steps_that_cannot_be_trained_with_are_refused(case: str) -> None:
    changes, message = REFUSED[case]
    with pytest.raises(InputError, match=message) as caught:
        step_setup(**changes)
    assert "\n" not in str(caught.value)


def test_parameters_that_were_taken_before_are_refused() -> None:
    model = network()
    held = list(model.parameters())
    with pytest.raises(InputError, match="took from the model earlier"):
        make_setup(
            model,
            X,
            Y,
            Training(step=lambda b: mse(model(b[0]), b[1]) + held[0].square().sum(), optimizer=0.1),
        )
    assert all(parameter.grad is None for parameter in held)


def test_optimizers_are_configured_in_all_forms_of_lightning() -> None:
    def scheduled(form: str) -> Callable[..., Any]:
        def make(parameters: Any, lr: float) -> Any:
            optimizer = torch.optim.SGD(parameters, lr=lr)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            return {
                "list": [optimizer],
                "lists": ([optimizer], [scheduler]),
                "dict": {"optimizer": optimizer, "lr_scheduler": scheduler},
                "steps": {
                    "optimizer": optimizer,
                    "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
                },
                "two": [optimizer, optimizer],
            }[form]

        return make

    loader = DataLoader(TensorDataset(X), 8)
    for form, rates in (
        ("list", [0.01] * 6),
        ("lists", [0.01] * 4 + [0.005] * 2),  # after an epoch of four batches
        ("dict", [0.01] * 4 + [0.005] * 2),
        ("steps", [0.01 / 2**step for step in range(6)]),
    ):
        (group,) = make_setup(Autoencoder(scheduled(form)), loader).recipe.groups
        assert [group.rate_at(step) for step in range(6)] == pytest.approx(rates), form
    with pytest.raises(NotSupportedError, match="gives 2 optimizers"):
        make_setup(Autoencoder(scheduled("two")), loader)
