"""Stored vectors, one per sample of the data set, so that an iteration continues where it stopped."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError, warn
from ..estimators.operator import flat, normalized, size
from ..linearization import Linearization
from ..pytorch.tracing import refuse, tracing, while_tracing
from ..trust.checks import as_tensor, check_count

MAX_SAMPLES = 10**9
LARGE = 2**30  # bytes above which there is a warning
TYPICAL = 10_000  # samples that are assumed for a data set of unknown size


class StoredVectors(nn.Module):
    """The buffer `u` of a penalty, with the methods to read, write and load it."""

    u: Tensor  # (samples, n_out), unit rows; zero for samples that have not been seen

    def keep_vectors(
        self, samples: int | None, stored_as: torch.dtype | None, stored_in: str | Path | None
    ) -> None:
        """Set up the buffer. The constructor calls this once."""
        if samples is not None:
            check_count("samples", samples)
        if stored_as not in (None, torch.float16, torch.bfloat16, torch.float32):
            raise InputError(
                f"stored_as={stored_as!r}: choose torch.float16 or torch.bfloat16, or leave it out for the "
                "precision of J."
            )
        if stored_in is not None and samples is None:
            raise InputError(
                "stored_in= makes a file of fixed size: pass the size of the data set, samples=len(dataset)."
            )
        self.samples, self.stored_as = samples, stored_as
        self.stored_in = None if stored_in is None else Path(stored_in)
        self.register_buffer("u", torch.empty(0, 0, device="cpu"), persistent=stored_in is None)

    def rows(self, J: Linearization, index: Tensor, *, makes_room: bool = True) -> Tensor:
        """The index, checked and on the device of the buffer. Makes room for its vectors, if asked to."""
        if tracing() and self.samples is None:
            refuse(
                "A compiled step cannot make room for vectors as samples appear: pass the size of the data "
                "set, SpectralPenalty(samples=len(dataset))."
            )
        index, last = check_index(index, J.output_shape[0])
        if makes_room:
            make_room(self, last + 1, size(J.output_shape), J.dtype, J.device)
        return index.to(self.u.device)

    def recalled(self, J: Linearization, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The stored vectors of these samples, shaped like the output, and which samples have been seen."""
        n_out, last = size(J.output_shape), len(self.u) - 1
        table = self.u if last >= 0 and self.u.shape[1] == n_out else self.u.new_zeros(1, n_out)
        u = table[rows.clamp_max(len(table) - 1)].to(device=J.device, dtype=J.dtype)
        seen = u.any(1) & (rows <= last).to(J.device)
        if self.u.dtype != J.dtype:
            u = normalized(u)  # rounded vectors are not unit vectors
        return u.view(J.output_shape), seen

    @torch.no_grad()
    def store(self, rows: Tensor, directions: Tensor) -> None:
        """Store the directions. A sample whose J v is zero or has overflowed starts again with a guess,
        because power iteration cannot leave a u with Jᵀu = 0.
        """
        new = flat(directions).nan_to_num_(0.0, 0.0, 0.0)
        if new.shape[1:] == self.u.shape[1:]:  # else the penalty was used with another network meanwhile
            self.u.index_copy_(0, rows, new.to(device=self.u.device, dtype=self.u.dtype))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        if prefix + "u" in state_dict:  # as many rows as were saved
            saved = state_dict[prefix + "u"]
            if self.stored_in is None:
                self.u = torch.empty_like(saved, device=self.u.device)
            elif saved.numel():
                make_room(self, len(saved), saved.shape[1], saved.dtype, saved.device)
                self.u[: len(saved)] = saved
            if self.stored_in is not None:  # the file is not part of the state
                del state_dict[prefix + "u"]
        super()._load_from_state_dict(state_dict, prefix, *rest)


