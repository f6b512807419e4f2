"""Convolutional nets of ReLUs: piecewise linear, so all of them belong to the layerwise engine."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .blocks import ConvNormActivation


class Bottleneck(nn.Module):
    """ResNet's, and with groups ResNeXt's: an in-place sum, one ReLU module used three times."""

    def __init__(self, inplanes: int, planes: int, stride: int = 1, groups: int = 1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inplanes, planes, 1, bias=False), nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3, self.bn3 = nn.Conv2d(planes, 2 * planes, 1, bias=False), nn.BatchNorm2d(2 * planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inplanes != 2 * planes:
            projection = nn.Conv2d(inplanes, 2 * planes, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(2 * planes))

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, groups: int = 1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 7, 2, 3, bias=False), nn.BatchNorm2d(4)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(Bottleneck(4, 4, 1, groups), Bottleneck(8, 4, 1, groups))
        self.layer2 = Bottleneck(8, 6, 2, groups)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.layer2(self.layer1(x)))
        return self.fc(torch.flatten(x, 1))


class DenseLayer(nn.Module):
    """DenseNet's: norm, ReLU, convolution, on everything that came before, joined."""

    def __init__(self, n_in: int, growth: int):
        super().__init__()
        self.norm1, self.relu1 = nn.BatchNorm2d(n_in), nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(n_in, 2 * growth, 1, bias=False)
        self.norm2, self.relu2 = nn.BatchNorm2d(2 * growth), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False)

    def forward(self, inputs: list[Tensor]) -> Tensor:
        out = self.conv1(self.relu1(self.norm1(torch.cat(inputs, 1))))
        out = self.conv2(self.relu2(self.norm2(out)))
        return F.dropout(out, p=0.2, training=self.training)


class DenseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv0, self.norm0 = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.layers = nn.ModuleDict({f"denselayer{i}": DenseLayer(4 + 2 * i, 2) for i in range(3)})
        self.transition = nn.Sequential(
            *(nn.BatchNorm2d(10), nn.ReLU(inplace=True), nn.Conv2d(10, 5, 1, bias=False)), nn.AvgPool2d(2, 2)
        )
        self.norm5, self.classifier = nn.BatchNorm2d(5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        features = [F.relu(self.norm0(self.conv0(x)))]
        for layer in self.layers.values():
            features.append(layer(features))
        out = F.relu(self.norm5(self.transition(torch.cat(features, 1))), inplace=True)
        out = F.adaptive_avg_pool2d(out, (1, 1))
        return self.classifier(torch.flatten(out, 1))


class InvertedResidual(nn.Module):
    """MobileNetV2's: widen, filter each channel, narrow."""

    def __init__(self, n_in: int, n_out: int, stride: int):
        super().__init__()
        wide = 2 * n_in
        self.use_res_connect = stride == 1 and n_in == n_out
        self.conv = nn.Sequential(
            ConvNormActivation(n_in, wide, 1, activation=nn.ReLU6),
            ConvNormActivation(wide, wide, 3, stride, groups=wide, activation=nn.ReLU6),
            *(nn.Conv2d(wide, n_out, 1, bias=False), nn.BatchNorm2d(n_out)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.use_res_connect else self.conv(x)


class MobileNetV2(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            ConvNormActivation(3, 4, 3, 2, activation=nn.ReLU6),
            *(InvertedResidual(4, 4, 1), InvertedResidual(4, 6, 2)),
        )
        self.classifier = nn.Sequential(nn.Dropout(p=0.2), nn.Linear(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.adaptive_avg_pool2d(self.features(x), (1, 1))
        return self.classifier(torch.flatten(x, 1))


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    batchsize, num_channels, height, width = x.size()
    x = x.view(batchsize, groups, num_channels // groups, height, width)
    x = torch.transpose(x, 1, 2).contiguous()
    return x.view(batchsize, num_channels, height, width)


class ShuffleUnit(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        half = channels // 2
        self.branch2 = nn.Sequential(
            ConvNormActivation(half, half, 1),
            ConvNormActivation(half, half, 3, groups=half, activation=None),
            ConvNormActivation(half, half, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        x1, x2 = x.chunk(2, dim=1)
        return channel_shuffle(torch.cat((x1, self.branch2(x2)), dim=1), 2)


class ShuffleNetV2(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.maxpool = ConvNormActivation(3, 8, 3, 2), nn.MaxPool2d(3, 2, 1)
        self.stage = nn.Sequential(ShuffleUnit(8), ShuffleUnit(8))
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage(self.maxpool(self.conv1(x)))
        return self.fc(x.mean([2, 3]))  # globalpool


class Fire(nn.Module):
    def __init__(self, n_in: int, squeeze: int, expand: int):
        super().__init__()
        self.squeeze, self.squeeze_activation = nn.Conv2d(n_in, squeeze, 1), nn.ReLU(inplace=True)
        self.expand1x1, self.expand1x1_activation = nn.Conv2d(squeeze, expand, 1), nn.ReLU(inplace=True)
        self.expand3x3 = nn.Conv2d(squeeze, expand, 3, padding=1)
        self.expand3x3_activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.squeeze_activation(self.squeeze(x))
        wide = self.expand3x3_activation(self.expand3x3(x))
        return torch.cat([self.expand1x1_activation(self.expand1x1(x)), wide], 1)


class SqueezeNet(nn.Module):
    """Pools with ceil_mode, and a convolution as the classifier."""

    def __init__(self):
        super().__init__()
        pool = nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True)
        self.features = nn.Sequential(nn.Conv2d(3, 6, 3, 2), nn.ReLU(inplace=True), pool, Fire(6, 2, 3), pool)
        self.classifier = nn.Sequential(
            *(nn.Dropout(p=0.5), nn.Conv2d(6, 4, 1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d((1, 1)))
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.flatten(self.classifier(self.features(x)), 1)


class VGG(nn.Module):
    """AlexNet and VGG: an adaptive pool before wide linear layers with dropout."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(True), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(True)),
            nn.MaxPool2d(kernel_size=2, stride=2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d((3, 3))
        self.classifier = nn.Sequential(
            *(nn.Linear(36, 8), nn.ReLU(True), nn.Dropout(p=0.5)),
            *(nn.Linear(8, 8), nn.ReLU(True), nn.Dropout(p=0.5), nn.Linear(8, 4)),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x))
        return self.classifier(torch.flatten(x, 1))


class VideoResNet(nn.Module):
    """R(2+1)D: a convolution in space, then one in time."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv3d(2, 3, (1, 3, 3), (1, 2, 2), (0, 1, 1), bias=False),
            *(nn.BatchNorm3d(3), nn.ReLU(inplace=True)),
            nn.Conv3d(3, 4, (3, 1, 1), 1, (1, 0, 0), bias=False),
            *(nn.BatchNorm3d(4), nn.ReLU(inplace=True)),
        )
        self.avgpool, self.fc = nn.AdaptiveAvgPool3d((1, 1, 1)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.avgpool(self.stem(x)).flatten(1))
