"""Functions that need more packages than torch and numpy. The packages are imported when they are called."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import nn

from .errors import JacnormError
from .pytorch.outputs import Output

NEEDED = ("foolbox", "jinja2", "matplotlib", "safetensors", "tqdm")


def card(
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
    attacked: int = 200,
    rerun: str | None = None,
) -> Path:
    """Write a model card: one HTML file about how sensitive a classifier is. Returns the path of the file.

    The card shows σ per sample and per class, the most sensitive samples with their directions, σ beside the
    margin, accuracy under noise and under a strong attack, an upper bound, and warnings. It needs the extra
    `lab`: pip install 'jacnorm[lab]'. The model is measured in evaluation mode; afterwards its mode is
    restored. Raises `JacnormError` if a package is missing.

    model
        The classifier: it takes x and returns one row of scores per sample.
    x
        The samples, a tensor or array. Images have shape (N, channels, height, width), preferably with values
        in [0, 1] and the normalization inside the model. Tables have shape (N, features). Tokens are
        integers of shape (N, length), and J is then taken at their embedding.
    y
        The class of each sample, (N,) integers, a tensor or array.
    path
        The file to write.
    title, data
        The name of the model and the name of the data, for the heading.
    classes, names
        The names of the classes, and the names of the features of a table or of all tokens.
    at
        For tokens, the name of the embedding, if the model has several.
    output
        As in `linearize`, for a model that returns more than one tensor: the name or position of the logits,
        or a function that takes them from the result. By default they are found, and a warning names them.
    epsilon
        The strength of the attack: the largest change of one value. The default is 8/255 for images, and a
        quarter of the standard deviation of each feature for tables. Texts are attacked by changing one
        token.
    attacked
        How many samples are attacked. This part takes longest.
    rerun
        The command that makes the card again. It is printed at the end of the card.
    """
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise JacnormError(f"A card needs {', '.join(missing)}: pip install 'jacnorm[lab]'.")
    from .lab.card import make_card

    how: dict[str, Any] = {"title": title, "data": data, "classes": classes, "names": names, "at": at}
    how |= {"output": output, "epsilon": epsilon, "attacked": attacked, "rerun": rerun}
    return make_card(model, x, y, path, **how)
