"""Small networks: what is made of layers is right if they are, and every penalty is tested on these."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from jacnorm.lab.nets import MLP, VGG16, LeNet, ResNet18

from .case import Case, Seeded, lively


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
    """All that a recurrent layer returns. Its states start at numbers that learn and depend on the input."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any):
        super().__init__()
        self.layer = kind(3, 4, **options)
        count = self.layer.num_layers * (1 + self.layer.bidirectional)
        self.starts = nn.Parameter(torch.randn(2, count, 1, 4))

    def forward(self, x: Tensor) -> Tensor:
        h, c = self.starts * x.mean((1, 2))[:, None]
        states = (h, c) if isinstance(self.layer, nn.LSTM) else h
        first = self.layer.batch_first
        y, ends = self.layer(x if first else x.transpose(0, 1), states)
        ends = torch.stack(ends) if isinstance(ends, tuple) else ends[None]
        return torch.cat([(y if first else y.transpose(0, 1)).flatten(1), ends.movedim(2, 0).flatten(1)], 1)


class Cells(nn.Module):
    """A recurrent cell, called time by time."""

    def __init__(self, kind: type[nn.RNNCellBase], **options: Any):
        super().__init__()
        self.cell = kind(3, 4, **options)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for at in x.unbind(1):
            state = self.cell(at, state)
        return torch.cat(state, 1) if isinstance(state, tuple) else state


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


class Projected(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(3, 4, proj_size=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0].flatten(1)


RECURRENT = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn": nn.RNN,
    "rnn with ReLU": partial(nn.RNN, nonlinearity="relu"),
}
CELLS = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "rnn": nn.RNNCell}
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
    *[Case(name, lambda kind=kind: Recurrent(kind), (4, 3)) for name, kind in RECURRENT.items()],
    *[
        Case(
            f"{name} of all options",
            lambda kind=kind: Seeded(
                Recurrent(kind, num_layers=2, bidirectional=True, batch_first=True, dropout=0.3)
            ),
            (4, 3),
            training=True,
        )
        for name, kind in RECURRENT.items()
    ],
    *[Case(f"{name} cell", lambda kind=kind: Cells(kind), (3, 3)) for name, kind in CELLS.items()],
    Case("lstm without biases", lambda: Recurrent(nn.LSTM, bias=False), (3, 3)),
    Case("gru of a single time", lambda: Recurrent(nn.GRU), (1, 3)),
    Case("lstm with a projection", lambda: Projected(), (3, 3)),
]
