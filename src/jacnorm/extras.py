"""What needs more than torch and numpy: imported when it is called."""

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
    """Write one HTML file about how sensitive a classifier is, to be attached to it; returns its path.

    It tells σ of each sample and class, the most sensitive samples with their directions, σ beside the
    margin, accuracy under noise and a strong attack, an upper bound, and what to beware of. It needs the
    extra `lab`: pip install 'jacnorm[lab]'. The model is measured in evaluation mode, and afterwards it is
    in the mode that it was in.

    x, y
        Samples and their classes, (N,) integers; tensors or arrays. Images are (N, channels, height, width),
        best in [0, 1] with the normalization inside the model; a table is (N, features); tokens are integers,
        (N, length), and J is then taken at their embedding.
    title, data
        What stands on top: what the model is called, and what x is called.
    classes, names
        Names of the classes; of a table's features, or of all tokens by their number.
    at
        For tokens, the name of the embedding, if it is not plain which one takes them.
    output
        Of a model that returns more than a tensor, the name or position of the logits, or a function that
        takes them from the rest, as in `linearize`. Without it they are found, and a warning says which.
    epsilon
        Strength of the attack, the largest change of a value: by default 8/255 of images, a quarter of a
        standard deviation of each feature. Texts are attacked by changing one token.
    attacked
        How many samples are attacked. It takes longest.
    rerun
        The command that makes the card again, to stand at its end.
    """
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise JacnormError(f"A card needs {', '.join(missing)}: pip install 'jacnorm[lab]'.")
    from .lab.card import make_card

    how: dict[str, Any] = {"title": title, "data": data, "classes": classes, "names": names, "at": at}
    how |= {"output": output, "epsilon": epsilon, "attacked": attacked, "rerun": rerun}
    return make_card(model, x, y, path, **how)
