"""A user's own data: an .npz, a folder of images, a table, or the result of a function."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ..errors import DataError
from ..own_code import in_a_line, made_by
from .dataset import DataSet
from .folders import read_folder
from .samples import Found, Samples, made
from .tables import read_table

TABLES = (".csv", ".parquet")
KINDS = "an .npz, .csv or .parquet file, a folder of images by class, or package.module:factory"
X, Y = ("x", "x_train"), ("y", "y_train")


def is_own(name: str) -> bool:
    """Whether a name means a file, a folder or a function, and not a known data set."""
    path = Path(name).expanduser()
    return ":" in name or os.sep in name or path.suffix in (".npz", *TABLES) or path.is_dir()


def load_own(name: str, label: str, tokens: bool = False) -> DataSet:
    """The data set, read and checked. A `DataError` says what is wrong."""
    return made(_read_own(name, label), tokens)


def _read_own(name: str, label: str) -> Found:
    path = Path(name).expanduser()
    if path.suffix in TABLES:
        return read_table(path, label)
    if label:
        raise DataError(f"{name}: a label column is for tables ({', '.join(TABLES)}): leave out --label")
    if path.suffix == ".npz":
        return read_npz(path)
    if path.is_dir():
        return read_folder(path)
    if ":" in name and not path.exists():
        return read_factory(name)
    if not path.exists():
        raise DataError(f"{name}: there is no such file or folder")
    raise DataError(f"{name}: not a kind of data that is known: {KINDS}")


def read_npz(path: Path) -> Found:
    """The arrays x and y of an .npz file, and x_test and y_test if it has them."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: _read(path, file, name) for name in file.files}
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path}: not an .npz of plain arrays; save one with np.savez({path.name!r}, x=x, y=y)"
        ) from error
    x, y = (next((name for name in names if name in arrays), None) for names in (X, Y))
    if x is None or y is None:
        raise DataError(f"{path}: arrays x and y are needed, it has {', '.join(arrays) or 'none'}")
    parts = [(x, y)]
    if {"x_test", "y_test"} <= set(arrays):
        parts.append(("x_test", "y_test"))
    samples = [Samples(arrays[a], arrays[b], _place(a)) for a, b in parts]
    return Found(str(path), samples)


def _read(path: Path, file: Any, name: str) -> Any:
    try:
        return file[name]
    except ValueError as error:
        raise DataError(
            f"{path}: the array {name!r} is a pickle of Python objects, which is not opened since it can run "
            "code; save plain numbers and words"
        ) from error


def _place(name: str) -> Any:
    return lambda i: f"{name}[{i}]"


def read_factory(name: str) -> Found:
    """The samples of a factory.

    It returns a Dataset, a DataLoader or arrays (x, y), or two of these: train and test.
    """
    found = made_by(
        name, "a Dataset, a DataLoader or arrays (x, y), or two of them: (train, test)", DataError
    )
    both = found if _is_pair(found) and all(map(_is_set, found)) else (found,)
    return Found(name, [_samples(name, one) for one in both])


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2


def _is_set(value: Any) -> bool:
    return isinstance(value, Dataset | DataLoader) or (
        _is_pair(value) and all(hasattr(v, "shape") for v in value)
    )


def _samples(name: str, given: Any) -> Samples:
    x: Any
    y: Any
    if isinstance(given, DataLoader) and not isinstance(given.dataset, IterableDataset):
        given = given.dataset  # in the order of the dataset, not of the loader
    if isinstance(given, DataLoader):
        batches = [_of_two(name, batch) for batch in given]
        x, y = (_joined(name, "batch", [batch[i] for batch in batches], np.concatenate) for i in (0, 1))
    elif hasattr(given, "__getitem__") and hasattr(given, "__len__") and not _is_pair(given):
        rows = [_of_two(name, _item(name, given, i)) for i in range(len(given))]
        x, y = (_joined(name, "sample", [row[i] for row in rows], np.stack) for i in (0, 1))
    elif _is_pair(given):
        x, y = given
    else:
        raise DataError(
            f"{name} returned {type(given).__name__}; a Dataset, a DataLoader or (x, y) is needed"
        )
    return Samples(x, y, lambda i: f"sample {i}")


def _item(name: str, given: Any, i: int) -> Any:
    try:
        return given[i]
    except Exception as error:  # a user's code may raise anything
        raise DataError(f"{name}: sample {i} cannot be read: {in_a_line(error)}") from error


def _joined(name: str, what: str, parts: list[Any], join: Callable[..., Any]) -> Any:
    """All samples or batches as one array.

    Raises an error if their shapes differ. Batches may differ in length.
    """
    arrays = [one.detach().cpu().numpy() if isinstance(one, Tensor) else np.asarray(one) for one in parts]
    shapes = [one.shape[what == "batch" :] for one in arrays]
    for i, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise DataError(
                f"{name}: {what} {i} has shape {shape}, and {what} 0 has {shapes[0]}; bring all to one shape"
            )
    return join(arrays) if arrays else []


def _of_two(name: str, one: Any) -> Any:
    if isinstance(one, Mapping) or not _is_pair(one):
        raise DataError(f"{name}: its samples are {type(one).__name__}; pairs (x, label) are needed")
    return one
