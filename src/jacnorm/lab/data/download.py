"""Downloads from the first good mirror. They resume and are checked. A file is complete or not there."""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tqdm import tqdm

from ..errors import DataError

CHUNK = 1 << 16
TIMEOUT_SECONDS = 30


def download_file(urls: Sequence[str], target: Path, md5: str) -> None:
    """Put the file at `target`, from the first of `urls` that delivers bytes with this md5.

    Bytes are collected in `target.part`, which stays after a broken connection. The next mirror or the next
    call continues from there. `target` appears only when it is complete and checked. Other processes that
    need it wait.
    """
    with _alone(target):
        made = _prepare(target.parent)
        if target.exists():
            return _check_existing(target, md5)
        failures = _download(urls, target, md5)
        for folder in made if failures else ():  # remove the folders that were made, since they are empty
            if not any(folder.iterdir()):
                folder.rmdir()
    if failures:
        raise DataError(
            f"{target}: it is not there, and no mirror delivered it ({'; '.join(failures)}); try again, "
            "or download it by hand and put it there, or name the folder that has it (--data-root, "
            "JACNORM_DATA)"
        )


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Let one process of this user in at a time. The system releases the lock when the process dies."""
    name = hashlib.sha256(f"{os.getuid()} {target.resolve()}".encode()).hexdigest()[:16]
    with (Path(tempfile.gettempdir()) / f"jacnorm-{name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{target}: another process downloads it; waiting", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download(urls: Sequence[str], target: Path, md5: str) -> list[str]:
    """Try the mirrors. Returns the failure of each, or nothing if one has delivered the file."""
    part = target.with_name(f"{target.name}.part")
    failures = []
    for url in urls:
        try:
            _fetch(url, part, md5)
            os.replace(part, target)
            return []
        except (OSError, HTTPException, DataError) as error:
            failures.append(f"{url}: {error}")
    return failures


def _prepare(folder: Path) -> list[Path]:
    """Make a folder to write into. Returns the folders that were made, the deepest first."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError as error:
        raise _not_writable(folder, error.strerror) from error
    if not writable:
        raise _not_writable(folder, "no permission")
    return made


def _not_writable(folder: Path, reason: str | None) -> DataError:
    return DataError(
        f"{folder}: cannot download into it ({reason}); name a folder that you can write to "
        f"with --data-root or JACNORM_DATA"
    )


def _check_existing(target: Path, md5: str) -> None:
    if (found := _md5(target)) != md5:
        raise DataError(f"{target}: its md5 is {found}, not {md5}; delete it and load again to download it")


def _fetch(url: str, part: Path, md5: str) -> None:
    """Complete `part`. If its earlier bytes are wrong, start again."""
    had = part.stat().st_size if part.exists() else 0
    _receive(url, part, had)
    if (found := _md5(part)) == md5:
        return
    part.unlink()
    if not had:
        raise DataError(f"the md5 of what it sent is {found}, not {md5}")
    _fetch(url, part, md5)


def _receive(url: str, part: Path, had: int) -> None:
    """Add to `part` the bytes that follow its first `had` bytes."""
    request = Request(url, headers={"Range": f"bytes={had}-"} if had else {})
    try:
        response = urlopen(request, timeout=TIMEOUT_SECONDS)
    except HTTPError as error:
        with error:
            if had and error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                return  # There are no more bytes. The md5 tells whether `part` is the whole file.
            raise
    with response:
        start = _start(response, had)
        length = response.headers["Content-Length"]
        total = start + int(length) if length else None
        size = _write(response, part, start, total)
    if total is not None and size < total:
        raise DataError(f"the connection ended after {size} of {total} bytes")


def _start(response: HTTPResponse, had: int) -> int:
    """The position of the first byte of this response. A server may ignore Range and send all bytes."""
    if response.status != HTTPStatus.PARTIAL_CONTENT:
        return 0
    sent = response.headers["Content-Range"]
    if not sent or not sent.startswith(f"bytes {had}-"):
        raise DataError(f"asked for the bytes from {had} on, it sent the range {sent}")
    return had


def _write(response: HTTPResponse, part: Path, start: int, total: int | None) -> int:
    """Write the response into `part` from `start` on. Returns the length of `part` after that."""
    # disable=None: no bar if stderr is no terminal.
    bar = tqdm(desc=part.stem, initial=start, total=total, unit="B", unit_scale=True, disable=None)
    with bar, part.open("ab" if start else "wb") as file:
        while chunk := response.read(CHUNK):
            file.write(chunk)
            bar.update(len(chunk))
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
