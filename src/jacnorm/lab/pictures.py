"""Pictures, drawn without any global state of matplotlib's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from .errors import UsageError
from .sensitivity import Sensitivity

# Lines that stay apart in black and white.
STYLES: tuple[dict[str, Any], ...] = (
    {"color": "0.35", "linestyle": ":", "marker": "o"},
    {"color": "#7a5195", "linestyle": "--", "marker": "s"},
    {"color": "#ef5675", "linestyle": "-.", "marker": "^"},
    {"color": "#003f5c", "linestyle": "-", "marker": "D"},
    {"color": "#ffa600", "linestyle": (0, (5, 1)), "marker": "v"},
)


def sensitivity_picture(
    path: Path, s: Sensitivity, images: Tensor, labels: Tensor, classes: tuple[str, ...], units: str
) -> None:
    """A histogram of σ, and the most sensitive images with the direction each is most sensitive to."""
    shown = s.most_sensitive(6)
    figure = Figure(figsize=(11, 3.1), layout="constrained")
    halves: Any = figure.subfigures(1, 2, width_ratios=(1, 1.5))
    left, right = halves
    _histogram(left.subplots(), s.sigma.numpy(), units)
    right.suptitle("Most sensitive images, and the change each output sees most", fontsize=10)
    grid = right.subplots(2, len(shown))
    for column, i in zip(grid.T, shown.tolist(), strict=True):
        column[0].set_title(f"σ = {s.sigma[i]:.2f}\n{_names(i, s, labels, classes)}", fontsize=8)
        column[0].imshow(_picture(images[i]), cmap="gray", vmin=0, vmax=1)
        direction = s.directions[i].sum(0).numpy()
        bound = float(np.abs(direction).max()) or 1.0
        column[1].imshow(direction, cmap="RdBu", vmin=-bound, vmax=bound)
        for axes in column:
            axes.set_xticks([])
            axes.set_yticks([])
    save_figure(figure, path)


def noise_picture(path: Path, levels: Sequence[float], curves: dict[str, list[float]]) -> None:
    """Accuracy as the noise grows, a line a method, told apart without colour too."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for (name, accuracies), style in zip(curves.items(), cycle(STYLES), strict=False):
        axes.plot(levels, [100 * a for a in accuracies], label=name, linewidth=1.8, markersize=5, **style)
    axes.set_xlabel("standard deviation of the noise on each pixel")
    axes.set_ylabel("test accuracy, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    save_figure(figure, path)


def save_figure(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        figure.savefig(path, dpi=150)
    except ValueError as error:  # an ending that matplotlib does not know
        raise UsageError(f"{path}: {error}") from error


def _histogram(axes: Any, sigma: Any, units: str) -> None:
    axes.hist(sigma, bins=40, color="0.55", edgecolor="white", linewidth=0.4)
    median = float(np.median(sigma))
    axes.axvline(median, color="black", linestyle="--", linewidth=1.2)
    axes.set_title(f"median {median:.2f} (dashed), largest {sigma.max():.2f}", fontsize=10)
    axes.set_xlabel(f"σ = ‖J(x)‖₂, with respect to {units}")
    axes.set_ylabel("images")
    axes.spines[["top", "right"]].set_visible(False)


def _names(i: int, s: Sensitivity, labels: Tensor, classes: tuple[str, ...]) -> str:
    label, predicted = classes[int(labels[i])], classes[int(s.predicted[i])]
    return label if label == predicted else f"{label}, taken for {predicted}"


def _picture(image: Tensor) -> Any:
    return image[0].numpy() if len(image) == 1 else image.permute(1, 2, 0).numpy()
