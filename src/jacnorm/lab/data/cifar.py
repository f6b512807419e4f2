"""CIFAR10 in its binary and its python version. Pickles are read without running code."""

from __future__ import annotations

import _codecs
import gzip
import io
import os
import pickle
import shutil
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ..errors import DataError
from .dataset import Split
from .download import download_file
from .files import Bytes, broken, check_labels, check_root, exists, read_bytes, to_split


def extract(archive: Path, names: Collection[str], folder: Path) -> None:
    """Unpack the files `names` of `folder.name` in the archive. `folder` appears complete or not at all.

    Files are written only under names that the caller gave. So an archive cannot write anywhere else,
    whatever paths and links it holds. The download checks that the bytes are the published ones.
    """
    with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        unpacked = Path(temporary) / folder.name
        unpacked.mkdir()
        try:
            _unpack(archive, names, unpacked)
        except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise broken(archive, f"the archive is damaged ({error})") from error
        missing = sorted(set(names) - {path.name for path in unpacked.iterdir()})
        if missing:
            raise broken(archive, f"the archive lacks {', '.join(missing)}")
        _move(unpacked, folder)


def _unpack(archive: Path, names: Collection[str], folder: Path) -> None:
    wanted = {f"{folder.name}/{name}": folder / name for name in names}
    with tarfile.open(archive, "r:*") as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isfile() else None
            if member.name in wanted and content is not None:
                with wanted[member.name].open("wb") as file:
                    shutil.copyfileobj(content, file)
                    file.flush()
                    os.fsync(file.fileno())


def _move(unpacked: Path, folder: Path) -> None:
    try:
        os.replace(unpacked, folder)
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be put in place ({error.strerror}); if another process has just "
            f"made it, load again, else delete it first"
        ) from error


# Taken from an array, since it moved from numpy.core to numpy._core, and both are private.
_reconstruct = np.empty(0).__reduce__()[0]

# Only built-in functions and types: a pickle can set attributes of any Python function that it names.
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
    """The pickled object, with Python 2's strings as bytes. The pickle cannot run code."""
    data = read_bytes(path)
    try:
        return _ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # A damaged pickle can raise anything.
        raise DataError(
            f"{path}: not a pickle of plain arrays ({error}); "
            f"do not open it by other means: delete its folder and load again to download the set"
        ) from error


BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
BATCH_SIZE = 10_000
IMAGE_SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32

BINARY = "cifar-10-batches-bin"
PYTHON = "cifar-10-batches-py"
BINARY_FILES = tuple(f"{batch}.bin" for batch in BATCHES)

Reader = Callable[[Path], tuple[Bytes, Bytes]]


@dataclass(frozen=True)
class CifarSet:
    """Five train batches and one test batch. The binary version is downloaded as one archive."""

    archive: str
    mirrors: tuple[str, ...]
    md5: str
    classes: tuple[str, ...]

    def splits(self, root: Path, download: bool) -> tuple[Split, Split]:
        check_root(root)
        if _has_all(root / BINARY, BINARY_FILES):
            return self._read(root / BINARY, BINARY_FILES, read_binary)
        if _has_all(root / PYTHON, BATCHES):
            return self._read(root / PYTHON, BATCHES, read_python)
        self._fetch(root, download)
        return self._read(root / BINARY, BINARY_FILES, read_binary)

    def _fetch(self, root: Path, download: bool) -> None:
        folder = root / BINARY
        if folder.exists():
            missing = [name for name in BINARY_FILES if not exists(folder / name)]
            raise broken(folder, f"the folder lacks {', '.join(missing)}")
        if not download:
            raise DataError(
                f"{root}: has neither {BINARY} nor a complete {PYTHON}; load with download=True, "
                f"or name the folder that has one with --data-root or JACNORM_DATA"
            )
        archive = root / self.archive
        download_file([mirror + self.archive for mirror in self.mirrors], archive, self.md5)
        extract(archive, BINARY_FILES, folder)

    def _read(self, folder: Path, names: Iterable[str], read: Reader) -> tuple[Split, Split]:
        batches = []
        for path in (folder / name for name in names):
            images, labels = read(path)
            check_labels(path, labels, len(self.classes), delete="its folder")
            batches.append((images, labels))
        *train, test = batches
        images, labels = (np.concatenate(parts) for parts in zip(*train, strict=True))
        return to_split(images, labels), to_split(*test)


def read_binary(path: Path) -> tuple[Bytes, Bytes]:
    """A batch of records, each a label byte and then the pixels by channel, row and column."""
    data, expected = read_bytes(path), BATCH_SIZE * (1 + PIXELS)
    if len(data) != expected:
        raise _broken_batch(path, f"it has {len(data)} bytes, not {expected}")
    records = np.frombuffer(data, np.uint8).reshape(BATCH_SIZE, 1 + PIXELS)
    return records[:, 1:].reshape(-1, *IMAGE_SHAPE), records[:, 0]


def read_python(path: Path) -> tuple[Bytes, Bytes]:
    """A pickled dict of `data`, an array with one row per image, and `labels`, a list."""
    batch = read_pickle(path)
    if not isinstance(batch, dict):
        raise _broken_batch(path, f"it holds a {type(batch).__name__}, not a dict")
    pixels, labels = batch.get(b"data"), batch.get(b"labels")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != (BATCH_SIZE, PIXELS):
        raise _broken_batch(path, f"it has no data of {BATCH_SIZE} x {PIXELS} bytes")
    if not isinstance(labels, list) or len(labels) != BATCH_SIZE or not _are_bytes(labels):
        raise _broken_batch(path, f"it has no list of {BATCH_SIZE} labels")
    return pixels.reshape(-1, *IMAGE_SHAPE), np.array(labels, np.uint8)


def _broken_batch(path: Path, found: str) -> DataError:
    # A single batch cannot be downloaded, only the whole folder.
    return broken(path, found, delete="its folder")


def _are_bytes(values: list[object]) -> bool:
    return all(isinstance(value, int) and 0 <= value < 256 for value in values)


def _has_all(folder: Path, names: Iterable[str]) -> bool:
    return all(exists(folder / name) for name in names)
