"""What one step of descent is in the time of the flow, for every parameter."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import nn

from foretrain.support.errors import InputError, NotSupportedError


@dataclass(frozen=True)
class Descent:
    """Plain descent or descent with momentum: learning rates by parameter name, and the momentum."""

    rates: dict[str, float]
    momentum: float = 0.0
    nesterov: bool = False

    @property
    def flow_rates(self) -> dict[str, float]:
        """ρ for which the time of θ̇ = -ρ ∇ counts steps; on a plateau momentum m multiplies rates by 1/(1-m)."""
        return {name: rate / (1 - self.momentum) for name, rate in self.rates.items()}

    @property
    def largest_stable(self) -> float:
        """Rate × curvature at which descent on a quadratic loss begins to diverge."""
        m = self.momentum
        return (2 + 2 * m) / (1 + 2 * m) if self.nesterov else 2 + 2 * m

    def optimizer(self, model: nn.Module) -> torch.optim.SGD:
        """The same descent for the parameters of a copy of the model."""
        groups: list[dict[str, Any]] = [
            {"params": [parameter], "lr": self.rates[name]}
            for name, parameter in model.named_parameters()
            if name in self.rates
        ]
        return torch.optim.SGD(groups, lr=1.0, momentum=self.momentum, nesterov=self.nesterov)


def descent_of(model: nn.Module, lr: float | None, optimizer: torch.optim.Optimizer | None) -> Descent:
    """From one learning rate for all parameters, or from the groups of an optimizer."""
    if (lr is None) == (optimizer is None):
        raise InputError("give a learning rate `lr=`, or an `optimizer=` whose groups hold the rates.")
    names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    if not names:
        raise NotSupportedError("the model has no parameter with requires_grad: there is nothing to train.")
    if lr is not None:
        return Descent(dict.fromkeys(names.values(), _positive(lr)))
    if not isinstance(optimizer, torch.optim.SGD):
        raise NotSupportedError(
            f"the flow speaks of gradient descent, not of {type(optimizer).__name__}: give torch.optim.SGD."
        )
    return _from_groups(optimizer, names)


def _positive(lr: Any) -> float:
    if not isinstance(lr, Real) or not 0 < float(lr) < float("inf"):
        raise InputError(f"`lr` is {lr!r}: give a positive learning rate.")
    return float(lr)


def _from_groups(optimizer: torch.optim.SGD, names: dict[int, str]) -> Descent:
    for group in optimizer.param_groups:
        if group["weight_decay"] or group["dampening"] or group["maximize"]:
            raise NotSupportedError(
                "weight decay, dampening and maximize are not in the flow: give an optimizer without them."
            )
    momenta = {(float(group["momentum"]), bool(group["nesterov"])) for group in optimizer.param_groups}
    if len(momenta) != 1:
        raise NotSupportedError("the groups of the optimizer differ in momentum: give one momentum for all.")
    rates = {
        names[id(p)]: float(group["lr"])
        for group in optimizer.param_groups
        for p in group["params"]
        if id(p) in names
    }
    missing = sorted(set(names.values()) - set(rates))
    if missing:
        raise InputError(
            f"the optimizer does not train {missing[0]}: set requires_grad_(False) on what stays."
        )
    return Descent(rates, *momenta.pop())
