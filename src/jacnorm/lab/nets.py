"""The paper's networks (appendix A.1), and what people compare them with."""

from __future__ import annotations

import hashlib
import importlib
import re
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .errors import UsageError

if TYPE_CHECKING:
    from .data import DataSet


class NetError(UsageError):
    """A network cannot be built as asked."""


class LeNet(nn.Sequential):
    """(5, 1→6, 1, 2, 2), (5, 6→16, 1, 0, 2), (400, 120), (120, 84), (84, 10), for 28×28 images."""

    def __init__(self, channels: int = 1, classes: int = 10, size: int = 28):
        if size < 12:
            raise NetError(f"LeNet needs images of 12×12 or more, these are {size}×{size}; try the net 'mlp'")
        features = 16 * ((size // 2 - 4) // 2) ** 2
        super().__init__(
            *(nn.Conv2d(channels, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Flatten(),
            *(nn.Linear(features, 120), nn.ReLU()),
            *(nn.Linear(120, 84), nn.ReLU()),
            nn.Linear(84, classes),
        )


class MLP(nn.Sequential):
    """Fully connected, ReLU between the layers."""

    def __init__(self, sizes: tuple[int, ...] = (784, 256, 256, 10)):
        layers: list[nn.Module] = [nn.Flatten()]
        for n_in, n_out in pairwise(sizes):
            layers += [nn.Linear(n_in, n_out), nn.ReLU()]
        super().__init__(*layers[:-1])


class VGG16(nn.Sequential):
    """Thirteen convolutions with batch norm, five pools and a linear head, for 32×32 images.

    The appendix lists eleven convolutions and four pools, which cannot give the (512, 10) head that it
    also lists; this is the network it names. `width` scales the number of channels.
    """

    STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))

    def __init__(self, channels: int = 3, classes: int = 10, width: float = 1.0):
        layers: list[nn.Module] = []
        for stage in self.STAGES:
            for plain_width in stage:
                wide = max(1, round(width * plain_width))
                convolution = nn.Conv2d(channels, wide, 3, padding=1)
                layers += [convolution, nn.BatchNorm2d(wide), nn.ReLU(inplace=True)]
                channels = wide
            layers.append(nn.MaxPool2d(2))
        super().__init__(*layers, nn.Flatten(), nn.Linear(channels, classes))


class Residual(nn.Module):
    """Two 3×3 convolutions with batch norm, and a skip connection."""

    def __init__(self, channels: int, wide: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, wide, 3, stride, padding=1, bias=False), nn.BatchNorm2d(wide)),
            nn.ReLU(inplace=True),
            *(nn.Conv2d(wide, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide)),
        )
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or channels != wide:
            projection = nn.Conv2d(channels, wide, 1, stride, bias=False)
            self.skip = nn.Sequential(projection, nn.BatchNorm2d(wide))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.body(x) + self.skip(x))


class ResNet18(nn.Sequential):
    """The 32×32 variant: a 3×3 stem without pooling, then four stages of two residual blocks."""

    def __init__(self, channels: int = 3, classes: int = 10, width: float = 1.0):
        wide = [max(1, round(width * w)) for w in (64, 128, 256, 512)]
        stem = nn.Conv2d(channels, wide[0], 3, padding=1, bias=False)
        blocks: list[nn.Module] = []
        before = wide[0]
        for stage, after in enumerate(wide):
            blocks.append(Residual(before, after, stride=1 if stage == 0 else 2))
            blocks.append(Residual(after, after, stride=1))
            before = after
        super().__init__(
            *(stem, nn.BatchNorm2d(wide[0]), nn.ReLU(inplace=True)),
            *blocks,
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)),
        )


