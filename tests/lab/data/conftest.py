"""Small files of each format, and a local web server with the faults of real servers."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray


@dataclass
class Mirror:
    """A server of `files`. `asked` collects the path and the Range header of each request."""

    files: dict[str, bytes]
    ranges: bool = True
    lies_about_range: bool = False
    sends_length: bool = True
    dies_after: int | None = None
    url: str = ""
    asked: list[tuple[str, str | None]] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    mirror: Mirror

    def do_GET(self) -> None:
        name, asked = self.path.lstrip("/"), self.headers["Range"]
        self.mirror.asked.append((name, asked))
        if name not in self.mirror.files:
            self.send_error(404)
            return
        content = self.mirror.files[name]
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        if not asked or not self.mirror.ranges:
            self._send(200, content, {})
        elif start >= len(content):
            self.send_error(416)
        else:
            start = 0 if self.mirror.lies_about_range else start
            span = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self._send(206, content[start:], {"Content-Range": span})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        if self.mirror.sends_length:
            headers["Content-Length"] = str(len(body))
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body[: self.mirror.dies_after])

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing."""


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Mirror]]:
    """A function that starts a mirror. It takes the fields of `Mirror`."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    servers = []

    def start(files: dict[str, bytes], **faults: Any) -> Mirror:
        mirror = Mirror(files, **faults)
        handler = type("Handler", (_Handler,), {"mirror": mirror})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        servers.append((server, thread))
        mirror.url = f"http://127.0.0.1:{server.server_port}/"
        return mirror

    yield start
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


@pytest.fixture
def idx_files() -> dict[str, bytes]:
    """The four files of a set with six train and four test images, not gzipped."""
    draw = np.random.default_rng(0)
    files = {}
    for part, size in (("train", 6), ("t10k", 4)):
        images = draw.integers(0, 256, (size, 28, 28), dtype=np.uint8)
        labels = draw.integers(0, 10, size, dtype=np.uint8)
        files[f"{part}-images-idx3-ubyte"] = idx_bytes(images)
        files[f"{part}-labels-idx1-ubyte"] = idx_bytes(labels)
    return files


@pytest.fixture
def write_idx(idx_files: dict[str, bytes]) -> Callable[..., Path]:
    """Writes the four files under a folder, gzipped or not. Returns the path of the first."""

    def write(folder: Path, packed: bool = False, **changed: bytes) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in idx_files.items():
            data = changed.get(name.split("-idx")[0].replace("-", "_"), data)
            path = folder / (f"{name}.gz" if packed else name)
            path.write_bytes(gzip.compress(data) if packed else data)
        return folder / ("train-images-idx3-ubyte" + (".gz" if packed else ""))

    return write
