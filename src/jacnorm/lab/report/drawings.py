"""Figures for the page, as SVG that stands by itself and is the same each time."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.figure import Figure

from ..figures.accuracy import accuracy
from ..figures.boundary import boundary
from ..figures.cost import both, errors, times
from ..figures.relation import caption, relation
from ..figures.robustness import TITLES, attacks, judge, noise, robustness
from ..reproduce.chapter import Chapter, Groups
from ..reproduce.cost import ESTIMATES


@dataclass(frozen=True)
class Drawing:
    name: str
    caption: str
    svg: str
    wide: bool  # takes a row of its own


def drawings(section: Chapter) -> list[Drawing]:
    """The panels of a section, one by one, so that a phone can stack them."""
    return [
        Drawing(name, caption, to_svg(figure, name, caption), bool(figure.get_figwidth() > 6))
        for name, caption, figure in _panels(section)
    ]


def picture(section: Chapter) -> tuple[str, Figure] | None:
    """The whole table or figure as one, for a page of its own: caption and drawing."""
    groups = section.groups
    if groups and section.figure == 3:
        return "Accuracy under noise and attacks, mean ± s.d. over the networks of a method", robustness(
            groups
        )
    if groups and section.figure == 4:
        return "Distance to the boundary: quartiles, and 5 % and 95 % of the points", boundary(groups)
    if groups and section.figure == 5:
        of = {key: groups[label] for key, label in ESTIMATES.items() if label in groups}
        return "Time of a step with each penalty, and error of each estimate of σ", both(groups, of)
    if section.accuracy:
        ours, paper = section.accuracy
        return "Test accuracy, mean ± standard deviation", accuracy(ours, paper)
    return None


def _panels(section: Chapter) -> Iterator[tuple[str, str, Figure]]:
    groups, name = section.groups, section.name
    if section.accuracy:
        ours, paper = section.accuracy
        whose = "ours and the paper's, mean ± standard deviation" if paper else "mean ± standard deviation"
        yield f"{name}-accuracy", f"Test accuracy, {whose}", accuracy(ours, paper)
    if groups and section.figure == 3:
        yield f"{name}-noise", "White noise", noise(groups)
        yield from _attacks(groups, name)
        if all("judge" in record for records in groups.values() for record in records):
            yield f"{name}-judge", "What four strong attacks leave, one after the other", judge(groups)
    if groups and section.figure == 4:
        yield (
            f"{name}-distance",
            "Distance to the boundary: quartiles, and 5 % and 95 % of the points",
            boundary(groups),
        )
    for found in section.relations:
        if len({y for of in found.points.values() for _, y in of}) > 1:  # else there is nothing to see
            drawn = relation(found.points, found.x, found.y)
            yield f"{name}-{found.y}-by-{found.x}", caption(found.x, found.y), drawn
    if groups and section.figure == 5:
        yield f"{name}-time", "Time of a step with each penalty", times(groups)
        of = {key: groups[label] for key, label in ESTIMATES.items() if label in groups}
        if of:
            yield f"{name}-error", "Error of each estimate of σ", errors(of)


def _attacks(groups: Groups, name: str) -> Iterator[tuple[str, str, Figure]]:
    first = next(iter(groups.values()))[0]["attacks"]
    for attack in first:
        alone = {
            label: [{**record, "attacks": {attack: record["attacks"][attack]}} for record in records]
            for label, records in groups.items()
        }
        caption = f"{TITLES[attack]}, the last iterate as in the paper"
        yield f"{name}-{attack}", caption, attacks(alone, "last")


def to_svg(figure: Figure, name: str, caption: str) -> str:
    """Text stays text, to be small, searched and read aloud; ids of its own, so that many fit in one page."""
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
    size = f"max-width: {width:.0f}px; min-width: {0.6 * width:.0f}px"  # letters no larger, no tinier
    return text.replace("<svg", f'<svg role="img" aria-label="{html.escape(caption)}" style="{size}"', 1)
