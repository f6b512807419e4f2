"""Networks that differ in their seed only belong together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    """The method, and what other settings of that method have otherwise."""
    alike = [other for other in all_configs if other["method"] == config["method"]]
    told = [
        f"{NAMES.get(name, name.replace('_', ' '))} = {_shown(value)}"
        for name, value in config.items()
        if name not in ("method", "seed") and any(other[name] != value for other in alike)
    ]
    return ", ".join([config["method"], *told])


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
