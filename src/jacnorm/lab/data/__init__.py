"""Image sets in memory, seeded batches and augmentation.

>>> import torch
>>> from jacnorm.lab.data import batches, load
>>> data = load("digits")
>>> generator = torch.Generator().manual_seed(0)
>>> for index, images, labels in batches(data.train, 128, generator):
...     pass
"""

from ..errors import DataError
from .catalog import SETS, load
from .dataset import DataSet, Split, batches, crop_and_flip

__all__ = ["SETS", "DataError", "DataSet", "Split", "batches", "crop_and_flip", "load"]
