"""Attention and transformer layers of torch, with masks, other axes, and weights of unequal sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from brute_force import DOUBLE, Case, assert_equal, check, jacobian, kernel_of, normal, ready
from torch import Tensor, nn
from torch.nn import functional

from foretrain.empirical.tangent_kernel import ntk


def encoder(first: bool, norm_first: bool, layers: int = 2, activation: str = "relu") -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        4, 2, dim_feedforward=6, batch_first=first, norm_first=norm_first, activation=activation
    )
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_encoder(norm_first: bool) -> None:
    check(Case(lambda: encoder(True, norm_first), normal(4, 3, 4)))


@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_encoder_with_samples_on_the_second_axis(norm_first: bool) -> None:
    check(Case(lambda: encoder(False, norm_first, 1, "gelu"), normal(3, 4, 4), axis=1))


class Causal(nn.Module):
    """Tokens that see only those before them; the mask is not an argument, because it has no samples."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.last = encoder(True, True, 1), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=DOUBLE)
        return self.last(self.encoder(x, mask=mask, is_causal=True)[:, -1])


def test_causal_encoder() -> None:
    check(Case(Causal, normal(4, 3, 4)))


def test_a_mask_as_an_argument() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder(True, True, 1)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return self.encoder(x, mask=mask)

    model, x = ready(Masked), normal(4, 3, 4)
    mask = nn.Transformer.generate_square_subsequent_mask(3, dtype=DOUBLE)  # holds minus infinity
    expected = jacobian([*model.parameters()], [lambda n=n: model(x[n : n + 1], mask) for n in range(4)])
    for size in ("auto", 2):
        assert_equal(ntk(model, (x, mask), batch_size=size).values, kernel_of(expected, expected))


