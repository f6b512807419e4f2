"""Image sets in memory, seeded batches and augmentation.

>>> import torch
>>> from jacnorm.lab.data import batches, load
>>> data = load("digits")
>>> generator = torch.Generator().manual_seed(0)
>>> for index, images, labels in batches(data.train, 128, generator):
...     pass
"""

from .augment import crop_and_flip
from .batching import batches
from .catalog import SETS
from .dataset import DataSet, Split
from .errors import DataError
from .loading import load

__all__ = ["SETS", "DataError", "DataSet", "Split", "batches", "crop_and_flip", "load"]
