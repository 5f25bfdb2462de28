"""Public architectures in small configurations, written out as their authors' papers describe them, with a width.

Each takes a width and reads images of 3 x 16 x 16, most of them smaller ones too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Vgg(nn.Module):
    """Stages of 3 x 3 convolutions with batch norm and max pooling, a classifier of three linear layers."""

    def __init__(
        self,
        width: int,
        stages: tuple[int, ...] = (1, 1, 2, 2, 2),
        pool: Callable[[int], nn.Module] = nn.MaxPool2d,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for stage, count in enumerate(stages):
            for _ in range(count):
                out = width * 2 ** min(stage, 3)
                layers += [nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
                channels = out
            layers.append(pool(2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(
            nn.Linear(channels * 4, 4 * width),
            nn.ReLU(True),
            nn.Dropout(),
            nn.Linear(4 * width, 4 * width),
            nn.ReLU(True),
            nn.Dropout(),
            nn.Linear(4 * width, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x))
        x = torch.flatten(x, 1)
        result: Tensor = self.classifier(x)
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
    """A residual network of basic blocks: stem (of large images, or of small ones), stages, mean, linear layer."""

    def __init__(self, width: int, blocks: tuple[int, ...] = (2, 2, 2, 2), small: bool = False) -> None:
        super().__init__()
        kernel, stride = (3, 1) if small else (7, 2)
        self.conv1 = nn.Conv2d(3, width, kernel, stride, kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
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
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.stages(x))
        result: Tensor = self.fc(torch.flatten(x, 1))
        return result


class Permute(nn.Module):
    """Axes in another order."""

    def __init__(self, dims: list[int]) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        return torch.permute(x, self.dims)


class LayerNorm2d(nn.LayerNorm):
    """LayerNorm over the channels of images."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class StochasticDepth(nn.Module):
    """Drops whole branches of samples while it trains."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        noise = torch.empty([x.shape[0]] + [1] * (x.ndim - 1), dtype=x.dtype, device=x.device)
        return x * noise.bernoulli_(1.0 - self.p).div_(1.0 - self.p)


class ConvNeXtBlock(nn.Module):
    """Depthwise 7 x 7, LayerNorm, two pointwise layers, a scale for each channel."""

    def __init__(self, dim: int, layer_scale: float = 0.5) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(dim, dim, kernel_size=7, padding=3, groups=dim, bias=True),
            Permute([0, 2, 3, 1]),
            nn.LayerNorm(dim, eps=1e-6),
            nn.Linear(in_features=dim, out_features=4 * dim, bias=True),
            nn.GELU(),
            nn.Linear(in_features=4 * dim, out_features=dim, bias=True),
            Permute([0, 3, 1, 2]),
        )
        self.layer_scale = nn.Parameter(torch.ones(dim, 1, 1) * layer_scale)
        self.stochastic_depth = StochasticDepth(0.1)

    def forward(self, input: Tensor) -> Tensor:
        result: Tensor = self.layer_scale * self.block(input)
        result = self.stochastic_depth(result)
        result += input
        return result


class ConvNeXt(nn.Module):
    """Patch stem, stages with strided convolutions between them, mean, norm, linear layer."""

    def __init__(self, width: int, blocks: tuple[int, ...] = (2, 2)) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Sequential(nn.Conv2d(3, width, 4, 4), LayerNorm2d(width, eps=1e-6))]
        for stage, count in enumerate(blocks):
            dim = width * 2**stage
            if stage:
                layers.append(nn.Sequential(LayerNorm2d(dim // 2, eps=1e-6), nn.Conv2d(dim // 2, dim, 2, 2)))
            layers.append(nn.Sequential(*(ConvNeXtBlock(dim) for _ in range(count))))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(LayerNorm2d(dim, eps=1e-6), nn.Flatten(1), nn.Linear(dim, 3))
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.classifier(self.avgpool(self.features(x)))
        return result


def normed(
    channels: int, out: int, activation: Any, kernel: int, stride: int = 1, padding: int = 0, groups: int = 1
) -> list[nn.Module]:
    """A convolution, batch norm and, if there is one, an activation."""
    convolution = nn.Conv2d(channels, out, kernel, stride, padding, groups=groups, bias=False)
    layers = [convolution, nn.BatchNorm2d(out)]
    return layers if activation is None else [*layers, activation(inplace=True)]


class SqueezeExcitation(nn.Module):
    """A gate for each channel, made from the means of all."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1, self.fc2 = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
        self.activation, self.scale_activation = nn.ReLU(), nn.Hardsigmoid()

    def forward(self, input: Tensor) -> Tensor:
        scale = self.activation(self.fc1(self.avgpool(input)))
        result: Tensor = self.scale_activation(self.fc2(scale)) * input
        return result


