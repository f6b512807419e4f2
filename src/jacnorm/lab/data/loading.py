"""Loading a data set by its name."""

from __future__ import annotations

import os

from ..wording import did_you_mean
from .catalog import SETS
from .dataset import DataSet
from .errors import DataError
from .files import data_root


def load(name: str, root: str | os.PathLike[str] | None = None, download: bool = True) -> DataSet:
    """The data set `name`, whole or a `DataError` that says which file to mend.

    Files are looked for in `root`, else in the folder that the environment variable JACNORM_DATA
    names, else in the user's cache; those that are not there are downloaded into it. The layout
    is torchvision's, so an existing folder of it will do.
    """
    if name not in SETS:
        raise DataError(f"there is no data set {name!r}: {did_you_mean(name, SETS)}")
    source = SETS[name]
    train, test = source.splits(data_root(root), download)
    return DataSet.of(name, train, test, source.classes)
