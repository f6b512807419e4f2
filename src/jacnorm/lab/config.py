"""What defines a run: every setting once, with its default, its help, what it may be and what looks at it.

The command line, the checks of files and the id of a run are made from the fields of `RunConfig`. By one
version, on one kind of machine, two runs with equal configs have equal results.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from .errors import UsageError
from .wording import did_you_mean

METHODS = ("none", "l2", "spectral-bound", "frobenius", "spectral", "analytic", "margin", "adversarial")
# A setting that makes another method of one, and what tables call it then.
VARIANTS = {
    "spectral": ("warm_start", True, "spectral-warm"),
    "spectral-bound": ("convolution", "kernel", "spectral-bound-kernel"),
}
LABELS = (*METHODS, *(label for _, _, label in VARIANTS.values()))  # what a table may call a method
# Settings with which a penalty costs less. A label tells them, so that an experiment can compare them.
CHEAPER = ("every", "budget", "precision")
TOLD_BY_THE_LABEL = {"method", *(name for name, _, _ in VARIANTS.values()), *CHEAPER}

_KINDS = {
    int: "a whole number",
    float: 'a number, or a fraction like "8/255"',
    bool: "true or false",
    str: "a word",
}


class ConfigError(UsageError):
    """A setting that does not exist or makes no sense."""


class Bound(NamedTuple):
    holds: Callable[[Any], bool]
    text: str


POSITIVE = Bound(lambda v: v > 0, "positive")
ONE_OR_MORE = Bound(lambda v: v >= 1, "1 or more")
PART = Bound(lambda v: 0 < v <= 1, "above 0 and at most 1")


def setting(
    default: Any, text: str, may_be: Bound | tuple[str, ...] | None = None, first: Any = None, **only: str
) -> Any:
    """A field of a config: its default, its help, and a bound or the choices that there are.

    `only` names another setting and the values of it with which this one is looked at. With others it makes
    no other run. `first` is the default of the first version, where that was another: ids must stay.
    """
    first = default if first is None else first
    conditions = {name: tuple(values.split()) for name, values in only.items()}
    return field(
        default=default, metadata={"text": text, "may_be": may_be, "first": first, "only": conditions}
    )


@dataclass(frozen=True)
class RunConfig:
    """The defaults are the paper's LeNet runs, on the small data set that needs no download."""

    data: str = setting("digits", "digits, kmnist, fashion-mnist, mnist or cifar10")
    net: str = setting(
        "mlp", "mlp, lenet, vgg16, resnet18, or your own package.module:factory (called without arguments)"
    )
    width: float = setting(1.0, "scales the channels of vgg16 and resnet18", POSITIVE)
    method: str = setting(
        "spectral", "the regularizer; adversarial trains on images that PGD has changed", METHODS
    )
    weight: float = setting(
        0.01,
        "its weight, λ",
        Bound(POSITIVE.holds, 'positive; method = "none" has no penalty'),
        method="l2 spectral-bound frobenius spectral analytic margin",
    )
    learning_rate: float = setting(0.01, "of SGD", POSITIVE)
    momentum: float = setting(0.8, "of SGD", Bound(lambda v: 0 <= v < 1, "in [0, 1)"))
    batch_size: int = setting(32, "images a step", POSITIVE)
    epochs: int = setting(50, "passes over the train split", POSITIVE)
    schedule: str = setting(
        "constant", "of the learning rate: constant, or down to 0 in half a cosine", ("constant", "cosine")
    )
    augment: bool = setting(False, "random crop and horizontal flip")
    autocast: bool = setting(False, "run the network in bfloat16, the weights stay in float32")
    protocol: str = setting(
        "paper",
        "validate on the test split, as the paper does, or on a sixth of train that is held out",
        ("paper", "held-out"),
    )
    seed: int = setting(
        0,
        "of the weights, the order of the images and all else that is random",
        Bound(lambda v: 0 <= v < 2**63, "a whole number from 0 to 2^63 − 1"),
    )
    iterations: int = setting(1, "rounds of power iteration", ONE_OR_MORE, method="spectral-bound spectral")
    projections: int = setting(1, "random projections", ONE_OR_MORE, method="frobenius")
    warm_start: bool = setting(
        True, "go on from each sample's last vector; the paper starts at random", method="spectral"
    )
    convolution: str = setting(  # whose norm bounds ‖J‖; Yoshida & Miyato take that of the reshaped kernel
        "operator",
        "norm of a convolution itself, or of its kernel as a matrix",
        ("operator", "kernel"),
        method="spectral-bound",
    )
    h: str = setting(
        "identity", "the shape of the penalty", ("identity", "square", "hinge"), method="spectral"
    )
    threshold: float = setting(1.0, "of h = hinge", POSITIVE, method="spectral")
    batch_norm: str = setting(
        "flowing",
        "whether the penalty's gradient passes through the batch's variance",
        ("fixed", "flowing"),
        first="fixed",
        method="frobenius spectral analytic margin",
    )
    every: int = setting(
        1,
        "pay the penalty at every k-th step only, k times as much",
        ONE_OR_MORE,
        method="spectral-bound frobenius spectral analytic margin",
    )
    budget: float = setting(
        0.0,
        "pay the penalty as often as a step may cost, in plain steps, as 1.15; 0 is no limit. The times of "
        "this machine decide, so that a run is not repeated exactly",
        Bound(lambda v: v == 0 or v > 1, "above 1, or 0 for no limit"),
        method="spectral-bound frobenius spectral analytic margin",
    )
    precision: str = setting(
        "float32",
        "of the products with J",
        ("float32", "bfloat16"),
        method="frobenius spectral analytic margin",
    )
    fraction: float = setting(
        1.0, "of each batch that pays the penalty", PART, method="frobenius spectral analytic margin"
    )
    epsilon: float = setting(
        8 / 255,
        "how far the attack may change a pixel, from 0 to 1, as 8/255",
        Bound(PART.holds, "above 0 and at most 1, as 8/255 is"),
        method="adversarial",
    )
    attack_steps: int = setting(
        10, "gradient steps of the attack on each batch", ONE_OR_MORE, method="adversarial"
    )
    radius: float = setting(
        1.0, "how far from the boundary is far enough, of normalized input", POSITIVE, method="margin"
    )
    radius_norm: str = setting("2", "the norm that this radius is measured in", ("2", "inf"), method="margin")
    candidates: int = setting(
        1, "classes with the highest scores that may be the nearest", ONE_OR_MORE, method="margin"
    )

    def __post_init__(self) -> None:
        for method, (name, value, label) in VARIANTS.items():
            if self.method == label:
                raise ConfigError(
                    f'method = "{label}": tables call it so; write method = "{method}" and '
                    f"{name} = {json.dumps(value)}"
                )
        for one in fields(self):
            value, may_be = getattr(self, one.name), one.metadata["may_be"]
            if isinstance(may_be, Bound):
                if not may_be.holds(value):
                    raise ConfigError(f"{one.name} = {value}: it must be {may_be.text}")
            elif may_be and value not in may_be:
                raise ConfigError(f"{one.name} = {value!r}: {did_you_mean(str(value), may_be)}")
        if self.budget and self.every != 1:
            raise ConfigError(
                f"budget = {self.budget:g} chooses `every` itself: leave out every = {self.every}"
            )

    def relevant(self) -> dict[str, Any]:
        """The settings that matter beside the others."""
        return {
            one.name: getattr(self, one.name)
            for one in fields(self)
            if all(getattr(self, other) in values for other, values in one.metadata["only"].items())
        }

    @property
    def label(self) -> str:
        """What tables call the method: spectral is the paper's, with random starts."""
        name, value, variant = VARIANTS.get(self.method, ("method", "", ""))
        label, settings = variant if getattr(self, name) == value else self.method, self.relevant()
        usual = type(self).__dataclass_fields__
        cheaper = [one for one in CHEAPER if settings.get(one, usual[one].default) != usual[one].default]
        return ", ".join([label, *(f"{one} {settings[one]}" for one in cheaper)])

    @cached_property
    def id(self) -> str:
        """Readable in front, unique behind.

        Settings at their first default do not count, so that one that is added later leaves ids as they are.
        """
        defaults = {one.name: one.metadata["first"] for one in fields(self)}
        told = {name: value for name, value in self.relevant().items() if value != defaults[name]}
        text = json.dumps(told, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        net = self.net.replace(":", ".")
        strength = {"none": "", "adversarial": f"-{self.epsilon:.3g}"}.get(self.method, f"-{self.weight:g}")
        return f"{self.data}-{net}-{self.method}{strength}-s{self.seed}-{digest}"


def make_config(settings: Mapping[str, Any]) -> RunConfig:
    """A config from a mapping; a key that does not exist or a value of the wrong type is an error."""
    types = {one.name: type(one.default) for one in fields(RunConfig)}
    for key, value in settings.items():
        if isinstance(value, dict):
            raise ConfigError(f"[{key}]: settings stand by themselves, not in sections")
        if key not in types:
            raise ConfigError(f"there is no setting {key!r}: {did_you_mean(key, types)}")
        if not _fits(value, types[key]):
            raise ConfigError(f"{key} = {value!r}: it must be {_KINDS[types[key]]}")
    return RunConfig(**{key: read_as(types[key])(value) for key, value in settings.items()})


def read_as(kind: type) -> Callable[[Any], Any]:
    """What makes a value of this type from one that fits, or from a word of the command line."""
    return number if kind is float else kind


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
    return [one.name for one in fields(RunConfig)]


def choices(name: str) -> tuple[str, ...] | None:
    may_be = RunConfig.__dataclass_fields__[name].metadata["may_be"]
    return None if isinstance(may_be, Bound) else may_be


def help_text(name: str) -> str:
    one = RunConfig.__dataclass_fields__[name]
    methods = one.metadata["only"].get("method", ())
    return one.metadata["text"] + (f" ({', '.join(methods)})" if methods else "")


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
