"""What defines a run. By one version, on one kind of machine, two runs with equal configs have equal results,
so a run's id is made of it.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any, get_type_hints

from .errors import UsageError
from .wording import did_you_mean

METHODS = ("none", "l2", "spectral-bound", "frobenius", "spectral", "analytic", "margin", "adversarial")

# Options that only some methods look at.
_PENALTY_OPTIONS = {
    "weight": {"l2", "spectral-bound", "frobenius", "spectral", "analytic", "margin"},
    "iterations": {"spectral", "spectral-bound"},
    "projections": {"frobenius"},
    "warm_start": {"spectral"},
    "convolution": {"spectral-bound"},
    "h": {"spectral"},
    "threshold": {"spectral"},
    "radius": {"margin"},
    "radius_norm": {"margin"},
    "candidates": {"margin"},
    "batch_norm": {"frobenius", "spectral", "analytic", "margin"},
    "every": {"spectral-bound", "frobenius", "spectral", "analytic", "margin"},
    "fraction": {"frobenius", "spectral", "analytic", "margin"},
    "epsilon": {"adversarial"},
    "attack_steps": {"adversarial"},
}
_CHOICES = {
    "method": METHODS,
    "schedule": ("constant", "cosine"),
    "protocol": ("paper", "held-out"),
    "h": ("identity", "square", "hinge"),
    "radius_norm": ("2", "inf"),
    "batch_norm": ("fixed", "flowing"),
    "convolution": ("operator", "kernel"),
}
# A setting that makes another method of one, and what tables call it then.
VARIANTS = {
    "spectral": ("warm_start", True, "spectral-warm"),
    "spectral-bound": ("convolution", "kernel", "spectral-bound-kernel"),
}
LABELS = (*METHODS, *(label for _, _, label in VARIANTS.values()))  # what a table may call a method
TOLD_BY_THE_LABEL = {"method", *(name for name, _, _ in VARIANTS.values())}


_KINDS = {
    int: "a whole number",
    float: 'a number, or a fraction like "8/255"',
    bool: "true or false",
    str: "a word",
}


class ConfigError(UsageError):
    """A setting that does not exist or makes no sense."""


FIRST_DEFAULTS = {"batch_norm": "fixed"}  # where a default has changed: ids must not


@dataclass(frozen=True)
class RunConfig:
    """The defaults are the paper's LeNet runs, on the small data set that needs no download."""

    data: str = "digits"
    net: str = "mlp"  # a name of lab.nets, or package.module:factory
    width: float = 1.0  # scales the channels of vgg16 and resnet18
    method: str = "spectral"
    weight: float = 0.01  # λ
    learning_rate: float = 0.01
    momentum: float = 0.8
    batch_size: int = 32
    epochs: int = 50
    schedule: str = "constant"
    augment: bool = False  # random crop and flip
    protocol: str = "paper"  # validate on the test split as the paper does, or on a part of train
    seed: int = 0
    iterations: int = 1  # rounds of power iteration
    projections: int = 1
    warm_start: bool = True  # go on from each sample's last vector; the paper starts at random
    convolution: str = "operator"  # whose norm bounds ‖J‖; Yoshida & Miyato take that of the reshaped kernel
    h: str = "identity"
    threshold: float = 1.0  # of h = "hinge"
    batch_norm: str = "flowing"
    every: int = 1  # only every k-th step pays the penalty, k times as much
    fraction: float = 1.0  # only so large a part of each batch does
    epsilon: float = 8 / 255  # how far an attack may change a pixel, of pixels in [0, 1]
    attack_steps: int = 10
    radius: float = 1.0  # that the margin penalty wants, of normalized input
    radius_norm: str = "2"
    candidates: int = 1  # classes that it looks at beside the label

    def __post_init__(self) -> None:
        for method, (name, value, label) in VARIANTS.items():
            if self.method == label:
                raise ConfigError(
                    f'method = "{label}": tables call it so; write method = "{method}" and '
                    f"{name} = {json.dumps(value)}"
                )
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise ConfigError(f"{name} = {value!r}: {did_you_mean(str(value), choices)}")
        for name in ("weight", "learning_rate", "batch_size", "epochs", "width", "threshold", "radius"):
            if not getattr(self, name) > 0:
                hint = '; method = "none" has no penalty' if name == "weight" else ""
                raise ConfigError(f"{name} = {getattr(self, name)}: it must be positive{hint}")
        for name in ("iterations", "projections", "every", "attack_steps", "candidates"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)}: it must be 1 or more")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed = {self.seed}: it must be a whole number from 0 to 2^63 − 1")
        if not 0 < self.fraction <= 1:
            raise ConfigError(f"fraction = {self.fraction}: it must be above 0 and at most 1")
        if not 0 < self.epsilon <= 1:
            raise ConfigError(f"epsilon = {self.epsilon}: it must be above 0 and at most 1, as 8/255 is")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum = {self.momentum}: it must be in [0, 1)")

    def relevant(self) -> dict[str, Any]:
        """The settings that matter for this method."""
        unused = {name for name, methods in _PENALTY_OPTIONS.items() if self.method not in methods}
        return {name: getattr(self, name) for name in field_names() if name not in unused}

    @property
    def label(self) -> str:
        """What tables call the method: spectral is the paper's, with random starts."""
        if self.method in VARIANTS:
            name, value, label = VARIANTS[self.method]
            return label if getattr(self, name) == value else self.method
        return self.method

    @cached_property
    def id(self) -> str:
        """Readable in front, unique behind.

        Settings at their first default do not count, so that one that is added later leaves ids as they are.
        """
        defaults = {field.name: field.default for field in fields(self)} | FIRST_DEFAULTS
        told = {name: value for name, value in self.relevant().items() if value != defaults[name]}
        text = json.dumps(told, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        net = self.net.replace(":", ".")
        strength = {"none": "", "adversarial": f"-{self.epsilon:.3g}"}.get(self.method, f"-{self.weight:g}")
        return f"{self.data}-{net}-{self.method}{strength}-s{self.seed}-{digest}"


def make_config(settings: Mapping[str, Any]) -> RunConfig:
    """A config from a mapping; a key that does not exist or a value of the wrong type is an error."""
    types = _types()
    for key, value in settings.items():
        if isinstance(value, dict):
            raise ConfigError(f"[{key}]: settings stand by themselves, not in sections")
        if key not in types:
            raise ConfigError(f"there is no setting {key!r}: {did_you_mean(key, types)}")
        if not _fits(value, types[key]):
            raise ConfigError(f"{key} = {value!r}: it must be {_KINDS[types[key]]}")
    convert: dict[str, Callable[[Any], Any]] = {
        k: number if types[k] is float else types[k] for k in settings
    }
    return RunConfig(**{k: convert[k](value) for k, value in settings.items()})


def number(value: float | str) -> float:
    """A number, or a fraction as people write attacks.

    >>> number("8/255") == 8 / 255, number("0.03"), number(1)
    (True, 0.03, 1.0)
    """
    numerator, slash, denominator = str(value).partition("/")
    return float(numerator) / float(denominator) if slash else float(value)


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file; a TOML file is needed") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); a TOML file is needed") from error


def field_names() -> list[str]:
    return [field.name for field in fields(RunConfig)]


def choices(name: str) -> tuple[str, ...] | None:
    return _CHOICES.get(name)


@cache
def _types() -> dict[str, type]:
    """Once: a grid makes thousands of configs."""
    return get_type_hints(RunConfig)


def _fits(value: Any, kind: type) -> bool:
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    if kind is float and isinstance(value, str):
        try:
            number(value)
        except (ValueError, ZeroDivisionError):
            return False
        return "/" in value
    return isinstance(value, (int, float) if kind is float else kind)
