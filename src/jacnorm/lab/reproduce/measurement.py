"""What a figure measures on networks, with which settings, and the tables and quantities made from it.

A frame has a row for each network that is measured whole, as `as_frame` makes it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd

from ..claims import Quantities
from ..evaluate.adversarial import ATTACKS
from ..evaluate.kinds import EVALUATIONS, Setup
from ..results import Result
from ..wording import spread
from .chapter import Table

if TYPE_CHECKING:
    from .networks import Bench
    from .runs import Network


class Measurement(ABC):
    """A frozen dataclass. Its fields are the settings that [measure] may have."""

    methods: tuple[str, ...] | None = None  # the methods whose networks it needs; None: all
    needs_rivals: ClassVar[bool] = False  # whether the networks of the other methods are needed, too
    is_portable: ClassVar[bool] = True  # whether its numbers are the same on any machine
    units: ClassVar[Mapping[str, str]]  # of each quantity, as written after a difference

    @abstractmethod
    def settings(self) -> dict[str, dict[str, Any]]:
        """Of each kind of measurement, as fields of `Setup`. ε counts in units of 1/255."""

    def kinds(self, network: Network) -> dict[str, dict[str, Any]]:
        """The kinds of measurement, each with all that its numbers depend on."""
        rivals = {"compared_with": sorted(rival.id for rival in network.rivals)} if self.needs_rivals else {}
        return {kind: settings | rivals for kind, settings in self.settings().items()}

    def measure(self, kind: str, network: Network, bench: Bench) -> dict[str, Any]:
        """Measure one kind: a part of the network's record."""
        evaluation, settings = "attacks" if kind in ATTACKS else kind, self.settings()[kind]
        if "epsilon" in settings:
            settings["epsilon"] /= 255
        rivals = network.rivals if self.needs_rivals else ()
        trained = [bench.trained(config) for config in (network.config, *rivals)]
        setup = Setup(bench.data, bench.test(settings["images"]), trained, attacks=(kind,), **settings)
        *_, found = EVALUATIONS[evaluation].run(trained[0], setup)
        return {evaluation: self.kept(found)}

    def kept(self, found: dict[str, Any]) -> dict[str, Any]:
        """The part of what was found that goes into the results."""
        return found

    @abstractmethod
    def notes(self, frame: pd.DataFrame) -> tuple[str, ...]: ...

    @abstractmethod
    def quantities(self, frame: pd.DataFrame) -> Quantities:
        """By name. A quantity without records has no values, but is not left out."""

    @abstractmethod
    def tables(self, frame: pd.DataFrame) -> tuple[Table, ...]: ...


def as_frame(groups: Mapping[str, Sequence[Result]]) -> pd.DataFrame:
    """A row for each network: the name of its group (`method`), its seed and its record.

    All names of `groups` are categories of `method`, also those without any networks.
    """
    rows = [(name, record["config"]["seed"], record) for name, of in groups.items() for record in of]
    frame = pd.DataFrame(rows, columns=["method", "seed", "record"])
    return frame.assign(method=pd.Categorical(frame["method"], categories=list(groups)))


def by_seed(frame: pd.DataFrame, values: Any) -> pd.DataFrame:
    """A row for each seed, a column for each method; `values` has one value per row of the frame."""
    of = pd.DataFrame({"seed": frame["seed"], "method": frame["method"].astype(object), "value": values})
    wide = of.pivot(index="seed", columns="method", values="value")
    return wide.reindex(columns=list(frame["method"].cat.categories)).astype(float)


def sizes(frame: pd.DataFrame) -> pd.Series:
    """How many networks there are of each method that has any, in the order of the table."""
    counts = frame["method"].astype(object).value_counts(sort=False)
    return counts.reindex([name for name in frame["method"].cat.categories if name in counts])


def means_of(columns: dict[str, str], found: Quantities, n: pd.Series) -> pd.DataFrame:
    """A row for each method with networks: how many, and the spread of each of these quantities."""
    cells = pd.DataFrame({title: found[name].apply(spread) for name, title in columns.items()}).loc[n.index]
    cells.insert(0, "n", n.astype(str))
    return cells.rename_axis("method")
