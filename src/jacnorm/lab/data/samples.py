"""A user's own samples, checked and turned into a data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from ..wording import count
from .dataset import DataSet, Split

TEST = 5  # one sample in five goes to the test split
TOLD = 6  # the most names in a message
CHANNELS = (1, 3, 4)  # a last axis of this length is taken for channels


@dataclass(frozen=True)
class Samples:
    """The samples that were read: x (N, …), labels (N,), and the name of each sample for errors."""

    x: Any
    y: Any
    where: Callable[[int], str]


@dataclass(frozen=True)
class Found:
    """A data set as it was read. Without samples to test on, a part of the train samples is used."""

    name: str
    parts: Sequence[Samples]
    what: str = "samples"
    columns: Sequence[str] = ()  # of a table, one per number in x
    notes: Sequence[str] = field(default_factory=list)


def made(found: Found, tokens: bool = False) -> DataSet:
    """The data set, of tokens or of numbers. A `DataError` says which sample is wrong, and why."""
    names = _classes(found)
    _check_test(found)
    read = _tokens if tokens else _numbers
    splits = [Split(read(found, part), _positions(part, names)) for part in found.parts]
    if len({split.images.shape[1:] for split in splits}) > 1:
        shapes = " and ".join(str(tuple(split.images.shape[1:])) for split in splits)
        raise DataError(f"{found.name}: samples to train on and to test are of two shapes, {shapes}")
    notes = list(found.notes)
    if len(splits) == 1:
        splits = _taken_apart(found, splits[0], names)
        notes.append(f"one in {TEST} of each class is the test split, the same ones each time")
    train, test = splits
    data = DataSet.of(found.name, train, test, names)
    data, more = _without_zeros(data, found.columns)
    return replace(data, notes=(*_told(data, found), *notes, *more), columns=tuple(found.columns), own=True)


def _tokens(found: Found, part: Samples) -> Tensor:
    """The tokens as int64, (N, length)."""
    x = _array(found, "x", part.x)
    if x.dtype.kind not in "iu" or x.ndim != 2:
        raise DataError(
            f"{found.name}: x has dtype {x.dtype} and shape {x.shape}; tokens are whole numbers of shape "
            "(N, length): leave out --tokens and --at"
        )
    _check_length(found, part, x)
    if (bad := (x < 0).any(1)).any():
        row = int(bad.argmax())
        raise DataError(f"{found.name}: {part.where(row)} has {x[row].min()}; tokens are numbered from 0 on")
    return torch.tensor(x.astype(np.int64))


def _numbers(found: Found, part: Samples) -> Tensor:
    """The numbers as float32: rows of a table (N, D), or images (N, C, H, W)."""
    x = _array(found, "x", part.x)
    if x.ndim not in (2, 3, 4):
        raise DataError(
            f"{found.name}: x has shape {x.shape}; a table is (N, columns), images are (N, H, W) or "
            "(N, C, H, W)"
        )
    _check_length(found, part, x)
    is_bytes = np.issubdtype(x.dtype, np.integer) and x.ndim > 2
    if is_bytes and (x.min() < 0 or x.max() > 255):
        raise DataError(
            f"{found.name}: x goes from {x.min()} to {x.max()}; images have whole numbers 0 to 255"
        )
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] in CHANNELS and x.shape[1] not in CHANNELS:
        x = x.transpose(0, 3, 1, 2)
    numbers = torch.tensor(np.ascontiguousarray(x), dtype=torch.float32)
    if is_bytes:
        numbers.div_(255)
    bad = ~torch.isfinite(numbers).flatten(1)
    if bool(bad.any()):
        row, column = (int(n) for n in bad.nonzero()[0])
        named = f", column {found.columns[column]!r}," if found.columns else ""
        value = float(numbers.flatten(1)[row, column])
        raise DataError(f"{found.name}: {part.where(row)}{named} has {value}; fill it in or leave it out")
    return numbers


def _check_length(found: Found, part: Samples, x: np.ndarray[Any, Any]) -> None:
    if x.size == 0:
        raise DataError(f"{found.name}: x has shape {x.shape}: there is nothing in it")
    if len(x) != len(part.y):
        raise DataError(f"{found.name}: x has {len(x)} samples and y has {len(part.y)} labels")


def _array(found: Found, name: str, values: Any) -> np.ndarray[Any, Any]:
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise DataError(f"{found.name}: {name} has dtype {array.dtype}; numbers are needed")
    return array


def _classes(found: Found) -> tuple[str, ...]:
    """The names of all classes, sorted. Their positions are the labels of the data set."""
    for part in found.parts:
        _check_labels(found, part)
    values = np.unique(np.concatenate([np.asarray(part.y) for part in found.parts]))
    if len(values) < 2:
        raise DataError(
            f"{found.name}: there is only one class, {_text(values[0])!r}; a classifier needs two or more"
        )
    return tuple(_text(value) for value in values)


def _check_labels(found: Found, part: Samples) -> None:
    y = np.asarray(part.y)
    if y.ndim != 1 or len(y) == 0:
        raise DataError(f"{found.name}: labels have shape {y.shape}; one for each sample is needed, (N,)")
    if y.dtype.kind == "f":
        if (bad := ~np.isfinite(y)).any():
            raise DataError(f"{found.name}: {part.where(int(bad.argmax()))} has no label")
        if (parts := y != np.floor(y)).any():
            first = int(parts.argmax())
            raise DataError(
                f"{found.name}: {part.where(first)} has the label {y[first]:g}; classes are needed, as whole "
                "numbers or words, not amounts"
            )
    elif y.dtype.kind not in "biuUS":
        raise DataError(f"{found.name}: labels have dtype {y.dtype}; whole numbers or words are needed")


def _check_test(found: Found) -> None:
    """Check that every class of the test split occurs in training. A network cannot predict other classes."""
    train, *tests = found.parts
    known = {_text(label) for label in np.asarray(train.y)}
    for part in tests:
        for i, label in enumerate(map(_text, np.asarray(part.y))):
            if label not in known:
                raise DataError(
                    f"{found.name}: {part.where(i)} of the test split has the class {label!r}, which no "
                    "sample to train on has; add some of it there, or leave it out here"
                )


def _positions(part: Samples, names: tuple[str, ...]) -> Tensor:
    known = {name: i for i, name in enumerate(names)}
    return torch.tensor([known[_text(label)] for label in np.asarray(part.y)], dtype=torch.int64)


def _text(label: Any) -> str:
    """
    >>> _text(np.float64(3.0)), _text(np.str_("cat")), _text(np.True_)
    ('3', 'cat', 'True')
    """
    return str(int(label)) if isinstance(label, float | np.floating) else str(label)


def _taken_apart(found: Found, split: Split, names: tuple[str, ...]) -> list[Split]:
    """The split into train and test. Both have about the same share of every class."""
    # RandomState, since its stream never changes: the split is the same in every version.
    order = torch.tensor(np.random.RandomState(0).permutation(len(split)))
    train, test = [], []
    for label, name in enumerate(names):
        of_class = order[split.labels[order] == label]
        if len(of_class) < 2:
            raise DataError(
                f"{found.name}: class {name!r} has one sample; two are needed, to train on and to test"
            )
        held = max(1, len(of_class) // TEST)
        test.append(of_class[:held])
        train.append(of_class[held:])
    return [split.take(torch.cat(part).sort().values) for part in (train, test)]


def _without_zeros(data: DataSet, columns: Sequence[str]) -> tuple[DataSet, list[str]]:
    """Standard deviation 1 for constant columns, since nothing can be divided by 0."""
    same = [i for i, std in enumerate(data.std) if std < 1e-7 * max(1.0, abs(data.mean[i]))]
    if not same:
        return data, []
    std = tuple(1.0 if i in same else value for i, value in enumerate(data.std))
    names = [columns[i] if columns else f"channel {i}" for i in same]
    return replace(data, std=std), [f"the same in every sample to train on: {some(names)}"]


def _told(data: DataSet, found: Found) -> list[str]:
    """A description of the data, to read before training."""
    train, test, shape = data.train, data.test, tuple(data.train.images.shape[1:])
    sizes = f"{len(train):,} {found.what} to train on, {len(test):,} to test"
    if data.are_tokens:
        last = max(int(split.images.max()) for split in (train, test))
        what = f"{shape[0]} tokens each, from 0 to {last}"
    elif len(shape) == 1:
        what = (
            f"{count(shape[0], 'feature')}, standardized{f': {some(found.columns)}' if found.columns else ''}"
        )
        if not found.columns and np.asarray(found.parts[0].x).dtype.kind in "iu":
            what += " (if these whole numbers are tokens, say --tokens)"
    else:
        low, high = data.range
        what = f"images of {'×'.join(map(str, shape))}, from {low:g} to {high:g}"
        what += "" if data.is_pixels else " (not pixels from 0 to 1, so attacks and noise are not possible)"
    classes = f"{len(data.classes)} classes: {some(data.classes)}"
    return [sizes, what, classes]


def some(names: Sequence[str]) -> str:
    """
    >>> some(["a", "b"]), some([str(i) for i in range(9)])
    ('a, b', '0, 1, 2, 3, 4, 5, …')
    """
    return ", ".join(names[:TOLD]) + (", …" if len(names) > TOLD else "")
