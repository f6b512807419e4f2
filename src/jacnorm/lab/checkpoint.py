"""Files that are complete or absent: tensors in safetensors, all else as JSON in the header of the file."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from .errors import UsageError


class CheckpointError(UsageError):
    """A checkpoint that cannot be read or does not belong to this run."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write the file. After a crash at any moment it has its old content or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Any) -> None:
    write_atomically(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def save(path: Path, tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
    # Clones, since weights may be tied and safetensors stores each tensor by itself.
    plain = {n: t.detach().cpu().clone(memory_format=torch.contiguous_format) for n, t in tensors.items()}
    write_atomically(path, to_bytes(plain, metadata={"json": json.dumps(rest)}))


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, _rest(file)  # noqa: SIM118


def load_rest(path: Path) -> dict[str, Any]:
    """Everything in a file except the tensors."""
    with _opened(path) as file:
        return _rest(file)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file") from None
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: not a readable safetensors file ({error})") from error


def _rest(file: Any) -> dict[str, Any]:
    rest: dict[str, Any] = json.loads((file.metadata() or {}).get("json", "{}"))
    return rest


def prefixed(prefix: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def part(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(f"{prefix}."): t for n, t in tensors.items() if n.startswith(f"{prefix}.")}
