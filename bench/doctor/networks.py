"""Networks as people write them, each small; cases change, break or replace parts of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def mlp(sizes: Sequence[int], activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with an activation between them."""
    layers = list[nn.Module]()
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


class SmallCNN(nn.Module):
    """Two convolutions, pooling, and a head."""

    def __init__(self, width: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.fc = nn.Linear(2 * width * 4, classes)

    def features(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        return F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))


class BasicBlock(nn.Module):
    """Two normalised convolutions beside a skip."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(h)))


class ResNet(nn.Module):
    """A stem, residual blocks and a head on the mean over places."""

    def __init__(self, width: int = 16, blocks: int = 2, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.Sequential(*[BasicBlock(width) for _ in range(blocks)])
        self.fc = nn.Linear(width * 4, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = F.max_pool2d(self.blocks(F.relu(self.stem(x))), 2)
        return self.fc(F.adaptive_avg_pool2d(h, 2).flatten(1))


class ResidualMLP(nn.Module):
    """Blocks x + scale * W2 relu(W1 norm(x)) between an embedding and a head."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        width: int = 32,
        depth: int = 6,
        scale: float = 1.0,
        norm: bool = True,
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(inputs, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) if norm else nn.Identity() for _ in range(depth))
        self.up = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, outputs)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for norm, up, down in zip(self.norms, self.up, self.down):
            h = h + self.scale * down(F.relu(up(norm(h))))
        return self.head(h)


class UNet(nn.Module):
    """One level down and up, with a skip."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, width, 3, padding=1)
        self.middle = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.out = nn.Conv2d(2 * width, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        fine = F.relu(self.down(x))
        coarse = F.relu(self.middle(F.max_pool2d(fine, 2)))
        return self.out(torch.cat([fine, F.relu(self.up(coarse))], 1))


class SequenceClassifier(nn.Module):
    """Embedding, a recurrent layer, and a head on the last step."""

    def __init__(
        self, vocabulary: int, classes: int, width: int = 32, cell: type[nn.RNNBase] = nn.GRU
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 16)
        self.rnn = cell(16, width, batch_first=True)
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(self.embedding(x))
        return self.fc(out[:, -1])


class SeriesRegressor(nn.Module):
    """A recurrent layer on numbers, and a head on the last step."""

    def __init__(self, features: int, width: int = 32, cell: type[nn.RNNBase] = nn.GRU) -> None:
        super().__init__()
        self.rnn = cell(features, width, batch_first=True)
        self.fc = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        return self.fc(out[:, -1])


class ElmanLoop(nn.Module):
    """A recurrent network written as a loop over time."""

    def __init__(
        self,
        features: int,
        outputs: int,
        width: int = 32,
        tokens: int | None = None,
        activation: Callable = torch.tanh,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, features) if tokens else nn.Identity()
        self.inp = nn.Linear(features, width)
        self.rec = nn.Linear(width, width)
        self.fc = nn.Linear(width, outputs)
        self.activation = activation
        self.width = width

    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return self.activation(self.inp(x) + self.rec(h))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        h = torch.zeros(len(x), self.width)
        for t in range(x.shape[1]):
            h = self.step(x[:, t], h)
        return self.fc(h)


class CausalAttention(nn.Module):
    """Multi-head causal attention by torch's own kernel."""

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.heads = heads

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = (
            part.view(n, t, self.heads, d // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(d, dim=2)
        )
        return self.proj(self.attend(q, k, v).transpose(1, 2).reshape(n, t, d))


class HandWrittenAttention(CausalAttention):
    """The same written out, with its scale and the axis of its softmax as they may be got wrong."""

    def __init__(
        self, width: int, heads: int = 2, axis: int = -1, scale: float | None = None, causal: bool = True
    ) -> None:
        super().__init__(width, heads)
        self.axis, self.causal = axis, causal
        self.scale = scale or 1 / math.sqrt(width // heads)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1) * self.scale
        if self.causal:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(hidden, -1e9)
        return scores.softmax(self.axis) @ v


class Block(nn.Module):
    """A transformer block, normalised before each branch."""

    def __init__(self, width: int, attention: nn.Module) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = attention
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    """Token and position embeddings, blocks, and logits (samples, positions, tokens)."""

    def __init__(
        self,
        vocabulary: int,
        length: int,
        width: int = 32,
        depth: int = 2,
        attention: Callable[[int], nn.Module] = CausalAttention,
    ) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(length, width)
        nn.init.normal_(self.wte.weight, std=0.1)
        nn.init.normal_(self.wpe.weight, std=0.1)
        self.blocks = nn.ModuleList(Block(width, attention(width)) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))


class Encoder(nn.Module):
    """torch's own transformer encoder with learned positions; one class for each sample by its mean, or tokens."""

    def __init__(
        self, vocabulary: int, classes: int, length: int, width: int = 32, tokens_out: bool = False
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(length, width) * 0.5)
        layer = nn.TransformerEncoderLayer(
            width, 2, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.fc = nn.Linear(width, classes)
        self.tokens_out = tokens_out

    def forward(self, x: Tensor) -> Tensor:
        h = self.encoder(self.embedding(x) + self.position)
        return self.fc(h if self.tokens_out else h.mean(1))


class ViT(nn.Module):
    """Patches of two by two, a class token, multi-head attention."""

    def __init__(self, width: int = 32, depth: int = 2, batch_first: bool = True) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, stride=2)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.pos = nn.Parameter(torch.randn(1, 17, width) * 0.1)
        self.ln1 = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.ln2 = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.attn = nn.ModuleList(
            nn.MultiheadAttention(width, 2, batch_first=batch_first) for _ in range(depth)
        )
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 10)

    def tokens(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2)
        return torch.cat([self.cls.expand(len(x), -1, -1), h], 1) + self.pos

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x)
        for ln1, attn, ln2, mlp_ in zip(self.ln1, self.attn, self.ln2, self.mlp):
            q = ln1(h)
            h = h + attn(q, q, q, need_weights=False)[0]
            h = h + mlp_(ln2(h))
        return self.head(h[:, 0])


