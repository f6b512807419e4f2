"""Several runs side by side: mean ± standard deviation over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from ..config import make_config
from ..wording import in_words, table
from .kinds import rows, shown

Record = dict[str, Any]
Groups = dict[str, list[Record]]

NAMES = {"weight": "λ"}

WIDTH = 120  # characters in a line of a page
LABEL = 16  # characters that fit over a column of numbers


def comparison(records: Sequence[Record]) -> str:
    """One table per number of epochs, since screening runs cannot be compared with full runs."""
    lengths = sorted({record["config"]["epochs"] for record in records}, reverse=True)
    parts = []
    for epochs in lengths:
        groups = grouped([record for record in records if record["config"]["epochs"] == epochs])
        apart = f" (not to be compared with {lengths[0]})" if epochs < lengths[0] else ""
        head = f"Mean ± standard deviation over n seeds, epochs = {epochs}{apart}:"
        parts.append(f"{head}\n\n{_table(groups)}")
    return "\n\n".join(parts)


def _table(groups: Groups) -> str:
    """One row per method if that fits, else one column per method."""
    cells = {label: _cells(records) for label, records in groups.items()}
    names = list(dict.fromkeys(name for found in cells.values() for name in found))
    methods = [[label, *(found.get(name, "–") for name in names)] for label, found in cells.items()]
    wide = [["method", *names], *methods]
    text = table(wide)
    if len(text.splitlines()[0]) <= WIDTH:
        return text
    key = ""
    if max(map(len, cells)) > LABEL:  # the labels are too long for the head of a column
        key = "\n".join(f"({i}) {label}" for i, label in enumerate(cells, 1)) + "\n\n"
        methods = [[f"({i})", *rest] for i, (_, *rest) in enumerate(methods, 1)]
    return key + "\n\n".join(map(table, _blocks(["method", *names], methods)))


def _blocks(head: list[str], methods: list[list[str]]) -> list[list[list[str]]]:
    """Transposed tables, each with as many methods side by side as fit."""
    room = WIDTH - max(map(len, head))
    blocks: list[list[list[str]]] = []
    left = 0
    for column in methods:
        width = max(map(len, column)) + 2
        if width > left or not blocks:
            blocks.append([head])
            left = room
        blocks[-1].append(column)
        left -= width
    return [[list(row) for row in zip(*block, strict=True)] for block in blocks]


def _cells(records: Sequence[Record]) -> dict[str, str]:
    found: dict[str, list[float]] = {}
    forms: dict[str, str] = {}
    for record in records:
        for name, value, form in rows(record):
            found.setdefault(name, []).append(value)
            forms[name] = form
    return {"n": str(len(records)), **{name: _cell(values, forms[name]) for name, values in found.items()}}


def _cell(values: Sequence[float], form: str) -> str:
    """
    >>> _cell([0.9, 0.92], ".1%"), _cell([2.0], ".3f"), _cell([1.0, math.inf], ".3f")
    ('91.0% ± 1.4%', '2.000', 'none found')
    """
    if len(values) == 1 or math.inf in values:
        return shown(max(values), form)
    return f"{shown(mean(values), form)} ± {shown(stdev(values), form)}"


def grouped(records: Sequence[Record]) -> Groups:
    """The records of each setting, over seeds, by label. Labels name the settings that differ."""
    by_setting: dict[str, list[Record]] = {}
    for record in records:
        setting = {key: value for key, value in record["config"].items() if key != "seed"}
        by_setting.setdefault(repr(sorted(setting.items())), []).append(record)
    groups = list(by_setting.values())
    configs = [group[0]["config"] for group in groups]
    return dict(zip((_label(config, configs) for config in configs), groups, strict=True))


def _label(config: dict[str, Any], all_configs: Sequence[dict[str, Any]]) -> str:
    """The method's name in tables, and the settings that differ from other records of this method."""
    name = make_config(config).label
    alike = [other for other in all_configs if make_config(other).label == name]
    told = [
        f"{NAMES.get(key, key.replace('_', ' '))} = {in_words(value)}"
        for key, value in config.items()
        if key not in ("method", "seed") and any(other[key] != value for other in alike)
    ]
    return ", ".join([name, *told])
