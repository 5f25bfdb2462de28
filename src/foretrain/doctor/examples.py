"""Two built-in networks worth a look: a deep ReLU network as torch initialises it, and a GRU that must remember."""

from __future__ import annotations

import torch
from torch import nn

from foretrain.doctor.examine import Training, make_setup
from foretrain.doctor.setup import Setup
from foretrain.support.loading import handwritten_digits
from foretrain.support.seeds import Seed, integer, spawn
from foretrain.training.tasks.memory_pro import MemoryPro, Recurrent

_HIDDEN_LAYERS, _WIDTH = 10, 64
_UNITS, _ANGLES = 48, 32
_PERIODS = MemoryPro(stimulus=8, memory=8, response=8)


def examples(seed: Seed = 0) -> list[tuple[str, Setup]]:
    """Names and setups, for ``foretrain.doctor.examine.diagnose``."""
    first, second = spawn(seed, 2)
    return [
        (f"MLP with {_HIDDEN_LAYERS} hidden layers on handwritten digits", digits_network(first)),
        (f"GRU with {_UNITS} units on Memory-Pro", memory_network(second)),
    ]


def digits_network(seed: Seed = 0) -> Setup:
    """A ReLU network with torch's own initialisation, C_W = 1/3: too small for so many layers."""
    found = handwritten_digits()
    x = torch.as_tensor(found.images / 16.0, dtype=torch.float32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(integer(seed))
        layers: list[nn.Module] = [nn.Linear(x.shape[1], _WIDTH), nn.ReLU()]
        for _ in range(_HIDDEN_LAYERS - 1):
            layers += [nn.Linear(_WIDTH, _WIDTH), nn.ReLU()]
        network = nn.Sequential(*layers, nn.Linear(_WIDTH, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    y = torch.as_tensor(found.labels)
    return make_setup(network, x, y, Training(optimizer=optimizer, batch_size=128, seed=seed))


def memory_network(seed: Seed = 0) -> Setup:
    """A GRU that is asked for an angle in the response period only (Hazelden et al., section 4)."""
    angles = _PERIODS.angles(_ANGLES)
    network = Recurrent(3, _UNITS, 3, "gru", seed=seed)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    x, y = _PERIODS.inputs(angles), _PERIODS.targets(angles)
    return make_setup(network, x, y, Training(loss="mse", optimizer=optimizer, seed=seed))