class Mixer(nn.Module):
    """An MLP over patches in turn with one over channels."""

    def __init__(self, width: int = 32, depth: int = 2, patches: int = 16) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, stride=2)
        self.ln1 = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.ln2 = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.tokens = nn.ModuleList(mlp([patches, 2 * patches, patches], nn.GELU) for _ in range(depth))
        self.channels = nn.ModuleList(mlp([width, 2 * width, width], nn.GELU) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2)
        for ln1, tokens, ln2, channels in zip(self.ln1, self.tokens, self.ln2, self.channels):
            h = h + tokens(ln1(h).transpose(1, 2)).transpose(1, 2)
            h = h + channels(ln2(h))
        return self.head(h.mean(1))


class StateSpace(nn.Module):
    """A diagonal linear recurrence between two linear maps, with a nonlinear readout of the last state."""

    def __init__(self, features: int, outputs: int, decay: Tensor, learned: bool = True) -> None:
        super().__init__()
        self.log_decay = nn.Parameter(decay.log(), requires_grad=learned)
        self.inp = nn.Linear(features, len(decay))
        self.out = mlp([len(decay), 32, outputs], nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        u, decay = self.inp(x), self.log_decay.exp()
        h = torch.zeros(len(x), len(decay))
        for t in range(x.shape[1]):
            h = decay * h + u[:, t]
        return self.out(h)


class GraphNet(nn.Module):
    """Rounds of mean aggregation over a dense adjacency; a class for each node, on axis 1."""

    def __init__(self, rounds: int = 2, width: int = 16, nodes: int = 10, own: bool = True) -> None:
        super().__init__()
        self.inp = nn.Linear(4, width)
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(rounds)) if own else None
        self.others = nn.ModuleList(nn.Linear(width, width) for _ in range(rounds))
        self.out = nn.Linear(width, 2)
        self.nodes = nodes

    def forward(self, x: Tensor) -> Tensor:
        adjacency, features = x.split([self.nodes, 4], dim=2)
        adjacency = adjacency / adjacency.sum(2, keepdim=True)
        h = F.relu(self.inp(features))
        for place, others in enumerate(self.others):
            message = others(adjacency @ h)
            h = F.relu(message if self.own is None else message + self.own[place](h))
        return self.out(h).transpose(1, 2)


class DeepSets(nn.Module):
    """A network of every element, their mean, and a network of it."""

    def __init__(self, features: int = 3, width: int = 32) -> None:
        super().__init__()
        self.phi = mlp([features, width, width])
        self.rho = mlp([width, width, 1])

    def forward(self, x: Tensor) -> Tensor:
        return self.rho(self.phi(x).mean(1))


class AutoEncoder(nn.Module):
    """Down to a code and back."""

    def __init__(self, inputs: int = 64, width: int = 64, code: int = 12) -> None:
        super().__init__()
        self.encoder = mlp([inputs, width, code])
        self.decoder = mlp([code, width, inputs])

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


class BagClassifier(nn.Module):
    """The mean embedding of a bag of tokens, and a linear head."""

    def __init__(self, vocabulary: int, classes: int, width: int = 16, **options: object) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(vocabulary, width, mode="mean", **options)
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.bag(x))


class TabularMLP(nn.Module):
    """Linear, batch normalisation and relu, twice, and a head."""

    def __init__(self, inputs: int, outputs: int, width: int = 48, momentum: float = 0.1) -> None:
        super().__init__()
        self.bn0 = nn.BatchNorm1d(inputs, momentum=momentum)
        self.fc1, self.bn1 = nn.Linear(inputs, width), nn.BatchNorm1d(width, momentum=momentum)
        self.fc2, self.bn2 = nn.Linear(width, width), nn.BatchNorm1d(width, momentum=momentum)
        self.out = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.fc1(self.bn0(x))))
        return self.out(F.relu(self.bn2(self.fc2(h))))


def token_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of logits (samples, positions, tokens)."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
