"""Taking known files out of a tar archive."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import zlib
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import DataError
from .files import broken


def extract(archive: Path, names: Collection[str], folder: Path) -> None:
    """Unpack the files `names` of `folder.name` in the archive; `folder` appears complete or not.

    A file is only ever written under a name the caller gave, so an archive can put nothing
    anywhere else, whatever paths and links it holds. That its bytes are the published ones is for
    the download to check.
    """
    with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        unpacked = Path(temporary) / folder.name
        unpacked.mkdir()
        try:
            _unpack(archive, names, unpacked)
        except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise broken(archive, f"the archive is damaged ({error})") from error
        missing = sorted(set(names) - {path.name for path in unpacked.iterdir()})
        if missing:
            raise broken(archive, f"the archive lacks {', '.join(missing)}")
        _move(unpacked, folder)


def _unpack(archive: Path, names: Collection[str], folder: Path) -> None:
    wanted = {f"{folder.name}/{name}": folder / name for name in names}
    with tarfile.open(archive, "r:*") as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isfile() else None
            if member.name in wanted and content is not None:
                with wanted[member.name].open("wb") as file:
                    shutil.copyfileobj(content, file)
                    file.flush()
                    os.fsync(file.fileno())


def _move(unpacked: Path, folder: Path) -> None:
    try:
        os.replace(unpacked, folder)
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be put in place ({error.strerror}); if another process has just "
            f"made it, load again, else delete it first"
        ) from error