@while_tracing
def make_room(
    penalty: StoredVectors, samples: int, n_out: int, dtype: torch.dtype, device: torch.device
) -> None:
    u = penalty.u
    dtype = penalty.stored_as or dtype
    samples = max(samples, penalty.samples or 0)
    is_near = u.device == device or penalty.stored_in is not None
    if len(u) >= samples and u.shape[1:] == (n_out,) and u.dtype == dtype and is_near:
        return
    with torch.inference_mode(False):  # buffers made in a validation step must work in training
        if penalty.stored_in is None:
            penalty.u = _enlarged(penalty, samples, n_out, dtype, device)
        else:
            penalty.u = _in_file(penalty.stored_in, samples, n_out, dtype)


def _enlarged(
    penalty: StoredVectors, samples: int, n_out: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    u = penalty.u
    table = u if u.shape[1:] == (n_out,) else u.new_empty(0, n_out)
    missing = samples - len(table)
    if missing > 0:  # grow in large steps, because a first epoch asks for one row after another
        missing = max(missing, len(table) // 2)
        _check_room(penalty, len(table) + missing, n_out, dtype, device)
    table = table.to(dtype=dtype, device=device)
    if missing > 0:
        table = torch.cat([table, table.new_zeros(missing, n_out)])
    return table.detach()


def _check_room(
    penalty: StoredVectors, samples: int, n_out: int, dtype: torch.dtype, device: torch.device
) -> None:
    """Warn or raise before memory is full, not after."""
    advice = (
        "Leave index= out (the start then needs no memory), or store them in half precision, "
        "stored_as=torch.float16, or in a file, samples=len(dataset), stored_in='vectors.bin'."
    )
    needed, free = samples * n_out * dtype.itemsize, free_bytes(device)
    if free is not None and needed > free:
        raise InputError(
            f"With index= a vector of {n_out:,} numbers is stored for each sample. For {samples:,} samples "
            f"they take {_gigabytes(needed)}, and {_gigabytes(free)} are free on {device}. {advice}"
        )
    typical = penalty.samples or TYPICAL
    if not len(penalty.u) and (total := typical * n_out * dtype.itemsize) > LARGE:
        warn(
            f"With index= a vector of {n_out:,} numbers is stored for each sample, {_gigabytes(total)} for "
            f"{typical:,}. {advice}"
        )


def free_bytes(device: torch.device) -> int | None:
    """The free memory in bytes, if the system reports it."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    file = Path("/proc/meminfo")
    if device.type != "cpu" or not file.exists():
        return None
    known = dict(line.split(":") for line in file.read_text().splitlines())
    return int(known["MemAvailable"].split()[0]) * 1024


def _in_file(path: Path, samples: int, n_out: int, dtype: torch.dtype) -> Tensor:
    """A table in a memory-mapped file. If the file exists, it is the table of an earlier run."""
    needed = samples * n_out * dtype.itemsize
    if path.exists() and path.stat().st_size != needed:
        raise InputError(
            f"{path} has {path.stat().st_size:,} bytes; vectors for {samples:,} samples of {n_out:,} "
            f"numbers take {needed:,}. Does it belong to another network or data set? Delete it, or name "
            "another file."
        )
    free = shutil.disk_usage(path.absolute().parent).free
    if not path.exists() and needed > free:
        raise InputError(
            f"Vectors for {samples:,} samples of {n_out:,} numbers take {_gigabytes(needed)}, and "
            f"{_gigabytes(free)} are free at {path}. Leave index= out, or use "
            "stored_as=torch.float16."
        )
    return torch.from_file(str(path), shared=True, size=samples * n_out, dtype=dtype).view(samples, n_out)


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"


def check_index(index: object, batch: int) -> tuple[Tensor, int]:
    """The index as whole numbers, and the largest of them (−1 in a compiled step, which cannot know it)."""
    index = as_tensor(index)
    if index.shape != (batch,) or index.is_floating_point() or index.dtype == torch.bool:
        raise InputError(
            f"index has shape {tuple(index.shape)} and dtype {index.dtype}; it must hold the "
            f"position in the data set of each of the {batch} samples, as whole numbers."
        )
    index = index.long()
    if tracing():
        return index, -1
    first, last = (int(n) for n in index.aminmax())
    if first < 0 or last >= MAX_SAMPLES:
        raise InputError(
            f"index goes from {first} to {last}; positions in a data set start at 0, "
            "and every position up to the largest gets a stored vector."
        )
    return index, last