class InvertedResidual(nn.Module):
    """Expand, depthwise, perhaps squeeze and excitation, project; a skip where sizes agree."""

    def __init__(
        self,
        channels: int,
        out: int,
        stride: int,
        expand: int,
        activation: type[nn.Module],
        excite: bool = False,
    ) -> None:
        super().__init__()
        hidden = channels * expand
        self.use_res_connect = stride == 1 and channels == out
        layers = normed(channels, hidden, activation, 1) if expand > 1 else []
        layers += normed(hidden, hidden, activation, 3, stride, 1, groups=hidden)
        layers += [SqueezeExcitation(hidden, hidden // 4)] if excite else []
        self.conv = nn.Sequential(*layers, *normed(hidden, out, None, 1))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.conv(x) if self.use_res_connect else self.conv(x)
        return result


class MobileNet(nn.Module):
    """A stem, inverted residuals, a last convolution, mean, a classifier: the second version, or the third."""

    def __init__(self, width: int, version: int = 2) -> None:
        super().__init__()
        activation, excite = (nn.ReLU6, False) if version == 2 else (nn.Hardswish, True)
        self.features = nn.Sequential(
            nn.Sequential(*normed(3, width, activation, 3, 2, 1)),
            InvertedResidual(width, width, 1, 1, nn.ReLU6 if version == 2 else nn.ReLU),
            InvertedResidual(width, 2 * width, 2, 2, activation, excite),
            *([InvertedResidual(2 * width, 2 * width, 1, 2, activation)] if version == 2 else []),
            nn.Sequential(*normed(2 * width, 4 * width, activation, 1)),
        )
        hidden = [nn.Linear(4 * width, 4 * width), nn.Hardswish(inplace=True)] if excite else []
        self.classifier = nn.Sequential(*hidden, nn.Dropout(0.2, inplace=True), nn.Linear(4 * width, 3))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        x = functional.adaptive_avg_pool2d(x, (1, 1))
        x = torch.flatten(x, 1)
        result: Tensor = self.classifier(x)
        return result


class VitStem(nn.Module):
    """Patches, class token, learned positions, an MLP block, norm, and a head on the class token or on the mean."""

    def __init__(self, width: int, pool: str = "mean", tokens: int = 17) -> None:
        super().__init__()
        self.conv_proj = nn.Conv2d(3, width, 4, 4)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embedding = nn.Parameter(torch.empty(1, tokens, width).normal_(std=0.02))
        self.ln_1 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(4 * width, width),
            nn.Dropout(0.1),
        )
        self.ln = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, 3)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[0]
        x = self.conv_proj(x)
        x = x.reshape(n, x.shape[1], -1).permute(0, 2, 1)
        x = torch.cat([self.class_token.expand(n, -1, -1), x], dim=1)
        x = x + self.pos_embedding
        x = x + self.mlp(self.ln_1(x))
        x = self.ln(x)
        x = x[:, 0] if self.pool == "token" else x.mean(dim=1)
        result: Tensor = self.head(x)
        return result


class Mixer(nn.Module):
    """Token mixing and channel mixing."""

    def __init__(self, width: int, hidden: int = 32, tokens: int = 16) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(tokens, hidden), nn.GELU(), nn.Linear(hidden, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channels(self.norm2(x))
        result: Tensor = self.head(self.norm(x).mean(dim=1))
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
