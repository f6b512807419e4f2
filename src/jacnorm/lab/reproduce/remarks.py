"""What people make of results: plain text that lies beside them, so that it goes where they go."""

from __future__ import annotations

from pathlib import Path

FILE = "remarks.txt"


def read_remarks(folder: Path) -> tuple[str, ...]:
    """The paragraphs of a folder's remarks; none if there is no such file."""
    file = folder / FILE
    if not file.exists():
        return ()
    paragraphs = file.read_text(encoding="utf-8").split("\n\n")
    return tuple(" ".join(p.split()) for p in paragraphs if p.strip())
