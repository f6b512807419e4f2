"""The main ways on each network, and the aims beside the measured numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..wording import markdown_table
from .networks import NETWORKS
from .suites import ON_EVERY_NET

Found = dict[str, Any]  # name of a network -> its numbers
KNOWN = {network.name: network for network in NETWORKS}


def ordered(found: Found) -> Found:
    """In the order of the page, with other networks last."""
    names = [name for name in KNOWN if name in found]
    return {name: found[name] for name in dict.fromkeys([*names, *found])}


def networks_in_words(found: Found) -> str:
    """One row per network, one column per way."""
    ways = [way for way in ON_EVERY_NET if any(way in n["cost"] for n in found.values())]
    rows = [["network", *ways, "cosine, bfloat16"]]
    for name, n in found.items():
        costs = [f"{n['cost'][way]:.2f}" if way in n["cost"] else "" for way in ways]
        turned = n.get("one_minus_cosine")
        rows.append([name, *costs, "" if turned is None else f"{1 - turned:.5f}"])
    text = (
        "The main penalties, and J v alone. *J v alone* is a forward and backward pass of the loss with one "
        "product beside it; the product has no gradient. The columns with bfloat16 use "
        "`precision=torch.bfloat16`. The cosine is between the penalty's gradients in bfloat16 and in "
        "float32. `torch.func.jvp` cannot run batch norm in training mode. *vit-64* and *vit-192* are "
        "transformers of these widths. *vit-64* has 4 heads, 2 blocks and 64 tokens; *vit-192* has 3 heads, "
        "4 blocks and 65 tokens. *gated-mlp* has RMS norms and SiLU gates. *critic* has instance norms."
    )
    return f"## Network by network\n\n{text}\n\n{markdown_table(rows)}"


def aims_in_words(found: Found) -> str | None:
    """None if these networks have no aims."""
    rows = list(_aims(found))
    if not rows:
        return None
    missed = sum(row[-1] == "no" for row in rows)
    text = (
        "The aims of the library's development. Costs are in plain steps unless the row says otherwise. "
        f"Memory is relative to plain steps. Of {len(rows)} aims {missed or 'none'} "
        f"{'is' if missed == 1 else 'are'} missed. Small networks miss theirs because recording and checking "
        "each call takes about 0.3 ms of Python per step, whatever the size of the batch. *The same sweeps, "
        "written out* for one network, without records and checks, are the floor. The critic's time goes "
        "into transposed convolutions with a stride, for which this CPU has no tuned kernel. "
        "`benchmarks/versions.py` compares with earlier versions, whose costs no network should exceed."
    )
    head = ["network", "what", "measured", "at most", "kept"]
    return f"## Aims\n\n{text}\n\n{markdown_table([head, *rows])}"


def _aims(found: Found) -> Iterator[list[str]]:
    for name, n in found.items():
        if name in KNOWN and n["width"] == 1:
            for what, measured, most in KNOWN[name].aims(n):
                kept = round(measured, 2) <= most
                yield [name, what, f"{measured:.2f}", f"{most:g}", "yes" if kept else "no"]
