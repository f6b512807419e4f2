"""The table and the picture of `jacnorm bench targets`."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from ..figures.panels import tidy
from ..wording import markdown_table
from .targets import NEAR, last_third

Found = dict[str, Any]  # net -> "target", "middle" and "runs", one dict per starting weight
COLOURS = ("#3a86c8", "#2f9e6e", "#c1440e")


def targets_in_words(found: Found) -> str:
    runs = [(net["target"], run) for net in found.values() for run in net["runs"]]
    met = sum(is_met(target, run) for target, run in runs)
    text = (
        "`SpectralPenalty(weight, target=…)` without `index=`. Each net is trained from three starting "
        "weights: a hundredth of a middle weight, the middle weight, and a hundred times it. The learning "
        "rate falls to a tenth; in the game of critic and generator it is constant. σ is measured, not "
        "estimated, on 256 training samples at 45 moments. Batch norm uses the statistics of each batch, as "
        "in training. The table has σ in units of the target: at the end, on average over the last third, "
        "and the lowest and highest value there. Met means that the end and the average of the last third "
        f"are within {NEAR:.0%} of the target. That is so in {met} of {len(runs)} trainings. Single "
        "moments scatter more, since σ changes from step to step. The score is the accuracy on training "
        "data. For the critic, it says how much higher real images score. In this game σ varies by a factor "
        "of three even at a fixed weight, so a target holds only on average. A penalty can only push σ down. "
        "When a net knows its training data by heart, nothing pushes σ up any more. Then σ can end below the "
        "target while λ falls."
    )
    title, drawn = "## A target instead of a weight", "![σ and λ over training](targets.svg)"
    return f"{title}\n\n{text}\n\n{_table(found)}\n\n{drawn}"


def is_met(target: float, run: dict[str, Any]) -> bool:
    late = last_third(run["sigma"])
    mean = sum(late) / len(late)
    return all(abs(sigma / target - 1) <= NEAR for sigma in (run["sigma"][-1], mean))


def _table(found: Found) -> str:
    rows = [["net", "target", "start", "end", "last third", "lowest", "highest", "met", "weight", "score"]]
    for name, net in found.items():
        for run in net["runs"]:
            late = [sigma / net["target"] for sigma in last_third(run["sigma"])]
            of_target = (run["sigma"][-1] / net["target"], sum(late) / len(late), min(late), max(late))
            met = "yes" if is_met(net["target"], run) else "no"
            numbers = [f"{number:.3f}" for number in of_target]
            weight, score = f"{run['weight'][-1]:.3g}", f"{run['score']:.3f}"
            rows.append([name, f"{net['target']:g}", f"{run['start']:g}", *numbers, met, weight, score])
    return markdown_table(rows)


def picture_of_targets(found: Found) -> Figure | None:
    """One column per net, with σ above and λ below; None if not measured."""
    if "targets" not in found:
        return None
    nets = found["targets"]
    figure = Figure(figsize=(3 * len(nets), 5), layout="constrained")
    grid = figure.subplots(2, len(nets), squeeze=False, sharex="col")
    for (name, net), upper, lower in zip(nets.items(), *grid, strict=True):
        for run, colour in zip(net["runs"], COLOURS, strict=False):
            upper.plot(run["steps"], run["sigma"], color=colour, linewidth=1.2)
            lower.plot(run["steps"], run["weight"], color=colour, linewidth=1.2, label=f"{run['start']:g}")
        near = net["target"] * (1 - NEAR), net["target"] * (1 + NEAR)
        upper.axhspan(*near, color="0.85", zorder=0)
        upper.set_title(name, fontsize=9)
        upper.set_ylim(0, 3 * net["target"])
        lower.set_yscale("log")
        lower.set_xlabel("step")
        lower.legend(frameon=False, fontsize=7, title="start", title_fontsize=7)
        tidy(upper)
        tidy(lower)
    grid[0][0].set_ylabel("σ, measured")
    grid[1][0].set_ylabel("λ")
    return figure
