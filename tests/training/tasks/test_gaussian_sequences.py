"""Gaussian sequences and the attention block: written out by hand, against torch's own attention, and exact ranks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import foretrain as ft
from foretrain.support.errors import InputError
from foretrain.training.tasks import (
    AttentionBlock,
    FourierFeatures,
    GaussianSequences,
    GlobalState,
)


def test_inputs_are_standard_normal_and_seeded() -> None:
    task = GaussianSequences(3, steps=20)
    x, again, other = (task.inputs(200, seed) for seed in (1, 1, 2))
    assert x.shape == (200, 20, 3)
    assert torch.equal(x, again)
    assert not torch.equal(x, other)
    count = x.numel()
    assert abs(float(x.mean())) < 4 / math.sqrt(count)
    assert abs(float(x.var()) - 1) < 4 * math.sqrt(2 / count)


def test_targets_are_means_of_waves_whatever_the_order() -> None:
    task = GaussianSequences(2, steps=7, teacher=3)
    x, y = task.batch(5, seed=1, dtype=torch.float64)
    assert y.shape == (5, 7, 1)
    torch.testing.assert_close(task.targets(x[:, torch.randperm(7)]), y)
    # additive: a sequence twice as long made of two others has the sum of their answers over sqrt 2
    both = task.targets(torch.cat([x[:1], x[1:2]], 1))[0, 0, 0]
    torch.testing.assert_close(both, (y[0, 0, 0] + y[1, 0, 0]) / math.sqrt(2))


def test_targets_have_mean_zero_over_the_inputs() -> None:
    answers = GaussianSequences(1, steps=4).batch(20000, seed=0, dtype=torch.float64)[1][:, 0, 0]
    assert abs(float(answers.mean())) < 4 * float(answers.std()) / math.sqrt(20000)
    assert 0.1 < float(answers.var()) < 3


def test_fourier_features_by_hand() -> None:
    features = FourierFeatures(torch.tensor([[0.25, 1.0]]))
    found = features(torch.tensor([[1.0], [0.5]], dtype=torch.float64))
    root = math.sqrt(0.5)
    expected = math.sqrt(2) * torch.tensor([[1, 0, 0, 1], [root, 0, root, -1]], dtype=torch.float64)
    torch.testing.assert_close(found, expected)
    assert features.count == 4


def test_dyadic_frequencies_double_along_every_coordinate() -> None:
    expected = torch.tensor([[0.5, 1, 2, 0, 0, 0], [0, 0, 0, 0.5, 1, 2]], dtype=torch.float64)
    assert torch.equal(FourierFeatures.dyadic(2, 3, scale=0.5).frequencies, expected)
    drawn = FourierFeatures.random(1, 4000, scale=3.0, seed=1).frequencies
    assert abs(float(drawn.std()) / 3 - 1) < 4 / math.sqrt(2 * 4000)


def test_frequencies_that_turn_rounding_into_noise_are_refused() -> None:
    features = FourierFeatures.dyadic(1, 25)
    assert features(torch.ones(1, 1, dtype=torch.float64)).shape == (1, 50)
    with pytest.raises(InputError, match="fewer octaves"):
        features(torch.ones(1, 1))


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_the_attention_is_that_of_torch(heads: int) -> None:
    block = AttentionBlock(6, attention=6, heads=heads, hidden=(5,), dtype=torch.float64)
    x = GaussianSequences(6, steps=4).inputs(3, 1, torch.float64)
    other = nn.MultiheadAttention(6, heads, bias=False, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        other.in_proj_weight.copy_(torch.cat([block.query.weight, block.key.weight, block.value.weight]))
        other.out_proj.weight.copy_(block.mix.weight)
    torch.testing.assert_close(block.states(x)["mix"], other(x, x, x, need_weights=False)[0])


def test_weights_follow_torchs_rule_and_the_seed() -> None:
    block, again, other = (AttentionBlock(25, seed=seed) for seed in (1, 1, 2))
    for name, parameter in block.named_parameters():
        bound = parameter.shape[1] ** -0.5
        assert float(parameter.detach().abs().max()) <= bound
        assert abs(float(parameter.detach().square().mean()) * 3 / bound**2 - 1) < 4 * math.sqrt(
            0.8 / parameter.numel()
        )
        assert torch.equal(parameter, again.get_parameter(name))
        assert not torch.equal(parameter, other.get_parameter(name))


def test_all_states_stand_side_by_side() -> None:
    block = AttentionBlock(3, attention=4, heads=2, hidden=(5, 6), n_out=2)
    x = GaussianSequences(3, steps=7).inputs(2, 1)
    whole = GlobalState(block)(x)
    assert whole.shape == (2, 7, 5 * 4 + 5 + 6 + 2)
    torch.testing.assert_close(whole[..., -2:], block(x))
    torch.testing.assert_close(GlobalState(block, ["hidden 2"])(x), whole[..., -8:-2])


@pytest.mark.parametrize("features", [None, FourierFeatures.dyadic(1, 2)])
def test_the_global_ntk_is_that_of_dense_jacobians(features: FourierFeatures | None) -> None:
    block = AttentionBlock(
        1, attention=4, heads=2, hidden=(3, 3), features=features, seed=1, dtype=torch.float64
    )
    x = GaussianSequences(1, steps=3).inputs(2, 1, torch.float64)
    module = GlobalState(block)
    parameters = dict(module.named_parameters())
    jacobians = torch.func.jacrev(lambda p: torch.func.functional_call(module, p, (x,)).flatten())(parameters)
    J = torch.cat([part.flatten(1) for part in jacobians.values()], 1)
    kernel = ft.global_ntk(module, x)
    assert kernel.domain.describe() == "(batch 2, time 3, unit 27)"
    torch.testing.assert_close(kernel.dense(), (J @ J.t()).detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("n_in", "heads"), [(1, 2), (3, 1), (4, 2), (12, 1)])
def test_the_rank_of_the_sites_is_below_the_bound(n_in: int, heads: int) -> None:
    """rank(V V*) <= 3 n_in + n_attn + (L - 1) n_mlp (A.5.3); n_in + min(heads n_in, n_attn) + ... is reached."""
    block = AttentionBlock(n_in, attention=8, heads=heads, hidden=(6, 6), seed=2, dtype=torch.float64)
    x = GaussianSequences(n_in, steps=12).inputs(4, 1, torch.float64)
    rows = ft.global_ntk(GlobalState(block), x).site_rows()
    states = block.states(x)
    named = [x, x, x, *(states[name] for name in ("attention", "mix", "hidden 1", "hidden 2"))]
    V = torch.cat([part.flatten(0, 1) for part in named], 1)
    torch.testing.assert_close(rows @ rows.t(), (V @ V.t()).detach())
    rank = int(torch.linalg.matrix_rank(rows))
    assert rank == n_in + min(heads * n_in, 8) + 12
    assert rank <= 3 * n_in + 8 + 12


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="steps is 0"):
        GaussianSequences(1, steps=0)
    with pytest.raises(InputError, match="frequency is 0"):
        GaussianSequences(1, frequency=0)
    with pytest.raises(InputError, match="at least one sequence"):
        GaussianSequences(1).inputs(0, 1)
    with pytest.raises(InputError, match="3 heads"):
        AttentionBlock(1, heads=3)
    with pytest.raises(InputError, match="must be a matrix"):
        FourierFeatures(torch.ones(3))


def test_features_say_how_many_numbers_they_are_of() -> None:
    features = FourierFeatures.dyadic(2, 3)
    with pytest.raises(InputError, match=r"x has shape \(3, 4, 1\)"):
        features(torch.randn(3, 4, 1))
