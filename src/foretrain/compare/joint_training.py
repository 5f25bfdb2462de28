"""Many networks of one shape trained together, each by plain gradient descent at its own rate, to the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from foretrain.compare.build import Network, parameter_groups
from foretrain.support.errors import InputError
from foretrain.support.progress import track

Array = NDArray[np.float64]

TOLERANCE = 1e-10  # of the residual at which training ends: changes of 1e-6 of the kernel are still resolved
MOST_STEPS = 200_000
_GROUP_BYTES = 4e6  # of parameters trained together: about a processor's cache


@dataclass(frozen=True, eq=False)
class Learner:
    """A network, the targets of its training rows, and its learning rate."""

    network: Network
    targets: Array
    eta: float


def train_together(learners: Sequence[Learner], x: Tensor) -> Array:
    """Train all networks to the end, by groups that fit the processor's cache; how many steps each took."""
    each = sum(value.numel() * value.element_size() for value in learners[0].network.parameters())
    size = max(1, int(_GROUP_BYTES / each))
    groups = [learners[first : first + size] for first in range(0, len(learners), size)]
    return np.concatenate([_train_group(group, x) for group in track(groups, "training")])


def _train_group(learners: Sequence[Learner], x: Tensor) -> Array:
    """Full-batch gradient descent on half the sum of squares, step by step for networks of equal shape."""
    networks = [each.network for each in learners]
    y = torch.from_numpy(np.stack([each.targets for each in learners]))
    samples = x[: y.shape[1] // networks[0].mlp.n_out]
    values, _ = stack_module_state(networks)
    etas = torch.tensor([each.eta for each in learners], dtype=torch.float64)
    rates = _rates(networks[0])

    def outputs(parameters: dict[str, Tensor]) -> Tensor:
        found: Tensor = functional_call(networks[0], parameters, (samples,))
        return found.reshape(-1)

    steps, first_sizes = np.full(len(learners), -1), None
    for step in range(MOST_STEPS):
        error = vmap(outputs)(values) - y
        sizes = error.detach().abs().amax(dim=1)
        if not torch.isfinite(sizes).all():
            raise diverged()
        first_sizes = sizes if first_sizes is None else first_sizes
        steps[(sizes <= TOLERANCE * first_sizes).numpy() & (steps < 0)] = step
        if (steps >= 0).all():
            _write_back(networks, values)
            return steps.astype(float)
        slopes = torch.autograd.grad(0.5 * (error**2).sum(), list(values.values()))
        with torch.no_grad():
            for (name, value), slope in zip(values.items(), slopes, strict=True):
                value -= (rates[name] * etas).reshape(-1, *[1] * (value.ndim - 1)) * slope
    raise not_ended()


def _rates(network: Network) -> dict[str, float]:
    """λ_b and λ_W / n of every parameter."""
    by_id = {id(group["params"][0]): group["lr"] for group in parameter_groups(network, network.mlp, eta=1.0)}
    return {name: by_id[id(value)] for name, value in network.named_parameters()}


def _write_back(networks: Sequence[Network], values: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for place, network in enumerate(networks):
            for name, parameter in network.named_parameters():
                parameter.copy_(values[name][place])


def diverged() -> InputError:
    """The error for a descent that runs away."""
    return InputError("gradient descent diverges: give a smaller step, or smaller Y.")


def not_ended() -> InputError:
    """The error for a descent that does not converge."""
    return InputError(
        f"gradient descent did not end in {MOST_STEPS} steps: give fewer or more different samples, or smaller Y."
    )
