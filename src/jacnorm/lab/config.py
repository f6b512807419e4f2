"""The settings of a classification run, and the list of all tasks."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from .data.own import is_own as is_own_data
from .nets import is_own
from .optimizers import NAMES as OPTIMIZERS
from .settings import ONE_OR_MORE, PART, POSITIVE, Bound, Kind, Settings, Titles, configured, setting
from .settings import ConfigError as ConfigError  # other modules import it from here
from .settings import target as target_setting
from .settings import target_quantile as target_quantile_setting
from .tasks.kinds import DQNSettings, GANSettings, PolicySettings
from .wording import did_you_mean

if TYPE_CHECKING:
    from .data import DataSet

METHODS = (
    "none",
    "weight-decay",
    "spectral-bound",
    "frobenius",
    "spectral",
    "analytic",
    "margin",
    "adversarial",
)
# Settings that change a method so much that tables give it another name.
VARIANTS = {
    "spectral": ("warm_start", True, "spectral-warm"),
    "spectral-bound": ("convolution", "kernel", "spectral-bound-kernel"),
}
LABELS = (*METHODS, *(label for _, _, label in VARIANTS.values()))  # names of methods in tables
# Settings that make a penalty cheaper. They are part of the label, so that an experiment can compare them.
CHEAPER = ("every", "budget", "precision")
STEERED = ("target", "target_quantile")
TOLD_BY_THE_LABEL = {"method", *(name for name, _, _ in VARIANTS.values()), *CHEAPER, *STEERED}

# Of the last epoch, on the test split; of the best and the mean of the last ten, on the validation split.
QUANTITIES = dict.fromkeys(("accuracy", "best_accuracy", "late_accuracy"), ("points of accuracy", 2))


@dataclass(frozen=True)
class RunConfig(Settings):
    """The defaults are the paper's LeNet runs, on the small data set that needs no download."""

    task: str = setting("classification", "the task", ("classification",))
    data: str = setting(
        "digits",
        "digits, kmnist, fashion-mnist, mnist or cifar10; or your own: an .npz with x and y, a folder of "
        "images by class, a .csv or .parquet table, package.module:factory",
    )
    label_column: str = setting("", "the column of a table with the classes")
    tokens: bool = setting(False, "x of your own data are tokens, whole numbers (N, length)")
    at: str = setting(
        "", "for a net on tokens, the embedding at which J begins (default: the only one of the net)"
    )
    data_fingerprint: str = setting("", "the fingerprint of your own data; the data must match it")
    net: str = setting(
        "mlp", "mlp, lenet, vgg16, resnet18, or your own package.module:factory (called without arguments)"
    )
    output: str = setting(
        "", "which output of your own net to use, by name or position (default: the logits)"
    )
    width: float = setting(1.0, "factor on the number of channels of vgg16 and resnet18", POSITIVE)
    method: str = setting("spectral", "the regularizer; adversarial trains on images changed by PGD", METHODS)
    weight: float = setting(
        0.01,
        "weight of the regularizer, λ",
        Bound(POSITIVE.holds, 'positive; method = "none" has no penalty'),
        method="weight-decay spectral-bound frobenius spectral analytic margin",
    )
    optimizer: str = setting("sgd", "the optimizer; with Adam begin at a learning rate of 0.001", OPTIMIZERS)
    learning_rate: float = setting(0.01, "learning rate", POSITIVE)
    momentum: float = setting(
        0.8, "momentum of SGD", Bound(lambda v: 0 <= v < 1, "in [0, 1)"), optimizer="sgd"
    )
    batch_size: int = setting(32, "batch size", POSITIVE)
    epochs: int = setting(50, "passes over the train split", POSITIVE)
    schedule: str = setting(
        "constant", "learning rate schedule: constant, or cosine decay to 0", ("constant", "cosine")
    )
    augment: bool = setting(False, "random crop and horizontal flip")
    autocast: bool = setting(False, "run the network in bfloat16; the weights stay in float32")
    protocol: str = setting(
        "paper",
        "validate on the test split (paper), or on a sixth of the train split that is held out",
        ("paper", "held-out"),
    )
    seed: int = setting(
        0,
        "random seed of the weights, the order of images and everything else",
        Bound(lambda v: 0 <= v < 2**63, "a whole number from 0 to 2^63 − 1"),
    )
    iterations: int = setting(1, "rounds of power iteration", ONE_OR_MORE, method="spectral-bound spectral")
    projections: int = setting(1, "random projections", ONE_OR_MORE, method="frobenius")
    warm_start: bool = setting(
        True, "start from the last vector of each sample; the paper starts at random", method="spectral"
    )
    convolution: str = setting(  # the operator's norm bounds ‖J‖; Yoshida & Miyato use the reshaped kernel
        "operator",
        "take the norm of the convolution, or of its kernel as a matrix",
        ("operator", "kernel"),
        method="spectral-bound",
    )
    h: str = setting(
        "identity",
        "shape of the penalty as a function of σ",
        ("identity", "square", "hinge"),
        method="spectral",
    )
    threshold: float = setting(1.0, "threshold of h = hinge", POSITIVE, method="spectral")
    batch_norm: str = setting(
        "flowing",
        "flowing: the penalty's gradient passes through the batch statistics",
        ("fixed", "flowing"),
        first="fixed",
        method="frobenius spectral analytic margin",
    )
    every: int = setting(
        1,
        "add the penalty at every k-th step only, with k times its weight",
        ONE_OR_MORE,
        method="spectral-bound frobenius spectral analytic margin",
    )
    budget: float = setting(
        0.0,
        "the average cost of a step, in plain steps: with 1.15 the penalty is added as often as that "
        "allows; 0 is no limit. It is measured on this machine, so runs are not exactly repeatable",
        Bound(lambda v: v == 0 or v > 1, "above 1, or 0 for no limit"),
        method="spectral-bound frobenius spectral analytic margin",
    )
    precision: str = setting(
        "float32",
        "precision of the products with J",
        ("float32", "bfloat16"),
        method="frobenius spectral analytic margin",
    )
    fraction: float = setting(
        1.0,
        "part of each batch that the penalty is computed on",
        PART,
        method="frobenius spectral analytic margin",
    )
    epsilon: float = setting(
        8 / 255,
        "largest change of a pixel by the attack, from 0 to 1, as 8/255",
        Bound(PART.holds, "above 0 and at most 1, as 8/255 is"),
        method="adversarial",
    )
    attack_steps: int = setting(
        10, "gradient steps of the attack on each batch", ONE_OR_MORE, method="adversarial"
    )
    radius: float = setting(
        1.0, "distance to the boundary that is enough, in normalized input", POSITIVE, method="margin"
    )
    radius_norm: str = setting("2", "norm in which the radius is measured", ("2", "inf"), method="margin")
    candidates: int = setting(
        1,
        "how many of the highest-scoring classes are candidates for the nearest one",
        ONE_OR_MORE,
        method="margin",
    )
    target: float = target_setting("frobenius spectral analytic")
    target_quantile: float = target_quantile_setting("frobenius spectral analytic")

    told_by_the_label: ClassVar[set[str]] = TOLD_BY_THE_LABEL

    def __post_init__(self) -> None:
        for method, (name, value, label) in VARIANTS.items():
            if self.method == label:
                raise ConfigError(
                    f'method = "{label}": this is its name in tables; write method = "{method}" and '
                    f"{name} = {json.dumps(value)}"
                )
        super().__post_init__()
        if self.budget and self.every != 1:
            raise ConfigError(
                f"budget = {self.budget:g} chooses `every` itself: leave out every = {self.every}"
            )
        if self.target_quantile and not self.target:
            raise ConfigError(f"target_quantile = {self.target_quantile:g} needs a target above 0")

    @property
    def quantities(self) -> Titles:
        return QUANTITIES

    @property
    def label(self) -> str:
        """The name of the method in tables. `spectral` is the paper's method, with random starts."""
        name, value, variant = VARIANTS.get(self.method, ("method", "", ""))
        label, settings = variant if getattr(self, name) == value else self.method, self.relevant()
        usual = type(self).__dataclass_fields__
        others = (*CHEAPER, *STEERED)
        told = [one for one in others if settings.get(one, usual[one].default) != usual[one].default]
        return ", ".join([label, *(f"{one} {settings[one]}" for one in told)])

    @property
    def subject(self) -> str:
        return f"{self._data_name}-{self.net.replace(':', '.')}"

    @property
    def _data_name(self) -> str:
        """The name of the data without folders, since it becomes part of a folder's name."""
        return Path(self.data).stem.replace(":", ".") if is_own_data(self.data) else self.data

    @property
    def how_to_read(self) -> dict[str, Any]:
        """The arguments of `load` for a user's own data."""
        return {"label": self.label_column, "tokens": self.tokens or bool(self.at)}

    @property
    def inputs(self) -> str:
        """The input that σ is measured with respect to, in words."""
        return "the tokens' embedding" if self.how_to_read["tokens"] else "normalized input"

    def with_data(self, data: DataSet) -> RunConfig:
        """The same settings with the fingerprint of a user's own data.

        It tells apart files with the same name.
        """
        if not data.own:
            return self
        if self.data_fingerprint not in ("", data.fingerprint):
            raise ConfigError(
                f"{self.data} has the fingerprint {data.fingerprint}, and these settings are for data with "
                f"{self.data_fingerprint}: the data has changed, or its samples are random"
            )
        return replace(self, data_fingerprint=data.fingerprint)

    @property
    def source(self) -> str:
        return self.data

    @property
    def architecture(self) -> tuple[Any, ...]:
        return self.net, self.width

    @property
    def own_net(self) -> str | None:
        return self.net if is_own(self.net) else None

    @property
    def strength(self) -> str:
        return f"{self.epsilon:.3g}" if self.method == "adversarial" else super().strength


# By the name of their task.
KINDS: dict[str, Kind] = {
    "classification": RunConfig,
    "gan": GANSettings,
    "policy": PolicySettings,
    "dqn": DQNSettings,
}


def make_config(settings: Mapping[str, Any]) -> Settings:
    """Settings from a mapping. The key `task` says of which task; the default is classification."""
    task = settings.get("task", "classification")
    if task not in KINDS:
        raise ConfigError(f"task = {task!r}: {did_you_mean(str(task), KINDS)}")
    return configured(KINDS[task], settings)


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


def field_names(kind: Kind = RunConfig) -> list[str]:
    return [one.name for one in fields(kind)]


def choices(name: str, kind: Kind = RunConfig) -> tuple[str, ...] | None:
    may_be = kind.__dataclass_fields__[name].metadata["may_be"]
    return None if isinstance(may_be, Bound) else may_be


def help_text(name: str, kind: Kind = RunConfig) -> str:
    one = kind.__dataclass_fields__[name]
    methods = one.metadata["only"].get("method", ())
    return one.metadata["text"] + (f" ({', '.join(methods)})" if methods else "")
