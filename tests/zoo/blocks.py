"""Pieces that many of the look-alikes share, spelled as torchvision and timm spell them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class ConvNormActivation(nn.Sequential):
    """torchvision's Conv2dNormActivation."""

    def __init__(
        self,
        n_in: int,
        n_out: int,
        kernel: int = 3,
        stride: int = 1,
        groups: int = 1,
        activation: Callable[..., nn.Module] | None = nn.ReLU,
    ):
        layers: list[nn.Module] = [
            nn.Conv2d(n_in, n_out, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False),
            nn.BatchNorm2d(n_out),
        ]
        super().__init__(*layers, *([] if activation is None else [activation(inplace=True)]))


class StochasticDepth(nn.Module):
    """torchvision's, mode="row": whole samples skip a residual branch."""

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        keep = 1.0 - self.p
        noise = torch.empty([x.shape[0]] + [1] * (x.ndim - 1), dtype=x.dtype, device=x.device)
        noise = noise.bernoulli_(keep)
        noise.div_(keep)
        return x * noise


class DropPath(nn.Module):
    """timm's spelling of the same."""

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if self.p == 0.0 or not self.training:
            return x
        keep = 1 - self.p
        random_tensor = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
        random_tensor.div_(keep)
        return x * random_tensor


class SqueezeExcitation(nn.Module):
    """torchvision's: pooled, squeezed, excited, and multiplied back onto the channels."""

    def __init__(self, channels: int, squeezed: int, gate: Callable[..., nn.Module] = nn.Sigmoid):
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1, self.fc2 = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
        self.activation, self.scale_activation = nn.ReLU(), gate()

    def forward(self, x: Tensor) -> Tensor:
        scale = self.avgpool(x)
        scale = self.activation(self.fc1(scale))
        return self.scale_activation(self.fc2(scale)) * x


class LayerScale(nn.Module):
    """timm's, which may multiply in place."""

    def __init__(self, dim: int, inplace: bool = False):
        super().__init__()
        self.gamma, self.inplace = nn.Parameter(0.5 * torch.ones(dim)), inplace

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(self.gamma) if self.inplace else x * self.gamma


class LayerNorm2d(nn.LayerNorm):
    """Over the channels of an image: permuted there and back."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = nn.functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class Mlp(nn.Module):
    """timm's two-layer perceptron."""

    def __init__(self, dim: int, hidden: int, activation: Callable[..., nn.Module] = nn.GELU):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(dim, hidden), activation(), nn.Linear(hidden, dim)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))
