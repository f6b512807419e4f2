"""The task dqn: a value network trained by DQN, with or without a method that keeps it smooth.

Gogianu et al. (2021) divide the last hidden layer by its spectral norm. They find that this affects
optimization more than smoothness.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm as normalized_weight

from ...integrations.stable_baselines3 import JacobianPenalty
from ...penalties import Penalty, SpectralPenalty
from ..run import Share
from .kinds import DQNSettings
from .learning import Learning, check_actions, check_names, environments, load, told
from .playing import kept_random_state

__all__ = ["check_names", "check_start", "load", "start", "told"]

MINATAR_CHANNELS = 16  # of the only convolution


class Convolution(BaseFeaturesExtractor):
    """Features of images as in MinAtar: 16 kernels of 3×3."""

    def __init__(self, space: gymnasium.spaces.Box):
        channels, height, width = space.shape
        super().__init__(space, MINATAR_CHANNELS * (height - 2) * (width - 2))
        self.layers = nn.Sequential(nn.Conv2d(channels, MINATAR_CHANNELS, 3), nn.ReLU(), nn.Flatten())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class ValueLearning(Learning):
    config: DQNSettings
    model: DQN

    def __init__(self, config: DQNSettings, model: DQN):
        self._penalty = (
            SpectralPenalty(config.weight, seed=config.seed) if config.method == "spectral" else None
        )
        super().__init__(config, model, [JacobianPenalty(self._penalty)] if self._penalty else [])
        self.work = config.steps

    @property
    def penalty(self) -> Penalty | None:
        return self._penalty

    counters = (*Learning.counters, "_n_calls")

    def learn(self, steps: int, callback: list[BaseCallback]) -> None:
        self.model.exploration_schedule = lambda _: self.exploration()  # in all epochs together
        self.model.exploration_rate = self.exploration()
        self.model.learn(steps, callback, reset_num_timesteps=False)

    def exploration(self) -> float:
        """The probability of a random action. It falls from 1 to `explore_to`."""
        until = self.config.explore * self.config.epochs * self.config.steps
        part = min(1.0, self.model.num_timesteps / until)
        return 1.0 + part * (self.config.explore_to - 1.0)

    def tensors(self) -> dict[str, Tensor]:
        """The replay buffer, which a checkpoint needs until the last epoch."""
        is_over = len(self.history) == self.config.epochs
        return super().tensors() | ({} if is_over else remembered(self.model))

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        super().load(tensors)
        remember(self.model, tensors)


FILES = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


def remembered(model: DQN) -> dict[str, Tensor]:
    buffer = model.replay_buffer
    assert buffer is not None
    place = torch.tensor([buffer.pos, buffer.full])
    return {f"replay.{name}": torch.from_numpy(getattr(buffer, name)[: buffer.size()]) for name in FILES} | {
        "replay.place": place
    }


def remember(model: DQN, tensors: Mapping[str, Tensor]) -> None:
    buffer = model.replay_buffer
    if buffer is None or "replay.place" not in tensors:  # all epochs are done
        return
    buffer.pos, buffer.full = int(tensors["replay.place"][0]), bool(tensors["replay.place"][1])
    for name in FILES:
        getattr(buffer, name)[: buffer.size()] = tensors[f"replay.{name}"].numpy()


def check_start(config: DQNSettings, data: Any) -> None:
    otherwise = "numbers, and DQN chooses among a few actions: try --task policy, or CartPole-v1"
    check_actions(config, gymnasium.spaces.Discrete, otherwise)


def start(
    config: DQNSettings, data: Any, device: torch.device | str, share: Share | None = None
) -> ValueLearning:
    env = environments(config, config.environments)
    decay = config.weight if config.method == "weight-decay" else 0.0
    image = len(env.observation_space.shape or ()) == 3
    with kept_random_state():
        model = DQN(
            "MlpPolicy",
            env,
            learning_rate=config.learning_rate,
            buffer_size=config.replay,
            learning_starts=config.warmup,
            batch_size=config.batch_size,
            gamma=config.discount,
            train_freq=max(1, config.train_every // env.num_envs),  # counted per environment
            gradient_steps=config.updates,
            target_update_interval=config.target_every,
            policy_kwargs={
                "net_arch": [config.hidden] if image else [config.hidden, config.hidden],
                "optimizer_kwargs": {"eps": config.adam_epsilon, "weight_decay": decay},
                **({"features_extractor_class": Convolution} if image else {}),
            },
            seed=config.seed % 2**31,
            device=device,
        )
    if config.method == "spectral-norm":
        normalize_last_hidden(model)
    return ValueLearning(config, model)


def normalize_last_hidden(model: DQN) -> None:
    """Divide the last hidden layer by its norm, in both networks. The target network gets the weights and the
    vectors of power iteration. Its own first vectors would not fit these weights.
    """
    for net in (model.q_net, model.q_net_target):
        layers = [layer for layer in net.q_net if isinstance(layer, nn.Linear)]
        normalized_weight(layers[-2])
    model.q_net_target.load_state_dict(model.q_net.state_dict())
    # stable-baselines3 copies these tensors beside the parameters. Usually they are batch norm's statistics.
    model.batch_norm_stats = list(model.q_net.buffers())
    model.batch_norm_stats_target = list(model.q_net_target.buffers())