class Scale(nn.Module):
    """The mean and standard deviation of each channel, kept with a network."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]):
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))


class Normalized(Scale):
    """A network on pixels in [0, 1]: channelwise mean 0 and standard deviation 1, then the body.

    Noise and attacks live in pixels; the paper's Jacobian, and with it λ, belongs to the body at
    `normalize(x)`.
    """

    def __init__(self, body: nn.Module, mean: tuple[float, ...], std: tuple[float, ...]):
        super().__init__(mean, std)
        self.body = body

    def normalize(self, pixels: Tensor) -> Tensor:
        return (pixels - self.mean) / self.std

    def forward(self, pixels: Tensor) -> Tensor:
        return self.body(self.normalize(pixels))


class OnPixels(Scale):
    """A network that was trained on pixels, as the body of `Normalized`: it gets them back."""

    def __init__(self, net: nn.Module, mean: tuple[float, ...], std: tuple[float, ...]):
        super().__init__(mean, std)
        self.net = net

    def forward(self, normalized: Tensor) -> Tensor:
        return self.net(normalized * self.std + self.mean)


# name: (channels, size, classes, width) -> net
NETS: dict[str, Callable[[int, int, int, float], nn.Module]] = {
    "mlp": lambda channels, size, classes, _: MLP((channels * size * size, 256, 256, classes)),
    "lenet": lambda channels, size, classes, _: LeNet(channels, classes, size),
    "vgg16": lambda channels, _, classes, width: VGG16(channels, classes, width),
    "resnet18": lambda channels, _, classes, width: ResNet18(channels, classes, width),
}


def build(name: str, channels: int, size: int, classes: int, width: float = 1.0) -> nn.Module:
    """A net of this file, or what the user's own `package.module:factory()` returns."""
    if name in NETS:
        return NETS[name](channels, size, classes, width)
    module, colon, factory = name.partition(":")
    if not colon:
        raise NetError(f"there is no net {name!r}: choose {', '.join(NETS)}, or name package.module:factory")
    if "" not in sys.path:  # so that a module in the current folder is found, as with python -m
        sys.path.insert(0, "")
    try:
        net = getattr(importlib.import_module(module), factory)()
    except ModuleNotFoundError as error:
        raise NetError(
            f"{name}: {error}; it is looked for in the current folder ({Path.cwd()}) and where Python finds "
            "modules (PYTHONPATH)"
        ) from error
    except Exception as error:  # it is the user's code, and may raise anything
        raise NetError(
            f"{name}: {error or type(error).__name__}; it must name a function that takes nothing and "
            "returns a net"
        ) from error
    if not isinstance(net, nn.Module):
        raise NetError(f"{name} returned {type(net).__name__}, not an nn.Module")
    return net


def is_own(net: str) -> bool:
    """package.module:factory, not one of ours, which never change under one name."""
    return ":" in net


def weights_digest(net: nn.Module) -> str:
    found = hashlib.sha256()
    for name, tensor in (*net.named_parameters(), *net.named_buffers()):
        found.update(name.encode() + tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def fingerprint(net: nn.Module) -> str:
    """Of its layers and the shapes of its tensors. What only the code of a forward says is not seen."""
    layers = re.sub(r" at 0x[0-9a-f]+", "", repr(net))  # addresses differ from process to process
    tensors = [*net.named_parameters(), *net.named_buffers()]
    shapes = [f"{name} {'lazy' if is_lazy(tensor) else tuple(tensor.shape)}" for name, tensor in tensors]
    return hashlib.sha256("\n".join([layers, *shapes]).encode()).hexdigest()[:16]


def check_fits(model: Normalized, data: DataSet) -> None:
    """One score for each class, or a user's own net gets an obscure error deep in the loss."""
    try:
        with torch.no_grad():
            output = model.eval()(data.train.images[:2])
    except (RuntimeError, ValueError) as error:
        shape = tuple(data.train.images.shape[1:])
        raise UsageError(f"the net does not take images of shape {shape}: {error}") from error
    if not isinstance(output, Tensor):
        raise UsageError(f"the net returns a {type(output).__name__}; a tensor is needed, a score a class")
    if output.shape != (2, len(data.classes)):
        found = tuple(output.shape)
        raise UsageError(
            f"the net gives {found} for 2 images; {(2, len(data.classes))} is needed, a score a class"
        )
