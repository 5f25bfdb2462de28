"""An optimizer as a recipe: what it was made of, and copies that train alike."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from foretrain.doctor.setup import Recipe, descent, recipe_of
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.training.optimizers import shampoo


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
