"""The record of a run's evaluations: warnings about its numbers, and its file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..checkpoint import write_json
from ..results import read_result
from .judge import are_suspicious


def alarms(record: dict[str, Any]) -> list[str]:
    """Signs that gradients are masked, so that robustness is overestimated."""
    found = [record["judge"]["alarm"]] if record.get("judge", {}).get("alarm") else []
    attacks = record.get("attacks", {})
    if "square" in attacks and (others := [a for a in ("pgd", "tpgd") if a in attacks]):
        best = min(attacks[a]["worst"][-1][-1] for a in others)
        black_box = attacks["square"]["worst"][-1][-1]
        if are_suspicious(round((best - black_box) * record["images"]), record["images"]):
            found.append(
                f"Square, which sees no gradient, leaves {black_box:.2%} right and the gradient attacks "
                f"{best:.2%}: gradients may be masked, or the gradient attacks too short"
            )
    return found


def added_to(
    file: Path, record: dict[str, Any], together: list[str], wanted: Sequence[str]
) -> dict[str, Any]:
    """Add the record to its file if both have the same weights and images. Returns both together.

    Attacks of another strength are dropped. Distances that were measured together with other networks stay in
    the file, but are not returned.
    """
    before = read_result(file) if file.exists() else {}
    if all(before.get(key) == record[key] for key in ("id", "images", "weights")):
        now = record.get("attacks", {})
        earlier = before.get("attacks", {})
        other = [name for name, attack in earlier.items() if not _is_as_strong(attack, now)]
        if gone := [name for name in other if name not in wanted]:
            print(f"{file}: {', '.join(gone)} of another strength dropped", file=sys.stderr)
        attacks = {name: a for name, a in earlier.items() if name not in other} | now
        record = before | record | ({"attacks": attacks} if attacks else {})
    record["alarms"] = alarms(record)
    write_json(file, record)
    other_points = record.get("boundary", {}).get("compared_with") != together
    return {key: value for key, value in record.items() if key != "boundary" or not other_points}


def _is_as_strong(attack: dict[str, Any], others: dict[str, Any]) -> bool:
    return all(list(attack["epsilons"]) == list(other["epsilons"]) for other in others.values())
