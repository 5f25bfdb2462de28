"""An optimizer as a recipe: what it was made of, and copies that train alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from foretrain.compare.task import Task
from foretrain.doctor.examine import Training, make_setup
from foretrain.doctor.setup import Recipe, descent, recipe_of
from foretrain.doctor.trials import descend
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.training.optimizers import shampoo

X = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
Y = X[:, :1] * 2


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.95)),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.003, alpha=0.9),
    "tensor rate": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "shampoo": lambda p: shampoo(p, lr=0.1),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.3, max_iter=3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_rebuilt_optimizer_takes_the_same_steps(name: str) -> None:
    given, copy = network(), network()
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    ours = OPTIMIZERS[name](list(given.parameters()))
    again = recipe_of(given, ours).build(copy)
    for model, optimizer in ((given, ours), (copy, again)):
        for _ in range(3):

            def closure(model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer) -> float:
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                return float(loss.detach())

            optimizer.step(closure)
    for ours_p, again_p in zip(given.parameters(), copy.parameters()):
        assert torch.allclose(ours_p, again_p, rtol=1e-5, atol=1e-7)
    assert not torch.equal(given[0].weight, network()[0].weight)


def test_groups_and_frozen_parameters_are_kept_by_name() -> None:
    model = network()
    model[0].bias.requires_grad_(False)
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2].parameters()}], lr=0.1
    )
    found = recipe_of(model, optimizer)
    assert found.rates == {"0.weight": 0.5, "2.weight": 0.1, "2.bias": 0.1}
    assert found.rate == 0.5
    assert str(found) == "SGD with rate 0.1 to 0.5"
    assert found.is_descent


def test_rates_are_multiplied_for_all_or_by_name() -> None:
    found = descent(network(), 0.2)
    assert found.scaled(0.5).rates == dict.fromkeys(("0.weight", "0.bias", "2.weight", "2.bias"), 0.1)
    some = found.scaled({"2.weight": 3.0})
    assert some.rates["2.weight"] == pytest.approx(0.6)
    assert some.rates["0.weight"] == 0.2
    assert sorted(name for group in some.groups for name in group.names) == sorted(found.rates)
    assert found.rates["2.weight"] == 0.2  # the given one is as it was


def test_only_gradient_descent_is_called_so() -> None:
    parameters = list(network().parameters())
    model = network()

    def of(optimizer: torch.optim.Optimizer) -> Recipe:
        return recipe_of(model, optimizer)

    parameters = list(model.parameters())
    assert of(torch.optim.SGD(parameters, lr=0.1, momentum=0.5)).is_descent
    assert of(torch.optim.SGD(parameters, lr=0.1, momentum=0.5)).momentum == 0.5
    assert not of(torch.optim.SGD(parameters, lr=0.1, weight_decay=0.1)).is_descent
    assert not of(torch.optim.SGD(parameters, lr=0.1, maximize=True)).is_descent
    assert not of(torch.optim.Adam(parameters, lr=0.1)).is_descent


def test_what_does_not_belong_together_is_refused() -> None:
    model, other = network(), network(1)
    with pytest.raises(InputError, match="not the model's"):
        recipe_of(model, torch.optim.SGD(other.parameters(), lr=0.1))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(NotSupportedError, match="nothing to train"):
        descent(model, 0.1)
    with pytest.raises(InputError, match="none of the model's"):
        recipe_of(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_rates_that_are_no_numbers_are_refused() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for rate in (math.nan, math.inf, -1.0):
        optimizer.param_groups[0]["lr"] = rate
        with pytest.raises(InputError, match="learning rate"):
            recipe_of(model, optimizer)


def trained(recipe: Recipe, steps: int) -> nn.Module:
    """A network after some steps as the doctor makes them."""
    model = network()
    task = Task(X, Y, nn.functional.mse_loss, "mse")
    optimizer = recipe.build(model)
    for _ in range(steps):
        descend(optimizer, model, task)
    return model


def test_gradients_are_clipped_as_by_torch() -> None:
    for clip, options in (
        (nn.utils.clip_grad_norm_, {"clip_norm": 0.05}),
        (nn.utils.clip_grad_value_, {"clip_value": 0.01}),
    ):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        recipe = replace(recipe_of(model, optimizer), **options)
        for _ in range(4):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(X), Y).backward()
            clip(model.parameters(), *options.values())
            optimizer.step()
        assert_alike(trained(recipe, 4), model)
        assert not recipe.is_descent
        assert "gradients clipped at" in str(recipe)


def test_micro_batches_add_up_to_a_step_of_their_mean() -> None:
    recipe = descent(network(), 0.3)
    assert_alike(trained(replace(recipe, accumulate=4), 3), trained(recipe, 3))
    assert replace(recipe, accumulate=4).is_descent
    uneven, seen = replace(recipe, accumulate=3), list[int]()

    class Counted(Task):
        def loss_of(self, model: nn.Module) -> torch.Tensor:
            seen.append(len(self.x))
            return super().loss_of(model)

    model = network()
    descend(uneven.build(model), model, Counted(X, Y, nn.functional.mse_loss, "mse"))
    assert seen == [3, 3, 2]
    assert "3 micro-batches in a step" in str(uneven)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_passes_are_made_in_the_precision_of_autocast(kind: torch.dtype) -> None:
    recipe = replace(descent(network(), 0.3), autocast=kind)
    model, seen = network(), list[torch.dtype]()
    model[2].register_forward_hook(lambda module, given, result: seen.append(result.dtype))
    loss = descend(recipe.build(model), model, Task(X, Y, nn.functional.mse_loss, "mse"))
    assert seen == [kind]
    assert loss == pytest.approx(float(nn.functional.mse_loss(network()(X), Y).detach()), rel=0.02)
    exact = trained(replace(recipe, autocast=None), 1)
    for ours, theirs, first in zip(model.parameters(), exact.parameters(), network().parameters()):
        assert torch.allclose(ours - first, theirs - first, rtol=0.1, atol=2e-3)
    assert "autocast to" in str(recipe)


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "steps": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.4, total_steps=6, cycle_momentum=False),
    "warm-up": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [
            torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=3),
            torch.optim.lr_scheduler.CosineAnnealingLR(o, 5),
        ],
        [3],
    ),
    "from zero": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: min(1.0, step / 3)),
    "by group": lambda o: torch.optim.lr_scheduler.LambdaLR(o, [lambda step: 0.5**step, lambda step: 1.0]),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_schedule_is_followed_by_copies_and_not_advanced(name: str) -> None:
    model = network()
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.2}, {"params": model[2].parameters()}], lr=0.1
    )
    scheduler = SCHEDULERS[name](optimizer)
    before = [group["lr"] for group in optimizer.param_groups], scheduler.last_epoch
    recipe = recipe_of(model, optimizer, scheduler)
    assert ([group["lr"] for group in optimizer.param_groups], scheduler.last_epoch) == before
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(X), Y).backward()
        optimizer.step()
        scheduler.step()
    assert_alike(trained(recipe, 5), model)
    assert "on a schedule" in str(recipe)
    assert recipe.scaled(0.5).groups[0].rate_at(1) == pytest.approx(recipe.groups[0].rate_at(1) / 2)


def test_a_function_of_the_step_is_a_schedule_of_plain_descent() -> None:
    setup = make_setup(network(), X, Y, Training(optimizer=0.2, scheduler=lambda step: 1 / (1 + step)))
    (group,) = setup.recipe.groups
    assert [group.rate_at(step) for step in range(3)] == pytest.approx([0.2, 0.1, 0.2 / 3])
    assert setup.recipe.is_descent
    with pytest.raises(InputError, match="scheduler is a int"):
        make_setup(network(), X, Y, Training(optimizer=0.2, scheduler=3))  # type: ignore[arg-type]


def test_one_that_waits_for_a_plateau_is_none_in_a_short_training() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    waiting = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    assert recipe_of(model, optimizer, waiting) == recipe_of(model, optimizer)


def test_closures_are_asked_again_with_all_of_it() -> None:
    model = network()
    lbfgs = torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=3)
    recipe = replace(recipe_of(model, lbfgs), accumulate=2, clip_norm=100.0)
    first = float(nn.functional.mse_loss(network()(X), Y).detach())
    assert float(nn.functional.mse_loss(trained(recipe, 3)(X), Y).detach()) < 0.9 * first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_norm": 0}, "clip_norm is 0"),
        ({"clip_value": -1.0}, "clip_value is -1"),
        ({"accumulate": 0}, "accumulate is 0"),
        ({"autocast": "half"}, "autocast is 'half'"),
    ],
)
def test_options_that_are_none_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_setup(network(), X, Y, Training(optimizer=0.1, **options))


def test_batches_are_accumulated_to_steps() -> None:
    setup = make_setup(network(), X, Y, Training(optimizer=0.1, batch_size=2, accumulate=3))
    assert setup.batch_size == 6
    assert make_setup(network(), X, Y, Training(optimizer=0.1, accumulate=3)).batch_size is None


def assert_alike(ours: nn.Module, theirs: nn.Module) -> None:
    for one, other, first in zip(ours.parameters(), theirs.parameters(), network().parameters()):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-7)
        assert not torch.equal(one, first)
