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


class Layer(nn.Module):
    """A pre-norm layer of a transformer: queries, keys and values at once, four times as many hidden units."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        projected = self.project(self.attention_norm(tokens)).unflatten(2, (3, self.heads, -1))
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        tokens = tokens + self.out(attended.transpose(1, 2).flatten(2))
        return tokens + self.feed_forward(self.feed_forward_norm(tokens))


class Generative(nn.Module):
    """As GPT-2: tokens (N, T) and their places looked up, causal layers, one linear layer on the last token."""

    def __init__(
        self, vocabulary: int, tokens: int, layers: int, width: int, heads: int, outputs: int
    ) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
        self.layers = nn.Sequential(*(Layer(width, heads, causal=True) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, outputs, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.layers(self.token(tokens) + self.place(places)))[:, -1])


class Encoder(nn.Module):
    """As BERT: torch's own encoder with norms behind the layers, then one more layer on the first token."""

    def __init__(
        self, vocabulary: int, tokens: int, layers: int, width: int, heads: int, outputs: int
    ) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Parameter(torch.randn(tokens, width))
        self.norm = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.pool, self.head = nn.Linear(width, width), nn.Linear(width, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        encoded = self.layers(self.norm(self.token(tokens) + self.place))
        return self.head(torch.tanh(self.pool(encoded[:, 0])))


class Vision(nn.Module):
    """As ViT: patches of images (N, 3, side, side) beside a token of the class, which one linear layer reads."""

    def __init__(self, side: int, patch: int, layers: int, width: int, heads: int, outputs: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.randn(1, 1, width))
        self.place = nn.Parameter(torch.randn((side // patch) ** 2 + 1, width))
        self.layers = nn.Sequential(*(Layer(width, heads, causal=False) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, outputs)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patch(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(len(images), -1, -1), patches], 1) + self.place
        return self.head(self.norm(self.layers(tokens))[:, 0])


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with norms, and a way around them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.first_norm, self.second_norm = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.around = nn.Sequential()
        if stride > 1:
            self.around = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, images: Tensor) -> Tensor:
        changed = self.second_norm(self.second(torch.relu(self.first_norm(self.first(images)))))
        return torch.relu(changed + self.around(images))


class Residual(nn.Module):
    """As ResNet-18 on small images: four stages of two blocks, the later ones at half the side; norms are frozen."""

    def __init__(self, channels: Sequence[int], outputs: int) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, channels[0], 3, 1, 1, bias=False), nn.BatchNorm2d(channels[0])
        blocks = [ResidualBlock(channels[0], channels[0], 1), ResidualBlock(channels[0], channels[0], 1)]
        for before, after in pairwise(channels):
            blocks += [ResidualBlock(before, after, 2), ResidualBlock(after, after, 1)]
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(channels[-1], outputs)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(torch.relu(self.norm(self.stem(images)))).mean((2, 3)))


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
    "generative": Generative,
    "encoder": Encoder,
    "vision": Vision,
    "residual": Residual,
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
