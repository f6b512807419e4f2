"""How good the estimates are: the error of σ during training, and the cosine with the exact gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ... import linearize, spectral_norm
from ..data import DataSet, Split, batches
from ..nets import LeNet
from ..progress import progress
from .ways import DEFAULT, EXACT, WEIGHT, Penalize, Way

PROBED = 50  # batches per epoch on which all ways estimate σ


class Following:
    """A LeNet trained with the default. Every other way watches the same batches and has its own memory."""

    def __init__(self, data: DataSet, ways: Sequence[Way], batch_size: int = 32, seed: int = 0):
        torch.manual_seed(seed)
        self.net = LeNet()
        self.ways: dict[str, Penalize] = {w.name: w.make(self.net) for w in ways}
        mean, std = data.train.images.mean(), data.train.images.std()
        self.split = Split((data.train.images - mean) / std, data.train.labels)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.8)
        self.batch_size, self._order = batch_size, torch.Generator().manual_seed(seed)

    def epoch(self) -> dict[str, float]:
        """Train for one epoch. Returns |mean estimate − mean σ| / mean σ, the mean of probed batches."""
        errors: dict[str, list[float]] = {name: [] for name in self.ways}
        count = -(-len(self.split) // self.batch_size)
        with progress(count, "training", " batches") as bar:
            for i, (index, x, labels) in enumerate(batches(self.split, self.batch_size, self._order)):
                probed = (i + 1) % (count // PROBED or 1) == 0
                exact = (
                    float(spectral_norm(linearize(self.net, x), tol=1e-4).sigma.mean()) if probed else None
                )
                output, penalty = self.ways[DEFAULT](x, index)
                for name, value in self._values(x, index, penalty, all_of_them=probed).items():
                    if exact:
                        errors[name].append(abs(value / WEIGHT - exact) / exact)
                self._step(F.cross_entropy(output, labels) + penalty)
                bar.update()
        return {name: sum(found) / len(found) for name, found in errors.items()}

    def _values(self, x: Tensor, index: Tensor, default: Tensor, all_of_them: bool) -> dict[str, float]:
        """The penalty of each way. Ways with a memory see every batch."""
        values = {DEFAULT: default.item()}
        for name, way in self.ways.items():
            if name != DEFAULT and (all_of_them or "index=" in name or "stored" in name):
                values[name] = _value(way, x, index)
        return values

    def _step(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def cosines(self, images: int = 256) -> dict[str, float]:
        """Between the gradient of each way's penalty, with the memory it has, and the exact gradient."""
        index = torch.arange(images)
        x = self.split.images[index]
        exact = _gradient(self.net, EXACT.make(self.net), x, index)
        found = {name: _gradient(self.net, way, x, index) for name, way in self.ways.items()}
        return {name: float(F.cosine_similarity(g, exact, dim=0)) for name, g in found.items()}


def _value(way: Penalize, x: Tensor, index: Tensor) -> float:
    """The penalty, with a backward pass, since some ways learn from it. The gradients are thrown away."""
    _, penalty = way(x, index)
    penalty.backward()
    return penalty.item()


def _gradient(net: nn.Module, way: Penalize, x: Tensor, index: Tensor) -> Tensor:
    _, penalty = way(x, index)
    parameters = list(net.parameters())
    found = torch.autograd.grad(penalty, parameters, allow_unused=True)
    pairs = zip(found, parameters, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])
