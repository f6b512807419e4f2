"""The task policy: smooth control by PPO. Smooth means that the Jacobian of the action is small."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from torch import Tensor

from ...integrations.stable_baselines3 import AddedLoss, JacobianPenalty
from ...penalties import FrobeniusPenalty, Penalty, SpectralPenalty
from ..run import Share
from .kinds import FIRST_WEIGHT, PolicySettings, levels
from .learning import Learning, check_actions, check_names, environments, load, told
from .playing import SEEDS, Episode, fluctuation, kept_random_state, play

__all__ = ["check_names", "check_start", "load", "start", "told"]


class PolicyLearning(Learning):
    config: PolicySettings
    model: PPO

    def __init__(self, config: PolicySettings, model: PPO):
        self._penalty = make_penalty(config)
        additions: list[BaseCallback] = [JacobianPenalty(self._penalty)] if self._penalty else []
        if config.method == "caps":
            additions = [CAPS(config.weight, config.spread)]
        super().__init__(config, model, additions)
        self.work = config.rollouts * config.rollout * config.environments

    @property
    def penalty(self) -> Penalty | None:
        return self._penalty

    def learn(self, steps: int, callback: list[BaseCallback]) -> None:
        self.model.learn(steps, callback, reset_num_timesteps=False)

    def extra_scores(self, episodes: Sequence[Episode]) -> dict[str, float]:
        return {"fluctuation": 1000 * float(np.mean([fluctuation(one.actions) for one in episodes]))}

    def test(self) -> dict[str, float]:
        """The final scores, also with noise on the observations."""
        found = super().test()
        episodes = play(self.config.environment, self.act, self.config.episodes)
        scale = np.concatenate([one.observations for one in episodes]).std(0)
        for strength in levels(self.config.noise):
            noise = np.random.Generator(np.random.PCG64(SEEDS))
            act = partial(self._act_in_noise, noise, strength * scale)
            noisy = play(self.config.environment, act, self.config.episodes)
            found[f"return_in_noise_{strength:g}"] = float(np.mean([one.total for one in noisy]))
            found[f"fluctuation_in_noise_{strength:g}"] = self.extra_scores(noisy)["fluctuation"]
        return found

    def _act_in_noise(self, noise: np.random.Generator, scale: Any, observations: Any) -> Any:
        disturbed = observations + scale * noise.standard_normal(observations.shape)
        return self.act(disturbed.astype(observations.dtype))


class CAPS(AddedLoss):
    """weight · (mean ‖π(s_t) − π(s_{t+1})‖ + mean ‖π(s) − π(s + spread · noise)‖), of Mysore et al. (2021).

    The first mean is over pairs drawn from the last round, since batches have no consecutive states.
    """

    def __init__(self, weight: float, spread: float):
        super().__init__("policy")
        self.weight, self.spread = weight, spread
        self._pairs: tuple[Tensor, Tensor] | None = None

    def _on_rollout_end(self) -> None:
        buffer = self.model.rollout_buffer  # type: ignore[attr-defined]
        goes_on = torch.as_tensor(buffer.episode_starts[1:] == 0)
        states = torch.as_tensor(buffer.observations, device=self.model.device)
        self._pairs = states[:-1][goes_on], states[1:][goes_on]

    def value(self, observations: Tensor, *args: Any) -> Tensor:
        assert self._pairs is not None
        drawn = torch.randint(len(self._pairs[0]), (len(observations),), device=observations.device)
        near = observations + self.spread * torch.randn_like(observations)
        parts = [*(states[drawn] for states in self._pairs), observations, near]
        now, then, here, there = self.part.function(torch.cat(parts)).chunk(4)
        return self.weight * ((now - then).norm(dim=1).mean() + (here - there).norm(dim=1).mean())


def make_penalty(config: PolicySettings) -> Penalty | None:
    """The penalty on a norm. None for `none` and for `caps`, which is not a norm of a Jacobian."""
    makers = {
        "spectral": lambda: SpectralPenalty(config.weight, seed=config.seed),
        "spectral-target": lambda: SpectralPenalty(FIRST_WEIGHT, target=config.target, seed=config.seed),
        "frobenius": lambda: FrobeniusPenalty(config.weight, seed=config.seed),
    }
    return makers[config.method]() if config.method in makers else None


def check_start(config: PolicySettings, data: Any) -> None:
    otherwise = "a few to choose from, not numbers: try --task dqn, or Pendulum-v1"
    check_actions(config, gymnasium.spaces.Box, otherwise)


def start(
    config: PolicySettings, data: Any, device: torch.device | str, share: Share | None = None
) -> PolicyLearning:
    with kept_random_state():
        model = PPO(
            "MlpPolicy",
            environments(config, config.environments),
            learning_rate=config.learning_rate,
            n_steps=config.rollout,
            batch_size=config.batch_size,
            n_epochs=config.passes,
            gamma=config.discount,
            gae_lambda=config.trace,
            clip_range=config.clip,
            ent_coef=config.entropy,
            policy_kwargs={"net_arch": [config.hidden, config.hidden]},
            seed=config.seed % 2**31,
            device=device,
        )
    return PolicyLearning(config, model)
