"""Finds data files, and reads them completely or not at all."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import DataError
from .dataset import Split

Bytes = NDArray[np.uint8]


def data_root(root: str | os.PathLike[str] | None) -> Path:
    """`root`, else the folder that JACNORM_DATA names, else the user's cache."""
    if named := root or os.environ.get("JACNORM_DATA"):
        return Path(named).expanduser()
    return _cache()


def check_root(root: Path) -> None:
    """Check that a named folder exists. Otherwise a typing error would make a new folder with downloads."""
    if root != _cache() and not exists(root):
        raise DataError(f"{root}: there is no such folder; name one that has the data sets, or make it")


def _cache() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "jacnorm"


def exists(path: Path) -> bool:
    """Whether there is such a file. Raises an error if its folder cannot be read."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise unreadable(path, error) from error
    return True


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked if it is a .gz."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    return _gunzip(path, data) if path.suffix == ".gz" else data


def _gunzip(path: Path, data: bytes) -> bytes:
    try:
        return gzip.decompress(data)
    except EOFError as error:
        raise broken(path, "the gzip stream is cut short") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise broken(path, f"the gzip stream is damaged ({error})") from error


def to_split(pixels: Bytes, labels: Bytes) -> Split:
    """A split from images of 0..255 and their labels."""
    images = torch.tensor(pixels, dtype=torch.float32).div_(255)
    return Split(images, torch.tensor(labels, dtype=torch.int64))


def check_labels(path: Path, labels: Bytes, classes: int, delete: str = "it") -> None:
    if labels.max() >= classes:
        found = f"it has a label {labels.max()}, but the classes are 0..{classes - 1}"
        raise broken(path, found, delete)


def broken(path: Path, found: str, delete: str = "it") -> DataError:
    return DataError(f"{path}: {found}; delete {delete} and load again to download a good copy")


def unreadable(path: Path, error: OSError) -> DataError:
    return DataError(
        f"{path}: cannot be read ({error.strerror}); change its permissions or name another folder "
        f"with --data-root or JACNORM_DATA"
    )
