"""Attention that does not find what it needs, or finds what it must not see."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.doctor import data
from bench.doctor.case import Patient, pair
from bench.doctor.networks import GPT, Encoder, HandWrittenAttention, ViT, token_cross_entropy

_ORDER = (r"positions\b|positional", r"order of", r"permut")
_SHARP = (r"saturat", r"one.hot", r"attention", r"temperature", r"sqrt", r"scores")
_LEAK = (
    r"leak",
    r"causal",
    r"future",
    r"mask",
    r"copies|copied",
    r"sees? (the|its) (target|answer)",
    r"later (token|position)",
)
_HIDDEN = (r"mask", r"hidden", r"attention", r"do(es)? not (depend|see|reach)", r"inverted", r"never sees")


class OrderlessEncoder(Encoder):
    """Leaves out the positions."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.encoder(self.embedding(x)).mean(1))


@pair(
    "attention", "transformer encoder", "There are no positions, and the first token is asked for.", *_ORDER
)
def no_positions(broken: bool) -> Patient:
    x, y = data.recall(length=8)
    model = (OrderlessEncoder if broken else Encoder)(6, 6, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair(
    "attention",
    "GPT",
    "The softmax of scores runs over samples instead of keys.",
    r"\b(axis|axes|dim)\b",
    r"other samples",
    r"\bmix",
    r"(over|across|between) (the )?(batch|samples)",
    r"depends on (the )?(batch|other|rest)",
)
def softmax_over_samples(broken: bool) -> Patient:
    x, y = data.reversal()
    model = GPT(9, 7, attention=partial(HandWrittenAttention, axis=0 if broken else -1, causal=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    return model, x, y, {"loss": token_cross_entropy, "optimizer": optimizer, "batch_size": 64}


def _repeated() -> data.Data:
    """Eight tokens, and the same again: the second half follows from the first."""
    half = torch.randint(8, (1000, 8))
    tokens = torch.cat([half, half], 1)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def score_of_second_half(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Accuracy beyond chance of what can be known."""
    right = model(x)[:, 7:].argmax(2) == y[:, 7:]
    return (8 * float(right.float().mean()) - 1) / 7


def second_half(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of what can be known."""
    return token_cross_entropy(logits[:, 7:], targets[:, 7:])


class ScaledGPT(GPT):
    """Multiplies its embeddings, and has no normalisation before attention."""

    def __init__(self, scale: float, attention: object, vocabulary: int = 9, length: int = 7) -> None:
        super().__init__(vocabulary, length, attention=attention)  # type: ignore[arg-type]
        self.scale = scale
        for block in self.blocks:
            block.ln1 = nn.Identity()

    def forward(self, idx: Tensor) -> Tensor:
        x = self.scale * (self.wte(idx) + self.wpe(torch.arange(idx.shape[1])))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))


_FULL = partial(HandWrittenAttention, causal=False)


@pair(
    "attention",
    "transformer",
    "Scores of large embeddings are not divided by sqrt(d).",
    *_SHARP,
    r"embeddings?\b(?!\.)",
)
def scores_not_divided(broken: bool) -> Patient:
    x, y = data.reversal()
    model = ScaledGPT(300.0 if broken else 5.0, partial(_FULL, scale=1.0) if broken else _FULL)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": token_cross_entropy, "optimizer": optimizer, "batch_size": 64}


class MaskedEncoder(Encoder):
    """Passes a mask of keys: True is what must not be seen."""

    def __init__(self, inverted: bool) -> None:
        super().__init__(6, 6, 8)
        self.inverted = inverted

    def forward(self, x: Tensor) -> Tensor:
        filled = torch.zeros(x.shape, dtype=torch.bool)
        filled[:, -2:] = True
        hidden = ~filled if self.inverted else filled
        h = self.encoder(self.embedding(x) + self.position, src_key_padding_mask=hidden)
        return self.fc(h[:, -1])


@pair("attention", "transformer encoder", "The mask of padding is inverted: only padding is seen.", *_HIDDEN)
def padding_mask_inverted(broken: bool) -> Patient:
    x, y = data.recall(length=8)
    model = MaskedEncoder(broken)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


class OwnTokenAttention(HandWrittenAttention):
    """A mask that leaves every position itself alone."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        own = torch.eye(q.shape[-2], dtype=torch.bool)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=own)


@pair(
    "attention",
    "GPT",
    "The mask hides everything but the token itself.",
    *_HIDDEN,
    score=score_of_second_half,
)
def mask_that_hides_all_others(broken: bool) -> Patient:
    x, y = _repeated()
    model = GPT(8, 15, attention=OwnTokenAttention if broken else HandWrittenAttention)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    return model, x, y, {"loss": second_half, "optimizer": optimizer, "batch_size": 64}


def score_without_future(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Accuracy beyond the commonest token of predictions that are made from a text's beginning alone."""
    right, known = list[Tensor](), range(4, x.shape[1], 3)
    for end in known:
        seen = x.clone()
        seen[:, end + 1 :] = 0
        right.append(model(seen)[:, end].argmax(1) == y[:, end])
    commonest = float(torch.bincount(y[:, list(known)].flatten()).max()) / y[:, list(known)].numel()
    return (float(torch.stack(right).float().mean()) - commonest) / (1 - commonest)


@pair(
    "attention",
    "GPT",
    "Without a causal mask the next token is seen, and copied.",
    *_LEAK,
    score=score_without_future,
    least=0.3,
)
def next_token_is_seen(broken: bool) -> Patient:
    x, y = data.text(1200)
    model = GPT(14, 16, attention=_FULL if broken else HandWrittenAttention)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    return model, x, y, {"loss": token_cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair(
    "attention",
    "ViT",
    "Patches are multiplied by 300 and never normalised.",
    *_SHARP,
    r"embeddings?\b(?!\.)",
    r"(signal|activation|embedding|input|patch|feature)(s|es)?[^.]*(large|huge|grow|explo)",
)
def huge_patches(broken: bool) -> Patient:
    x, y = data.digit_images(600)
    model = ViT()
    if broken:
        with torch.no_grad():
            model.patch.weight.mul_(300)
        for place in range(len(model.ln1)):
            model.ln1[place] = nn.Identity()
            model.ln2[place] = nn.Identity()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 32}


@pair("attention", "transformer", "Scores are divided by a temperature of 0.001.", *_SHARP, by_loss=True)
def temperature_of_a_thousandth(broken: bool) -> Patient:
    x, y = data.reversal()
    model = GPT(9, 7, attention=partial(_FULL, scale=1000 / math.sqrt(16) if broken else None))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": token_cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair(
    "attention",
    "ViT",
    "Without batch_first attention runs over samples.",
    r"batch_first",
    r"\b(axis|axes)\b",
    r"\bmix",
    r"other samples",
    r"(over|across|between) (the )?(batch|samples)",
)
def attention_over_samples(broken: bool) -> Patient:
    x, y = data.digit_images(600)
    model = ViT(batch_first=not broken)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 32}


