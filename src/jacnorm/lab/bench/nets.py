"""The networks of the benchmark, and batches for them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UsageError
from ..nets import MLP, VGG16, LeNet, ResNet18


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


class Block(nn.Module):
    """A transformer's block with the norms in front, as in current vision transformers."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        qkv = self.qkv(self.norm1(x)).view(*shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*qkv.unbind(0))
        x = x + self.out(y.transpose(1, 2).reshape(shape))
        return x + self.narrow(F.gelu(self.wide(self.norm2(x))))


class Blocks(nn.Module):
    """A transformer on tokens: blocks, a norm, the mean over tokens, a linear head."""

    def __init__(self, width: int, heads: int, depth: int, classes: int = 10):
        super().__init__()
        self.first, self.norm, self.head = (
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.Linear(width, classes),
        )
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.first(x))).mean(1))


class Gated(nn.Module):
    """RMS norm and a SiLU gate, as in language models."""

    def __init__(self, width: int):
        super().__init__()
        self.norm, self.gate = nn.RMSNorm(width), nn.Linear(width, 4 * width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def _critic(classes: int) -> nn.Module:
    """The critic of a GAN: strided convolutions, instance norm, leaky ReLU."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2)]
    for wide in (32, 64):
        norm = nn.InstanceNorm2d(2 * wide, affine=True)
        layers += [nn.Conv2d(wide, 2 * wide, 4, 2, 1), norm, nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, classes))


GREY, COLOUR = (1, 28, 28), (3, 32, 32)
# A function that makes the net (from classes and width), a sample's shape, and the batch size for memory.
NETS: dict[str, tuple[Callable[[int, float], nn.Module], tuple[int, ...], int]] = {
    "lenet": (lambda classes, _: LeNet(classes=classes), GREY, 1024),
    "vgg16": (lambda classes, width: VGG16(classes=classes, width=width), COLOUR, 32),
    "resnet18": (lambda classes, width: ResNet18(classes=classes, width=width), COLOUR, 32),
    "mlp": (lambda classes, _: MLP((784, 200, 200, classes)), (784,), 1024),
    "transformer": (lambda classes, _: Transformer(classes=classes), COLOUR, 64),
    "vit-64": (lambda classes, _: Blocks(64, 4, 2, classes), (64, 64), 64),
    "vit-192": (lambda classes, _: Blocks(192, 3, 4, classes), (65, 192), 16),
    "vit-128, 256 tokens": (lambda classes, _: Blocks(128, 2, 4, classes), (256, 128), 16),
    "vit-128, 1024 tokens": (lambda classes, _: Blocks(128, 2, 4, classes), (1024, 128), 2),
    "gated-mlp": (
        lambda classes, _: nn.Sequential(*[Gated(256) for _ in range(4)], nn.Linear(256, classes)),
        (256,),
        1024,
    ),
    "critic": (lambda classes, _: _critic(classes), COLOUR, 64),
}


def make(name: str, classes: int = 10, width: float = 1.0) -> nn.Module:
    """In training mode, with the same weights each time."""
    if name not in NETS:
        raise UsageError(f"there is no net {name!r} in the benchmark: choose {', '.join(NETS)}")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return NETS[name][0](classes, width)


def batch(name: str, size: int, classes: int = 10) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, labels and indices of samples. Inputs are noise, since times do not depend on the images."""
    generator = torch.Generator().manual_seed(1)
    shape = NETS[name][1] if name in NETS else GREY
    x = torch.randn(size, *shape, generator=generator)
    return x, torch.randint(classes, (size,), generator=generator), torch.arange(size)
