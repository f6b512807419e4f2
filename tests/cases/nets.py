"""Small networks: what is made of layers is right if they are, and every penalty is tested on these."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from jacnorm.lab.nets import MLP, VGG16, LeNet, ResNet18

from .case import Case, lively


class Shared(nn.Module):
    """One layer used twice, a learnt residual scale, an in-place sum."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x).relu_()
        h = self.scale * self.layer(h)
        h += x
        return h


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0][:, -1]


class Mixer(nn.Module):
    """Tokens and channels mixed in turn, with einsum and matmul, no attention."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(4, 4))
        self.channels = nn.Parameter(torch.randn(5, 6))

    def forward(self, x: Tensor) -> Tensor:
        h = x + torch.einsum("btc,st->bsc", x, self.tokens).relu()
        h = self.tokens @ h
        return torch.relu(h @ self.channels).mean(1)


class Writes(nn.Module):
    """Fills a fresh tensor piece by piece."""

    def forward(self, x: Tensor) -> Tensor:
        out = torch.zeros(len(x), 5, dtype=x.dtype)
        out[:, :3] = 2 * x[:, :3]
        out[:, 4] = x[:, 3]
        rest = torch.empty_like(x)
        rest.copy_(x)
        return torch.cat([out, rest], 1)


SMALL, LENET = Case("mlp", lambda: MLP((5, 7, 6, 3)), (5,)), Case("lenet", LeNet, (1, 28, 28))
NETS = [
    *(SMALL, LENET),
    Case("vgg16-bn", lambda: lively(VGG16(width=0.04)), (3, 32, 32), training=True),
    Case("resnet18", lambda: lively(ResNet18(width=0.04)), (3, 16, 16), training=True),
    Case("shared layer", Shared, (6,)),
    Case("mixer", Mixer, (4, 5)),
    Case("writes into tensors", Writes, (4,)),
    Case("scalar critic (B, 1)", lambda: MLP((5, 7, 1)), (5,)),
    Case(
        "scalar critic (B,)",
        lambda: nn.Sequential(MLP((5, 7, 1)), nn.Flatten(0)),
        (5,),
    ),
    Case("more outputs than inputs", lambda: MLP((3, 8, 12)), (3,)),
    Case("transformer", Transformer, (4, 8)),
    Case("lstm", Recurrent, (4, 3)),
]
