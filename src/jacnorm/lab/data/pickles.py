"""Reading pickles of plain values and numpy arrays, and of nothing else."""

from __future__ import annotations

import _codecs
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from .files import read_bytes

# Asked of an array, since its home moved from numpy.core to numpy._core and both are private.
_reconstruct = np.empty(0).__reduce__()[0]

# Built-in functions and types only: a pickle can set attributes on a Python function it can name.
ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _codecs.encode,
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return ALLOWED[module, name]


def read_pickle(path: Path) -> object:
    """The pickled object, Python 2's strings as bytes; no code of the pickle's choosing runs."""
    data = read_bytes(path)
    try:
        return _ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # A damaged pickle can raise anything.
        raise DataError(
            f"{path}: not a pickle of plain arrays ({error}); "
            f"do not open it by other means: delete its folder and load again to download the set"
        ) from error
