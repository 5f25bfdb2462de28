"""Tuning of residual blocks: the formula, any torch module, and deep stacks that keep their size."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from foretrain.empirical.residual_blocks import residual_scale, tune_block
from foretrain.support.errors import InputError, NotSupportedError

WIDTH = 128


def mlp_branch() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH))


def convolution_branch() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)
    )


class FeedForward(nn.Module):
    """The second branch of torch's encoder layer, run by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, dim_feedforward=128, dropout=0.0, batch_first=True)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        layer = self.layer
        return layer.linear2(layer.activation(layer.linear1(layer.norm2(z))))


class Attention(nn.Module):
    """Self-attention behind a layer norm, with torch's own reset of its packed projections."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        normed = self.norm(z)
        return self.attention(normed, normed, normed, need_weights=False)[0]


def signal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


BRANCHES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp_branch, (200, WIDTH)),
    "convolution with batch norm": (convolution_branch, (16, 8, 10, 10)),
    "feed-forward of torch's encoder": (FeedForward, (16, 10, WIDTH)),
}


def test_value_of_the_reference() -> None:
    assert residual_scale(1.0, 0.8, 0.1, 0.5) == pytest.approx(0.9077609185, abs=1e-10)


@given(
    st.floats(0.01, 100),
    st.floats(0.01, 100),
    st.floats(-1, 1),
    st.floats(-0.999, 0.999, allow_subnormal=False),
)
def test_the_second_moment_is_kept(G_zz: float, G_RR: float, cosine: float, gamma: float) -> None:
    G_Rz = cosine * (G_zz * G_RR) ** 0.5
    xi = residual_scale(G_zz, G_RR, G_Rz, gamma)
    assert xi > 0
    assert gamma**2 * G_zz + 2 * gamma * xi * G_Rz + xi**2 * G_RR == pytest.approx(G_zz, rel=1e-9)


def stacked(make: Callable[[], nn.Module], z: torch.Tensor, gamma: float, xi: float) -> torch.Tensor:
    """Second moments of eight signals after 30 blocks, each block with parameters of its own."""
    torch.manual_seed(1)
    sizes = []
    for _ in range(8):
        y = z.clone()
        for _ in range(30):
            with torch.no_grad():
                y = gamma * y + xi * make()(y.clone())
        sizes.append((y**2).mean())
    return torch.stack(sizes)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", BRANCHES)
def test_deep_stacks_of_tuned_blocks_keep_their_size(name: str) -> None:
    make, shape = BRANCHES[name]
    z = signal(*shape)
    tuned = tune_block(make(), z, 0.8)
    kept, lost = (stacked(make, z, 0.8, xi) for xi in (tuned.xi, 1.0))
    assert float(kept.mean()) == pytest.approx(tuned.G_zz, abs=4 * float(kept.std()) / 8**0.5)
    assert float(kept.std()) < 0.6
    assert float(lost.max()) < 0.6 * tuned.G_zz


def test_blocks_that_mix_tokens_are_tuned_one_after_the_other() -> None:
    """Attention makes tokens alike, which enlarges the next branch: one xi for all blocks would be too large."""
    y, gamma = signal(16, 10, WIDTH), 0.8
    first = tune_block(Attention(), y, gamma).xi
    for seed in range(12):
        tuned = tune_block(Attention(), y, gamma, draws=4, seed=seed)
        torch.manual_seed(seed)
        with torch.no_grad():
            y = gamma * y + tuned.xi * Attention()(y)
    assert float((y**2).mean()) == pytest.approx(1, abs=0.25)
    assert tuned.xi < 0.6 * first


def test_the_two_layer_branch_has_its_known_scale() -> None:
    """R = W relu(z) without biases, weights of variance 1/(3 n): G_RR = G_zz / 6, so xi^2 = 6 (1 - gamma^2)."""
    branch = nn.Sequential(nn.ReLU(), nn.Linear(400, 400, bias=False))
    tuned = tune_block(branch, signal(300, 400), 0.6, draws=20)
    assert abs(tuned.G_RR - 1 / 6) < 5 * tuned.G_RR_error + 3e-3
    assert tuned.G_Rz == pytest.approx(0, abs=5 * tuned.G_Rz_error)
    assert tuned.xi == pytest.approx((6 * 0.64) ** 0.5, abs=5 * tuned.xi_error + 0.02)


def test_overlap_with_the_signal_counts() -> None:
    """R = -z / 2 shrinks the signal: without G_Rz the scale would be wrong."""

    class Half(nn.Module):
        def forward(self, z: torch.Tensor) -> torch.Tensor:
            return -z / 2

    tuned = tune_block(Half(), signal(50, 10), 0.5, draws=2)
    assert 0.5 - tuned.xi / 2 == pytest.approx(-1)
    assert tuned.xi_error == pytest.approx(0, abs=1e-12)


@pytest.mark.slow
def test_the_standard_error_is_that_of_repetitions() -> None:
    z = signal(50, WIDTH)
    runs = [tune_block(mlp_branch(), z, 0.8, draws=10, seed=seed) for seed in range(30)]
    spread = torch.tensor([run.xi for run in runs]).std()
    typical = torch.tensor([run.xi_error for run in runs]).mean()
    assert 0.6 < float(spread / typical) < 1.6


def test_nothing_of_the_user_changes() -> None:
    block, z = convolution_branch().eval(), signal(4, 8, 6, 6)
    weights, before, state = copy.deepcopy(block.state_dict()), z.clone(), torch.get_rng_state()
    tune_block(block, z, 0.5, draws=2)
    assert all(torch.equal(value, weights[key]) for key, value in block.state_dict().items())
    assert torch.equal(z, before)
    assert torch.equal(torch.get_rng_state(), state)
    tune_block(mlp_branch(), signal(5, WIDTH).requires_grad_(), 0.5, draws=2)


def test_mode_dtype_and_seed() -> None:
    z = 100 * signal(64, 8, 6, 6)
    training, evaluating = convolution_branch(), convolution_branch().eval()
    sizes = [tune_block(block, z, 0.5, draws=4).G_RR for block in (training, evaluating)]
    assert sizes[1] > 100 * sizes[0]  # the running statistics do not know this signal
    double = tune_block(mlp_branch().double(), signal(20, WIDTH).double(), 0.5, draws=3)
    again = tune_block(mlp_branch().double(), signal(20, WIDTH).double(), 0.5, draws=3)
    other = tune_block(mlp_branch().double(), signal(20, WIDTH).double(), 0.5, draws=3, seed=1)
    assert double == again
    assert double.xi != other.xi


def test_frozen_parts_are_not_drawn() -> None:
    block = nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(False)
    nn.init.eye_(block.weight)
    tuned = tune_block(block, signal(10, WIDTH), 0.5, draws=3)
    assert abs(tuned.G_RR / tuned.G_zz - 1) < 1e-6
    assert tuned.G_RR_error == pytest.approx(0, abs=1e-9)


class Raw(nn.Module):
    """A parameter that nobody knows how to draw again."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.rand(WIDTH))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.scale * self.inner(z)


