"""Networks that differ in their seed only belong together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..config import make_config

Record = dict[str, Any]
Groups = dict[str, list[Record]]

NAMES = {"weight": "λ"}


def grouped(records: Sequence[Record]) -> Groups:
    """Label -> records of one setting with several seeds; labels name what tells the settings apart."""
    by_setting: dict[str, list[Record]] = {}
    for record in records:
        setting = {key: value for key, value in record["config"].items() if key != "seed"}
        by_setting.setdefault(repr(sorted(setting.items())), []).append(record)
    groups = list(by_setting.values())
    configs = [group[0]["config"] for group in groups]
    return dict(zip((_label(config, configs) for config in configs), groups, strict=True))


def _label(config: dict[str, Any], all_configs: Sequence[dict[str, Any]]) -> str:
    """What tables call the method, and what other settings of it have otherwise."""
    name = make_config(config).label
    alike = [other for other in all_configs if make_config(other).label == name]
    told = [
        f"{NAMES.get(key, key.replace('_', ' '))} = {_shown(value)}"
        for key, value in config.items()
        if key not in ("method", "seed") and any(other[key] != value for other in alike)
    ]
    return ", ".join([name, *told])


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
