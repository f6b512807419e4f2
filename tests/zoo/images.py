"""Nets whose output is an image: U-Nets, DeepLab, feature pyramids, autoencoders, super-resolution."""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DoubleConv(nn.Sequential):
    def __init__(self, n_in: int, n_out: int):
        layers: list[nn.Module] = []
        for channels in (n_in, n_out):
            convolution = nn.Conv2d(channels, n_out, kernel_size=3, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(n_out), nn.ReLU(inplace=True)]
        super().__init__(*layers)


class Up(nn.Module):
    """Upscaled, padded to the size of the skip, joined with it."""

    def __init__(self, n_in: int, n_out: int, bilinear: bool):
        super().__init__()
        self.up: nn.Module = nn.ConvTranspose2d(n_in, n_in // 2, kernel_size=2, stride=2)
        if bilinear:
            up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
            self.up = nn.Sequential(up, nn.Conv2d(n_in, n_in // 2, 1))
        self.conv = DoubleConv(n_in, n_out)

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        x1 = self.up(x1)
        dy, dx = x2.size()[2] - x1.size()[2], x2.size()[3] - x1.size()[3]
        x1 = F.pad(x1, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return self.conv(torch.cat([x2, x1], dim=1))


class UNet(nn.Module):
    def __init__(self, bilinear: bool):
        super().__init__()
        self.inc, self.down = DoubleConv(1, 3), nn.Sequential(nn.MaxPool2d(2), DoubleConv(3, 6))
        self.up, self.outc = Up(6, 3, bilinear), nn.Conv2d(3, 1, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.inc(x)
        return self.outc(self.up(self.down(x1), x1))


class ASPPPooling(nn.Sequential):
    def __init__(self, n_in: int, n_out: int):
        super().__init__(nn.AdaptiveAvgPool2d(1), nn.Conv2d(n_in, n_out, 1, bias=False), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[-2:]
        for module in self:
            x = module(x)
        return F.interpolate(x, size=size, mode="bilinear", align_corners=False)


class DeepLab(nn.Module):
    """Dilated convolutions side by side. torchvision's returns a dict, as this one does when asked."""

    def __init__(self, returns_dict: bool = False):
        super().__init__()
        self.returns_dict = returns_dict
        self.backbone = nn.Sequential(nn.Conv2d(2, 3, 3, 2, 1), nn.BatchNorm2d(3), nn.ReLU(inplace=True))
        atrous = [nn.Conv2d(3, 3, 3, padding=rate, dilation=rate, bias=False) for rate in (1, 2, 3)]
        self.convs = nn.ModuleList([*atrous, ASPPPooling(3, 3)])
        self.project = nn.Sequential(nn.Conv2d(12, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.classifier = nn.Sequential(nn.Dropout(0.1), nn.Conv2d(4, 2, 1))

    def forward(self, x: Tensor) -> Tensor | OrderedDict[str, Tensor]:
        input_shape = x.shape[-2:]
        features = self.backbone(x)
        x = self.project(torch.cat([conv(features) for conv in self.convs], dim=1))
        x = F.interpolate(self.classifier(x), size=input_shape, mode="bilinear", align_corners=False)
        return OrderedDict(out=x) if self.returns_dict else x


class FeaturePyramid(nn.Module):
    """Two scales added from the top down."""

    def __init__(self):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(2, 3, 3, 2, 1), nn.Conv2d(3, 4, 3, 2, 1)
        self.inner1, self.inner2 = nn.Conv2d(3, 2, 1), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        c1 = F.relu(self.c1(x))
        last_inner = self.inner2(F.relu(self.c2(c1)))
        top_down = F.interpolate(last_inner, size=c1.shape[-2:], mode="nearest")
        return self.inner1(c1) + top_down


class Denoiser(nn.Module):
    """Plug-and-play imaging's: DnCNN's residual, x minus the noise that it sees, without biases."""

    def __init__(self, activation: type[nn.Module] = nn.ReLU):
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(1, 3, 3, padding=1, bias=False, padding_mode="circular"), activation()),
            nn.Conv2d(3, 1, 3, padding=1, bias=False, padding_mode="circular"),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x - self.body(x)


class SuperResolution(nn.Module):
    """EDSR: residual blocks with a scale, then pixel shuffle."""

    def __init__(self):
        super().__init__()
        self.head, self.tail = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 4, 3, padding=1)
        self.c1, self.c2 = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.act, self.shuffle = nn.PReLU(), nn.PixelShuffle(2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.head(x)
        res = self.c2(self.act(self.c1(x))).mul(0.1)
        res += x
        return self.shuffle(self.tail(res))


class VectorQuantized(nn.Module):
    """VQ-VAE: the nearest code, and the straight-through estimator, which autograd takes at its word."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 4), nn.Linear(4, 6)
        self.codes = nn.Parameter(torch.randn(5, 4))

    def forward(self, x: Tensor) -> Tensor:
        z = self.encoder(x)
        nearest = torch.cdist(z.detach(), self.codes.detach()).argmin(dim=1)
        z = z + (self.codes[nearest] - z).detach()
        return self.decoder(F.relu(z))
