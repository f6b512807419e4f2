"""Spellings that timm's convolutional nets use and torchvision's do not."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ScaledStdConv2d(nn.Conv2d):
    """Weights standardized in each run (BiT, NFNet): batch norm in training mode, of the weights."""

    def __init__(self, *args: int, **kwargs: int):
        super().__init__(*args, **kwargs)
        self.gain = nn.Parameter(torch.full((self.out_channels, 1, 1, 1), 1.2))

    def forward(self, x: Tensor) -> Tensor:
        weight = F.batch_norm(
            self.weight.reshape(1, self.out_channels, -1),
            None,
            None,
            weight=(self.gain * 0.3).view(-1),
            training=True,
            momentum=0.0,
            eps=1e-5,
        ).reshape_as(self.weight)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class BatchNormAct2d(nn.BatchNorm2d):
    """Batch norm and its activation in one module, calling the function itself."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        x = F.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training,
            self.momentum,
            self.eps,
        )
        return F.leaky_relu_(x, 0.1)


class BlurPool2d(nn.Module):
    """A fixed filter on reflected borders."""

    def __init__(self, channels: int):
        super().__init__()
        coeffs = torch.tensor([0.25, 0.5, 0.25])
        blur_filter = (coeffs[:, None] * coeffs[None, :])[None, None, :, :].repeat(channels, 1, 1, 1)
        self.register_buffer("filt", blur_filter, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, (1, 1, 1, 1), mode="reflect")
        return F.conv2d(x, self.filt, stride=2, groups=x.shape[1])


class TimmResNet(nn.Module):
    """Deep stem, anti-aliasing, an average pool on the skip, `act_layer` after the sum, split attention."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1, bias=False), BatchNormAct2d(4))
        self.conv1, self.bn1 = ScaledStdConv2d(4, 6, 3, padding=1), BatchNormAct2d(6)
        self.aa, self.conv2 = BlurPool2d(6), ScaledStdConv2d(6, 6, 3, padding=1, groups=3)
        self.downsample = nn.Sequential(
            nn.AvgPool2d(2, 2, ceil_mode=True, count_include_pad=False), nn.Conv2d(4, 6, 1, bias=False)
        )
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x = self.stem(x)
        x = self.conv2(self.aa(self.bn1(self.conv1(x))))
        x += self.downsample(shortcut)
        x = F.relu_(x)
        both = torch.cat([self.pool(x), F.adaptive_max_pool2d(x, 1)], dim=1)  # pool_type="catavgmax"
        return self.fc(F.dropout(both.flatten(1), p=0.1, training=self.training))


class RadixSoftmax(nn.Module):
    """ResNeSt's split attention: softmax over groups, and a sum of what they weigh."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, groups=1, bias=False)
        self.bn0, self.fc1, self.fc2 = nn.BatchNorm2d(8), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 8, 1)
        self.head = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu_(self.bn0(self.conv(x)))
        B, RC, H, W = x.shape
        x = x.reshape((B, 2, RC // 2, H, W))
        x_gap = x.sum(dim=1).mean((2, 3), keepdim=True)
        x_attn = self.fc2(F.relu(self.fc1(x_gap)))
        x_attn = x_attn.view(B, 1, 2, -1).transpose(1, 2)
        x_attn = F.softmax(x_attn, dim=1).reshape(B, -1)
        out = (x * x_attn.view(B, 2, RC // 2, 1, 1)).sum(dim=1)
        return self.head(out.mean((2, 3)))


class CrossStage(nn.Module):
    """CSPNet and HarDNet: split, chunk, flip order, space to depth (TResNet)."""

    def __init__(self):
        super().__init__()
        self.conv, self.conv_b = nn.Conv2d(12, 8, 1), nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        N, C, H, W = x.size()
        x = x.view(N, C, H // 2, 2, W // 2, 2)  # SpaceToDepth
        x = x.permute(0, 3, 5, 1, 2, 4).contiguous()
        x = F.leaky_relu(self.conv(x.view(N, C * 4, H // 2, W // 2)), 0.01, inplace=True)
        xs, xb = x.split(4, dim=1)
        xb = F.hardtanh(self.conv_b(xb), inplace=True)
        x = torch.cat([xb, xs.contiguous()], dim=1)
        return self.head(x.flatten(2).amax(dim=2))
