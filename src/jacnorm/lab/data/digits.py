"""The 8x8 digits that come with scikit-learn. They are small and real, and need no download."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from ..errors import DataError
from .dataset import Split

TEST_SIZE = 360


@dataclass(frozen=True)
class DigitsSet:
    """1,797 images. A fixed random choice of 360 is the test split."""

    classes: tuple[str, ...]

    def splits(self, root: Path, download: bool) -> tuple[Split, Split]:
        table = torch.tensor(np.loadtxt(_file(), delimiter=","), dtype=torch.float32)  # pixels and label
        everything = Split(table[:, :-1].div(16).view(-1, 1, 8, 8), table[:, -1].long())
        # RandomState, since its stream never changes: the split is the same in every version.
        order = torch.tensor(np.random.RandomState(0).permutation(len(everything)))
        return everything.take(order[TEST_SIZE:]), everything.take(order[:TEST_SIZE])


def _file() -> Path:
    """The file's path, without importing scikit-learn, which would take as long as torch in every process."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise DataError("the digits come with scikit-learn: pip install 'jacnorm[lab]'")
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
