"""Tables with one row per sample, and a column for the class."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DataError
from ..wording import did_you_mean
from .samples import Found, Samples, some

if TYPE_CHECKING:
    import pandas as pd

MOST_WORDS = 32  # different words in a column, at most. Each word becomes a column of zeros and ones
MOSTLY = 0.5


def read_table(path: Path, label: str) -> Found:
    frame = _frame(path)
    if not label:
        raise DataError(f"{path}: which column has the classes? Name it with --label: {some(list(frame))}")
    if label not in frame:
        raise DataError(f"{path}: there is no column {label!r}: {did_you_mean(label, list(frame))}")
    if len(frame) == 0:
        raise DataError(f"{path}: it has no rows")
    notes: list[str] = []
    if (first := frame.columns[0]) != label and _counts_rows(frame[first], first):
        frame = frame.drop(columns=first)
        notes.append("the column without a name counts the rows and is left out")
    labels = _labels(path, frame[label], label)
    features = frame.drop(columns=label)
    if features.shape[1] == 0:
        raise DataError(f"{path}: there is no column beside {label!r}")
    columns = [column for name in features for column in _columns(path, str(name), features[name], notes)]
    x = np.stack([values for _, values in columns], 1)
    samples = Samples(x, labels, row)
    return Found(str(path), [samples], what="rows", columns=[name for name, _ in columns], notes=notes)


def row(i: int) -> str:
    """The name of a row, counted as in a spreadsheet, where the header is row 1."""
    return f"row {i + 2}"


def _frame(path: Path) -> pd.DataFrame:
    import pandas as pd  # here, since the import takes a second

    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise DataError(
            f"{path}: parquet files need the package pyarrow: pip install pyarrow, or save a .csv"
        )
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        frame = pd.read_csv(path)
        other = next((sep for sep in ";\t" if len(frame.columns) == 1 and sep in frame.columns[0]), None)
        return frame if other is None else pd.read_csv(path, sep=other)
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    except Exception as error:  # pandas and pyarrow raise many kinds of errors
        raise DataError(f"{path}: not a table ({str(error).strip().splitlines()[0]})") from error


def _counts_rows(column: pd.Series, name: str) -> bool:
    """Whether this is the index that `frame.to_csv()` writes in front."""
    return str(name).startswith("Unnamed:") and column.tolist() == list(range(len(column)))


def _labels(path: Path, column: pd.Series, name: str) -> Any:
    if (missing := column.isna()).any():
        raise DataError(f"{path}: {row(int(missing.to_numpy().argmax()))} has no {name!r}; leave it out")
    if column.dtype.kind in "biuf":
        return column.to_numpy()
    return column.astype(str).to_numpy(dtype=str)


def _columns(
    path: Path, name: str, column: pd.Series, notes: list[str]
) -> list[tuple[str, np.ndarray[Any, Any]]]:
    """The numbers of a column: the column itself, or one column of zeros and ones per word."""
    import pandas as pd

    if (missing := column.isna()).any():
        first = row(int(missing.to_numpy().argmax()))
        rows = f"{first} and {missing.sum() - 1} more have" if missing.sum() > 1 else f"{first} has"
        raise DataError(f"{path}: {rows} nothing in column {name!r}; fill it in or leave it out")
    if column.dtype.kind in "biuf":
        return [(name, column.to_numpy(dtype=np.float64))]
    if column.dtype.kind not in "OUT" and not isinstance(column.dtype, pd.CategoricalDtype | pd.StringDtype):
        raise DataError(f"{path}: column {name!r} is {column.dtype}; numbers or words are needed")
    words = column.astype(str)
    as_numbers = pd.to_numeric(words, errors="coerce").isna().to_numpy()
    if as_numbers.mean() < MOSTLY:
        odd = int(as_numbers.argmax())
        raise DataError(f"{path}: {row(odd)} has {words.iloc[odd]!r} in column {name!r}, among numbers")
    kinds = sorted(words.unique())
    if len(kinds) > MOST_WORDS:
        raise DataError(
            f"{path}: column {name!r} has {len(kinds)} different words ({kinds[0]!r}, …): that looks like a "
            f"name or a text. Leave the column out; up to {MOST_WORDS} become columns of zeros and ones"
        )
    notes.append(f"{name!r} becomes {len(kinds)} columns of zeros and ones: {some(kinds)}")
    return [(f"{name}={kind}", (words == kind).to_numpy(dtype=np.float64)) for kind in kinds]
