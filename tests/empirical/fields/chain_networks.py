"""Small chains of every kind, and the tangent kernel by brute force."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from foretrain.empirical.fields import Fields, fields

DOUBLE = torch.float64


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def redraw(model: nn.Module, gain: float = 1.6, seed: int = 1) -> nn.Module:
    """Weights of variance gain / fan-in and biases of deviation 0.3, in double precision."""
    source = torch.Generator().manual_seed(seed)
    model = model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            scale = (gain / parameter.shape[1]) ** 0.5 if parameter.ndim == 2 else 0.3
            parameter.copy_(scale * torch.randn(parameter.shape, dtype=DOUBLE, generator=source))
    return model


def note_network(depth: int, width: int = 12, gain: float = 2.0) -> nn.Module:
    """The note's: equal widths, ReLU, no biases; read out by the mean."""
    parts = [part for _ in range(depth) for part in (nn.Linear(width, width, bias=False), nn.ReLU())]
    return redraw(nn.Sequential(*parts), gain)


class ByHand(nn.Module):
    """Nested, flattened, in place, functional, scaled and squeezed."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(6, 7)
        self.stem = nn.Sequential(nn.ReLU(inplace=True), nn.Sequential(nn.Linear(7, 9), nn.Identity()))
        self.head = nn.Linear(9, 1)

    def forward(self, image: Tensor) -> Tensor:
        hidden = self.stem(self.fc1(image.flatten(1) / 2))
        return self.head(input=functional.silu(hidden) * 1.5).squeeze(-1) / 3


def partly_frozen() -> nn.Module:
    model = redraw(nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)))
    model[0].bias.requires_grad_(False)
    model[2].weight.requires_grad_(False)
    return model


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    readout: str | Tensor | None = None

    def model(self) -> nn.Module:
        return self.make()

    def x(self, inputs: int = 5) -> Tensor:
        return normal(inputs, *self.shape, seed=11)

    def fields(self, inputs: int = 5) -> Fields:
        return fields(self.model(), self.x(inputs), readout=self.readout)


def plain(*parts: nn.Module) -> Callable[[], nn.Module]:
    return lambda: redraw(copy.deepcopy(nn.Sequential(*parts)))


CASES = {
    "note": Case(lambda: note_network(3), (12,), "mean"),
    "one layer": Case(plain(nn.Linear(3, 8), nn.ReLU()), (3,), "mean"),
    "unequal widths": Case(
        plain(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 5, bias=False), nn.ReLU(), nn.Linear(5, 6)),
        (3,),
        normal(6, seed=5),
    ),
    "tanh": Case(plain(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 6), nn.Tanh(), nn.Linear(6, 1)), (4,)),
    "gelu, fixed matrix": Case(
        plain(nn.Linear(4, 7), nn.GELU(), nn.Linear(7, 6), nn.GELU()), (4,), normal(3, 6, seed=6)
    ),
    "leaky": Case(plain(nn.Linear(4, 9, bias=False), nn.LeakyReLU(0.2), nn.Linear(9, 2)), (4,)),
    "partly frozen": Case(partly_frozen, (4,)),
    "by hand": Case(lambda: redraw(ByHand()), (2, 3)),
}


def read(case: Case, model: nn.Module, x: Tensor) -> Tensor:
    """Outputs (M, C), computed without the library."""
    found = model(x).reshape(len(x), -1)
    if case.readout is None:
        return found
    if isinstance(case.readout, str):
        return found.mean(dim=1, keepdim=True)
    return found @ case.readout.reshape(-1, found.shape[1]).T


def brute_force_kernel(case: Case, model: nn.Module, x: Tensor) -> Tensor:
    """sum over trained parameters of dY/dtheta dY/dtheta, (M, M, C, C)."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    outputs = read(case, model, x)
    rows = []
    for value in outputs.reshape(-1):
        gradients = torch.autograd.grad(value, trained, retain_graph=True, allow_unused=True)
        rows.append(torch.cat([g.reshape(-1) for g in gradients if g is not None]))
    jacobian = torch.stack(rows).reshape(*outputs.shape, -1)
    return torch.einsum("acp,bdp->abcd", jacobian, jacobian)
