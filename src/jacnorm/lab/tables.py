"""Tables as text."""

from __future__ import annotations

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their content, the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the header; columns as in `table`."""
    head, *body = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    rule = [":--", *("--:" for _ in head[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *body))
