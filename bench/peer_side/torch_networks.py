"""The networks whose tangent kernels are compared, as anyone would write them in torch.

Every peer that speaks torch builds them here and loads the same weights; this module needs torch alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def perceptron(widths: Sequence[int]) -> nn.Sequential:
    """Linear layers of these widths with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def convolutional(channels: Sequence[int], strides: Sequence[int], outputs: int) -> nn.Sequential:
    """3x3 convolutions with ReLU, the average over all positions, one linear layer."""
    layers: list[nn.Module] = []
    for before, after, stride in zip(channels[:-1], channels[1:], strides):
        layers += [nn.Conv2d(before, after, 3, stride=stride, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], outputs))


class AttentionBlock(nn.Module):
    """One pre-norm attention block on embedded tokens (N, T, width), the mean over tokens, one linear layer."""

    def __init__(self, width: int, heads: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, hidden)
        self.contract = nn.Linear(hidden, width)
        self.head = nn.Linear(width, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        normed = self.attention_norm(tokens)
        query, key, value = (self._split(project(normed)) for project in (self.query, self.key, self.value))
        attended = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        tokens = tokens + self.out(attended)
        tokens = tokens + self.contract(functional.gelu(self.expand(self.feed_forward_norm(tokens))))
        return self.head(tokens.mean(1))

    def _split(self, projected: Tensor) -> Tensor:
        return projected.unflatten(2, (self.heads, -1)).transpose(1, 2)


class Recurrent(nn.Module):
    """A GRU on sequences (N, T, inputs) whose last state goes through one linear layer."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.gru = nn.GRU(inputs, hidden, batch_first=True)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, sequences: Tensor) -> Tensor:
        states, _ = self.gru(sequences)
        return self.head(states[:, -1])


class UnrolledRecurrent(nn.Module):
    """The same GRU from two linear layers that are called at every step, for tools that refuse nn.GRU."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.from_input = nn.Linear(inputs, 3 * hidden)
        self.from_state = nn.Linear(hidden, 3 * hidden)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, sequences: Tensor) -> Tensor:
        state = sequences.new_zeros(len(sequences), self.from_state.in_features)
        for token in sequences.unbind(1):
            reset_x, update_x, new_x = self.from_input(token).chunk(3, 1)
            reset_h, update_h, new_h = self.from_state(state).chunk(3, 1)
            update = torch.sigmoid(update_x + update_h)
            new = torch.tanh(new_x + torch.sigmoid(reset_x + reset_h) * new_h)
            state = new + update * (state - new)
        return self.head(state)


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "perceptron": perceptron,
    "convolutional": convolutional,
    "attention": AttentionBlock,
    "recurrent": Recurrent,
    "unrolled recurrent": UnrolledRecurrent,
}

# Names of the unrolled layers, and what nn.GRU calls the same weights.
UNROLLED_NAMES = {
    "from_input.weight": "gru.weight_ih_l0",
    "from_input.bias": "gru.bias_ih_l0",
    "from_state.weight": "gru.weight_hh_l0",
    "from_state.bias": "gru.bias_hh_l0",
}


def build(network: str, sizes: Mapping[str, Any], weights: Mapping[str, Any]) -> nn.Module:
    """The network of that name and size with these weights (arrays by the names of `state_dict`)."""
    model = NETWORKS[network](**sizes)
    renamed = UNROLLED_NAMES if network == "unrolled recurrent" else {}
    model.load_state_dict(
        {name: torch.as_tensor(weights[renamed.get(name, name)]) for name in model.state_dict()}
    )
    return model
