"""One number a sample: GAN critics, value functions, energies; and nets of several arguments."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm


class Critic(nn.Module):
    """DCGAN's, for WGAN-GP and SNGAN: (B, 1, 1, 1), then (B, 1) or (B,)."""

    def __init__(self, norm: Callable[[int], nn.Module], wrap: Callable = lambda m: m, flat: bool = False):
        super().__init__()
        self.main = nn.Sequential(
            *(wrap(nn.Conv2d(2, 4, 4, 2, 1, bias=False)), nn.LeakyReLU(0.2, inplace=True)),
            *(wrap(nn.Conv2d(4, 6, 4, 2, 1, bias=False)), norm(6), nn.LeakyReLU(0.2, inplace=True)),
            wrap(nn.Conv2d(6, 1, 2, 1, 0, bias=False)),
        )
        self.flat = flat

    def forward(self, x: Tensor) -> Tensor:
        x = self.main(x)
        return x.view(-1) if self.flat else x.view(-1, 1)


class Dueling(nn.Module):
    """A value and an advantage an action, as in deep Q learning."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 8), nn.ReLU())
        self.value, self.advantage = nn.Linear(8, 1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        advantage = self.advantage(h)
        return self.value(h) + advantage - advantage.mean(dim=1, keepdim=True)


class Energy(nn.Module):
    """A scalar without an axis of its own: (B,), from a convex net with weights kept positive."""

    def __init__(self):
        super().__init__()
        self.w0, self.w1, self.z1 = nn.Linear(5, 8), nn.Linear(5, 1), nn.Linear(8, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        z = F.softplus(self.w0(x))
        return (self.w1(x) + F.linear(z, self.z1.weight.exp())).squeeze(1) + 0.1 * x.pow(2).sum(1)


class Coordinates(nn.Module):
    """NeRF and physics-informed nets: Fourier features, tanh, sine."""

    def __init__(self):
        super().__init__()
        self.register_buffer("freqs", 2.0 ** torch.arange(2))
        self.fc1, self.fc2, self.out = nn.Linear(15, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        angles = (x[..., None] * self.freqs * math.pi).flatten(-2)
        x = torch.cat([x, angles.sin(), torch.cos(angles)], dim=-1)
        return torch.sigmoid(self.out(torch.tanh(self.fc2(torch.sin(30 * 0.1 * self.fc1(x))))))


class Coupling(nn.Module):
    """A flow's layer (RealNVP): half of the input scales and shifts the other half."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6))
        self.register_buffer("order", torch.tensor([3, 1, 5, 0, 2, 4]))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):  # the same net twice
            a, b = torch.chunk(x[:, self.order], 2, dim=1)
            log_s, t = self.net(a).chunk(2, dim=1)
            x = torch.cat([a, b * torch.exp(torch.tanh(log_s)) + t], dim=1)
        return x


class Diffusion(nn.Module):
    """A time and a class besides the image: net(x, t, y=y)."""

    def __init__(self):
        super().__init__()
        self.time, self.label = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 8)), nn.Embedding(3, 8)
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 1, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x: Tensor, t: Tensor, y: Tensor | None = None) -> Tensor:
        angles = t[:, None] * torch.tensor([1.0, 0.1]).to(x)
        emb = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        if y is not None:
            emb = emb + self.label(y)
        scale, shift = emb[:, :, None, None].chunk(2, dim=1)
        return self.conv2(F.silu(self.norm(self.conv1(x)) * (1 + scale) + shift))


WRAPPED = {"spectral_norm": spectral_norm, "weight_norm": weight_norm}
