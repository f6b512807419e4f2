"""Making the file of a card from a model and data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from torch import nn

from ...pytorch.outputs import Output
from ..checkpoint import write_atomically
from ..errors import UsageError
from ..nets import weights_digest
from ..run import environment
from .content import Content
from .measuring import measure
from .subject import CardError, Scale, evaluating, giving, make_subject

ATTACKED = 200
IN_PYTHON = 'jn.card(model, x, y, path="{path}")'


def make_card(
    model: nn.Module,
    x: Any,
    y: Any,
    path: str | os.PathLike[str] = "card.html",
    *,
    title: str | None = None,
    data: str | None = None,
    classes: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    at: str | None = None,
    output: Output = None,
    epsilon: float | None = None,
    attacked: int = ATTACKED,
    rerun: str | None = None,
    scale: Scale | None = None,
) -> Path:
    """Measure, and write the file. `jacnorm.card` explains the arguments, and `make_subject` scale."""
    path = Path(path)
    _check(path, epsilon, attacked)
    if not isinstance(model, nn.Module):
        raise CardError(f"the model is a {type(model).__name__}: a card needs an nn.Module")
    with evaluating(model), giving(model, output) as taken:
        subject = make_subject(model, x, y, classes, names, at, scale)
        measured = measure(subject, attacked=attacked, epsilon=epsilon)
        shape = "×".join(map(str, subject.x.shape[1:]))
        about = f"{len(subject.x):,} {subject.sample}s of {data or shape}, {len(subject.classes)} classes"
        content = Content(
            title or f"{type(model).__name__}: how sensitive it is",
            about,
            rerun or IN_PYTHON.format(path=path),
            _facts(model, subject.x.device) | taken,
            measured,
        )
        html = to_html(content)
    try:
        write_atomically(path, html.encode())
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from error
    return path


def to_html(content: Content) -> str:
    templates = Environment(
        loader=PackageLoader("jacnorm.lab.card", "."),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return templates.get_template("card.html").render(c=content)


def _check(path: Path, epsilon: float | None, attacked: int) -> None:
    """Checks before the work starts."""
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}")
    if path.is_dir():
        raise UsageError(f"{path} is a folder: name a file, as {path / 'card.html'}")
    if attacked < 1:
        raise UsageError(f"attacked = {attacked}: it must be 1 or more")
    if epsilon is not None and epsilon <= 0:
        raise UsageError(f"epsilon = {epsilon}: it must be above 0")


def _facts(model: nn.Module, device: Any) -> dict[str, str]:
    parameters = sum(p.numel() for p in model.parameters())
    found = {"parameters": f"{parameters:,}", "weights (digest)": weights_digest(model)}
    return found | {name: str(value) for name, value in environment(device).items()}
