"""Time and error (section 4.3) of a finished run, with the stored vectors of its training."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from torch import Tensor

from .. import checkpoint
from ..classification import trained_on
from ..config import RunConfig
from ..data import DataSet, Split
from ..nets import Normalized
from ..run_files import RunFiles
from .estimation import ITERATIONS, estimation
from .times import BATCH_SIZES, REPEATS, step_times

IMAGES = 1000  # enough for a mean


def cost(
    config: RunConfig,
    model: Normalized,
    data: DataSet,
    images: int | None,
    *,
    vectors: Tensor | None,
    batch_sizes: tuple[int, ...] = BATCH_SIZES,
    repeats: int = REPEATS,
    iterations: tuple[int, ...] = ITERATIONS,
) -> dict[str, Any]:
    """Measured on the training images, as in the paper. `vectors` are the stored u of these images."""
    train = trained_on(config, data).train.to(model.mean.device)
    few = Split(train.images[: images or IMAGES], train.labels[: images or IMAGES])
    sizes = tuple(size for size in batch_sizes if size <= len(few)) or (len(few),)
    times = step_times(model, few, batch_sizes=sizes, repeats=repeats)
    stored = None if vectors is None else vectors[: len(few)]
    errors = estimation(model, few, stored=stored, iterations=iterations)
    return {"times": times.to_json(), "estimation": errors.to_json()}


def stored_vectors(folder: Path, config: RunConfig) -> Tensor | None:
    """The u of each train image at the end of training. None if there are none or the file is missing."""
    if config.method != "spectral" or not config.warm_start:
        return None
    file = RunFiles(folder).checkpoint
    if not file.exists():  # as for published networks
        print(f"{folder}: no {file.name}, so no error from stored vectors", file=sys.stderr)
        return None
    tensors, _ = checkpoint.load(file)
    return checkpoint.part("penalty", tensors)["u"]
