"""The subject of a card: a model, samples with labels, and the units of changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...errors import InputError
from ...pytorch.outputs import Name, Output
from ...recording import tell_of
from ..errors import UsageError
from ..nets import OneOutput
from ..tokens import find_embedding

Kind = Literal["images", "table", "text"]
Scale = tuple[Sequence[float], Sequence[float]]  # mean and standard deviation of each feature
SAMPLE = {"images": "image", "table": "row", "text": "text"}
CHUNK = 500
OF_ROWS = "standard deviations of each feature over these rows"
OF_TRAIN = "standard deviations of each feature over the train split"


class CardError(UsageError):
    """No card can be made of this model or data. The message says why, and where."""


class Rescaled(nn.Module):
    """The model as a function of p, where x = shift + scale · p."""

    shift: Tensor
    scale: Tensor

    def __init__(self, model: nn.Module, shift: Tensor, scale: Tensor):
        super().__init__()
        self.model = model
        self.register_buffer("shift", shift)
        self.register_buffer("scale", scale)

    def forward(self, p: Tensor) -> Tensor:
        return self.model(self.shift + self.scale * p.to(self.scale.dtype))


@dataclass(frozen=True, eq=False)
class Subject:
    """`model` takes `x`: images, rows in standard deviations of each feature, or tokens."""

    model: nn.Module
    x: Tensor
    y: Tensor
    logits: Tensor
    kind: Kind
    classes: tuple[str, ...]
    names: tuple[str, ...]  # of features or of tokens
    at: str | None  # the embedding, for tokens
    units: str  # of a change of the input

    @property
    def sample(self) -> str:
        return SAMPLE[self.kind]


def make_subject(
    model: nn.Module,
    x: Any,
    y: Any,
    classes: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    at: str | None = None,
    scale: Scale | None = None,
) -> Subject:
    """The subject, checked and in the units of the card.

    `scale` is that of a table's train split, as in `jacnorm measure`. By default a table is scaled by the
    rows of x.
    """
    x, y = _samples(model, x, y)
    kind = _kind(x)
    _check_finite(x, names)
    logits = _outputs(model, x)
    _check_labels(y, logits.shape[1])
    classes = _named("classes", classes, logits.shape[1], "output of the model")
    if kind == "text":
        at = find_embedding(model, x[:2], at)
        embedding: Any = model.get_submodule(at)
        names = _named("names", names, embedding.num_embeddings, "token of the embedding", first="token ")
        return Subject(model, x, y, logits, kind, classes, names, at, "the embedding of each token")
    if at is not None:
        raise CardError("at= is for tokens; x holds numbers, so that J is with respect to x itself")
    if kind == "table":
        names = _named("names", names, x.shape[1], "column of x", first="feature ")
        own = x.mean(0), x.std(0, correction=0)
        mean, std = own if scale is None else (torch.tensor(part).to(x) for part in scale)
        z = (x - mean) / std.clamp_min(torch.finfo(x.dtype).tiny)
        units = OF_ROWS if scale is None else OF_TRAIN
        return Subject(Rescaled(model, mean, std), z, y, logits, kind, classes, names, None, units)
    units = "pixels from 0 to 1" if _are_pixels(x) else "the model's input"
    return Subject(model, x, y, logits, kind, classes, (), None, units)


def in_box(subject: Subject) -> tuple[nn.Module, Tensor, float]:
    """Model and inputs in [0, 1], (N, C, H, W), for noise and attacks; and the size of 1 in the card's units.

    Images that are not pixels are mapped from the range of each channel. The box of a table extends from each
    mean as far as the data.
    """
    x = subject.x
    if subject.kind == "table":
        reach = 2 * float(x.abs().max())
        shift, scale = torch.tensor(-reach / 2).to(x), torch.tensor(reach).to(x)
        flat = nn.Sequential(nn.Flatten(), Rescaled(subject.model, shift, scale))
        return flat, ((x - shift) / scale).clamp(0, 1).float()[:, None, None, :], reach
    if _are_pixels(x):
        return (
            Rescaled(subject.model, torch.zeros((), dtype=x.dtype), torch.ones((), dtype=x.dtype)),
            x.float(),
            1.0,
        )
    low, high = x.amin((0, 2, 3), keepdim=True)[0], x.amax((0, 2, 3), keepdim=True)[0]
    scale = (high - low).clamp_min(torch.finfo(x.dtype).tiny)
    return Rescaled(subject.model, low, scale), ((x - low) / scale).clamp(0, 1).float(), 1.0


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode. Afterwards each module has its earlier mode again."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def giving(model: nn.Module, output: Output) -> Iterator[dict[str, str]]:
    """Make the model return one tensor, its logits. Yields notes about an output that was found."""
    taken: dict[str, str] = {}

    def tell(name: Name) -> None:
        taken["output"] = str(name)
        tell_of(name, model)

    handle = model.register_forward_hook(OneOutput(output, tell))
    try:
        yield taken
    finally:
        handle.remove()


def _samples(model: nn.Module, x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """x and y on the model's device, x in its precision."""
    x, y = torch.as_tensor(x), torch.as_tensor(y)
    if y.is_floating_point() or y.dim() != 1:
        raise CardError(
            f"labels are {y.dtype} of shape {tuple(y.shape)}: a card needs the position of the right class, "
            "one integer per sample"
        )
    if len(x) != len(y) or len(x) == 0:
        raise CardError(
            f"x has {len(x)} samples and y {len(y)} labels: give one label per sample, and one sample or more"
        )
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    return x.to(like.device, like.dtype if x.is_floating_point() else torch.int64), y.to(like.device).long()


