"""jacnorm demo"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch

from ..classification import score
from ..cli import add_command
from ..config import RunConfig
from ..data import DataSet, Split, load
from ..progress import Progress
from ..run_files import load_run
from ..train import train
from ..wording import table

METHODS = {"none": 1.0, "weight-decay": 0.01, "frobenius": 0.003, "spectral": 0.1}  # each with its weight λ
EPOCHS = 60
TRAIN_IMAGES = 300  # few, so that a network overfits
NOISE = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
SHOWN = 0.3  # the noise in the table


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "demo",
        "Train on a few real digits with and without regularizers, and compare.",
        "jacnorm demo",
    )
    parser.add_argument(
        "--picture", type=Path, default=Path("runs/demo.png"), help="file to write (default: %(default)s)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    data = few_digits()
    print(f"{len(data.train)} digits to train on, {len(data.test)} to test on, {EPOCHS} epochs, one seed:\n")
    rows = [["penalty", "accuracy", f"with noise of {SHOWN}", "mean σ"]]
    curves: dict[str, list[float]] = {}
    for method, weight in METHODS.items():
        config = RunConfig(method=method, weight=weight, epochs=EPOCHS, learning_rate=0.03)
        with tempfile.TemporaryDirectory() as folder:
            result = train(config, data, Path(folder), progress=Progress(only_bar=True))
            model = load_run(Path(folder), config, data)
        curves[method] = [score(model, noisy(data.test, sd))["accuracy"] for sd in NOISE]
        noised = curves[method][NOISE.index(SHOWN)]
        rows.append([method, f"{curves[method][0]:.1%}", f"{noised:.1%}", f"{result['test']['sigma']:.2f}"])
    print(table(rows))
    print(
        "\nσ is the largest factor by which the network stretches a small change of its (normalized) input.\n"
        "Penalties make it smaller and mostly help against noise. Clean accuracy hardly differs on digits."
    )
    from ..pictures import noise_picture  # here, since importing matplotlib is slow

    noise_picture(args.picture, NOISE, curves)
    print(f"Picture of accuracy against noise: {args.picture}")
    print("Next: jacnorm train --method spectral --weight 0.1; jacnorm measure --help; docs/index.md")


def few_digits() -> DataSet:
    data = load("digits")
    few = Split(data.train.images[:TRAIN_IMAGES], data.train.labels[:TRAIN_IMAGES])
    rest = Split(
        torch.cat([data.train.images[TRAIN_IMAGES:], data.test.images]),
        torch.cat([data.train.labels[TRAIN_IMAGES:], data.test.labels]),
    )
    return DataSet.of("digits", few, rest, data.classes)


def noisy(split: Split, sd: float) -> Split:
    """The images with white noise on every pixel, clipped to [0, 1], as in section 4.2.1."""
    drawn = torch.randn(split.images.shape, generator=torch.Generator().manual_seed(0))
    return Split((split.images + sd * drawn).clamp(0, 1), split.labels)
