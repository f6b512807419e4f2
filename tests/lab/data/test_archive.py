from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from jacnorm.lab.data import DataError
from jacnorm.lab.data.cifar import extract

NAMES = ("one", "two")
GOOD = [("set/one", b"1"), ("set/two", b"2")]


def write_tar(path: Path, members: list[tuple[str, bytes]], links: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for name, target in links.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return path


def everything(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_only_the_expected_files_come_out(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    outside = [("set/../../escaped", b"x"), ("../escaped", b"x"), (f"{tmp_path}/escaped", b"x")]
    links = {"set/link": "/etc/passwd", "set/up": ".."}
    archive = write_tar(root / "a.tar.gz", [*GOOD, *outside, ("set/readme", b"x")], links)
    extract(archive, NAMES, root / "set")
    assert everything(tmp_path) == [*("root", "root/a.tar.gz", "root/set", "root/set/one", "root/set/two")]
    assert (root / "set" / "one").read_bytes() == b"1"


def test_a_missing_member(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "a.tar.gz", GOOD[:1], {})
    with pytest.raises(DataError, match=r"a\.tar\.gz: the archive lacks two; delete it"):
        extract(archive, NAMES, tmp_path / "set")
    assert everything(tmp_path) == ["a.tar.gz"]


def test_a_link_is_no_file(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "a.tar.gz", GOOD[:1], {"set/two": "/etc/passwd"})
    with pytest.raises(DataError, match="the archive lacks two"):
        extract(archive, NAMES, tmp_path / "set")


@pytest.mark.parametrize("kept", [0, 20, 60, 200])
def test_a_cut_archive_leaves_nothing(tmp_path: Path, kept: int) -> None:
    archive = write_tar(tmp_path / "a.tar.gz", [("set/one", bytes(range(256)) * 99), GOOD[1]], {})
    archive.write_bytes(archive.read_bytes()[:kept])
    with pytest.raises(DataError, match=r"a\.tar\.gz: the archive is damaged"):
        extract(archive, NAMES, tmp_path / "set")
    assert everything(tmp_path) == ["a.tar.gz"]


def test_a_folder_in_the_way_stays(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "a.tar.gz", GOOD, {})
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "mine").touch()
    with pytest.raises(DataError, match="set: cannot be put in place"):
        extract(archive, NAMES, tmp_path / "set")
    assert everything(tmp_path) == ["a.tar.gz", "set", "set/mine"]