def test_raw_parameters_need_a_function() -> None:
    z = signal(10, WIDTH)
    with pytest.raises(NotSupportedError, match=r"layers\.1 \(Raw\)"):
        tune_block(nn.ModuleDict({"layers": nn.Sequential(nn.Linear(WIDTH, WIDTH), Raw())}), z, 0.5)
    tuned = tune_block(Raw, z, 0.5, draws=4)
    assert tuned.G_RR_error > 0


def test_it_says_what_to_do() -> None:
    tuned = tune_block(mlp_branch(), signal(20, WIDTH), 0.9, draws=4)
    assert f"0.9 z + {tuned.xi:.4g} R(z)" in repr(tuned)
    assert f"multiply the second moment by {tuned.growth:.4g}" in repr(tuned)
    assert tuned.growth == pytest.approx(0.81 + tuned.G_RR + 1.8 * tuned.G_Rz, rel=0.1)


def test_bad_input() -> None:
    z = signal(10, WIDTH)
    with pytest.raises(InputError, match="changes the shape"):
        tune_block(nn.Linear(WIDTH, 3), z, 0.5)
    with pytest.raises(InputError, match="returned tuple"):
        tune_block(nn.LSTM(WIDTH, WIDTH), z, 0.5)
    with pytest.raises(InputError, match="between -1 and 1"):
        tune_block(mlp_branch(), z, 1.0)
    with pytest.raises(InputError, match="not finite"):
        tune_block(mlp_branch(), z / 0, 0.5)
    with pytest.raises(InputError, match="not finite"):
        tune_block(nn.Threshold(0.0, torch.inf), z, 0.5)
    with pytest.raises(InputError, match=r"torch\.float64"):
        tune_block(mlp_branch(), z.double(), 0.5)
    with pytest.raises(InputError, match="draws"):
        tune_block(mlp_branch(), z, 0.5, draws=1)
    with pytest.raises(InputError, match="torch module"):
        tune_block(lambda: 3, z, 0.5)
    with pytest.raises(InputError, match="has no scale"):
        tune_block(nn.Threshold(1e9, 0.0), z, 0.5)
    with pytest.raises(InputError, match="no signal has"):
        residual_scale(1.0, 1.0, 1.5, 0.5)
