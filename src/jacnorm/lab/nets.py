"""The paper's networks (appendix A.1), and others to compare with."""

from __future__ import annotations

import hashlib
import math
import re
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..errors import InputError
from ..pytorch.outputs import Name, Output, chosen
from .errors import UsageError
from .own_code import in_a_line, made_by
from .tokens import check_vocabulary, find_embedding

if TYPE_CHECKING:
    from .data import DataSet


class NetError(UsageError):
    """A network cannot be built as the settings say."""


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
    also lists. So this is VGG16 as published. `width` scales the number of channels.
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
    """The mean and standard deviation of each channel, kept with a network.

    `axes` is the number of axes behind the channel.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], axes: int = 2):
        super().__init__()
        shape = (-1, *[1] * axes)
        self.register_buffer("mean", torch.tensor(mean).view(shape))
        self.register_buffer("std", torch.tensor(std).view(shape))


class Normalized(Scale):
    """A network on pixels in [0, 1]: channelwise mean 0 and standard deviation 1, then the body.

    Noise and attacks are in pixels. The paper's Jacobian, and so its λ, is that of the body at
    `normalize(x)`.
    """

    at: str | None = None  # where J begins

    def __init__(self, body: nn.Module, mean: tuple[float, ...], std: tuple[float, ...], axes: int = 2):
        super().__init__(mean, std, axes)
        self.body = body

    def normalize(self, pixels: Tensor) -> Tensor:
        return (pixels - self.mean) / self.std

    def forward(self, pixels: Tensor) -> Tensor:
        return self.body(self.normalize(pixels))


class OnTokens(Normalized):
    """A network on tokens. They are not normalized. J begins at their embedding, `at`."""

    def __init__(self, body: nn.Module, at: str):
        super().__init__(body, (0.0,), (1.0,), 0)
        self.at = at

    def normalize(self, pixels: Tensor) -> Tensor:
        return pixels


class OnPixels(Scale):
    """The body of `Normalized` for a network that takes pixels: it undoes the normalization."""

    def __init__(self, net: nn.Module, mean: tuple[float, ...], std: tuple[float, ...], axes: int = 2):
        super().__init__(mean, std, axes)
        self.net = net

    def forward(self, normalized: Tensor) -> Tensor:
        return self.net(normalized * self.std + self.mean)


# name: (shape of a sample, classes, width) -> net
NETS: dict[str, Callable[[tuple[int, ...], int, float], nn.Module]] = {
    "mlp": lambda shape, classes, _: MLP((math.prod(shape), 256, 256, classes)),
    "lenet": lambda shape, classes, _: LeNet(shape[0], classes, square("lenet", shape)),
    "vgg16": lambda shape, classes, width: VGG16(shape[0], classes, width),
    "resnet18": lambda shape, classes, width: ResNet18(shape[0], classes, width),
}


def square(name: str, shape: tuple[int, ...]) -> int:
    if len(shape) != 3 or shape[1] != shape[2]:
        what = f"images of {'×'.join(map(str, shape))}" if len(shape) == 3 else "the rows of a table"
        raise NetError(f"{name} takes square images, these are {what}; try the net 'mlp'")
    return shape[1]


def build(name: str, shape: tuple[int, ...], classes: int, width: float = 1.0, output: str = "") -> nn.Module:
    """A net of this file, or what the user's own `package.module:factory()` returns.

    `output` chooses one output of a user's net that returns several.
    """
    if name in NETS:
        if name != "mlp" and len(shape) != 3:
            square(name, shape)
        return NETS[name](shape, classes, width)
    if not is_own(name):
        raise NetError(f"there is no net {name!r}: choose {', '.join(NETS)}, or name package.module:factory")
    net = made_by(name, "a net", NetError)
    if not isinstance(net, nn.Module):
        raise NetError(f"{name} returned {type(net).__name__}, not an nn.Module")
    position = int(output) if output.lstrip("-").isdecimal() else None
    which: Output = position if position is not None else output or None
    net.register_forward_hook(OneOutput(which, partial(_tell_of_output, name)))
    return net


class OneOutput:
    """A forward hook for a user's net. It keeps one output: the one that is named, or the obvious one.

    `tell` is called with the name of an output that was found. (A module around the net would change the
    names of its weights.)
    """

    def __init__(self, output: Output, tell: Callable[[Name], None]):
        self.output, self.tell = output, tell

    def __call__(self, net: nn.Module, args: tuple[Any, ...], result: Any) -> Any:
        if isinstance(result, Tensor) and self.output is None:
            return result
        tensor, name = chosen(result, self.output, len(args[0]))
        if name is not None:
            self.tell(name)
        return tensor


_told: set[tuple[str, Name]] = set()


def _tell_of_output(net: str, name: Name) -> None:
    if (net, name) not in _told:
        _told.add((net, name))
        print(
            f"{net} returns more than one tensor; {name!r} is used (--output chooses another)",
            file=sys.stderr,
        )


def normalized(body: nn.Module, data: DataSet, takes: str = "normalized", at: str = "") -> Normalized:
    """The network as a function of the data as stored: pixels, numbers of a table, or tokens."""
    if data.are_tokens:
        return _on_tokens(body, data, at or None)
    scale = data.mean, data.std, data.train.images.dim() - 2
    return Normalized(OnPixels(body, *scale) if takes == "pixels" else body, *scale)


def _on_tokens(body: nn.Module, data: DataSet, at: str | None) -> OnTokens:
    at = find_embedding(body.eval(), data.train.images[:2], at)
    for name, split in (("train", data.train), ("test", data.test)):
        check_vocabulary(body, at, split.images, f"{data.name}, {name} split")
    return OnTokens(body, at)


def is_own(net: str) -> bool:
    """A user's net, package.module:factory. Its code may change; ours never changes under one name."""
    return ":" in net


def weights_digest(net: nn.Module) -> str:
    found = hashlib.sha256()
    for name, tensor in (*net.named_parameters(), *net.named_buffers()):
        found.update(name.encode() + tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def fingerprint(net: nn.Module) -> str:
    """A digest of its layers and the shapes of its tensors.

    Changes in the code of `forward` do not show in it.
    """
    layers = re.sub(r" at 0x[0-9a-f]+", "", repr(net))  # addresses differ from process to process
    tensors = [*net.named_parameters(), *net.named_buffers()]
    shapes = [f"{name} {'lazy' if is_lazy(tensor) else tuple(tensor.shape)}" for name, tensor in tensors]
    return hashlib.sha256("\n".join([layers, *shapes]).encode()).hexdigest()[:16]


def check_fits(model: Normalized, data: DataSet) -> None:
    """Check that the net takes the data and gives one score per class. Otherwise the loss fails obscurely."""
    shape = tuple(data.train.images.shape[1:])
    try:
        with torch.no_grad():
            output = model.eval()(data.train.images[:2])
    except InputError as error:  # the outputs cannot be used
        raise UsageError(str(error)) from error
    except Exception as error:  # a user's code may raise anything
        raise UsageError(f"the net does not take {data.what} of shape {shape}: {in_a_line(error)}") from error
    if output.shape != (2, len(data.classes)):
        found = tuple(output.shape)
        raise UsageError(
            f"the net gives {found} for 2 samples; {(2, len(data.classes))} is needed, one score per class"
        )
