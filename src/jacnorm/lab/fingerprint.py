"""Whether a user's own net is still the one that was trained: its name stays when its code changes."""

from __future__ import annotations

import hashlib
import re

import torch
from torch import nn
from torch.nn.parameter import is_lazy


def is_own(net: str) -> bool:
    """package.module:factory, not one of ours, which never change under one name."""
    return ":" in net


def weights_digest(net: nn.Module) -> str:
    found = hashlib.sha256()
    for name, tensor in (*net.named_parameters(), *net.named_buffers()):
        found.update(name.encode() + tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def fingerprint(net: nn.Module) -> str:
    """Of its layers and the shapes of its tensors. What only the code of a forward says is not seen."""
    layers = re.sub(r" at 0x[0-9a-f]+", "", repr(net))  # addresses differ from process to process
    tensors = [*net.named_parameters(), *net.named_buffers()]
    shapes = [f"{name} {'lazy' if is_lazy(tensor) else tuple(tensor.shape)}" for name, tensor in tensors]
    return hashlib.sha256("\n".join([layers, *shapes]).encode()).hexdigest()[:16]
