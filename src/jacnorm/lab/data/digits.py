"""The 8x8 digits that come with scikit-learn: small, real, and no download."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from .dataset import Split

TEST_SIZE = 360


@dataclass(frozen=True)
class DigitsSet:
    """1,797 images, of which a fixed random 360 are the test split."""

    classes: tuple[str, ...]

    def splits(self, root: Path, download: bool) -> tuple[Split, Split]:
        # Here and not above: it takes longer to import than torch, and no other set needs it.
        from sklearn.datasets import load_digits

        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32).div_(16).unsqueeze(1)
        everything = Split(images, torch.tensor(digits.target, dtype=torch.int64))
        # RandomState, since its stream is frozen for good: the split is the same in every version.
        order = torch.tensor(np.random.RandomState(0).permutation(len(everything)))
        return everything.take(order[TEST_SIZE:]), everything.take(order[:TEST_SIZE])
