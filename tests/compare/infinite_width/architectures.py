"""Public architectures in small configurations, written out as their authors' papers describe them, with a width.

Each ``make(width)`` gives a module for images of 3 x 16 x 16 (or tokens) in eval mode.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional


class Vgg(nn.Module):
    """Stages of 3 x 3 convolutions with batch norm and max pooling, a classifier of three linear layers."""

    def __init__(self, width: int, pool: Callable[[int], nn.Module] = nn.MaxPool2d) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for stage, count in enumerate((1, 2)):
            for _ in range(count):
                layers += [
                    nn.Conv2d(channels, width * 2**stage, 3, padding=1),
                    nn.BatchNorm2d(width * 2**stage),
                ]
                layers.append(nn.ReLU(inplace=True))
                channels = width * 2**stage
            layers.append(pool(2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(
            nn.Linear(channels * 4, 4 * width),
            nn.ReLU(True),
            nn.Dropout(),
            nn.Linear(4 * width, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x))
        result: Tensor = self.classifier(torch.flatten(x, 1))
        return result


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions with a shortcut, rectified after the sum."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        result: Tensor = self.relu(out)
        return result


class ResNet(nn.Module):
    """A residual network of basic blocks: stem, stages, mean, linear layer."""

    def __init__(self, width: int, blocks: tuple[int, ...] = (2, 2, 2, 2), stem_pool: bool = True) -> None:
        super().__init__()
        stem = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        self.stem = nn.Sequential(*stem, *([nn.MaxPool2d(3, 2, 1)] if stem_pool else []))
        channels, stages = width, []
        for stage, count in enumerate(blocks):
            out = width * 2**stage
            for number in range(count):
                stages.append(BasicBlock(channels, out, 2 if stage and not number else 1))
                channels = out
        self.stages = nn.Sequential(*stages)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(channels, 3)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.stages(self.stem(x)))
        result: Tensor = self.fc(torch.flatten(x, 1))
        return result


class ConvNeXtBlock(nn.Module):
    """Depthwise 7 x 7, LayerNorm, two pointwise layers, a scale for each channel."""

    def __init__(self, channels: int, scale: float = 0.5) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = nn.Linear(channels, 4 * channels)
        self.act = nn.GELU()
        self.pwconv2 = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(scale * torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.dwconv(x).permute(0, 2, 3, 1)
        x = self.pwconv2(self.act(self.pwconv1(self.norm(x))))
        return shortcut + (self.gamma * x).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """Patch stem, two stages of two blocks with a strided convolution between them, mean, norm, linear layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, 4)
        self.first = nn.Sequential(ConvNeXtBlock(width), ConvNeXtBlock(width))
        self.down = nn.Conv2d(width, 2 * width, 2, 2)
        self.second = nn.Sequential(ConvNeXtBlock(2 * width), ConvNeXtBlock(2 * width))
        self.norm = nn.LayerNorm(2 * width, eps=1e-6)
        self.head = nn.Linear(2 * width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.down(self.first(self.stem(x))))
        result: Tensor = self.head(self.norm(x.mean([-2, -1])))
        return result


class InvertedResidual(nn.Module):
    """Expand, depthwise, project; a skip where sizes agree."""

    def __init__(self, channels: int, out: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = channels * expand
        self.skip = stride == 1 and channels == out
        self.conv = nn.Sequential(
            nn.Conv2d(channels, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.conv(x) if self.skip else self.conv(x)
        return result


class MobileNet(nn.Module):
    """A stem, three inverted residuals, mean, linear layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Sequential(
                nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU6(inplace=True)
            ),
            InvertedResidual(width, width, 1, 2),
            InvertedResidual(width, 2 * width, 2, 2),
            InvertedResidual(2 * width, 2 * width, 1, 2),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(2 * width, 3))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_in")

    def forward(self, x: Tensor) -> Tensor:
        x = functional.adaptive_avg_pool2d(self.features(x), 1).reshape(x.shape[0], -1)
        result: Tensor = self.classifier(x)
        return result


class VitStem(nn.Module):
    """Patches, class token, learned positions, an MLP block, norm, mean of the tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.cls = nn.Parameter(0.3 * torch.randn(1, 1, width))
        self.pos = nn.Parameter(0.5 * torch.randn(1, 17, width))
        self.norm1 = nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm2 = nn.LayerNorm(width)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls.expand(x.shape[0], -1, -1), x), dim=1) + self.pos
        x = x + self.fc2(functional.gelu(self.fc1(self.norm1(x))))
        result: Tensor = self.head(self.norm2(x).mean(dim=1))
        return result


class Mixer(nn.Module):
    """Token mixing and channel mixing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channels(self.norm2(x))
        result: Tensor = self.head(x.mean(1))
        return result


class UNet(nn.Module):
    """Two levels down and up, with skips by concatenation; the output keeps its positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down1 = self._double(3, width)
        self.down2 = self._double(width, 2 * width)
        self.middle = self._double(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.merge2 = self._double(4 * width, 2 * width)
        self.up1 = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.merge1 = self._double(3 * width, width)
        self.out = nn.Conv2d(width, 2, 1)

    @staticmethod
    def _double(channels: int, out: int) -> nn.Sequential:
        first = [nn.Conv2d(channels, out, 3, padding=1), nn.GroupNorm(4, out), nn.ReLU()]
        return nn.Sequential(*first, nn.Conv2d(out, out, 3, padding=1), nn.GroupNorm(4, out), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        one = self.down1(x)
        two = self.down2(functional.avg_pool2d(one, 2))
        x = self.middle(functional.avg_pool2d(two, 2))
        x = self.merge2(torch.cat([self.up2(x), two], dim=1))
        x = self.merge1(torch.cat([self.up1(x), one], dim=1))
        result: Tensor = self.out(x)
        return result
