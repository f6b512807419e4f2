"""Carries results of before over to paper/: a JSON file a run in results/, a folder a network in networks/.

    python paper/convert.py [CHECKOUT]

CHECKOUT has results/ and networks/ as they were; it may be another one, in which runs are under way. What is
here already is left alone, so it can be called again and again.
"""

import sys
from pathlib import Path

from jacnorm.lab.reproduce.catalog import all_items
from jacnorm.lab.reproduce.networks import keep_networks, kept_networks
from jacnorm.lab.reproduce.runs import read_runs
from jacnorm.lab.results import add_old_results, read_results

PAPER = Path(__file__).parent


def main(checkout: Path) -> None:
    items = all_items(PAPER)
    for item in items:
        file = (item.figure or item.table).results
        for folder in (checkout / "results" / name for name in (item.name, f"check-{item.name}")):
            if add_old_results(folder, file):
                print(f"{file}: {len(read_results(file).records)} results")
    for table in {item.table.name: item.table for item in items if item.figure}.values():
        if (checkout / "networks").exists() and table.results.exists():
            chosen = set(read_runs(table).networks["id"])
            there = {folder.name for folder in (checkout / "networks").glob("*/")}
            if chosen <= there | set(kept_networks(table.results)):
                print(f"{table.name}: {keep_networks(table, checkout / 'networks')} networks")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PAPER.parent)
