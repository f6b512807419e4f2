"""What people make of results: `remarks` in the file of the experiment, paragraph by paragraph."""

from __future__ import annotations

from pathlib import Path

from ..config import read_toml


def read_remarks(file: Path) -> tuple[str, ...]:
    paragraphs = read_toml(file).get("remarks", "").split("\n\n")
    return tuple(" ".join(p.split()) for p in paragraphs if p.strip())
