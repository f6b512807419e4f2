"""The numbers of a card."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from ... import Diagnosis, JacnormError, SingularVectors, linearize, product_bound, spectral_norm
from ...diagnosis.examine import examine
from ..attacks.losses import margin
from ..data import Split
from ..evaluate.common import generator_on, share
from ..evaluate.judge import are_suspicious, judge
from ..evaluate.noise import white_noise
from ..nets import Normalized
from ..progress import progress
from ..sensitivity import Sensitivity, directions, sensitivities
from .embedding import FromEmbedding, blind_to, swapped, swapped_at_random
from .subject import CHUNK, CardError, Rescaled, Subject, in_box

NOISE = {"images": (0.1, 0.2, 0.3, 0.5), "table": (0.1, 0.25, 0.5, 1.0), "text": (0.1, 0.25, 0.5, 1.0)}
EPSILON = {"images": 8 / 255, "table": 0.25, "text": 0.0}
SHOWN = {"images": 6, "table": 3, "text": 3}  # samples of each kind: the most and the least sensitive
BOUNDED = 4  # samples at which the product of layers is taken; for piecewise linear networks it is the same
EXAMINED = 8
LARGEST = 1 << 24  # numbers that an attack on tokens holds at a time


@dataclass(frozen=True)
class Noise:
    """Accuracy with noise of each standard deviation."""

    levels: tuple[float, ...]
    accuracy: tuple[float, ...]
    count: int


@dataclass(frozen=True)
class Attack:
    """The share of samples that withstand all attacks so far, after each attack, and doubts about it."""

    clean: float
    names: tuple[str, ...]
    left: tuple[float, ...]
    epsilon: float  # in the card's units
    count: int
    alarm: str | None


@dataclass(frozen=True)
class ProductBound:
    """The product of the layers' norms at the most sensitive samples, or the reason why there is none."""

    value: float | None
    times: float | None  # how many times their σ it is
    reason: str | None


@dataclass(frozen=True, eq=False)
class Measured:
    subject: Subject
    sensitivity: Sensitivity
    margin: Tensor  # of each sample, negative where the model is wrong
    shown: Tensor  # the most sensitive, then the least sensitive
    vectors: SingularVectors  # of the shown samples
    overall: Tensor | None  # of a table: each feature's part of σ², mean over the samples
    noise: Noise
    attack: Attack
    bound: ProductBound
    diagnosis: Diagnosis

    @property
    def right(self) -> Tensor:
        return self.margin > 0

    @property
    def reach(self) -> Tensor:
        """margin / (√2 σ). To first order no shorter change alters the class. 0 where the class is wrong."""
        tiny = torch.finfo(self.margin.dtype).tiny
        return (self.margin / (sqrt(2) * self.sensitivity.sigma.clamp_min(tiny))).clamp_min(0)


