"""The networks of the benchmark, and batches for them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import UsageError
from ..nets import VGG16, LeNet, ResNet18


class Transformer(nn.Module):
    """A small vision transformer: 4×4 patches, two encoder layers, the mean over patches, a linear head."""

    def __init__(self, channels: int = 3, classes: int = 10, width: int = 64):
        super().__init__()
        self.patches = nn.Conv2d(channels, width, 4, 4)
        self.places = nn.Parameter(torch.randn(1, 64, width) / 50)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.encoder(tokens).mean(1))


class Deep(nn.Sequential):
    """`depth` 3×3 convolutions of 16 channels with ReLU between them, on 28×28 images."""

    def __init__(self, depth: int):
        layers: list[nn.Module] = []
        for i in range(depth):
            layers += [nn.Conv2d(1 if i == 0 else 16, 16, 3, padding=1), nn.ReLU()]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 10))


NETS = ("lenet", "vgg16", "resnet18", "transformer")


def make(name: str, classes: int = 10, width: float = 1.0) -> nn.Module:
    """In training mode, with the same weights each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if name == "lenet":
            return LeNet(classes=classes)
        if name == "vgg16":
            return VGG16(classes=classes, width=width)
        if name == "resnet18":
            return ResNet18(classes=classes, width=width)
        if name == "transformer":
            return Transformer(classes=classes)
    raise UsageError(f"there is no net {name!r} in the benchmark: choose {', '.join(NETS)}")


def batch(name: str, size: int, classes: int = 10) -> tuple[Tensor, Tensor, Tensor]:
    """Images, labels, and which samples they are. Noise will do: time does not look at the picture."""
    generator = torch.Generator().manual_seed(1)
    shape = (1, 28, 28) if name in ("lenet", "deep") else (3, 32, 32)
    x = torch.randn(size, *shape, generator=generator)
    return x, torch.randint(classes, (size,), generator=generator), torch.arange(size)
