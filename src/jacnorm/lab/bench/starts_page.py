"""The table and the picture of `jacnorm bench starts`."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from ..figures.common import tidy
from ..wording import markdown_table

Found = dict[str, Any]  # net -> "untrained", "trained" -> a dict for each way
ASKED = 0.9  # cosine


def starts_in_words(found: Found) -> str:
    text = (
        "Where the iteration starts, on small networks that learn real things (digits, text). Each number is "
        "the cosine between the gradient of the penalty and that of the exact one, on new batches of 32 "
        "(with `index=`, on known ones), first of the untrained network, then after training without a "
        "penalty; a way with a memory has looked on at the last steps. Products are sweeps of J or Jᵀ, "
        "without the terms; with `rounds=auto` they are a mean. Without `index=` the default is *recent "
        "samples* with one round. Where the directions that it finds are too far from those of ten rounds "
        f"more, a warning names `index=` and `iterations=`. Here that is so on {_warned(found)}."
    )
    return f"## Where to start\n\n{text}\n\n{_table(found)}\n\n![Products against cosine](starts.svg)"


def _table(found: Found) -> str:
    nets = list(found)
    rows = [["start", "rounds", "products", *nets, "lowest, trained"]]
    for i, way in enumerate(_ways(found)):
        mine = [found[net] for net in nets]
        trained = [m["trained"][i] for m in mine]
        products = sum(t["products"] for t in trained) / len(trained)
        cells = [
            f"{m['untrained'][i]['cosine']:.2f}, {t['cosine']:.2f}"
            for m, t in zip(mine, trained, strict=True)
        ]
        lowest = min(t["cosine"] for t in trained)
        rows.append([way["start"], str(way["rounds"]), f"{products:.2g}", *cells, f"{lowest:.2f}"])
    return markdown_table(rows)


def _warned(found: Found) -> str:
    """The trained nets on which the default warns."""
    names = [net for net, of in found.items() if of["trained"][0]["warns"]]
    return ", ".join(names) or "none of the trained nets"


def _ways(found: Found) -> list[dict[str, Any]]:
    ways: list[dict[str, Any]] = next(iter(found.values()))["trained"]
    return ways


def picture_of_starts(found: Found) -> Figure | None:
    """Of the trained nets: products against the mean cosine, a line a start; None if it was not measured."""
    if "starts" not in found:
        return None
    nets = found["starts"]
    curves: dict[str, list[tuple[float, float]]] = {}
    for i, way in enumerate(_ways(nets)):
        mine = [net["trained"][i] for net in nets.values()]
        place = tuple(sum(m[what] for m in mine) / len(mine) for what in ("products", "cosine"))
        name = way["start"] + (", as needed" if way["rounds"] == "auto" else "")
        curves.setdefault(name, []).append(place)
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    for (name, places), marker in zip(curves.items(), "os^vD<>*Ph", strict=False):
        axes.plot(*zip(*places, strict=True), marker=marker, label=name, linewidth=1.2)
    axes.axhline(ASKED, color="black", linewidth=0.8, linestyle=":")
    axes.set_xlabel("products with J and Jᵀ in a step")
    axes.set_ylabel("cosine with the exact gradient, mean over trained nets")
    axes.legend(frameon=False, fontsize=8)
    tidy(axes)
    return figure
