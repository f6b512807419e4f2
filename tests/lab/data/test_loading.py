from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jacnorm.lab.data import SETS, DataError, load
from jacnorm.lab.data.dataset import channel_statistics
from jacnorm.lab.data.files import data_root
from jacnorm.lab.data.idx import FILES, IdxSet


@pytest.fixture
def packed(idx_files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{name}.gz": gzip.compress(data) for name, data in idx_files.items()}


@pytest.fixture
def mirror(packed: dict[str, bytes], serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A mirror with the set `tiny`, which is put into the table."""
    server = serve(packed)
    first, second, third, fourth = (hashlib.md5(packed[f"{name}.gz"]).hexdigest() for name in FILES)
    md5 = (first, second, third, fourth)
    tiny = IdxSet("Tiny/raw", (server.url,), md5, tuple("0123456789"), sizes=(6, 4))
    monkeypatch.setitem(SETS, "tiny", tiny)
    return server


def test_an_unknown_name() -> None:
    with pytest.raises(DataError, match="no data set 'mnits': did you mean 'mnist'"):
        load("mnits")


def test_a_folder_that_was_named_must_exist(tmp_path: Path, mirror: Any) -> None:
    with pytest.raises(DataError, match="absent: there is no such folder"):
        load("tiny", root=tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


def test_a_failed_download_leaves_no_folders(tmp_path: Path, mirror: Any) -> None:
    mirror.files.clear()
    with pytest.raises(DataError, match=r"no mirror delivered it .*--data-root"):
        load("tiny", root=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_set_is_downloaded_once(tmp_path: Path, mirror: Any) -> None:
    data = load("tiny", root=tmp_path)
    assert (len(data.train), len(data.test)) == (6, 4)
    assert (data.mean, data.std) == channel_statistics(data.train.images)
    assert data.classes == tuple("0123456789")
    load("tiny", root=tmp_path, download=False)
    assert len(mirror.asked) == 4


def test_only_the_missing_file_is_downloaded(tmp_path: Path, mirror: Any) -> None:
    load("tiny", root=tmp_path)
    (tmp_path / "Tiny/raw/t10k-labels-idx1-ubyte.gz").unlink()
    mirror.asked.clear()
    load("tiny", root=tmp_path)
    assert mirror.asked == [("t10k-labels-idx1-ubyte.gz", None)]


def test_download_can_be_forbidden(tmp_path: Path, mirror: Any) -> None:
    with pytest.raises(DataError, match="no such file, packed or not; load with download=True"):
        load("tiny", root=tmp_path, download=False)
    assert mirror.asked == []


def test_the_environment_names_the_folder(
    tmp_path: Path, mirror: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JACNORM_DATA", str(tmp_path))
    load("tiny")
    assert (tmp_path / "Tiny" / "raw").is_dir()


@pytest.mark.parametrize(
    ("root", "data", "cache", "expected"),
    [
        ("/given", "/data", "/cache", "/given"),
        (None, "/data", "/cache", "/data"),
        (None, "", "/cache", "/cache/jacnorm"),
        (None, "", "", "/home/me/.cache/jacnorm"),
        ("~/given", "", "", "/home/me/given"),
    ],
)
def test_where_files_are(
    monkeypatch: pytest.MonkeyPatch, root: str | None, data: str, cache: str, expected: str
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("JACNORM_DATA", data)
    monkeypatch.setenv("XDG_CACHE_HOME", cache)
    assert data_root(root) == Path(expected)


def test_every_set_in_the_table_names_ten_classes() -> None:
    assert {name: len(set(source.classes)) for name, source in SETS.items()} == dict.fromkeys(
        ("digits", "mnist", "kmnist", "fashion-mnist", "cifar10"), 10
    )