class LoudPositions(ViT):
    """Position embeddings hundreds of times larger than patches."""

    def __init__(self, scale: float) -> None:
        super().__init__(width=24)
        with torch.no_grad():
            self.pos.mul_(scale)


@pair(
    "attention",
    "ViT",
    "Positions are thousands of times larger than patches.",
    r"positions\b|positional",
    r"drown",
    r"\bpos\b",
    r"(signal|input)s?[^.]*(small|lost|vanish)",
    r"collaps",
)
def positions_drown_patches(broken: bool) -> Patient:
    x, y = data.digit_images(600)
    model = LoudPositions(30000.0 if broken else 1.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 32}


class LonelyClassToken(ViT):
    """Reads the class token, which attends to itself alone."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x)
        for ln1, attn, ln2, branch in zip(self.ln1, self.attn, self.ln2, self.mlp):
            q = ln1(h[:, :1])
            h = h[:, :1] + attn(q, q, q, need_weights=False)[0]
            h = h + branch(ln2(h))
        return self.head(h[:, 0])


@pair(
    "attention",
    "ViT",
    "The class token is cut out before it has seen a patch.",
    r"constant output",
    r"same output",
    r"outputs?[^.]*(constant|not (vary|depend))",
    r"class token",
    r"\bcls\b",
    r"do(es)? not (depend|see|reach)",
    r"no gradient",
    r"unused",
    r"attention",
)
def class_token_sees_nothing(broken: bool) -> Patient:
    x, y = data.digit_images(600)
    model = (LonelyClassToken if broken else ViT)(width=40, depth=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 32}
