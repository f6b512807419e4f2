"""The benchmark as a page with tables and a picture. Only its JSON file is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from matplotlib.figure import Figure

from ..figures.panels import tidy
from ..wording import markdown_table
from .networks_page import aims_in_words, networks_in_words, ordered
from .starts_page import starts_in_words
from .targets_page import targets_in_words
from .ways import WAYS

Found = dict[str, Any]  # suite -> its numbers; "methods" -> net -> its numbers
ALGORITHM = "Algorithm 1, unrolled"  # measured on the nets that have every way
COLOURS = {"ours": "#0b6e4f", "form": "#8a8a8a", "peer": "#c1440e"}
ROW = 2.0  # percent of error; names of dots that are closer than this could overlap
CURVES = {
    "batch size": "LeNet.",
    "outputs": "LeNet, batch 32.",
    "convolutions": "A chain of 3×3 convolutions with 16 channels; batch 32.",
}
LABELS = {"ours": "jacnorm", "form": "forms not taken", "peer": "others' ways"}


def markdown(found: Found) -> str:
    parts = ["# Cost and accuracy", _preamble(found)]
    if "methods" in found:
        parts += _of_methods(ordered(found["methods"]), found.get("training"))
    if "training" in found:
        parts.append(_training(found["training"]))
    parts += [_curve(found[name]) for name in ("batch_sizes", "outputs", "depth") if name in found]
    if "starts" in found:
        parts.append(starts_in_words(found["starts"]))
    if "targets" in found:
        parts.append(targets_in_words(found["targets"]))
    if "measure" in found:
        parts.append(_measuring(found["measure"]["rows"]))
    return "\n\n".join(parts) + "\n"


def _of_methods(nets: Found, training: Found | None) -> Iterator[str]:
    timed = {net: n for net, n in nets.items() if n["cost"]}
    if timed:
        yield networks_in_words(timed)
    if every := {net: n for net, n in timed.items() if ALGORITHM in n["cost"]}:
        yield _methods(every, training)
    if timed:
        yield _parts(timed)
    if measured := {net: n for net, n in nets.items() if n["memory"]}:
        yield _memory(measured)
    if aims := aims_in_words(nets):
        yield aims


def _preamble(found: Found) -> str:
    e = found["environment"]
    return (
        "Made by `jacnorm bench`. Cost is the time of an optimizer step divided by the time of a plain step "
        "of the same model. Both are measured in turns in one run, on one thread; cost is the median over "
        f"rounds ({e['system']}, torch {e['torch']}). Nets are untrained and inputs are random. Only errors "
        "and cosines with the exact gradient come from training, with one seed. The same cost differs by "
        "some percent from table to table. No penalty is free: where a cost is below the floor, or below 1, "
        "our convolutions and pools have sped up the loss itself."
    )


def _methods(nets: Found, training: Found | None) -> str:
    """One row per way, one column per net; error and cosine where they were measured."""
    heads = [_head(net, n) for net, n in nets.items()]
    rows = [["way", *[f"cost, {h}" for h in heads], "error of σ", "cosine"]]
    for way in [w for w in WAYS if any(w.name in n["cost"] for n in nets.values())]:
        costs = [f"{n['cost'][way.name]:.2f}" if way.name in n["cost"] else "" for n in nets.values()]
        rows.append([way.name, *costs, *_quality(way.name, training)])
    notes = (
        "Error of σ: the error of the batch's mean σ in the last epoch of training. Cosine: between the "
        "gradient of the penalty and the gradient of the exact penalty, at the end of training. A missing "
        "cost means that the way does not work on this net (fused attention has no second derivatives), or "
        "that it was too slow to measure."
    )
    return f"## Every way\n\n{notes}\n\n{markdown_table(rows)}\n\n![Cost against error](cost-and-error.svg)"


def _parts(nets: Found) -> str:
    heads = [_head(net, n) for net, n in nets.items()]
    rows = [["part", *heads]]
    parts = next(iter(nets.values()))["parts"]
    rows += [[part, *[f"{n['parts'][part]:.2f}" for n in nets.values()]] for part in parts]
    text = (
        "Parts of a step with the spectral penalty, in units of the plain forward and backward pass. The "
        "parts are the recorded forward pass, Jᵀu, J v with the terms of the gradient, and the backward "
        "pass. J v forms the terms call by call, together with the cotangents of Jᵀu. The last row is a "
        "backward pass of the terms alone. In a step, one pass carries both the terms and the loss, so the "
        "rows sum up to more than a step. By operation count a forward pass is 1/3 and a backward pass is "
        "2/3. Jᵀu, J v and the terms are 1/3 each, so the floor is 2.0. A part can be below its count, since "
        "our own pooling in 2×2 windows and our convolutions of grey images are faster than PyTorch's. A "
        "part can be above it for two reasons. Recording is done call by call in Python, which is "
        "noticeable with small batches. Transposed convolutions use kernels that are not tuned for them."
    )
    return f"## Where the time goes\n\n{text}\n\n{markdown_table(rows)}"


def _head(net: str, numbers: Found) -> str:
    return net if numbers["width"] == 1 else f"{net}, at width {numbers['width']:g}"


def _quality(name: str, training: Found | None) -> list[str]:
    if name.startswith("analytical"):
        return ["0", "1"]
    if training is None or name not in training["error"]:
        return ["", ""]
    return [f"{training['error'][name][-1]:.1%}", f"{training['cosine'][name]:.3f}"]


def _memory(nets: Found) -> str:
    heads = [f"{net.rpartition(', batch')[0]}, batch {n['memory_batch']}" for net, n in nets.items()]
    rows = [["way", *heads]]
    for way in WAYS:
        memories = [n["memory"] for n in nets.values()]
        if any(way.name in m for m in memories):
            rows.append(
                [way.name, *[f"{m[way.name] / m['plain']:.1f}" if way.name in m else "" for m in memories]]
            )
    text = (
        "Peak memory of tensors in the first two steps, without the weights, divided by the same of plain "
        "steps. Gradients and the optimizer's state are included. J and the loss of the first step live on "
        "into the second. The model is also verified in these steps."
    )
    return f"## Memory\n\n{text}\n\n{markdown_table(rows)}"


def _training(training: Found) -> str:
    epochs = len(next(iter(training["error"].values())))
    shown = [n for n in (1, 3, 6, 10, 15, 20) if n <= epochs]
    rows = [["way", *[f"epoch {n}" for n in shown]]]
    rows += [[name, *[f"{e[n - 1]:.1%}" for n in shown]] for name, e in training["error"].items()]
    text = (
        f"LeNet on {training['data']}, batch 32, learning rate 0.01, λ = 0.01, trained with the first way. "
        "The others watch the same batches, each with its own memory."
    )
    return f"## Error of σ in training\n\n{text}\n\n{markdown_table(rows)}"


def _curve(curve: Found) -> str:
    rows = [[curve["what"], *map(str, curve["numbers"])]]
    rows += [[name, *[f"{c:.2f}" for c in costs]] for name, costs in curve["cost"].items()]
    return f"## Cost against {curve['what']}\n\n{CURVES[curve['what']]}\n\n{markdown_table(rows)}"


def _measuring(rows: list[Found]) -> str:
    text = (
        "`spectral_norm(linearize(net, x), tol=1e-3)` against `torch.func.jacrev` with `svdvals`, on a "
        "LeNet. Both are measured in turns in one run."
    )
    lines = [["outputs", "images", "times faster", "largest relative difference"]]
    lines += [
        [f"{r['outputs']}", f"{r['images']:,}", f"{r['speedup']:.1f}", f"{r['largest_difference']:.1e}"]
        for r in rows
    ]
    return f"## Measuring\n\n{text}\n\n{markdown_table(lines)}"


def picture(found: Found) -> Figure | None:
    """Cost against error of σ, one dot per way; None before both are measured."""
    if "training" not in found or not found.get("methods"):
        return None
    cost = next(iter(ordered(found["methods"]).values()))["cost"]
    error = found["training"]["error"]
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    labels: list[Any] = []
    for kind, colour in COLOURS.items():
        mine = [w.name for w in WAYS if w.kind == kind and w.name in cost and w.name in error]
        costs, errors = [cost[name] for name in mine], [100 * error[name][-1] for name in mine]
        axes.scatter(costs, errors, s=48, color=colour, label=LABELS[kind], zorder=3)
        labels += [(*place, name, colour) for name, *place in zip(mine, costs, errors, strict=True)]
    for x, y, name, colour in labels:  # above and below by turns, so that names in a row do not overlap
        before = sum(other < x and abs(height - y) < ROW for other, height, *_ in labels)
        offset = (5, -15) if before % 2 else (5, 10)
        axes.annotate(name, (x, y), offset, textcoords="offset points", fontsize=8, color=colour)
    axes.axvline(2, color="black", linewidth=0.8, linestyle=":")
    axes.set_ylim(0, 1.15 * axes.get_ylim()[1])
    axes.text(
        2,
        0.97,
        "floor by operation count ",
        fontsize=8,
        va="top",
        ha="right",
        rotation=90,
        transform=axes.get_xaxis_transform(),
    )
    axes.set_xlabel("cost: step / plain step")
    axes.set_ylabel("error of σ in training, %")
    first, last = min(x for x, *_ in labels), max(x for x, *_ in labels)
    axes.set_xlim(first - 0.3, last + 0.45 * (last - first) + 0.3)  # room for the names
    axes.legend(frameon=False, loc="center right")
    tidy(axes)
    return figure
