"""Public transformer models with small random configurations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from brute_force import Case, check, normal, slow_parameters, tokens

from foretrain.empirical.tangent_kernel import ntk

transformers = pytest.importorskip("transformers")

IDS = tokens(4, 5, below=11)
LENGTHS = torch.tensor([5, 3, 4, 2])
MASK = (torch.arange(5) < LENGTHS[:, None]).long()


def gpt2(**options: Any) -> Any:
    settings = {"vocab_size": 11, "n_positions": 8, "n_embd": 4, "n_layer": 2, "n_head": 2, "n_inner": 6}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings, use_cache=False, **options))


def bert() -> Any:
    settings = transformers.BertConfig(
        vocab_size=11, hidden_size=4, num_hidden_layers=2, num_attention_heads=2, intermediate_size=6,
        max_position_embeddings=8, num_labels=3,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(settings)


def vit() -> Any:
    settings = transformers.ViTConfig(
        hidden_size=4, num_hidden_layers=2, num_attention_heads=2, intermediate_size=6, image_size=4, patch_size=2,
        num_channels=1, num_labels=3,
    )  # fmt: skip
    return transformers.ViTForImageClassification(settings)


def llama() -> Any:
    """Grouped queries, rotary positions, gated layers, root mean square norms."""
    settings = transformers.LlamaConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=6, max_position_embeddings=8, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(settings)


def last_logits(result: Any) -> torch.Tensor:
    return result.logits[:, -1, :3]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_gpt2(attention: str) -> None:
    check(
        Case(
            lambda: gpt2(attn_implementation=attention),
            {"input_ids": IDS},
            output=last_logits,
            pick=last_logits,
        )
    )


def test_gpt2_with_padded_texts() -> None:
    x = {"input_ids": IDS, "attention_mask": MASK}
    check(Case(gpt2, x, output=last_logits, pick=last_logits))


def test_gpt2_takes_its_tokens_alone_and_returns_one_tensor() -> None:
    model = Case(gpt2, IDS).model()
    expected = Case(gpt2, IDS, pick=lambda result: result.logits).jacobian(model)
    kernel = ntk(model, IDS, outputs="trace")
    torch.testing.assert_close(kernel.values, torch.einsum("nap,map->nm", expected, expected))
    assert not slow_parameters(kernel)


@pytest.mark.parametrize("padded", [False, True])
def test_bert(padded: bool) -> None:
    x = {"input_ids": IDS, "token_type_ids": (IDS > 5).long()} | ({"attention_mask": MASK} if padded else {})
    check(Case(bert, x, pick=lambda result: result.logits))


def test_vit() -> None:
    check(Case(vit, {"pixel_values": normal(4, 1, 4, 4)}, output="logits", pick=lambda result: result.logits))


@pytest.mark.parametrize("padded", [False, True])
def test_llama(padded: bool) -> None:
    x = {"input_ids": IDS} | ({"attention_mask": MASK} if padded else {})
    check(Case(llama, x, output=last_logits, pick=last_logits))


def test_one_block_of_gpt2_alone() -> None:
    model = Case(gpt2, IDS).model()
    kernel = ntk(model, IDS, output=last_logits, parameters="transformer.h.0.*", by="layer")
    assert all(label.startswith("transformer.h.0.") for label in kernel.labels or ())
    whole = ntk(model, IDS, output=last_logits, by="layer")
    for label in kernel.labels or ():
        torch.testing.assert_close(kernel[label], whole[label], rtol=1e-10, atol=1e-12)
