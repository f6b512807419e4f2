"""Pictures. The global state of matplotlib is not used."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from torch import Tensor

from .. import SingularVectors
from ..plots import draw_direction, draw_histogram
from .errors import UsageError
from .looks import looks
from .sensitivity import Sensitivity


def sensitivity_picture(
    path: Path,
    s: Sensitivity,
    shown: Tensor,
    vectors: SingularVectors,
    images: Tensor,
    labels: Tensor,
    classes: tuple[str, ...],
    units: str,
) -> None:
    """A histogram of σ, and some images with their most sensitive directions."""
    k = vectors.S.shape[1]
    figure = Figure(figsize=(11, 1.9 + 1.4 * k), layout="constrained")
    halves: Any = figure.subfigures(1, 2, width_ratios=(1, 1.6))
    left, right = halves
    axes = left.subplots()
    axes.set_box_aspect(None if k == 1 else 1.1)  # beside many pictures it would be too tall
    draw_histogram(axes, s.sigma.numpy(), "images", f", with respect to {units}")
    right.suptitle(
        "Most sensitive images, and the changes (blue: brighter, red: darker) that\n"
        "move their outputs most, with the class that gains (↑) and the one that loses (↓)",
        fontsize=10,
    )
    grid = right.subplots(1 + k, len(shown), squeeze=False)
    for axes in grid.flat:
        axes.set_xticks([])
        axes.set_yticks([])
    for n, (column, i) in enumerate(zip(grid.T, shown.tolist(), strict=True)):
        column[0].set_title(_names(i, s, labels, classes), fontsize=8)
        column[0].imshow(_picture(images[i]), cmap="gray", vmin=0, vmax=1)
        for j, axes in enumerate(column[1:]):
            draw_direction(axes, vectors.V[n, j].sum(0).numpy())
            u = vectors.U[n, j].flatten()
            size = rf"$\sigma_{{{j + 1}}}$ = {vectors.S[n, j]:#.3g}"
            moved = f"{classes[int(u.argmax())]} ↑  {classes[int(u.argmin())]} ↓"
            axes.set_xlabel(f"{size}\n{moved}", fontsize=7, labelpad=2)
    save_figure(figure, path)


def noise_picture(path: Path, levels: Sequence[float], curves: dict[str, list[float]]) -> None:
    """Accuracy as the noise grows, with one line per method. Lines can be told apart without colour."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for (name, accuracies), look in zip(curves.items(), looks(curves), strict=True):
        axes.plot(levels, [100 * a for a in accuracies], label=name, linewidth=1.8, markersize=5, **look)
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
    except (ValueError, OSError) as error:  # an ending that matplotlib does not know, or no permission
        raise UsageError(f"{path}: {error}") from error


def to_svg(figure: Figure, name: str, caption: str) -> str:
    """The figure as SVG. Text stays text, so it can be searched and read aloud.

    Ids are unique within a page.
    """
    buffer = io.StringIO()
    with rc_context({"svg.hashsalt": "jacnorm", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = text.replace('xlink:href="#', f'xlink:href="#{name}-').replace("url(#", f"url(#{name}-")
    text = re.sub(r'^(<svg[^>]*?) width="[^"]*"', r"\1", text)
    text = re.sub(r'^(<svg[^>]*?) height="[^"]*"', r"\1", text)
    width = 96 * figure.get_figwidth()
    size = f"max-width: {width:.0f}px; min-width: {0.6 * width:.0f}px"  # so that letters keep their size
    return text.replace("<svg", f'<svg role="img" aria-label="{html.escape(caption)}" style="{size}"', 1)


def _names(i: int, s: Sensitivity, labels: Tensor, classes: tuple[str, ...]) -> str:
    label, predicted = classes[int(labels[i])], classes[int(s.predicted[i])]
    return label if label == predicted else f"{label},\ntaken for {predicted}"


def _picture(image: Tensor) -> Any:
    return image[0].numpy() if len(image) == 1 else image.permute(1, 2, 0).numpy()


def image_grid(path: Path, images: Tensor, columns: int = 16) -> None:
    """Images side by side, with values from 0 to 1. Each pixel is one pixel of the file."""
    from matplotlib.image import imsave

    rows = [np.concatenate([_picture(one) for one in row], 1) for row in images.split(columns)]
    whole = np.concatenate(rows).clip(0, 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    imsave(path, whole, cmap="gray", vmin=0, vmax=1)
