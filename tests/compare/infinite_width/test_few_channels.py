"""Layers of few channels, and positions that meet again, beside networks drawn again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_beside import drawn, images
from torch import Tensor, nn
from torch.nn import functional

import foretrain as ft


class Written(nn.Module):
    """A stem, what is in between, a mean over positions and a linear layer."""

    def __init__(self, width: int, forward: Callable[..., Tensor], **modules: nn.Module) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, width, 3, padding=1), nn.Linear(width, 2)
        self.inside = nn.ModuleDict(modules)
        self.compute = forward

    def forward(self, x: Tensor) -> Any:
        return self.head(self.compute(self.stem(x), **self.inside).mean((2, 3)))


def mixed(x: Tensor, norm: Any) -> Tensor:
    """PoolFormer's mixing of positions."""
    y = norm(x)
    return x + (functional.avg_pool2d(y, 3, 1, 1, count_include_pad=False) - y)


def excited(x: Tensor, depthwise: Any, norm: Any, down: Any, up: Any, project: Any) -> Tensor:
    """MobileNetV3's block: depthwise, squeeze and excitation, projection."""
    h = torch.relu(norm(depthwise(torch.relu(x))))
    gate = torch.sigmoid(up(torch.relu(down(functional.adaptive_avg_pool2d(h, 1)))))
    return torch.relu(project(h * gate))


NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "instance norm": lambda n: Written(
        n,
        lambda x, norm, conv: torch.relu(conv(torch.relu(norm(x)))),
        norm=nn.InstanceNorm2d(n, affine=True),
        conv=nn.Conv2d(n, n, 3),
    ),
    "groups of four channels": lambda n: Written(
        n,
        lambda x, grouped, conv: torch.relu(conv(torch.relu(grouped(torch.relu(x))))),
        grouped=nn.Conv2d(n, n, 3, groups=n // 4),
        conv=nn.Conv2d(n, n, 1),
    ),
    "groups, and their norms": lambda n: Written(
        n,
        lambda x, grouped, norm, conv: torch.relu(conv(torch.relu(norm(grouped(torch.relu(x)))))),
        grouped=nn.Conv2d(n, 2 * n, 3, groups=n // 2),
        norm=nn.GroupNorm(n // 2, 2 * n),
        conv=nn.Conv2d(2 * n, n, 1),
    ),
    "PoolFormer": lambda n: Written(
        n,
        lambda x, first, second, up, down: mixed(x := mixed(x, first) + down(functional.gelu(up(x))), second),
        first=nn.GroupNorm(1, n),
        second=nn.GroupNorm(1, n),
        up=nn.Conv2d(n, 2 * n, 1),
        down=nn.Conv2d(2 * n, n, 1),
    ),
    "relu after mixing": lambda n: Written(
        n,
        lambda x, norm, conv: torch.relu(conv(torch.relu(mixed(x, norm)))),
        norm=nn.GroupNorm(1, n),
        conv=nn.Conv2d(n, n, 1),
    ),
    "squeeze and excitation": lambda n: Written(
        n,
        excited,
        depthwise=nn.Conv2d(n, n, 3, padding=1, groups=n),
        norm=nn.BatchNorm2d(n),
        down=nn.Conv2d(n, n // 4, 1),
        up=nn.Conv2d(n // 4, n, 1),
        project=nn.Conv2d(n, n, 1),
    ),
    "pixels from rectified channels": lambda n: Written(
        n,
        lambda x, conv, last: torch.relu(last(functional.pixel_shuffle(torch.relu(conv(x)), 2))),
        conv=nn.Conv2d(n, 4 * n, 1),
        last=nn.Conv2d(n, n, 3),
    ),
    "two max poolings": lambda n: Written(
        n,
        lambda x, conv: torch.relu(
            conv(
                torch.tanh(
                    functional.max_pool2d(
                        functional.avg_pool2d(functional.max_pool2d(torch.relu(x), 2), 2, 1), 2
                    )
                )
            )
        ),
        conv=nn.Conv2d(n, n, 1),
    ),
    "depthwise branches": lambda n: Written(
        n,
        lambda x, wide, narrow, norm: torch.relu((y := torch.relu(x)) + norm(wide(y)) + narrow(y)),
        wide=nn.Conv2d(n, n, 3, padding=1, groups=n),
        narrow=nn.Conv2d(n, n, 1, groups=n),
        norm=nn.BatchNorm2d(n),
    ),
}


@pytest.mark.statistical
@pytest.mark.parametrize("name", NETWORKS)
def test_layers_of_few_channels_agree_with_drawn_networks(name: str) -> None:
    found = ft.compare(
        lambda n: drawn(NETWORKS[name](n)),
        images(6),
        draws=160,
        widths=[16, 32, 64],
        init={"*": (2.0, 0.01)},
        rates={"*": (0.7, 0.3)},
    )
    assert found.agrees, found


def test_mixing_of_positions_is_exact_before_a_norm_and_drawn_before_a_nonlinearity() -> None:
    exact, sampled = (
        ft.infinite_width(NETWORKS[name], images(4).float(), init={"*": (2.0, 0.01)})
        for name in ("PoolFormer", "relu after mixing")
    )
    assert exact.standard_error is None
    assert sampled.standard_error is None  # rates "ntk": gains do not train, and what is left is Gaussian
    trained = ft.infinite_width(
        NETWORKS["relu after mixing"], images(4).float(), rates={"*": (0.7, 0.3)}, draws=2**8
    )
    assert trained.standard_error is not None
