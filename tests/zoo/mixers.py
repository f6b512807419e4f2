"""Nets of linear layers only: MLP-Mixer, ResMLP, gMLP; and nets of sets and points."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .blocks import Mlp


class MixerBlock(nn.Module):
    def __init__(self, dim: int, tokens: int):
        super().__init__()
        self.norm1, self.mlp_tokens = nn.LayerNorm(dim), Mlp(tokens, 8)
        self.norm2, self.mlp_channels = nn.LayerNorm(dim), Mlp(dim, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mlp_tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.mlp_channels(self.norm2(x))


class Affine(nn.Module):
    """ResMLP's stand-in for a norm."""

    def __init__(self, dim: int):
        super().__init__()
        self.alpha, self.beta = nn.Parameter(torch.ones(1, 1, dim)), nn.Parameter(torch.zeros(1, 1, dim))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.beta, self.alpha, x)


class ResBlock(nn.Module):
    def __init__(self, dim: int, tokens: int, activation: type[nn.Module]):
        super().__init__()
        self.norm1, self.linear_tokens = Affine(dim), nn.Linear(tokens, tokens)
        self.norm2, self.mlp_channels = Affine(dim), Mlp(dim, 8, activation)
        self.ls1, self.ls2 = (nn.Parameter(0.5 * torch.ones(dim)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.ls1 * self.linear_tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.ls2 * self.mlp_channels(self.norm2(x))


class SpatialGatingBlock(nn.Module):
    """gMLP's: half of the channels gate the other half."""

    def __init__(self, dim: int, tokens: int):
        super().__init__()
        self.norm, self.fc1, self.fc2 = nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.proj = nn.Linear(tokens, tokens)

    def forward(self, x: Tensor) -> Tensor:
        u, v = F.gelu(self.fc1(self.norm(x))).chunk(2, dim=-1)
        return x + self.fc2(u * self.proj(v.transpose(-1, -2)).transpose(-1, -2))


class Mixer(nn.Module):
    def __init__(self, kind: str):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 4, 4)
        block = {
            "mixer": lambda: MixerBlock(6, 4),
            "resmlp": lambda: ResBlock(6, 4, nn.GELU),
            "resmlp relu": lambda: ResBlock(6, 4, nn.ReLU),
            "gmlp": lambda: SpatialGatingBlock(6, 4),
        }[kind]
        self.blocks = nn.Sequential(block(), block())
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        return self.head(self.blocks(x).mean(dim=1))


class PointNet(nn.Module):
    """Points transformed by a matrix that the points themselves choose, then the maximum over them."""

    def __init__(self, transform: bool = True):
        super().__init__()
        self.transform = transform
        self.stn, self.fc = nn.Conv1d(3, 6, 1), nn.Linear(6, 9)
        self.conv1, self.conv2, self.head = nn.Conv1d(3, 6, 1), nn.Conv1d(6, 8, 1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.transform:
            matrix = self.fc(torch.max(F.relu(self.stn(x)), 2)[0]).view(-1, 3, 3)
            x = torch.bmm(x.transpose(2, 1), matrix + torch.eye(3).to(x)).transpose(2, 1)
        x = self.conv2(F.relu(self.conv1(x)))
        return self.head(torch.max(x, 2, keepdim=True)[0].view(-1, 8))


class DeepSets(nn.Module):
    def __init__(self):
        super().__init__()
        self.gamma, self.lam = nn.Linear(3, 6), nn.Linear(3, 6, bias=False)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        largest, _ = x.max(1, keepdim=True)
        return self.head(F.elu(self.gamma(x) - self.lam(largest)).mean(1))
