"""Pictures of measurements, if matplotlib is installed. Its global state is left alone."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import torch
from torch import Tensor

from .errors import JacnormError

SHOWN = 6  # samples
DIRECTIONS = 5
COLORS = {"linear": "#003f5c", "piecewise linear": "#3a86c8", "smooth": "#7a5195", "by autograd": "#ef5675"}
OTHER = "0.6"


def plot_estimate(sigma: Tensor, v: Tensor) -> Any:
    """The distribution of σ. For images also the directions of the most sensitive samples."""
    with_images = v.dim() == 4
    figure = _figure(figsize=(9.5 if with_images else 5.5, 3.4), layout="constrained")
    left = figure
    if with_images:
        left, right = figure.subfigures(1, 2, width_ratios=(1, 1.1))
        order = sigma.argsort(descending=True)[:SHOWN]
        right.suptitle("most sensitive: position, and the direction that moves the output most", fontsize=9)
        grid = right.subplots(2, -(-len(order) // 2), squeeze=False)
        _empty(grid)
        for axes, i in zip(grid.flat, order.tolist(), strict=False):
            draw_direction(axes, v[i].sum(0).detach().cpu().float().numpy())
            axes.set_title(f"#{i}, σ = {sigma[i]:#.3g}", fontsize=8)
    draw_histogram(left.subplots(), sigma.detach().cpu().float().numpy(), "samples")
    return figure


def plot_vectors(S: Tensor, V: Tensor, x: Tensor | None) -> Any:
    """One column per sample, one row per direction; x itself on top, if it is given."""
    count, k = min(len(S), SHOWN), min(S.shape[1], DIRECTIONS)
    above = x is not None
    figure = _figure(figsize=(1.2 + 1.5 * count, 0.6 + 1.5 * (k + above)), layout="constrained")
    grid = figure.subplots(k + above, count, squeeze=False)
    _empty(grid)
    for n, column in enumerate(grid.T):
        column[0].set_title(f"#{n}", fontsize=9)
        if x is not None:
            _sample(column[0], x[n].detach().cpu().float())
        for j, axes in enumerate(column[above:]):
            _direction(axes, V[n, j].detach().cpu().float())
            axes.set_xlabel(f"σ = {S[n, j]:#.3g}", fontsize=8)
    return figure


def plot_calls(rows: list[tuple[str, str, float]]) -> Any:
    """One bar per row (call, rule, fraction of the time), the first on top."""
    figure = _figure(figsize=(7, 1.2 + 0.28 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for rule in dict.fromkeys(rule for _, rule, _ in rows):
        places = [i for i, row in enumerate(rows) if row[1] == rule]
        widths = [100 * rows[i][2] for i in places]
        axes.barh(places, widths, color=COLORS.get(rule, OTHER), label=rule)
    axes.set_yticks(range(len(rows)), [what for what, _, _ in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel("time of the forward pass, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(title="rule", frameon=False, fontsize=8, title_fontsize=8)
    return figure


def draw_histogram(axes: Any, sigma: Any, counted: str, per: str = "") -> None:
    axes.hist(sigma, bins=min(40, max(8, len(sigma) // 4)), color="0.55", edgecolor="white", linewidth=0.4)
    median = float(torch.from_numpy(sigma).quantile(0.5))
    axes.axvline(median, color="black", linestyle="--", linewidth=1.2)
    axes.set_title(f"median {median:#.3g} (dashed), largest {sigma.max():#.3g}", fontsize=10)
    axes.set_xlabel(f"σ = ‖J(x)‖₂{per}")
    axes.set_ylabel(counted)
    axes.spines[["top", "right"]].set_visible(False)


def draw_direction(axes: Any, v: Any) -> None:
    """Draw v as an image: blue is an increase of the pixel, red a decrease."""
    bound = float(abs(v).max()) or 1.0
    axes.imshow(v, cmap="RdBu", vmin=-bound, vmax=bound)


def _sample(axes: Any, x: Tensor) -> None:
    if x.dim() != 3:
        axes.bar(range(x.numel()), x.flatten().numpy(), color="0.6")
        return
    low, high = float(x.min()), float(x.max())
    pixels = ((x - low) / ((high - low) or 1.0)).numpy()
    axes.imshow(pixels.transpose(1, 2, 0) if len(pixels) == 3 else pixels.mean(0), cmap="gray")


def _direction(axes: Any, v: Tensor) -> None:
    if v.dim() == 3:
        draw_direction(axes, v.sum(0).numpy())
        return
    values = v.flatten().numpy()
    axes.bar(range(len(values)), values, color=["#2f6fb0" if value > 0 else "#c43a31" for value in values])


def _empty(grid: Any) -> None:
    for axes in grid.flat:
        axes.set_xticks([])
        axes.set_yticks([])


def _figure(**how: Any) -> Any:
    return _figure_class()(**how)


@cache
def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise JacnormError("plot() needs matplotlib: pip install matplotlib") from error

    class Picture(Figure):
        """A figure that notebooks show without pyplot."""

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=110)
            return buffer.getvalue()

    return Picture
