"""The page as HTML that needs nothing else, and as Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..checkpoint import write_atomically
from ..tables import markdown_table
from .content import Content


def to_html(content: Content) -> str:
    return _environment(autoescape=True).get_template("page.html").render(c=content)


def write_markdown(content: Content, file: Path) -> None:
    """The same as text, with the figures as files in a folder of its name."""
    for part in content.parts:
        for drawing in part.drawings:
            write_atomically(file.with_suffix("") / f"{drawing.name}.svg", drawing.svg.encode())
    template = _environment(autoescape=False).get_template("page.md")
    text = template.render(c=content, folder=file.stem, table=markdown_table)
    write_atomically(file, text.encode())


def _environment(**options: Any) -> Environment:
    return Environment(
        loader=PackageLoader("jacnorm.lab.report", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )
