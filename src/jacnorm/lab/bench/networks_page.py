"""The main ways on each network, and what was measured beside what is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..wording import markdown_table
from .networks import NETWORKS
from .suites import ON_EVERY_NET

Found = dict[str, Any]  # name of a network -> its numbers
KNOWN = {network.name: network for network in NETWORKS}


def ordered(found: Found) -> Found:
    """In the order of the page, the others last."""
    names = [name for name in KNOWN if name in found]
    return {name: found[name] for name in dict.fromkeys([*names, *found])}


def networks_in_words(found: Found) -> str:
    """A row a network, a column a way."""
    ways = [way for way in ON_EVERY_NET if any(way in n["cost"] for n in found.values())]
    rows = [["network", *ways, "cosine, bfloat16"]]
    for name, n in found.items():
        costs = [f"{n['cost'][way]:.2f}" if way in n["cost"] else "" for way in ways]
        turned = n.get("one_minus_cosine")
        rows.append([name, *costs, "" if turned is None else f"{1 - turned:.5f}"])
    text = (
        "The main penalties, and J v alone: a forward and backward pass of the loss with one product beside "
        "it, without gradients of its own. The columns with bfloat16 are `precision=torch.bfloat16`; the "
        "cosine is that of the penalty's gradient with the float32 one. `torch.func.jvp` cannot run batch "
        "norm in training mode. *vit-64* and *vit-192* are transformers of this width: 4 heads, 2 blocks, 64 "
        "tokens, and 3 heads, 4 blocks, 65 tokens. *gated-mlp* has RMS norms and SiLU gates, *critic* "
        "instance norms."
    )
    return f"## Network by network\n\n{text}\n\n{markdown_table(rows)}"


def aims_in_words(found: Found) -> str | None:
    """None where nothing is asked for."""
    rows = list(_aims(found))
    if not rows:
        return None
    missed = sum(row[-1] == "no" for row in rows)
    text = (
        "What the library is developed against: costs in plain steps, where nothing else is said, and memory "
        f"in that of plain steps. Of {len(rows)} aims {missed or 'none'} {'is' if missed == 1 else 'are'} "
        "missed."
    )
    head = ["network", "what", "measured", "at most", "kept"]
    return f"## Aims\n\n{text}\n\n{markdown_table([head, *rows])}"


def _aims(found: Found) -> Iterator[list[str]]:
    for name, n in found.items():
        if name in KNOWN and n["width"] == 1:
            for what, measured, most in KNOWN[name].aims(n):
                kept = round(measured, 2) <= most
                yield [name, what, f"{measured:.2f}", f"{most:g}", "yes" if kept else "no"]