def _kind(x: Tensor) -> Kind:
    if x.is_floating_point() and x.dim() == 4:
        return "images"
    if x.dim() == 2:
        return "table" if x.is_floating_point() else "text"
    raise CardError(
        f"x has shape {tuple(x.shape)}: a card takes images (N, channels, height, width), "
        "a table (N, features) or integer tokens (N, length)"
    )


def _check_finite(x: Tensor, names: Sequence[str] | None) -> None:
    bad = (~torch.isfinite(x)).nonzero() if x.is_floating_point() else x.new_zeros(0)
    if len(bad):
        row, column = int(bad[0, 0]), int(bad[0, 1])
        named = f" ({names[column]})" if names and x.dim() == 2 and column < len(names) else ""
        where = f", column {column}{named}" if x.dim() == 2 else ""
        raise CardError(f"x has NaN or inf at {len(bad)} places, the first in sample {row}{where}")


@torch.no_grad()
def _outputs(model: nn.Module, x: Tensor) -> Tensor:
    parts = [_output(model, chunk) for chunk in x.split(CHUNK)]
    logits = torch.cat(parts)
    bad = (~torch.isfinite(logits)).any(1).nonzero()[:, 0]
    if len(bad):
        raise CardError(
            f"the model gives NaN or inf for {len(bad)} of {len(x)} samples, first for sample {int(bad[0])}"
        )
    return logits


def _output(model: nn.Module, x: Tensor) -> Tensor:
    try:
        y = model(x)
    except InputError as error:  # the outputs cannot be used
        raise CardError(str(error)) from error
    except Exception as error:  # the user's code may raise anything
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise CardError(f"the model does not take x of shape {tuple(x.shape[1:])}: {first}") from error
    if not isinstance(y, Tensor):
        raise CardError(f"output= gave a {type(y).__name__}: a card needs a tensor of logits")
    if y.shape[:1] != x.shape[:1] or y.dim() != 2 or y.shape[1] < 2:
        raise CardError(
            f"the model gives {tuple(y.shape)} for {len(x)} samples: a card needs one row of two or more "
            "logits per sample"
        )
    return y


def _check_labels(y: Tensor, outputs: int) -> None:
    wrong = ((y < 0) | (y >= outputs)).nonzero()[:, 0]
    if len(wrong):
        first = int(wrong[0])
        raise CardError(
            f"label {int(y[first])} of sample {first} is not one of the model's {outputs} classes, "
            f"0 to {outputs - 1}"
        )
    if len(y.unique()) == 1:
        raise CardError(
            f"all {len(y)} labels are {int(y[0])}: a card compares classes, give samples of two or more"
        )


def _named(
    option: str, given: Sequence[str] | None, count: int, what: str, first: str = ""
) -> tuple[str, ...]:
    if given is None:
        return tuple(f"{first}{i}" for i in range(count))
    if len(given) != count:
        raise CardError(f"{option}= has {len(given)} names: {count} are needed, one for each {what}")
    return tuple(map(str, given))


def _are_pixels(x: Tensor) -> bool:
    return bool(((x >= 0) & (x <= 1)).all())