def measure(subject: Subject, *, attacked: int, epsilon: float | None, seed: int = 0) -> Measured:
    model, x, at = subject.model, subject.x, subject.at
    found = sensitivities(model, x, at=at)
    order = found.sigma.argsort(descending=True)
    n = min(SHOWN[subject.kind], len(x) // 2)
    shown = torch.cat([order[:n], order.flip(0)[:n]])
    overall = None if subject.kind != "table" else _overall(model, x)
    robustness = _on_text if subject.kind == "text" else _in_box
    return Measured(
        subject,
        found,
        margin(subject.logits, subject.y).cpu(),
        shown,
        directions(model, x[shown.to(x.device)], 1, at),
        overall,
        *robustness(subject, attacked, EPSILON[subject.kind] if epsilon is None else epsilon, seed),
        _bound(subject, found),
        _examined(subject),
    )


def _overall(model: nn.Module, x: Tensor) -> Tensor:
    v = torch.cat([directions(model, chunk, 1).V[:, 0] for chunk in x.split(CHUNK)])
    return v.square().mean(0)


def _in_box(subject: Subject, attacked: int, epsilon: float, seed: int) -> tuple[Noise, Attack]:
    model, x, unit = in_box(subject)
    model.eval()
    split = Split(x, subject.y)
    levels = NOISE[subject.kind]
    noisy = white_noise(model, split, variances=tuple((level / unit) ** 2 for level in levels), seed=seed)
    few = split.take(chosen(len(split), attacked))
    judged = judge(model, few, epsilon=epsilon / unit, seed=seed)
    names = ("APGD on the cross-entropy", "APGD towards each class", "a minimum-norm attack", "Square")
    return (
        Noise(levels, noisy.accuracy, len(split)),
        Attack(judged.clean, names, judged.robust, epsilon, len(few), judged.alarm),
    )


def chosen(count: int, attacked: int) -> Tensor:
    """Positions spread evenly over all samples, since samples of a class may stand together."""
    return torch.linspace(0, count - 1, min(count, attacked)).round().long()


def _on_text(subject: Subject, attacked: int, epsilon: float, seed: int) -> tuple[Noise, Attack]:
    del epsilon  # one token changes, so there is no strength
    assert subject.at is not None
    index = chosen(len(subject.x), attacked).to(subject.x.device)
    tokens, labels = subject.x[index], subject.y[index]
    generator = generator_on(tokens.device, seed)
    right = subject.logits[index].argmax(1) == labels
    by_gradient = _fooled(subject, tokens, labels, swapped)
    at_random = _fooled(subject, tokens, labels, swapped_at_random, generator)
    left, both = right & ~by_gradient, right & ~by_gradient & ~at_random
    missed = int(left.sum() - both.sum())
    blind = sum(blind_to(subject.model, subject.at, *pair) for pair in _chunks(subject, tokens, labels))
    names = ("one token changed, as the gradient says", "one token changed at random")
    shares = tuple(map(share, (left, both)))
    alarm = _alarm(missed, blind, len(tokens))
    return _noise_on_embedding(subject, seed), Attack(share(right), names, shares, 1, len(tokens), alarm)


def _fooled(
    subject: Subject, tokens: Tensor, labels: Tensor, attack: Callable[..., Tensor], *more: Any
) -> Tensor:
    parts = []
    with progress(len(tokens), "changed tokens", " texts") as bar:
        for pair in _chunks(subject, tokens, labels):
            parts.append(attack(subject.model, subject.at, *pair, *more))
            bar.update(len(pair[0]))
    return torch.cat(parts)


def _chunks(subject: Subject, tokens: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    size = max(1, LARGEST // (tokens.shape[1] * len(subject.names)))
    return zip(tokens.split(size), labels.split(size), strict=True)


def _alarm(missed: int, blind: int, count: int) -> str | None:
    reasons = []
    if are_suspicious(missed, count):
        reasons.append(f"random changes fooled {missed} texts that the gradient's did not")
    if are_suspicious(blind, count):
        reasons.append(f"the loss has no gradient at {blind} of {count} texts")
    return "gradients may be masked: " + ", and ".join(reasons) if reasons else None


@torch.no_grad()
def _noise_on_embedding(subject: Subject, seed: int) -> Noise:
    """Accuracy with noise on the embedding. The unit is the embedding's root mean square."""
    assert subject.at is not None
    levels = NOISE["text"]
    generator = generator_on(subject.x.device, seed)
    correct = torch.zeros(len(levels), dtype=torch.int64)
    with progress(len(subject.x), "white noise", " texts") as bar:
        for tokens, labels in zip(subject.x.split(CHUNK), subject.y.split(CHUNK), strict=True):
            embedded = subject.model.get_submodule(subject.at)(tokens)
            size = embedded.square().mean().sqrt()
            drawn = torch.randn(embedded.shape, generator=generator, device=tokens.device) * size
            model = FromEmbedding(subject.model, subject.at, tokens)
            for i, level in enumerate(levels):
                correct[i] += int((model(embedded + level * drawn).argmax(1) == labels).sum())
            bar.update(len(tokens))
    return Noise(levels, tuple((correct.double() / len(subject.x)).tolist()), len(subject.x))


def _bound(subject: Subject, found: Sensitivity) -> ProductBound:
    index = found.most_sensitive(BOUNDED)
    try:
        bound = _product(subject, subject.x[index.to(subject.x.device)]).cpu()
    except JacnormError as error:
        return ProductBound(None, None, str(error))
    if not torch.isfinite(bound).all():
        return ProductBound(None, None, "it overflows")
    return ProductBound(float(bound.max()), float((bound / found.sigma[index]).min()), None)


@torch.no_grad()
def _product(subject: Subject, x: Tensor) -> Tensor:
    """The product of the layers' norms. Units and normalization count as part of the first layer. With a
    factor of their own, the bound would mostly depend on units."""
    model = subject.model
    first = subject.at or _first_layer(model)
    if first is None or subject.at is not None:
        return product_bound(linearize(model, x, at=first))
    return spectral_norm(linearize(model, x, to=first)).sigma * product_bound(linearize(model, x, at=first))


def _first_layer(model: nn.Module, name: str = "") -> str | None:
    """The first linear layer or convolution, if it is clear that all of the input passes through it."""
    while isinstance(model, Rescaled | Normalized):
        part = "model" if isinstance(model, Rescaled) else "body"
        model, name = model.get_submodule(part), f"{name}{part}."
    children = model.named_children() if isinstance(model, nn.Sequential) else ()
    layers = (nn.Linear, nn.Conv1d, nn.Conv2d)
    return next((f"{name}{child}" for child, layer in children if isinstance(layer, layers)), None)


def _examined(subject: Subject) -> Diagnosis:
    x, model = subject.x[:EXAMINED], subject.model
    if subject.at is not None:
        with torch.no_grad():
            embedded = model.get_submodule(subject.at)(x)
        found = examine(FromEmbedding(model, subject.at, x).eval(), embedded)
    else:
        found = examine(model, x)
    if not found.served:
        raise CardError(f"the model cannot be measured: {found.problem}")
    return found
