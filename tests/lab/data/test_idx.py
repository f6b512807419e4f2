from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from jacnorm.lab.data import DataError, Split
from jacnorm.lab.data.idx import IdxSet, read_idx

WriteIdx = Callable[..., Path]
LABELS = bytes((0, 0, 8, 1, 0, 0, 0, 6))


def small_set() -> IdxSet:
    return IdxSet("raw", (), ("", "", "", ""), tuple("0123456789"), sizes=(6, 4))


def read(root: Path) -> tuple[Split, Split]:
    return small_set().splits(root, download=False)


@pytest.mark.parametrize("packed", [False, True])
def test_reads_the_four_files(
    tmp_path: Path, write_idx: WriteIdx, idx_files: dict[str, bytes], packed: bool
) -> None:
    write_idx(tmp_path / "raw", packed)
    train, test = read(tmp_path)
    pixels = np.frombuffer(idx_files["train-images-idx3-ubyte"], np.uint8, offset=16)
    assert train.images.shape == (6, 1, 28, 28)
    assert torch.equal(train.images.flatten(), torch.tensor(pixels).float() / 255)
    assert train.labels.tolist() == list(idx_files["train-labels-idx1-ubyte"][8:])
    assert test.labels.tolist() == list(idx_files["t10k-labels-idx1-ubyte"][8:])


def test_a_plain_file_goes_before_its_packed_twin(tmp_path: Path, write_idx: WriteIdx) -> None:
    write_idx(tmp_path / "raw", packed=True, train_labels=LABELS + bytes(6))
    write_idx(tmp_path / "raw", train_labels=LABELS + bytes([9] * 6))
    assert read(tmp_path)[0].labels.tolist() == [9] * 6


def test_a_missing_file_is_named(tmp_path: Path, write_idx: WriteIdx) -> None:
    write_idx(tmp_path / "raw")
    (tmp_path / "raw" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz: there is no such file"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"\x00\x00\x08\x01" + bytes(12), "it begins with 00000801, not with IDX's 00000803"),
        (b"<html>404</html>", "it begins with 3c68746d, not with IDX's"),
        (b"\x00\x00\x08\x03" + bytes(11), "it ends within its header of 16 bytes"),
    ],
)
def test_a_bad_header(tmp_path: Path, write_idx: WriteIdx, data: bytes, message: str) -> None:
    write_idx(tmp_path / "raw", train_images=data)
    with pytest.raises(DataError, match=f"train-images-idx3-ubyte: {message}.*; delete it and"):
        read(tmp_path)


@pytest.mark.parametrize("found", [5, 7])
def test_fewer_or_more_bytes_than_announced(tmp_path: Path, write_idx: WriteIdx, found: int) -> None:
    write_idx(tmp_path / "raw", train_labels=LABELS + bytes(found))
    with pytest.raises(
        DataError, match=f"train-labels-idx1-ubyte: .* announces 6 bytes of data, but {found} fol"
    ):
        read(tmp_path)


def test_a_giant_header_allocates_nothing(tmp_path: Path, write_idx: WriteIdx) -> None:
    write_idx(tmp_path / "raw", train_images=b"\x00\x00\x08\x03" + b"\xff" * 12)
    with pytest.raises(DataError, match=f"announces {(2**32 - 1) ** 3} bytes"):
        read(tmp_path)


def test_as_many_labels_as_images(tmp_path: Path, write_idx: WriteIdx) -> None:
    write_idx(tmp_path / "raw", train_labels=bytes((0, 0, 8, 1, 0, 0, 0, 2, 1, 1)))
    with pytest.raises(DataError, match=r"train-images.* has 6 images, but .*train-labels.* has 2 labels"):
        read(tmp_path)


def test_train_and_test_swapped(tmp_path: Path, write_idx: WriteIdx) -> None:
    raw = write_idx(tmp_path / "raw").parent
    for name in ("images-idx3-ubyte", "labels-idx1-ubyte"):
        (raw / f"train-{name}").rename(raw / "aside")
        (raw / f"t10k-{name}").rename(raw / f"train-{name}")
        (raw / "aside").rename(raw / f"t10k-{name}")
    with pytest.raises(DataError, match=r"shape \(4, 28, 28\), not \(6, 28, 28\)"):
        read(tmp_path)


def test_a_label_out_of_range(tmp_path: Path, write_idx: WriteIdx) -> None:
    write_idx(tmp_path / "raw", train_labels=LABELS + bytes((0, 1, 2, 3, 4, 10)))
    with pytest.raises(DataError, match=r"train-labels.*: it has a label 10, but the classes are 0\.\.9"):
        read(tmp_path)


def test_a_truncated_gzip(tmp_path: Path, write_idx: WriteIdx) -> None:
    path = write_idx(tmp_path / "raw", packed=True)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: .* is cut short; delete"):
        read(tmp_path)


def test_a_gzip_with_a_wrong_checksum(tmp_path: Path, write_idx: WriteIdx) -> None:
    path = write_idx(tmp_path / "raw", packed=True)
    data = bytearray(path.read_bytes())
    data[-8] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"is damaged \(CRC check failed"):
        read(tmp_path)


def test_a_gzip_that_is_none(tmp_path: Path, write_idx: WriteIdx) -> None:
    write_idx(tmp_path / "raw", packed=True).write_bytes(b"<html>404</html>")
    with pytest.raises(DataError, match=r"is damaged \(Not a gzipped file"):
        read(tmp_path)


def test_no_cut_and_no_flipped_byte_gives_other_data(tmp_path: Path) -> None:
    path = tmp_path / "labels.gz"
    good = gzip.compress(LABELS + bytes(range(6)))
    damaged = [good[:cut] for cut in range(len(good))]
    damaged += [
        good[:i] + bytes([good[i] ^ bit]) + good[i + 1 :] for i in range(len(good)) for bit in (1, 128)
    ]
    for data in damaged:
        path.write_bytes(data)
        try:
            found = read_idx(path, 1)
        except DataError:
            continue
        assert found.tolist() == list(range(6)), "a damaged file was read as other data"


def test_a_folder_in_place_of_a_file(tmp_path: Path, write_idx: WriteIdx) -> None:
    path = write_idx(tmp_path / "raw")
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte: cannot be read \(Is a dir"):
        read(tmp_path)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_that_may_not_be_read(tmp_path: Path, write_idx: WriteIdx) -> None:
    folder = write_idx(tmp_path / "raw").parent
    folder.chmod(0)
    try:
        with pytest.raises(DataError, match=r"cannot be read \(Permission denied\); change its"):
            read(tmp_path)
    finally:
        folder.chmod(0o700)


def test_a_folder_that_cannot_be_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(DataError, match=r"cannot be read \(Permission denied\); change its"):
        read(tmp_path)
