from __future__ import annotations

import io
import pickle
import struct
import tarfile
from collections.abc import Callable
from hashlib import md5
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from jacnorm.lab.data import DataError, Split, cifar
from jacnorm.lab.data.cifar import CifarSet

BATCH_SIZE = 4
BINARY, PYTHON = "cifar-10-batches-bin", "cifar-10-batches-py"
ARCHIVE = "cifar-10-binary.tar.gz"
Records = NDArray[np.uint8]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "BATCH_SIZE", BATCH_SIZE)


@pytest.fixture
def records() -> dict[str, Records]:
    """One row per image: its label, then its pixels."""
    draw = np.random.default_rng(0)
    batches = {}
    for name in cifar.BATCHES:
        batches[name] = draw.integers(0, 256, (BATCH_SIZE, 3073), dtype=np.uint8)
        batches[name][:, 0] %= 10
    return batches


def write_binary(root: Path, records: dict[str, Records]) -> Path:
    folder = root / BINARY
    folder.mkdir()
    for name, rows in records.items():
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    return folder


def write_python(root: Path, records: dict[str, Records], dump: Callable[[Records], bytes]) -> Path:
    folder = root / PYTHON
    folder.mkdir()
    for name, rows in records.items():
        (folder / name).write_bytes(dump(rows))
    return folder


def python3_pickle(rows: Records, **changed: Any) -> bytes:
    batch = {b"data": rows[:, 1:].copy(), b"labels": rows[:, 0].tolist()}
    return pickle.dumps(batch | {key.encode(): value for key, value in changed.items()}, 2)


def python2_pickle(rows: Records) -> bytes:
    """A pickle with the opcodes of the published batches, which Python 2 wrote."""
    pixels = rows[:, 1:].tobytes()
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN" + b"J\xff\xff\xff\xff" * 2
    shape = b"K" + bytes([len(rows)]) + b"M" + struct.pack("<H", 3072) + b"\x86"
    content = b"\x89T" + struct.pack("<I", len(pixels)) + pixels
    labels = b"".join(b"K" + bytes([label]) for label in rows[:, 0])
    data = array + b"(K\x01" + shape + dtype + b"K\x00tb" + content + b"tb"
    return b"\x80\x02}(U\x04data" + data + b"U\x06labels](" + labels + b"eu."


def tar_bytes(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(folder, arcname=folder.name)
    return buffer.getvalue()


def read(root: Path, **source: Any) -> tuple[Split, Split]:
    fields = {"archive": ARCHIVE, "mirrors": (), "md5": "", "classes": tuple("0123456789")}
    return CifarSet(**(fields | source)).splits(root, download=bool(source))


def check(splits: tuple[Split, Split], records: dict[str, Records]) -> None:
    *train, test = records.values()
    for split, rows in zip(splits, (np.concatenate(train), test), strict=True):
        pixels = rows[:, 1:].reshape(-1, 3, 32, 32)
        assert torch.equal(split.images, torch.tensor(pixels).float() / 255)
        assert split.labels.tolist() == rows[:, 0].tolist()


def test_binary_version(tmp_path: Path, records: dict[str, Records]) -> None:
    write_binary(tmp_path, records)
    check(read(tmp_path), records)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dump", [python2_pickle, python3_pickle])
def test_python_version(
    tmp_path: Path, records: dict[str, Records], dump: Callable[[Records], bytes]
) -> None:
    write_python(tmp_path, records, dump)
    check(read(tmp_path), records)


def test_a_complete_python_version_serves_when_the_binary_is_not(
    tmp_path: Path, records: dict[str, Records]
) -> None:
    (write_binary(tmp_path, records) / "data_batch_3.bin").unlink()
    write_python(tmp_path, records, python3_pickle)
    check(read(tmp_path), records)


def test_neither_version(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"has neither {BINARY} nor a complete {PYTHON}; load with"):
        read(tmp_path)


def test_a_missing_batch(tmp_path: Path, records: dict[str, Records]) -> None:
    (write_binary(tmp_path, records) / "data_batch_3.bin").unlink()
    with pytest.raises(DataError, match=rf"{BINARY}: the folder lacks data_batch_3\.bin; delete"):
        read(tmp_path, md5="never asked for")


@pytest.mark.parametrize("change", [-1, 1, -BATCH_SIZE * 3073])
def test_a_batch_of_the_wrong_size(tmp_path: Path, records: dict[str, Records], change: int) -> None:
    path = write_binary(tmp_path, records) / "data_batch_2.bin"
    size = BATCH_SIZE * 3073 + change
    path.write_bytes((path.read_bytes() + b"\x00")[:size])
    with pytest.raises(
        DataError, match=rf"data_batch_2\.bin: it has {size} bytes, not 12292; delete its folder"
    ):
        read(tmp_path)


def test_a_label_out_of_range(tmp_path: Path, records: dict[str, Records]) -> None:
    records["test_batch"][1, 0] = 10
    write_binary(tmp_path, records)
    with pytest.raises(DataError, match=r"test_batch\.bin: it has a label 10, .*; delete its fol"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"data": np.zeros((3, 3072), np.uint8)}, "it has no data of 4 x 3072 bytes"),
        ({"data": np.zeros((4, 3072))}, "it has no data of 4 x 3072 bytes"),
        ({"data": None}, "it has no data of 4 x 3072 bytes"),
        ({"labels": [1, 2, 3]}, "it has no list of 4 labels"),
        ({"labels": [1, 2, 3, -1]}, "it has no list of 4 labels"),
        ({"labels": [1, 2, 3, "4"]}, "it has no list of 4 labels"),
        ({"labels": [1, 2, 3, 10]}, "it has a label 10"),
    ],
)
def test_a_python_batch_of_other_things(
    tmp_path: Path, records: dict[str, Records], changed: dict[str, Any], message: str
) -> None:
    path = write_python(tmp_path, records, python3_pickle) / "data_batch_4"
    path.write_bytes(python3_pickle(records["data_batch_4"], **changed))
    with pytest.raises(DataError, match=f"data_batch_4: {message}.*; delete its folder"):
        read(tmp_path)


def test_a_python_batch_that_is_no_dict(tmp_path: Path, records: dict[str, Records]) -> None:
    path = write_python(tmp_path, records, python3_pickle) / "data_batch_1"
    path.write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(DataError, match="data_batch_1: it holds a list, not a dict"):
        read(tmp_path)


def test_downloads_and_unpacks(
    tmp_path: Path, records: dict[str, Records], serve: Callable[..., Any]
) -> None:
    archive = tar_bytes(write_binary(tmp_path, records))
    mirror = serve({ARCHIVE: archive})
    root = tmp_path / "root"
    root.mkdir()
    check(read(root, mirrors=(mirror.url,), md5=md5(archive).hexdigest()), records)
    assert sorted(path.name for path in root.iterdir()) == [BINARY, ARCHIVE]
    check(read(root), records)
    assert len(mirror.asked) == 1


def test_an_archive_put_there_by_hand_is_used(tmp_path: Path, records: dict[str, Records]) -> None:
    archive = tar_bytes(write_binary(tmp_path, records))
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / ARCHIVE).write_bytes(archive)
    check(read(tmp_path / "root", md5=md5(archive).hexdigest()), records)
