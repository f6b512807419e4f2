from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jacnorm.lab.data import DataError
from jacnorm.lab.data.download import download_file

CONTENT = random.Random(0).randbytes(200_000)
MD5 = hashlib.md5(CONTENT).hexdigest()
WRONG = bytes(len(CONTENT))
HALF = len(CONTENT) // 2

Serve = Callable[..., Any]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "new" / "file"


def part_of(target: Path, content: bytes) -> Path:
    """The .part file of an earlier attempt."""
    target.parent.mkdir()
    part = target.with_name("file.part")
    part.write_bytes(content)
    return part


def download(target: Path, *mirrors: Any) -> None:
    download_file([mirror.url + "file" for mirror in mirrors], target, MD5)


def check(target: Path) -> None:
    """Checks that the complete file is there, and no other file."""
    assert target.read_bytes() == CONTENT
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("sends_length", [True, False])
def test_downloads(target: Path, serve: Serve, sends_length: bool) -> None:
    mirror = serve({"file": CONTENT}, sends_length=sends_length)
    download(target, mirror)
    check(target)
    assert mirror.asked == [("file", None)]


def test_who_comes_later_waits(target: Path, serve: Serve) -> None:
    """The workers of a sweep do so on a machine without the data."""
    mirror = serve({"file": CONTENT})
    with ThreadPoolExecutor(8) as workers:
        for done in [workers.submit(download, target, mirror) for _ in range(8)]:
            done.result()
    check(target)
    assert mirror.asked == [("file", None)]


def test_who_waits_for_nothing_gets_the_same_error(target: Path, serve: Serve) -> None:
    """The first process removes the folder that it made."""
    mirror = serve({})
    with ThreadPoolExecutor(8) as workers:
        for done in [workers.submit(download, target, mirror) for _ in range(8)]:
            with pytest.raises(DataError, match="no mirror delivered it"):
                done.result()
    assert not target.parent.exists()


def test_resumes_a_part(target: Path, serve: Serve) -> None:
    part_of(target, CONTENT[:HALF])
    mirror = serve({"file": CONTENT})
    download(target, mirror)
    check(target)
    assert mirror.asked == [("file", f"bytes={HALF}-")]


def test_a_server_that_ignores_range(target: Path, serve: Serve) -> None:
    part_of(target, CONTENT[:HALF])
    mirror = serve({"file": CONTENT}, ranges=False)
    download(target, mirror)
    check(target)
    assert mirror.asked == [("file", f"bytes={HALF}-")]


def test_a_server_that_sends_another_range(target: Path, serve: Serve) -> None:
    part = part_of(target, CONTENT[:HALF])
    with pytest.raises(DataError, match=f"asked for the bytes from {HALF} on, it sent the range"):
        download(target, serve({"file": CONTENT}, lies_about_range=True))
    assert part.read_bytes() == CONTENT[:HALF]


@pytest.mark.parametrize(
    "leftover",
    [CONTENT, CONTENT + b"more", WRONG[:HALF], b""],
    ids=["complete", "too long", "wrong", "empty"],
)
def test_any_part_ends_in_the_right_file(target: Path, serve: Serve, leftover: bytes) -> None:
    part_of(target, leftover)
    download(target, serve({"file": CONTENT}))
    check(target)


def test_corrupt_bytes_are_not_kept(target: Path, serve: Serve) -> None:
    with pytest.raises(DataError, match=f"no mirror .* md5 of what it sent is .*, not {MD5}"):
        download(target, serve({"file": WRONG}))
    assert not target.parent.exists()


def test_a_server_that_dies_is_resumed_by_the_next_call(target: Path, serve: Serve) -> None:
    with pytest.raises(DataError, match=r"the connection ended after 100000 of 200000 bytes.*; try again"):
        download(target, serve({"file": CONTENT}, dies_after=HALF))
    assert not target.exists()
    good = serve({"file": CONTENT})
    download(target, good)
    check(target)
    assert good.asked == [("file", f"bytes={HALF}-")]


def test_a_server_that_dies_is_resumed_by_the_next_mirror(target: Path, serve: Serve) -> None:
    dying, good = serve({"file": CONTENT}, dies_after=HALF), serve({"file": CONTENT})
    download(target, dying, good)
    check(target)
    assert good.asked == [("file", f"bytes={HALF}-")]


def test_the_wrong_half_of_a_dead_mirror_does_not_spoil_the_next(target: Path, serve: Serve) -> None:
    download(target, serve({"file": WRONG}, dies_after=HALF), serve({"file": CONTENT}))
    check(target)


@pytest.mark.parametrize("first", [{}, {"file": WRONG}], ids=["not found", "corrupt"])
def test_the_next_mirror_steps_in(target: Path, serve: Serve, first: dict[str, bytes]) -> None:
    download(target, serve(first), serve({"file": CONTENT}))
    check(target)


def test_nobody_listens_at_the_first_mirror(target: Path, serve: Serve) -> None:
    good = serve({"file": CONTENT})
    download_file(["http://127.0.0.1:1/file", good.url + "file"], target, MD5)
    check(target)


def test_every_failure_is_told(target: Path, serve: Serve) -> None:
    first, second = serve({}), serve({"file": WRONG})
    with pytest.raises(DataError, match=r"HTTP Error 404.*; http.*the md5") as caught:
        download(target, first, second)
    assert first.url in str(caught.value)
    assert second.url in str(caught.value)


def test_a_good_file_is_left_alone(target: Path, serve: Serve) -> None:
    target.parent.mkdir()
    target.write_bytes(CONTENT)
    mirror = serve({"file": CONTENT})
    download(target, mirror)
    assert mirror.asked == []


def test_a_wrong_file_is_not_overwritten(target: Path, serve: Serve) -> None:
    target.parent.mkdir()
    target.write_bytes(b"mine")
    with pytest.raises(DataError, match=f"file: its md5 is .*, not {MD5}; delete it"):
        download(target, serve({"file": CONTENT}))
    assert target.read_bytes() == b"mine"


def test_a_file_in_place_of_the_folder(target: Path, serve: Serve) -> None:
    target.parent.write_bytes(b"")
    with pytest.raises(DataError, match=r"new: cannot download into it \(File exists\); name a"):
        download(target, serve({"file": CONTENT}))


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(target: Path, serve: Serve) -> None:
    target.parent.mkdir(mode=0o500)
    with pytest.raises(DataError, match=r"new: cannot download into it \(no permission\)"):
        download(target, serve({"file": CONTENT}))


def test_a_folder_that_the_system_calls_read_only(
    target: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above. Here `os.access` says so, which holds for root as well."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    server = serve({"file": CONTENT})
    with pytest.raises(DataError, match=r"new: cannot download into it \(no permission\)"):
        download(target, server)


def test_quiet_without_a_terminal(target: Path, serve: Serve, capfd: pytest.CaptureFixture[str]) -> None:
    download(target, serve({"file": CONTENT}))
    assert capfd.readouterr() == ("", "")
