"""Shows repeated blocks, such as encoder.layer.0, encoder.layer.1, …, only once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from .examiner import Call

INDENT = "  "


@dataclass(frozen=True)
class Line:
    """A line of the table: a call with its repetitions in other blocks, or the head of repeated blocks."""

    layer: str
    call: Call  # the first of them
    seconds: float
    blocks: int = 1
    calls: int = 1
    head: bool = False


def folded(calls: Sequence[Call]) -> list[Line]:
    """The calls in their order. Equal blocks in a row become one."""
    return list(_lines([[call] for call in calls], "", 0))


def _lines(calls: list[list[Call]], prefix: str, depth: int) -> Iterator[Line]:
    """The lines of these calls. Each entry is a call with its repetitions in the folded blocks."""
    i = 0
    while i < len(calls):
        blocks = _blocks_at(calls[i:], prefix)
        if len(blocks) < 2:
            yield _line(calls[i], prefix, depth)
            i += 1
            continue
        names = [name for name, _ in blocks]
        merged = [
            [call for part in together for call in part]
            for together in zip(*(b for _, b in blocks), strict=True)
        ]
        seconds = sum(call.seconds for together in merged for call in together)
        label = f"{INDENT * depth}{_inner(names[0], prefix)}–{names[-1].rpartition('.')[2]}"
        yield Line(label, merged[0][0], seconds, len(blocks), len(merged), head=True)
        yield from _lines(merged, names[0] + ".", depth + 1)
        i += len(blocks) * len(merged)


def _line(together: list[Call], prefix: str, depth: int) -> Line:
    layer = INDENT * depth + _inner(together[0].layer, prefix)
    return Line(layer.rstrip(), together[0], sum(call.seconds for call in together))


def _inner(layer: str, prefix: str) -> str:
    return layer.removeprefix(prefix) if layer + "." != prefix else ""


def _blocks_at(calls: list[list[Call]], prefix: str) -> list[tuple[str, list[list[Call]]]]:
    """The outermost blocks that begin here: two or more, x.0, x.1, …, with the same calls in each."""
    for name in _numbered(calls[0][0].layer, prefix):
        first = _block(calls, name)
        found = [(name, first)]
        while len(first) > 1:
            rest = calls[len(found) * len(first) :]
            following = _next(found[-1][0])
            block = _block(rest, following)
            if _signature(block, following) != _signature(first, name):
                break
            found.append((following, block))
        if len(found) > 1:
            return found
    return []


def _block(calls: list[list[Call]], name: str) -> list[list[Call]]:
    """The first calls, as long as the module of this name makes them."""
    inside, group = next(
        ((k, list(g)) for k, g in groupby(calls, lambda c: _is_in(c[0].layer, name))), (False, [])
    )
    return group if inside else []


def _is_in(layer: str, name: str) -> bool:
    return layer == name or layer.startswith(f"{name}.")


def _numbered(layer: str, prefix: str) -> Iterator[str]:
    """The enclosing modules whose name is a number, the outermost first."""
    parts = layer.split(".")
    for i, part in enumerate(parts):
        name = ".".join(parts[: i + 1])
        if part.isdigit() and len(name) > len(prefix):
            yield name


def _next(name: str) -> str:
    before, _, number = name.rpartition(".")
    return f"{before}.{int(number) + 1}".removeprefix(".")


def _signature(block: list[list[Call]], name: str) -> list[tuple[object, ...]]:
    return [(c.layer.removeprefix(name), c.name, c.shape, c.rule, c.training) for c, *_ in block]
