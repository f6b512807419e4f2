"""The pictures of a card: curves as SVG, samples and directions as small images."""

from __future__ import annotations

import io
from base64 import b64encode
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.image import imsave
from torch import Tensor

from ..evaluate.common import wilson
from ..pictures import to_svg
from .measuring import Measured

INK, BLUE, RED, GREY = "#1c1c22", "#005a8c", "#c43a31", "#8a8a94"
POINTS = 2000  # of a scatter plot; more would make the file large and hide each other
NOISE_AXIS = {
    "images": "standard deviation of the noise on each pixel",
    "table": "noise, in standard deviations of each feature",
    "text": "size of the noise (1: the size of the embedding)",
}


def histogram(m: Measured) -> str:
    sigma, right = m.sensitivity.sigma.numpy(), m.right.numpy()
    figure, axes = _axes(3.0)
    edges = np.histogram_bin_edges(sigma, bins=min(40, max(8, len(sigma) // 10)))
    axes.hist(
        [sigma[right], sigma[~right]],
        bins=edges,
        stacked=True,
        color=["#7aa6c2", RED],
        label=["right", "wrong"],
        edgecolor="white",
        linewidth=0.4,
    )
    axes.axvline(float(np.median(sigma)), color=INK, linestyle="--", linewidth=1.2, label="median")
    axes.set_xlabel(f"σ = ‖J(x)‖₂, per {_per(m)}")
    axes.set_ylabel(f"{m.subject.sample}s")
    axes.set_xlim(left=0)
    axes.legend(frameon=False, fontsize=9)
    return to_svg(figure, "card-sigma", "How σ is spread over the samples")


def relation(m: Measured) -> str:
    """σ and margin of each sample. Both count together."""
    sigma, margin, right = (t.numpy()[:POINTS] for t in (m.sensitivity.sigma, m.margin, m.right))
    figure, axes = _axes(3.4)
    axes.axhline(0, color=INK, linewidth=0.8)
    look: dict[str, Any] = {"s": 9, "alpha": 0.45, "linewidths": 0}
    axes.scatter(sigma[right], margin[right], color=BLUE, marker="o", label="right", **look)
    axes.scatter(
        sigma[~right], margin[~right], color=RED, marker="X", label="wrong", **look | {"s": 20, "alpha": 0.8}
    )
    axes.set_xlabel("σ")
    axes.set_ylabel("margin, right score − best other")
    axes.set_xlim(left=0)
    axes.legend(frameon=False, fontsize=9)
    return to_svg(figure, "card-margin", "Margin against σ, one point per sample")


def noise(m: Measured) -> str:
    figure, axes = _axes(3.0)
    levels = [0.0, *m.noise.levels]
    parts = [float(m.right.double().mean()), *m.noise.accuracy]
    ends = np.array([wilson(part, m.noise.count) for part in parts])
    axes.fill_between(levels, *(100 * ends.T), color=BLUE, alpha=0.15, linewidth=0)
    axes.plot(levels, [100 * part for part in parts], color=BLUE, marker="o", linewidth=1.8, markersize=5)
    for level, part in zip(levels, parts, strict=True):
        axes.annotate(
            f"{100 * part:.0f}",
            (level, 100 * part),
            (0, 6),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    axes.set_ylim(0, 108)
    axes.set_yticks(range(0, 101, 20))
    axes.set_xlabel(NOISE_AXIS[m.subject.kind])
    axes.set_ylabel("accuracy, %")
    return to_svg(figure, "card-noise", "Accuracy as noise grows")


def _axes(height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(5.5, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.2)
    axes.set_axisbelow(True)
    return figure, axes


def _per(m: Measured) -> str:
    return {"images": "unit of 2-norm", "table": "standard deviation", "text": "unit of the embedding"}[
        m.subject.kind
    ]


def image(pixels: Tensor) -> str:
    """A PNG as a data URI. If values leave [0, 1], the smallest is black and the largest is white."""
    low, high = min(0.0, float(pixels.min())), max(1.0, float(pixels.max()))
    shown = ((pixels - low) / (high - low)).float().numpy()
    return _png(shown.transpose(1, 2, 0) if len(shown) == 3 else shown.mean(0))


def direction(v: Tensor) -> str:
    """The direction as a picture: blue is more, red is less. Channels are added up."""
    flat = v.sum(0).float().numpy()
    bound = float(np.abs(flat).max()) or 1.0
    return _png(flat, cmap="RdBu", vmin=-bound, vmax=bound)


def _png(pixels: Any, **how: Any) -> str:
    buffer = io.BytesIO()
    look: dict[str, Any] = {"cmap": "gray", "vmin": 0, "vmax": 1} | how
    imsave(buffer, pixels, format="png", **look)
    return f"data:image/png;base64,{b64encode(buffer.getvalue()).decode()}"
