"""The table and the picture of `jacnorm bench starts`."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from ..figures.panels import tidy
from ..wording import markdown_table

Found = dict[str, Any]  # net -> "untrained" or "trained" -> one dict per way
ASKED = 0.9  # cosine


def starts_in_words(found: Found) -> str:
    text = (
        "Starts of the iteration, compared on small networks that learn from real data (digits, text). Each "
        "cell has two cosines between the gradient of the penalty and the exact gradient: for the untrained "
        "network, and after training without a penalty. They are taken on new batches of 32; with `index=`, "
        "on samples seen in training. Ways with a memory have watched the last steps. Products are sweeps of "
        "J or Jᵀ, without the terms; with `rounds=auto` the table has their mean. Without `index=` the "
        "default is *recent samples* with one round. If its directions are too far from the directions after "
        "ten more rounds, a warning names `index=` and `iterations=`. Here it warns on "
        f"{_warned(found)}."
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
    """Products against the mean cosine of the trained nets, one line per start; None if not measured."""
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
    axes.set_xlabel("products with J and Jᵀ per step")
    axes.set_ylabel("cosine with the exact gradient, mean over trained nets")
    axes.legend(frameon=False, fontsize=8)
    tidy(axes)
    return figure
