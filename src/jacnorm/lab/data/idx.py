"""MNIST and the sets that come in its IDX format, plain or gzipped."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import DataError
from .dataset import Split
from .download import download_file
from .files import Bytes, broken, check_labels, check_root, exists, read_bytes, to_split

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
IMAGE_SHAPE = (28, 28)
UNSIGNED_BYTES = 0x08


@dataclass(frozen=True)
class IdxSet:
    """Four files in `folder`. `md5` has the md5 of each file's .gz, in the order of `FILES`."""

    folder: str
    mirrors: tuple[str, ...]
    md5: tuple[str, str, str, str]
    classes: tuple[str, ...]
    sizes: tuple[int, int] = (60_000, 10_000)

    def splits(self, root: Path, download: bool) -> tuple[Split, Split]:
        check_root(root)
        paths = [
            self._locate(root / self.folder, name, md5, download)
            for name, md5 in zip(FILES, self.md5, strict=True)
        ]
        train = self._split(paths[0], paths[1], self.sizes[0])
        test = self._split(paths[2], paths[3], self.sizes[1])
        return train, test

    def _locate(self, folder: Path, name: str, md5: str, download: bool) -> Path:
        """The file on disk: the plain file if there is one, else the gzipped file, else a download."""
        plain, packed = folder / name, folder / f"{name}.gz"
        if exists(plain):
            return plain
        if exists(packed):
            # The md5 of an existing file is not checked: gzip has its own checksum, and a copy that
            # somebody packed again is a good copy.
            return packed
        if not download:
            raise DataError(
                f"{packed}: there is no such file, packed or not; load with download=True, "
                f"or name the folder that has {self.folder} with --data-root or JACNORM_DATA"
            )
        download_file([mirror + packed.name for mirror in self.mirrors], packed, md5)
        return packed

    def _split(self, image_path: Path, label_path: Path, size: int) -> Split:
        images, labels = read_idx(image_path, 3), read_idx(label_path, 1)
        if len(images) != len(labels):
            raise DataError(
                f"{image_path} has {len(images)} images, but {label_path} has {len(labels)} "
                f"labels; delete both and load again to download good copies"
            )
        if images.shape != (size, *IMAGE_SHAPE):
            expected = (size, *IMAGE_SHAPE)
            raise broken(image_path, f"its images have shape {images.shape}, not {expected}")
        check_labels(label_path, labels, len(self.classes))
        return to_split(images[:, np.newaxis], labels)


def read_idx(path: Path, dimensions: int) -> Bytes:
    """The array of unsigned bytes in an IDX file.

    The format (http://yann.lecun.com/exdb/mnist/): two zero bytes, the type, the number of
    dimensions, the dimensions as big-endian 32-bit integers, the data.
    """
    data = read_bytes(path)
    if not data:
        raise broken(path, "the file is empty")
    magic = bytes((0, 0, UNSIGNED_BYTES, dimensions))
    if data[:4] != magic:
        raise broken(path, f"it begins with {data[:4].hex()}, not with IDX's {magic.hex()}")
    start = 4 + 4 * dimensions
    if len(data) < start:
        raise broken(path, f"it ends within its header of {start} bytes")
    shape = tuple(np.frombuffer(data[4:start], ">u4").tolist())
    announced, found = math.prod(shape), len(data) - start
    if found != announced:
        raise broken(path, f"its header announces {announced} bytes of data, but {found} follow")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
