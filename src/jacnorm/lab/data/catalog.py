"""The data sets by name, and how they are loaded.

A new set is one entry here. If it comes in MNIST's format, that is all:

    "my-mnist": IdxSet(
        folder="MyMNIST/raw",
        mirrors=("https://example.org/my-mnist/",),
        md5=("…", "…", "…", "…"),
        classes=("cat", "dog"),
    ),

For another format, the entry is an object with `classes` and `splits(root, download)`. Other names may be a
user's own data (own.py).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from ..errors import DataError
from ..wording import did_you_mean
from .cifar import CifarSet
from .dataset import DataSet, Split
from .digits import DigitsSet
from .files import data_root
from .idx import IdxSet
from .own import KINDS, is_own, load_own


class Source(Protocol):
    """The interface of an entry of `SETS`."""

    @property
    def classes(self) -> tuple[str, ...]: ...

    def splits(self, root: Path, download: bool) -> tuple[Split, Split]:
        """Train and test, from files under `root`. Missing files are downloaded if allowed."""


DIGITS = tuple("0123456789")

SETS: dict[str, Source] = {
    "digits": DigitsSet(classes=DIGITS),
    "mnist": IdxSet(
        folder="MNIST/raw",
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        md5=(
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        classes=DIGITS,
    ),
    "kmnist": IdxSet(
        folder="KMNIST/raw",
        mirrors=("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
        md5=(
            "bdb82020997e1d708af4cf47b453dcf7",
            "e144d726b3acfaa3e44228e80efcd344",
            "5c965bf0a639b31b8f53240b1b52f4d7",
            "7320c461ea6c1c855c0b718fb2a4b134",
        ),
        classes=("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
    ),
    "fashion-mnist": IdxSet(
        folder="FashionMNIST/raw",
        mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        md5=(
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        classes=(
            *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
            *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
        ),
    ),
    "cifar10": CifarSet(
        archive="cifar-10-binary.tar.gz",
        mirrors=("https://www.cs.toronto.edu/~kriz/",),
        md5="c32a1d4ab5d03f1284b67883e8d87530",
        classes=(
            *("airplane", "automobile", "bird", "cat", "deer"),
            *("dog", "frog", "horse", "ship", "truck"),
        ),
    ),
}


def check_name(name: str) -> None:
    """Check that a data set is known. Whether a user's own file exists is not checked here."""
    if name not in SETS and not is_own(name):
        raise DataError(f"there is no data set {name!r}: {did_you_mean(name, SETS)}, or name {KINDS}")


def load(
    name: str,
    root: str | os.PathLike[str] | None = None,
    download: bool = True,
    *,
    label: str = "",
    tokens: bool = False,
) -> DataSet:
    """The data set `name`, or a user's own. A `DataError` says which file to mend.

    `label` is the column of a table that has the classes. `tokens` says that whole numbers in a user's own
    data are tokens.

    Files are looked for in `root`, else in the folder that the environment variable JACNORM_DATA names, else
    in the user's cache. Missing files are downloaded into that folder. The layout is torchvision's, so a
    folder of torchvision can be used.
    """
    check_name(name)
    if name not in SETS:
        return load_own(name, label, tokens)
    if tokens:
        raise DataError(
            f"{name}: it has images, and only your own data has tokens: leave out --tokens and --at"
        )
    if label:
        raise DataError(f"{name}: only a table of your own has a label column: leave out --label")
    source = SETS[name]
    train, test = source.splits(data_root(root), download)
    return DataSet.of(name, train, test, source.classes)
