from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jacnorm.lab.data import DataError
from jacnorm.lab.data.cifar import read_pickle


class Call:
    """Its pickle calls `function` when it is opened."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


# Protocol 5 rebuilds arrays by a function that no CIFAR10 file needs.
@pytest.mark.parametrize("protocol", range(5))
def test_arrays_and_plain_values(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "batch"
    array = np.arange(12, dtype=np.uint8).reshape(3, 4)
    path.write_bytes(pickle.dumps({b"data": array, b"labels": [1, 2]}, protocol))
    found = read_pickle(path)
    assert isinstance(found, dict)
    assert np.array_equal(found[b"data"], array)
    assert found[b"labels"] == [1, 2]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_command_is_not_run(tmp_path: Path, protocol: int) -> None:
    path, trace = tmp_path / "batch", tmp_path / "trace"
    path.write_bytes(pickle.dumps({b"data": Call(os.system, f"touch {trace}")}, protocol))
    with pytest.raises(DataError, match=r"batch: .*\(it asks for \w+\.system\); do not open it"):
        read_pickle(path)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("payload", "name"),
    [
        (Call(eval, "1"), r"builtins\.eval"),
        (Call(getattr, "", "join"), r"builtins\.getattr"),
        (Call(np.fromfile, "file"), r"numpy\..*fromfile"),
        (np.array([Call(eval, "1")], dtype=object), r"builtins\.eval"),
    ],
)
def test_nothing_else_can_be_named(tmp_path: Path, payload: Any, name: str) -> None:
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps(payload, 3, fix_imports=False))
    with pytest.raises(DataError, match=f"it asks for {name}"):
        read_pickle(path)


def test_a_dotted_name_reaches_no_attribute(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.")
    with pytest.raises(DataError, match=r"it asks for numpy\.ndarray\.tofile"):
        read_pickle(path)


def test_allowed_functions_cannot_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(b"\x80\x02cnumpy\nndarray\n}X\x01\x00\x00\x00xK\x01sb.")
    with pytest.raises(DataError, match="not a pickle of plain arrays"):
        read_pickle(path)
    assert not hasattr(np.ndarray, "x")


def test_no_cut_pickle_is_read(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    good = pickle.dumps({b"data": np.zeros(4, np.uint8), b"labels": [1]}, 2)
    for cut in range(len(good)):
        path.write_bytes(good[:cut])
        with pytest.raises(DataError, match="batch: not a pickle of plain arrays"):
            read_pickle(path)