class Padded(nn.Module):
    """Sequences of unequal lengths with a padding mask, averaged over what is not padding."""

    def __init__(self, nested: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=6, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        found = self.encoder(x, src_key_padding_mask=padding)
        return found.masked_fill(padding[: len(x), : found.shape[1], None], 0).sum(1)


PADDING = torch.arange(3) >= torch.tensor([[3], [2], [1], [3]])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("nested", [False, True])
def test_padded_encoder(nested: bool) -> None:
    check(Case(lambda: Padded(nested), (normal(4, 3, 4), PADDING)))


def test_every_token_of_a_padded_encoder() -> None:
    # Without gradients torch would fill padded places with zeros; with them it does not.
    class Tokens(Padded):
        def forward(self, x: Tensor, padding: Tensor) -> Tensor:
            return self.encoder(x, src_key_padding_mask=padding)

    check(Case(lambda: Tokens(True), (normal(4, 3, 4), PADDING)))


@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_decoder_layer(norm_first: bool) -> None:
    check(
        Case(
            lambda: nn.TransformerDecoderLayer(4, 2, 6, batch_first=True, norm_first=norm_first),
            (normal(4, 2, 4), normal(4, 3, 4, seed=1)),
        )
    )


def test_transformer_with_both_sides() -> None:
    check(
        Case(
            lambda: nn.Transformer(4, 2, 1, 1, 6, batch_first=True),
            (normal(4, 2, 4), normal(4, 3, 4, seed=1)),
        )
    )


class Attending(nn.Module):
    """``nn.MultiheadAttention`` without its second result."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True, **options)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.attention(query, key, value, need_weights=False)[0]


class SelfAttending(Attending):
    weights = False

    def forward(self, x: Tensor, **masks: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=self.weights, **masks)[0]


class SelfAttendingWithWeights(SelfAttending):
    weights = True


@pytest.mark.parametrize("kind", [SelfAttending, SelfAttendingWithWeights])
@pytest.mark.parametrize("bias", [True, False])
def test_self_attention(kind: type[nn.Module], bias: bool) -> None:
    check(Case(lambda: kind(bias=bias), normal(4, 3, 4)))


@pytest.mark.parametrize("options", [{}, {"kdim": 3, "vdim": 5}, {"kdim": 3, "vdim": 5, "bias": False}])
def test_cross_attention(options: dict[str, Any]) -> None:
    keys, values = options.get("kdim", 4), options.get("vdim", 4)
    x = normal(4, 2, 4), normal(4, 3, keys, seed=1), normal(4, 3, values, seed=2)
    check(Case(lambda: Attending(**options), x))


def test_cross_attention_to_one_memory() -> None:
    class Memory(Attending):
        def forward(self, query: Tensor, memory: Tensor) -> Tensor:
            return super().forward(query, memory, memory)

    check(Case(Memory, (normal(4, 2, 4), normal(4, 3, 4, seed=1))))


@pytest.mark.parametrize("options", [{"add_bias_kv": True}, {"add_zero_attn": True}])
def test_extra_keys(options: dict[str, Any]) -> None:
    check(Case(lambda: SelfAttending(**options), normal(4, 3, 4)))


def test_attention_with_a_padding_mask() -> None:
    class Masked(SelfAttending):
        def forward(self, x: Tensor, padding: Tensor) -> Tensor:
            return super().forward(x, key_padding_mask=padding)

    check(Case(Masked, (normal(4, 3, 4), PADDING)))


def test_attention_with_a_causal_mask() -> None:
    class Masked(SelfAttending):
        def forward(self, x: Tensor) -> Tensor:
            above = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            return super().forward(x, attn_mask=above)

    check(Case(Masked, normal(4, 3, 4)))


def test_attention_with_samples_on_the_second_axis() -> None:
    class Second(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x, need_weights=False)[0]

    check(Case(Second, normal(3, 4, 4), axis=1))


@pytest.mark.parametrize("shape", [(4, 4, 4), (3, 3, 4), (4, 1, 4), (4, 2, 4)])
def test_sizes_that_look_alike(shape: tuple[int, ...]) -> None:
    check(Case(lambda: encoder(True, True, 1), normal(*shape)))


class HandWritten(nn.Module):
    """One matrix for queries, keys and values, heads by einsum, a learned temperature for each head."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(4, 12, bias=False), nn.Parameter(torch.randn(2, 2, 4))
        self.temperature, self.fused = nn.Parameter(torch.ones(2, 1, 1)), fused

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 2).permute(2, 0, 3, 1, 4)
        if self.fused:
            seen = functional.scaled_dot_product_attention(q * self.temperature, k, v, is_causal=True)
        else:
            seen = torch.softmax(torch.einsum("nhti,nhsi->nhts", q, k) * self.temperature, -1) @ v
        return torch.einsum("nhti,hij->ntj", seen, self.out)


@pytest.mark.parametrize("fused", [True, False])
def test_attention_written_by_hand(fused: bool) -> None:
    check(Case(lambda: HandWritten(fused), normal(4, 3, 4)))


class RelativePositions(HandWritten):
    """A table of biases for distances, looked up by a fixed index, is added to the logits."""

    def __init__(self) -> None:
        super().__init__(fused=False)
        self.table = nn.Parameter(torch.randn(5, 2))
        self.register_buffer("distance", torch.arange(3)[:, None] - torch.arange(3) + 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 2).permute(2, 0, 3, 1, 4)
        logits = q @ k.mT + self.table[self.distance].permute(2, 0, 1)
        return torch.einsum("nhti,hij->ntj", torch.softmax(logits, -1) @ v, self.out) * self.temperature.sum()


def test_relative_positions() -> None:
    check(Case(RelativePositions, normal(4, 3, 4)))


class VisionTransformer(nn.Module):
    """Patches by a convolution, a class token by expand and cat, learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 4, 2, stride=2)
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.positions = nn.Parameter(torch.randn(1, 5, 4))
        self.encoder, self.last = encoder(True, True, 1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        whole = torch.cat([self.token.expand(len(x), -1, -1), patches], 1) + self.positions
        return self.last(self.encoder(whole)[:, 0])


def test_vision_transformer() -> None:
    check(Case(VisionTransformer, normal(4, 1, 4, 4)))
