"""Convolutional nets with gates and smooth activations: products of two things that depend on the input."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .blocks import ConvNormActivation, DropPath, LayerNorm2d, SqueezeExcitation, StochasticDepth


class MBConv(nn.Module):
    """MobileNetV3's and EfficientNet's block."""

    def __init__(self, channels: int, activation: type[nn.Module], gate: type[nn.Module]):
        super().__init__()
        wide = 2 * channels
        self.block = nn.Sequential(
            ConvNormActivation(channels, wide, 1, activation=activation),
            ConvNormActivation(wide, wide, 3, groups=wide, activation=activation),
            SqueezeExcitation(wide, 2, gate),
            ConvNormActivation(wide, channels, 1, activation=None),
        )
        self.stochastic_depth = StochasticDepth(0.3)

    def forward(self, x: Tensor) -> Tensor:
        result = self.stochastic_depth(self.block(x))
        result += x
        return result


class EfficientNet(nn.Module):
    """With (Hardswish, Hardsigmoid) it is MobileNetV3."""

    def __init__(self, activation: type[nn.Module] = nn.SiLU, gate: type[nn.Module] = nn.Sigmoid):
        super().__init__()
        self.features = nn.Sequential(
            ConvNormActivation(3, 4, 3, 2, activation=activation),
            *(MBConv(4, activation, gate), MBConv(4, activation, gate)),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(p=0.2, inplace=True), nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class CNBlock(nn.Module):
    """ConvNeXt's, as torchvision has it: channels last in the middle, a learnt scale, stochastic depth."""

    def __init__(self, dim: int):
        super().__init__()
        self.dwconv, self.norm = nn.Conv2d(dim, dim, 7, padding=3, groups=dim), nn.LayerNorm(dim, eps=1e-6)
        self.expand, self.act, self.reduce = nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)
        self.layer_scale = nn.Parameter(0.5 * torch.ones(dim, 1, 1))
        self.stochastic_depth = StochasticDepth(0.3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        h = self.reduce(self.act(self.expand(h))).permute(0, 3, 1, 2)
        result = self.stochastic_depth(self.layer_scale * h)
        result += x
        return result


class ConvNeXt(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 2, 2), LayerNorm2d(4, eps=1e-6))
        self.blocks = nn.Sequential(CNBlock(4), CNBlock(4))
        self.downsample = nn.Sequential(LayerNorm2d(4), nn.Conv2d(4, 6, 2, 2))
        self.head = nn.Sequential(LayerNorm2d(6), nn.Flatten(1), nn.Linear(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.downsample(self.blocks(self.stem(x)))
        return self.head(x.mean((-2, -1), keepdim=True))


class GlobalResponseNorm(nn.Module):
    """ConvNeXt V2's, as timm has it."""

    def __init__(self, dim: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(0.5 * torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        x_g = x.norm(p=2, dim=(2, 3), keepdim=True)
        x_n = x_g / (x_g.mean(dim=1, keepdim=True) + 1e-6)
        return x + torch.addcmul(self.bias.view(1, -1, 1, 1), self.weight.view(1, -1, 1, 1), x * x_n)


class EcaModule(nn.Module):
    """timm's efficient channel attention: a convolution along the channels."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 1, kernel_size=3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = x.mean((2, 3)).view(x.shape[0], 1, -1)
        y = self.conv(y).view(x.shape[0], -1, 1, 1).sigmoid()
        return x * y.expand_as(x)


class AttentiveNet(nn.Module):
    """Channel attention of both kinds in residual branches, with timm's DropPath."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.eca, self.grn, self.drop_path = EcaModule(), GlobalResponseNorm(4), DropPath(0.3)
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.mish(self.conv(x))
        x = x + self.drop_path(self.eca(x))
        x = x + self.drop_path(self.grn(x))
        return self.fc(F.adaptive_max_pool2d(x, 1).flatten(1))
