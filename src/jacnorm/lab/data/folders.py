"""Images in folders, one folder per class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from ..wording import count
from .samples import Found, Samples

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm")
GREY = ("1", "L")
TESTS = ("test", "val", "valid", "validation")


def read_folder(path: Path) -> Found:
    """path/CLASS/IMAGE, or path/train/CLASS/IMAGE and path/test/CLASS/IMAGE."""
    inside = [folder.name for folder in _folders(path)]
    if "train" in inside:
        test = next((name for name in TESTS if name in inside), None)
        parts = [path / "train", *([] if test is None else [path / test])]
    else:
        parts = [path]
    files = [_files(part) for part in parts]
    is_grey = all(_mode(file) in GREY for part in files for file, _ in part)
    samples = [_samples(part, is_grey, files[0][0][0]) for part in files]
    notes = ["grey" if is_grey else "in colour (RGB)"]
    if others := sum(_others(part) for part in parts):
        notes.append(f"{count(others, 'other file')} ignored")
    return Found(str(path), samples, what="images", notes=notes)


def _folders(path: Path) -> list[Path]:
    return sorted(one for one in path.iterdir() if one.is_dir() and not one.name.startswith("."))


def _files(path: Path) -> list[tuple[Path, str]]:
    """All images with their classes."""
    classes = _folders(path)
    if not classes:
        raise DataError(
            f"{path}: there are no folders in it; images are expected in one folder per class, as cats/1.png"
        )
    found = {one: sorted(file for file in one.rglob("*") if _is_image(file)) for one in classes}
    for one, files in found.items():
        if not files:
            raise DataError(f"{one}: there are no images in it ({', '.join(SUFFIXES[:3])}, …)")
    return [(file, one.name) for one, files in found.items() for file in files]


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES and not file.name.startswith(".")


def _others(path: Path) -> int:
    return sum(
        file.is_file() and not _is_image(file) and not file.name.startswith(".") for file in path.rglob("*")
    )


def _samples(files: Sequence[tuple[Path, str]], is_grey: bool, first: Path) -> Samples:
    size, images = _opened(first).size, []
    for file, _ in files:
        image = _opened(file)
        if image.size != size:
            sizes = [f"{width}×{height}" for width, height in (image.size, size)]
            raise DataError(
                f"{file}: it is {sizes[0]}, and {first} is {sizes[1]}; make all images the same size first"
            )
        images.append(np.asarray(image.convert("L" if is_grey else "RGB")))
    pixels = np.stack(images)
    return Samples(pixels, np.array([name for _, name in files]), lambda i: str(files[i][0]))


def _mode(file: Path) -> str:
    return str(_opened(file, whole=False).mode)


def _opened(file: Path, whole: bool = True) -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError("a folder of images needs Pillow: pip install 'jacnorm[lab]'") from error
    try:
        with Image.open(file) as image:
            if whole:
                image.load()
            return image
    except Exception as error:  # Pillow raises many kinds of errors for damaged files
        raise DataError(f"{file}: not a readable image ({error})") from error
