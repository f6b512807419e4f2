"""Where a result came from."""

from __future__ import annotations

import platform
from typing import Any

import numpy
import torch

import jacnorm


def environment(device: torch.device | str) -> dict[str, Any]:
    return {
        "jacnorm": jacnorm.__version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": str(device),
        "threads": torch.get_num_threads(),
    }
