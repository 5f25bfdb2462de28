"""Public architectures beside networks drawn again and again: z-scores within bounds, wrong theories found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from architectures import ConvNeXt, Mixer, MobileNet, ResNet, UNet, Vgg, VitStem
from torch import Tensor, nn

import foretrain as ft
from foretrain.support.errors import ForetrainError


def images(size: int) -> Tensor:
    x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    x[1] = 0.6 * x[0] + 0.8 * x[1]
    return x


def drawn(network: nn.Module) -> nn.Module:
    """Weights of the size that keeps signals alive, and small biases: wide networks are then near their limit."""
    for module in network.modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
        if isinstance(module, nn.ConvTranspose2d):
            nn.init.normal_(module.weight, std=(1.0 / (module.weight.shape[0] * 4)) ** 0.5)
            nn.init.normal_(module.bias, std=0.1)
    return network.double().eval()


class Pooled(nn.Module):
    """A network whose output keeps positions, averaged over them."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(x).mean((2, 3))
        return result


ARCHITECTURES: dict[str, tuple[Callable[[int], nn.Module], int]] = {
    "VGG with average pooling": (lambda n: Vgg(n, (1, 2), nn.AvgPool2d), 8),
    "VGG": (lambda n: Vgg(n, (1, 2)), 8),
    "ResNet of small images": (lambda n: ResNet(n, (1, 2), small=True), 8),
    "ResNet": (lambda n: ResNet(n, (2, 1)), 16),
    "MobileNetV2": (MobileNet, 8),
    "MobileNetV3": (lambda n: MobileNet(n, 3), 6),
    "ConvNeXt": (ConvNeXt, 16),
    "patches, class token, positions, MLP block": (VitStem, 16),
    "U-Net": (lambda n: Pooled(UNet(n // 2)), 4),
}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_public_architectures_are_read_as_they_are(name: str) -> None:
    make, size = ARCHITECTURES[name]
    found = ft.infinite_width(make(8).eval(), images(size), draws=2**7)
    for kernel in (found.nngp.values, found.ntk.values):
        np.testing.assert_allclose(kernel, kernel.T, rtol=1e-9)
        assert np.linalg.eigvalsh(kernel).min() > -1e-6 * kernel.max()


@pytest.mark.statistical
@pytest.mark.parametrize("rates", [{"*": (0.7, 0.3)}, "ntk"], ids=["gains train", "ntk"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_public_architectures_agree_with_drawn_networks(name: str, rates: object) -> None:
    make, size = ARCHITECTURES[name]
    found = ft.compare(lambda n: drawn(make(n)), images(size), draws=128, widths=[16, 32, 64], rates=rates)
    assert found.agrees, found


class Unmixed(Mixer):
    """A Mixer that leaves its token mixing out."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = x + self.channels(self.norm2(x))
        result: Tensor = self.head(self.norm(x).mean(dim=1))
        return result


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("make", "random"),
    [
        (lambda n: Unmixed(n, tokens=4), False),
        (lambda n: Mixer(n, hidden=8, tokens=4), True),
        (lambda n: Mixer(n, hidden=n, tokens=4), True),
    ],
    ids=["no token mixing", "token mixing", "token mixing of many hidden units"],
)
def test_kernels_of_token_mixing_stay_random_at_every_width(
    make: Callable[[int], nn.Module], random: bool
) -> None:
    found = ft.ensemble(
        lambda n: drawn(make(n)),
        images(8),
        draws=60,
        widths=[32, 256],
        quantities=["ntk"],
        rates=lambda model: {"*": 0.0, "head.weight": 1 / model.head.in_features},  # the last features alone
    )
    narrow, wide = np.diagonal(np.sqrt(found.variance.ntk) / found.ntk, axis1=1, axis2=2)
    assert (wide > 0.2).all() if random else (wide < 0.5 * narrow).all()
    if random:
        with pytest.raises(ForetrainError, match=r"token mixing.*stays random.*ensemble"):
            ft.infinite_width(lambda n: drawn(make(n)), images(8))


def perceptron(width: int) -> nn.Module:
    return drawn(nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.LayerNorm(width), nn.Linear(width, 3)))


def test_a_small_network_agrees_and_a_wrong_constant_does_not() -> None:
    x = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = ft.compare(perceptron, x, draws=160, widths=[16, 32, 64], rates={"*": (0.7, 0.3)})
    assert found.agrees, found
    assert found.verdict.startswith(
        "160 networks of each width 16, 32, 64, extrapolated, agree with infinite width"
    )
    assert found.verdict in " ".join(str(found).split())
    assert found.to_dataset().sizes == {"entry": 12, "width": 3}
    wrong = ft.compare(
        perceptron, x, draws=160, widths=[16, 32, 64], init={"*": (1.0, 0.01)}, rates={"*": (0.7, 0.3)}
    )
    assert not wrong.agrees


class Raw(nn.Module):
    """Weights of shape (in, out) and (out, in), of an einsum and a transposed convolution, all without modules."""

    first: Tensor
    middle: Tensor
    taps: Tensor
    last: Tensor

    def __init__(self, n: int) -> None:
        super().__init__()
        shapes = {"first": (3, n), "middle": (2 * n, n), "taps": (2 * n, n, 2), "last": (n, 2)}
        fan_ins = (3, n, 2 * n, n)
        for (name, shape), fan_in in zip(shapes.items(), fan_ins, strict=True):
            self.register_parameter(name, nn.Parameter(torch.randn(shape).double() * (2 / fan_in) ** 0.5))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(nn.functional.linear(torch.relu(x @ self.first), self.middle))
        h = torch.relu(nn.functional.conv_transpose1d(h[:, :, None], self.taps, stride=2))
        result: Tensor = torch.einsum("nc,cd->nd", h.mean(2), self.last)
        return result


def test_networks_of_plain_parameters_have_the_rates_of_the_theory() -> None:
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = ft.compare(Raw, x, draws=160, widths=[16, 32, 64])
    assert found.agrees, found
    assert [row.module for row in found.theory.rows] == ["first", "middle", "taps", "last"]
    given = ft.infinite_width(Raw(16), x, init={"middle": (3.0, 0.0)}).rows
    assert [row.C_W for row in given][1] == 3.0


def test_a_linear_layer_has_no_scatter_in_its_ntk() -> None:
    found = ft.compare(
        lambda n: nn.Sequential(nn.Linear(3, n), nn.Linear(n, 2)).double(),
        torch.eye(3, dtype=torch.float64)[:2],
        draws=64,
        widths=[8, 16],
        rates={"0": (0.0, 0.0), "1": (0.0, 1.0)},
    )
    ntk = np.array([entry[0] == "ntk" for entry in found.entries])
    np.testing.assert_allclose(found.limit[ntk], 1.0)
    assert (found.z[ntk] == 0).all()


def test_what_cannot_be_compared_is_told() -> None:
    x = torch.eye(3, dtype=torch.float64)
    with pytest.raises(ForetrainError, match="give a function make\\(width\\)"):
        ft.compare(perceptron(4), x)
    with pytest.raises(ForetrainError, match="two or more different"):
        ft.compare(perceptron, x, widths=[8])
    with pytest.raises(ForetrainError, match="leave trained out"):
        ft.compare(perceptron, x, trained=True)  # type: ignore[call-overload]


@pytest.mark.statistical
def test_laws_that_depend_on_the_width_are_compared_with_their_limit() -> None:
    """xavier: C_W = 2 n / (n + outputs) in the last layer; other widths are read for their fan-ins alone."""

    def make(width: int) -> nn.Module:
        net = nn.Sequential(
            nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 40)
        )
        for layer, initialise in zip(
            net[::2], (nn.init.kaiming_normal_, nn.init.xavier_normal_, nn.init.xavier_normal_)
        ):
            initialise(layer.weight)
            nn.init.zeros_(layer.bias)
        return net.double()

    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = ft.compare(make, x, draws=160, widths=[64, 192, 576])
    assert [row.C_W for row in found.theory.rows] == pytest.approx([2.0, 1.0, 2.0], rel=1e-6)
    assert found.agrees, found
