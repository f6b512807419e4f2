"""How the settings of a task are declared: once, with default, help, permitted values, and the methods that
use them. The command line, the checks of files and the id of a run follow from the fields.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

from .errors import UsageError
from .wording import did_you_mean

_KINDS = {
    int: "a whole number",
    float: 'a number, or a fraction like "8/255"',
    bool: "true or false",
    str: "a word",
}


Titles = Mapping[str, tuple[str, int]]  # of each quantity its words, and the digits to show

# Earlier names of methods. We still read them. Ids and files keep them, so that earlier results are found.
FORMER = {"weight-decay": "l2"}


class ConfigError(UsageError):
    """A setting does not exist, or its value is not allowed."""


class Bound(NamedTuple):
    holds: Callable[[Any], bool]
    text: str


POSITIVE = Bound(lambda v: v > 0, "positive")
ONE_OR_MORE = Bound(lambda v: v >= 1, "1 or more")
PART = Bound(lambda v: 0 < v <= 1, "above 0 and at most 1")


def setting(
    default: Any, text: str, may_be: Bound | tuple[str, ...] | None = None, first: Any = None, **only: str
) -> Any:
    """A field of a config: its default, its help, and a bound or the possible values.

    `only` names another setting, and its values for which this one matters. For other values this setting is
    ignored and does not change the id. `first` is the default of the first version, if it was another: ids
    must stay.
    """
    first = default if first is None else first
    conditions = {name: tuple(values.split()) for name, values in only.items()}
    return field(
        default=default, metadata={"text": text, "may_be": may_be, "first": first, "only": conditions}
    )


def target(methods: str) -> Any:
    """The setting `target`, the same in all tasks with a penalty on a norm."""
    return setting(
        0.0,
        "the mean norm to reach, as measured in training (for frobenius, ‖J‖²); the search for the weight "
        "begins at --weight. 0 for none",
        Bound(lambda v: 0 <= v < float("inf"), "above 0, or 0 for none"),
        method=methods,
    )


def target_quantile(methods: str) -> Any:
    text = "aim with this quantile of the norms, as 0.95, instead of the mean; 0 for the mean"
    return setting(
        0.0, text, Bound(lambda v: 0 <= v < 1, "between 0 and 1, or 0 for the mean"), method=methods
    )


@dataclass(frozen=True)
class Settings:
    """The settings of a run of any task. Runs with equal settings have equal results, if the version and the
    kind of machine are the same.

    A task adds its own fields, made by `setting`, and gives these their defaults.
    """

    task: str
    method: str
    weight: float
    epochs: int
    seed: int = setting(
        0,
        "random seed",
        Bound(lambda v: 0 <= v < 2**63, "a whole number from 0 to 2^63 − 1"),
    )

    # Runs are compared by this number of the last epoch. 1: low is good, −1: high is good.
    criterion: ClassVar[tuple[str, int]] = ("validation_loss", 1)
    told_by_the_label: ClassVar[set[str]] = {"method"}

    def __post_init__(self) -> None:
        for one in fields(self):
            value, may_be = getattr(self, one.name), one.metadata["may_be"]
            if isinstance(may_be, Bound):
                if not may_be.holds(value):
                    raise ConfigError(f"{one.name} = {value}: it must be {may_be.text}")
            elif may_be and value not in may_be:
                raise ConfigError(f"{one.name} = {value!r}: {did_you_mean(str(value), may_be)}")

    def stored(self) -> dict[str, Any]:
        """All settings, as they are written into files."""
        return asdict(self) | {"method": self._stored_method}

    def relevant(self) -> dict[str, Any]:
        """The settings that the method uses, as they are written into files."""
        stored = self.stored()
        return {
            one.name: stored[one.name]
            for one in fields(self)
            if all(getattr(self, other) in values for other, values in one.metadata["only"].items())
        }

    @property
    def _stored_method(self) -> str:
        return FORMER.get(self.method, self.method)

    @property
    def quantities(self) -> Titles:
        """The quantities for claims and tables, each with its unit and digits.

        The most important comes first.
        """
        return {}

    @property
    def label(self) -> str:
        """The name of the method in tables."""
        return self.method

    @property
    def subject(self) -> str:
        """The data and the net, for the name of a folder."""
        raise NotImplementedError

    @property
    def source(self) -> str:
        """The data that the run needs."""
        return self.subject

    @property
    def architecture(self) -> tuple[Any, ...]:
        """The settings that determine the network."""
        return (self.subject,)

    def with_data(self, data: Any) -> Settings:
        """The settings with the fingerprint of the data, for tasks on a user's own data."""
        return self

    @property
    def own_net(self) -> str | None:
        """The name of a user's own net, whose code may change; else None."""
        return None

    @property
    def strength(self) -> str:
        """The strength of the regularizer, for the name of a folder."""
        return f"{self.weight:g}" if "weight" in self.relevant() else ""

    @cached_property
    def id(self) -> str:
        """The name of the run: readable in front, and unique by a digest at the end.

        Settings at their first default do not count. So a setting that is added later leaves ids as they are.
        """
        defaults = {one.name: one.metadata["first"] for one in fields(self)}
        told = {name: value for name, value in self.relevant().items() if value != defaults[name]}
        text = json.dumps(told, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        strength = f"-{self.strength}" if self.strength else ""
        return f"{self.subject}-{self._stored_method}{strength}-s{self.seed}-{digest}"


Kind = type[Settings]


def configured(kind: Kind, settings: Mapping[str, Any]) -> Settings:
    """Settings from a mapping. Raises an error for an unknown key or a value of the wrong type."""
    types = {one.name: type(one.default) for one in fields(kind)}
    if "method" in settings:
        settings = {**settings, "method": method_named(settings["method"])}
    for key, value in settings.items():
        if isinstance(value, dict):
            raise ConfigError(f"[{key}]: write settings without a section")
        if key not in types:
            raise ConfigError(f"there is no setting {key!r}: {did_you_mean(key, types)}")
        if not _fits(value, types[key]):
            raise ConfigError(f"{key} = {value!r}: it must be {_KINDS[types[key]]}")
    return kind(**{key: read_as(types[key])(value) for key, value in settings.items()})


def method_named(name: Any) -> Any:
    """The name of a method today.

    >>> method_named("l2"), method_named("spectral")
    ('weight-decay', 'spectral')
    """
    return next((now for now, before in FORMER.items() if name == before), name)


def read_as(kind: type) -> Callable[[Any], Any]:
    """A function that converts a fitting value, or a word of the command line, to this type."""
    return number if kind is float else kind


def number(value: float | str) -> float:
    """A number, or a fraction as it is usual for the strength of attacks.

    >>> number("8/255") == 8 / 255, number("0.03"), number(1)
    (True, 0.03, 1.0)
    """
    numerator, slash, denominator = str(value).partition("/")
    return float(numerator) / float(denominator) if slash else float(value)


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
