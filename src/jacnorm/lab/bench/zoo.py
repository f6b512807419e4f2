"""Small networks of many kinds, each with real data. The starts of the iteration are compared on them.

Images are scikit-learn's digits; texts are sources of Python's standard library. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import ast
import calendar
import difflib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import load
from ..nets import LeNet, ResNet18
from .nets import Blocks

WIDTH, TOKENS, SYMBOLS = 32, 16, 64
BOOKS = (argparse, ast, calendar, difflib)

Data = tuple[Tensor, Tensor]  # inputs and targets


@dataclass(frozen=True)
class Pupil:
    """A network, its data and loss, and the layer where its Jacobian begins (None: the input)."""

    name: str
    make: Callable[[], nn.Module]
    data: Callable[[], Data]
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    at: str | None = None


class Patches(nn.Module):
    """2×2 patches of a small image as tokens, with embeddings of their positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Linear(4, WIDTH), nn.Parameter(torch.randn(1, 16, WIDTH) / 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.embed(F.unfold(x, 2, stride=2).mT) + self.places


class Bert(nn.Module):
    """Classifies texts: token and position embeddings, blocks, the mean over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(SYMBOLS, WIDTH), nn.Parameter(torch.randn(TOKENS, WIDTH) / 10)
        self.body = Blocks(WIDTH, 4, 2, len(BOOKS))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.body(self.embed(tokens) + self.places)


class Attention(nn.Module):
    """Causal attention with rotary position embeddings."""

    angles: Tensor

    def __init__(self, heads: int = 4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        half = WIDTH // heads // 2
        angles = torch.outer(torch.arange(TOKENS), 0.01 ** (torch.arange(half) / half))
        self.register_buffer("angles", angles.repeat(1, 2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(self._turned(q), self._turned(k), v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(x.shape))

    def _turned(self, q: Tensor) -> Tensor:
        first, second = q.chunk(2, -1)
        return q * self.angles.cos() + torch.cat([-second, first], -1) * self.angles.sin()


class LlamaBlock(nn.Module):
    """RMS norms, causal attention, a SiLU gate."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH), Attention()
        self.gate, self.up = (nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """A language model: scores of the next token, after each token or after the last one."""

    def __init__(self, last: bool):
        super().__init__()
        self.last, self.embed = last, nn.Embedding(SYMBOLS, WIDTH)
        self.body = nn.Sequential(LlamaBlock(), LlamaBlock(), nn.RMSNorm(WIDTH))
        self.head = nn.Linear(WIDTH, SYMBOLS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.body(self.embed(tokens))
        return self.head(h[:, -1] if self.last else h)


class Recurrent(nn.Module):
    """Classifies texts by the last state of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(SYMBOLS, WIDTH), nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, len(BOOKS))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(tokens))[0][:, -1])


class UNet(nn.Module):
    """A denoiser: it goes down and up, and subtracts the noise that it finds."""

    def __init__(self, wide: int = 8):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, wide, 3, padding=1), nn.SiLU())
        self.down = nn.Sequential(nn.Conv2d(wide, 2 * wide, 3, 2, 1), nn.GroupNorm(2, 2 * wide), nn.SiLU())
        self.inner = nn.Sequential(nn.Conv2d(2 * wide, 2 * wide, 3, padding=1), nn.SiLU())
        self.up = nn.ConvTranspose2d(2 * wide, wide, 2, 2)
        self.last = nn.Sequential(
            nn.Conv2d(2 * wide, wide, 3, padding=1), nn.SiLU(), nn.Conv2d(wide, 1, 3, padding=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        skip = self.first(x)
        return x - self.last(torch.cat([skip, self.up(self.inner(self.down(skip)))], 1))


class GraphNet(nn.Module):
    """Messages between neighbouring pixels: h ← ReLU(A h W + h V), and the mean over the nodes."""

    neighbours: Tensor

    def __init__(self, side: int = 8):
        super().__init__()
        places = torch.cartesian_prod(torch.arange(side), torch.arange(side)).float()
        near = (torch.cdist(places, places) < 1.5).float()
        self.register_buffer("neighbours", near / near.sum(1, keepdim=True))
        self.places = nn.Parameter(torch.randn(side * side, WIDTH) / 10)
        self.embed, self.head = nn.Linear(1, WIDTH), nn.Linear(WIDTH, 10)
        self.messages = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.own = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x.flatten(1)[:, :, None]) + self.places
        for message, own in zip(self.messages, self.own, strict=True):
            h = F.relu(message(self.neighbours @ h) + own(h))
        return self.head(h.mean(1))


def critic() -> nn.Module:
    """The critic of a GAN, which gives an image a score."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 3, 2, 1)),
        *(nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(128, 1)),
    )


@cache
def digits(size: int = 8) -> Data:
    """Mean 0, standard deviation 1."""
    split = load("digits").train
    x = F.interpolate(split.images, size=(size, size), mode="bilinear") if size != 8 else split.images
    return (x - x.mean()) / x.std(), split.labels


def noisy() -> Data:
    x, _ = digits(16)
    return x + 0.5 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1)), x


def real_and_made() -> Data:
    """Digits (1), and images with the pixels of several digits mixed (−1)."""
    x, _ = digits()
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(len(x), x.shape, generator=generator)
    made = x.gather(0, rows)
    labels = torch.cat([torch.ones(len(x)), -torch.ones(len(x))])
    order = torch.randperm(len(labels), generator=generator)
    return torch.cat([x, made])[order], labels[order]


@cache
def _texts() -> list[Tensor]:
    """The source of each module as numbers; rare symbols are 0."""
    sources = [Path(str(book.__file__)).read_text(encoding="utf-8")[:30_000] for book in BOOKS]
    usual = [c for c, _ in Counter("".join(sources)).most_common(SYMBOLS - 1)]
    numbers = {c: i + 1 for i, c in enumerate(usual)}
    return [torch.tensor([numbers.get(c, 0) for c in source]) for source in sources]


def snippets() -> Data:
    """Snippets of the sources; the target is the module."""
    parts = [text.unfold(0, TOKENS, TOKENS) for text in _texts()]
    labels = torch.cat([torch.full((len(part),), i) for i, part in enumerate(parts)])
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    return torch.cat(parts)[order], labels[order]


def next_symbols(last: bool) -> Data:
    windows = torch.cat(_texts()).unfold(0, TOKENS + 1, TOKENS + 1)
    windows = windows[torch.randperm(len(windows), generator=torch.Generator().manual_seed(1))]
    return windows[:, :-1], windows[:, -1] if last else windows[:, 1:]


def by_token(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def hinge(scores: Tensor, signs: Tensor) -> Tensor:
    return F.relu(1 - scores[:, 0] * signs).mean()


PUPILS = (
    Pupil("LeNet", LeNet, lambda: digits(28)),
    Pupil("ResNet", partial(ResNet18, 1, 10, 0.125), lambda: digits(16)),
    Pupil("ViT", lambda: nn.Sequential(Patches(), Blocks(WIDTH, 4, 2)), digits),
    Pupil("BERT", Bert, snippets, at="embed"),
    Pupil("Llama", partial(Llama, last=True), partial(next_symbols, last=True), at="embed"),
    Pupil(
        "Llama (all tokens)", partial(Llama, last=False), partial(next_symbols, last=False), by_token, "embed"
    ),
    Pupil("U-Net", UNet, noisy, F.mse_loss),
    Pupil("LSTM", Recurrent, snippets, at="embed"),
    Pupil("GNN", GraphNet, digits),
    Pupil("critic", critic, real_and_made, hinge),
)
