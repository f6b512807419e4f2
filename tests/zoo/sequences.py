"""Sequences of continuous vectors: recurrent nets, convolutions in time, state spaces, transformers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Recurrent(nn.Module):
    """The last state of an RNN, LSTM or GRU, to a score per class."""

    def __init__(self, kind: type[nn.RNNBase], **options: object):
        super().__init__()
        self.rnn = kind(3, 4, batch_first=True, **options)
        self.fc = nn.Linear(4 * (2 if options.get("bidirectional") else 1), 3)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        return self.fc(out[:, -1, :])


class Cells(nn.Module):
    """A cell called step by step, and its states pooled."""

    def __init__(self, kind: type[nn.RNNCellBase], **options: object):
        super().__init__()
        self.cell, self.fc = kind(3, 4, **options), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], 4)
        states = []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            states.append(h)
        return self.fc(torch.stack(states, dim=1).mean(1))


class TemporalConv(nn.Module):
    """Causal, dilated, with weight norm's cut-off end (TCN)."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(3, 4, 2, padding=1, dilation=1)
        self.conv2 = nn.Conv1d(4, 4, 2, padding=2, dilation=2)
        self.down, self.fc = nn.Conv1d(3, 4, 1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        h = F.dropout(F.relu(self.conv1(x)[:, :, :-1].contiguous()), 0.2, self.training)
        h = F.relu(self.conv2(h)[:, :, :-2].contiguous())
        return self.fc(F.relu(h + self.down(x))[:, :, -1])


class TextTransformer(nn.Module):
    """nn.TransformerEncoder with a causal mask, padding, and the first of the tokens."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.embed, self.head = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        padding = torch.zeros(x.shape[:2], dtype=x.dtype)
        padding[0, -1] = float("-inf")
        return self.head(self.encoder(self.embed(x), mask, padding)[:, -2])


class StateSpace(nn.Module):
    """A linear recurrence, a convolution over the whole length by FFT, and a gate (S4, Mamba's kin)."""

    def __init__(self):
        super().__init__()
        self.kernel, self.gate, self.out = nn.Parameter(torch.randn(3, 5)), nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        spectrum = torch.fft.rfft(x.transpose(1, 2), n=2 * length)
        y = torch.fft.irfft(spectrum * torch.fft.rfft(self.kernel, n=2 * length), n=2 * length)
        y = y[..., :length].transpose(1, 2)
        return self.out((y * F.silu(self.gate(x))).mean(1))


class Highway(nn.Module):
    """GLU, lerp and running products, as gated nets spell them."""

    def __init__(self):
        super().__init__()
        self.glu, self.carry, self.fc = nn.Linear(15, 8), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.glu(self.glu(x.flatten(1)), dim=-1)
        h = torch.lerp(h, torch.relu(self.carry(h)), torch.sigmoid(self.carry(h)))
        return self.fc(h).log_softmax(dim=-1)
