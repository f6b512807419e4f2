"""GoogLeNet and Inception: branches joined, factorized convolutions, an auxiliary head in training."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BasicConv2d(nn.Module):
    def __init__(self, n_in: int, n_out: int, **options: Any):
        super().__init__()
        self.conv = nn.Conv2d(n_in, n_out, bias=False, **options)
        self.bn = nn.BatchNorm2d(n_out, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)), inplace=True)


class Inception(nn.Module):
    def __init__(self, n_in: int):
        super().__init__()
        self.branch1 = BasicConv2d(n_in, 2, kernel_size=1)
        self.branch7_1 = BasicConv2d(n_in, 2, kernel_size=(1, 7), padding=(0, 3))
        self.branch7_2 = BasicConv2d(2, 2, kernel_size=(7, 1), padding=(3, 0))
        self.branch3 = nn.Sequential(
            nn.MaxPool2d(kernel_size=3, stride=1, padding=1, ceil_mode=True),
            BasicConv2d(n_in, 2, kernel_size=1),
        )
        self.branch_pool = BasicConv2d(n_in, 2, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = F.avg_pool2d(x, kernel_size=3, stride=1, padding=1)
        branches = [self.branch1(x), self.branch7_2(self.branch7_1(x)), self.branch3(x)]
        return torch.cat([*branches, self.branch_pool(pooled)], 1)


class GoogLeNetOutputs(NamedTuple):
    logits: Tensor
    aux_logits: Tensor | None


class InceptionAux(nn.Module):
    def __init__(self, n_in: int):
        super().__init__()
        self.conv, self.fc = BasicConv2d(n_in, 2, kernel_size=1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(x, (2, 2))
        return self.fc(torch.flatten(self.conv(x), 1))


class GoogLeNet(nn.Module):
    """With `aux_logits`, training mode returns a named tuple."""

    def __init__(self, aux_logits: bool = False):
        super().__init__()
        self.aux_logits = aux_logits
        self.conv1 = BasicConv2d(3, 4, kernel_size=3, stride=2, padding=1)
        self.inception = Inception(4)
        self.aux = InceptionAux(8) if aux_logits else None
        self.dropout, self.fc = nn.Dropout(p=0.2), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Any:
        x = self.inception(self.conv1(self._transform_input(x)))
        aux = self.aux(x) if self.aux is not None and self.training else None
        x = F.max_pool2d(x, kernel_size=3, stride=2)
        x = F.adaptive_avg_pool2d(x, 1)
        x = self.fc(self.dropout(torch.flatten(x, 1)))
        return GoogLeNetOutputs(x, aux) if self.aux_logits and self.training else x

    def _transform_input(self, x: Tensor) -> Tensor:
        x_ch0 = torch.unsqueeze(x[:, 0], 1) * (0.229 / 0.5) + (0.485 - 0.5) / 0.5
        x_ch1 = torch.unsqueeze(x[:, 1], 1) * (0.224 / 0.5) + (0.456 - 0.5) / 0.5
        x_ch2 = torch.unsqueeze(x[:, 2], 1) * (0.225 / 0.5) + (0.406 - 0.5) / 0.5
        return torch.cat((x_ch0, x_ch1, x_ch2), 1)
