"""The page as HTML that needs nothing else, and as Markdown: one page, or the pages of a folder."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ..checkpoint import write_atomically
from ..figures.draw import CURVES, picture, picture_of_weights
from ..figures.methods import panels
from ..pictures import to_svg
from ..reproduce.catalog import FUTURE
from ..wording import markdown_table
from .content import Report, Section

TEMPLATES = PackageLoader("jacnorm.lab.report", ".")
LINK = re.compile(r"\[([^\]]+)\]\((?:[\w/.]+)?#([\w-]+)\)")
PAGES = {"README.md": "front.md", "claims.md": "claims.md", "statistics.md": "statistics.md"}
PAGES |= {"readings.md": "readings.md", "deviations.md": "deviations.md", "checks/README.md": "checks.md"}


def to_html(content: Report) -> str:
    environment = _environment(autoescape=True)
    there = {part.chapter.name for part in content.sections}
    environment.filters["linked"] = lambda text: _linked(text, there)
    judging, *_ = TEMPLATES.get_source(environment, "judging.md")
    return environment.get_template("page.html").render(c=content, judging=judging.strip().split("\n\n"))


def write_markdown(content: Report, file: Path) -> None:
    """The same as text, with the figures as files in a folder of its name."""
    for part in content.sections:
        for drawing in part.drawings:
            write_atomically(file.with_suffix("") / f"{drawing.name}.svg", drawing.svg.encode())
    write_atomically(file, _markdown("page.md", content, folder=file.stem))


def write_pages(content: Report, folder: Path) -> None:
    """One for the table and figures together, one for each of them, one for all checks, and one for future
    work, which counts nowhere else.
    """
    if content.future:
        _write_future(content.only(lambda item: item.is_future), folder / FUTURE)
    _write_papers(content.only(lambda item: not item.is_future), folder, future=content.future)


def _write_future(content: Report, folder: Path) -> None:
    """With the curves of all runs in one picture."""
    chapters = [section.chapter for section in content.sections]
    frames = {chapter.title: chapter.curves for chapter in chapters if chapter.curves is not None}
    if frames:
        write_atomically(folder / "curves.svg", to_svg(panels(frames), "curves", CURVES).encode())
    write_atomically(folder / "README.md", _markdown("future.md", content, curves=CURVES if frames else ""))


def _write_papers(content: Report, folder: Path, **more: Any) -> None:
    parts = [part for part in content.sections if part.item.is_papers or part.is_check]
    pictures = {part.chapter.name: _write_picture(part, folder) for part in parts}
    for name, template in PAGES.items():
        if template == "readings.md" and content.readings is None:
            continue
        write_atomically(folder / name, _markdown(template, content, pictures=pictures, **more))
    for part in parts:
        if not part.is_check:
            text = _markdown("part.md", content, part=part, pictures=pictures)
            write_atomically(folder / part.chapter.name / "README.md", text)


def _write_picture(part: Section, folder: Path) -> tuple[str, str] | None:
    """Its caption, and its file as seen from its own page; checks of accuracy have one if they ask for λ."""
    found = picture(part.chapter)
    if part.is_check and part.item.figure is None:
        found = picture_of_weights(part.chapter) if "λ" in part.item.question[0] else None
    if found is None:
        return None
    caption, figure = found
    name = part.chapter.name
    file = f"{name}.svg" if part.is_check else "figure.svg"
    svg = to_svg(figure, name, caption)
    write_atomically(folder / ("checks" if part.is_check else name) / file, svg.encode())
    return caption, file


def _markdown(template: str, content: Report, **more: Any) -> bytes:
    environment = _environment(autoescape=False)
    text = environment.get_template(template).render(c=content, table=markdown_table, **more)
    return (re.sub(r"\n{3,}", "\n\n", text).strip() + "\n").encode()


def _linked(text: str, there: Collection[str]) -> Markup:
    """Links of Markdown as those of one page, if they lead to what is on it."""
    first, *others = LINK.split(text)
    found = [escape(first)]
    for words, anchor, rest in zip(others[::3], others[1::3], others[2::3], strict=True):
        link = Markup('<a href="#{}">{}</a>').format(anchor, words)
        found += [link if anchor in there else escape(words), escape(rest)]
    return Markup("").join(found)


def _environment(**options: Any) -> Environment:
    return Environment(
        loader=TEMPLATES,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )
