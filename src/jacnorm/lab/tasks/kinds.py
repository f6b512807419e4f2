"""The settings of the other tasks. Importing this needs none of the packages that the tasks need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..settings import ONE_OR_MORE, PART, POSITIVE, Bound, Settings, Titles, setting

NOT_NEGATIVE = Bound(lambda v: v >= 0, "0 or more")
RETURNS = {
    "return": ("return at the end", 1),
    "mean_return": ("return over training", 1),
    "sigma": ("mean σ", 3),
    "milliseconds_per_update": ("ms per update", 1),
}
SEEN = {  # of made images
    "frechet": ("Fréchet distance (not FID)", 2),
    "precision": ("precision", 3),
    "recall": ("recall", 3),
}
SLOPES = {  # of the critic
    "sigma_real": ("σ at real images", 3),
    "sigma_made": ("σ at made ones", 3),
    "sigma_between": ("σ in between", 3),
    "milliseconds_per_step": ("ms per step", 0),
}
TARGET = "the mean σ to reach; the weight is found in training"
FIRST_WEIGHT = 0.01  # of a method with a target
FRACTION = Bound(lambda v: 0 <= v <= 1, "from 0 to 1")


def levels(text: str) -> tuple[float, ...]:
    """
    >>> levels("0.05 0.2"), levels("0.1 much"), levels("-1")
    ((0.05, 0.2), (), ())
    """
    try:
        found = tuple(map(float, text.split()))
    except ValueError:
        return ()
    return found if all(level > 0 for level in found) else ()


class OneOfMany(Settings):
    """Every strength of a method has its own row in the table. No setting is chosen among them."""

    told_by_the_label: ClassVar[set[str]] = {"method", "weight"}

    @property
    def strength(self) -> str:
        """The weight, or the target if the weight is found in training."""
        settings = self.relevant()
        return f"{settings['target']:g}" if "target" in settings else super().strength

    @property
    def headline(self) -> tuple[str, ...]:
        """The quantities in the summary of an experiment."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        return f"{self.method} {self.strength}".strip()


@dataclass(frozen=True)
class Reinforcement(OneOfMany):
    """The settings that policy and dqn share."""

    environment: str = setting("", "name of a gymnasium environment, as CartPole-v1 or MinAtar/Breakout-v1")
    learning_rate: float = setting(1e-3, "learning rate of Adam", POSITIVE)
    discount: float = setting(0.99, "discount of later rewards, γ", PART)
    batch_size: int = setting(64, "batch size", POSITIVE)
    hidden: int = setting(64, "units per hidden layer", ONE_OR_MORE)
    episodes: int = setting(10, "episodes played for evaluation after each epoch", ONE_OR_MORE)

    criterion: ClassVar[tuple[str, int]] = ("return", -1)

    @property
    def headline(self) -> tuple[str, ...]:
        return ("mean_return",)

    @property
    def quantities(self) -> Titles:
        return RETURNS

    @property
    def subject(self) -> str:
        return f"{self.task}-{self.environment.replace('/', '.')}"


@dataclass(frozen=True)
class DQNSettings(Reinforcement):
    """The defaults are for CartPole, after those of rl-baselines3-zoo."""

    task: str = setting("dqn", "a value network, trained by DQN", ("dqn",))
    environment: str = setting(
        "CartPole-v1", "name of a gymnasium environment, as CartPole-v1 or MinAtar/Breakout-v1"
    )
    method: str = setting(
        "none",
        "the regularizer; spectral-norm divides the last hidden layer by its norm (Gogianu et al.)",
        ("none", "spectral-norm", "spectral", "weight-decay"),
    )
    weight: float = setting(0.01, "weight of the regularizer, λ", POSITIVE, method="spectral weight-decay")
    epochs: int = setting(20, "epochs; after each one the network is evaluated and saved", POSITIVE)
    steps: int = setting(2500, "steps of the environment per epoch", POSITIVE)
    learning_rate: float = setting(2.3e-3, "learning rate of Adam", POSITIVE)
    adam_epsilon: float = setting(1e-8, "ε of Adam", POSITIVE)
    hidden: int = setting(256, "units per hidden layer", ONE_OR_MORE)
    replay: int = setting(50_000, "size of the replay buffer, in steps", ONE_OR_MORE)
    warmup: int = setting(1000, "steps before the first update", NOT_NEGATIVE)
    environments: int = setting(1, "environments that are played side by side", ONE_OR_MORE)
    train_every: int = setting(256, "steps of all environments between rounds of updates", ONE_OR_MORE)
    updates: int = setting(128, "updates per round", ONE_OR_MORE)
    target_every: int = setting(256, "steps between copies to the target network", ONE_OR_MORE)
    explore: float = setting(0.16, "part of all steps during which exploration falls to explore_to", PART)
    explore_to: float = setting(0.04, "probability of a random action after that", FRACTION)


@dataclass(frozen=True)
class PolicySettings(Reinforcement):
    """The defaults are for Pendulum, after those of rl-baselines3-zoo."""

    task: str = setting("policy", "a policy for continuous actions, trained by PPO", ("policy",))
    environment: str = setting("Pendulum-v1", "name of a gymnasium environment with continuous actions")
    method: str = setting(
        "none",
        "the regularizer of the policy; caps is by Mysore et al.",
        ("none", "spectral", "spectral-target", "frobenius", "caps"),
    )
    target: float = setting(1.0, TARGET, POSITIVE, method="spectral-target")
    weight: float = setting(0.01, "weight of the regularizer, λ", POSITIVE, method="spectral frobenius caps")
    spread: float = setting(
        0.05, "standard deviation of the states that caps draws around each state", POSITIVE, method="caps"
    )
    epochs: int = setting(20, "epochs; after each one the network is evaluated and saved", POSITIVE)
    rollouts: int = setting(1, "rounds of playing and learning per epoch", ONE_OR_MORE)
    environments: int = setting(4, "environments that are played side by side", ONE_OR_MORE)
    rollout: int = setting(1024, "steps per environment and round", ONE_OR_MORE)
    passes: int = setting(10, "passes over the steps of a round", ONE_OR_MORE)
    discount: float = setting(0.9, "discount of later rewards, γ", PART)
    trace: float = setting(0.95, "λ of generalized advantage estimation (GAE)", PART)
    entropy: float = setting(0.0, "weight of the entropy of actions", NOT_NEGATIVE)
    clip: float = setting(0.2, "clip range of PPO", POSITIVE)

    noise: str = setting(
        "0.05 0.1 0.2",
        "on the observations, to judge by: levels in units of each number's standard deviation",
        Bound(lambda v: bool(levels(v)), "one number above 0 or more, with spaces between them"),
    )

    @property
    def headline(self) -> tuple[str, ...]:
        return "return", "fluctuation"

    @property
    def quantities(self) -> Titles:
        noisy = {
            f"{name}_in_noise_{level:g}": (f"{title}, {level:.3g} s.d. of noise", digits)
            for name, title, digits in (("return", "return", 1), ("fluctuation", "fluctuation, 10⁻³", 2))
            for level in levels(self.noise)
        }
        smooth = {"fluctuation": ("fluctuation of actions, 10⁻³", 2)}
        return {"return": RETURNS["return"], **smooth, **RETURNS, **noisy}


@dataclass(frozen=True)
class GANSettings(OneOfMany):
    """Small networks for 28×28 images. The loss is logistic; wgan-gp has the loss of Wasserstein GANs."""

    task: str = setting("gan", "a generator of images and its critic", ("gan",))
    data: str = setting("fashion-mnist", "fashion-mnist, kmnist, mnist, or digits for a quick look")
    stacked: bool = setting(False, "stack three images as channels: ten classes make 1,000 modes")
    method: str = setting(
        "none",
        "the regularizer of the critic",
        ("none", "spectral-norm", "wgan-gp", "r1", "spectral", "spectral-target"),
    )
    target: float = setting(1.0, TARGET, POSITIVE, method="spectral-target")
    weight: float = setting(
        1.0, "weight of the regularizer, λ (for r1 it is γ/2)", POSITIVE, method="wgan-gp r1 spectral"
    )
    learning_rate: float = setting(2e-4, "learning rate of Adam, for both networks", POSITIVE)
    momentum: float = setting(0.5, "β₁ of Adam", FRACTION)
    batch_size: int = setting(64, "batch size", POSITIVE)
    channels: int = setting(
        32, "channels of the first layer of the critic; the next has twice as many", ONE_OR_MORE
    )
    latent: int = setting(64, "dimension of the noise that an image is made from", ONE_OR_MORE)
    critic_steps: int = setting(1, "steps of the critic per step of the generator", ONE_OR_MORE)
    steps: int = setting(500, "steps of the generator per epoch", POSITIVE)
    epochs: int = setting(16, "epochs; after each one the network is evaluated and saved", POSITIVE)
    judged: int = setting(
        2000, "images for evaluation after each epoch; thirteen times as many at the end", ONE_OR_MORE
    )
    judge_epochs: int = setting(
        10, "training epochs of the classifier that evaluates the images", ONE_OR_MORE
    )

    criterion: ClassVar[tuple[str, int]] = ("frechet", 1)

    @property
    def headline(self) -> tuple[str, ...]:
        return ("modes", "kl") if self.stacked else ("frechet", "recall")

    @property
    def quantities(self) -> Titles:
        """The number of modes is included if there can be many."""
        modes = {"modes": ("modes", 1), "kl": ("KL, nats", 3)}
        return {**SEEN, **(modes if self.stacked else {}), **SLOPES}

    @property
    def subject(self) -> str:
        return f"gan-{self.data}{'-stacked' if self.stacked else ''}"
