"""Environments, and playing episodes for evaluation."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError

FAMILIES = {"MinAtar": "minatar"}  # prefix of environment names -> package
LONGEST = 5000  # steps of an episode, at most, since some would never end
SEEDS = 1_000_003  # the first seed of evaluation episodes, the same for all runs

Numbers = NDArray[Any]


class ChannelsFirst(gymnasium.ObservationWrapper[Numbers, Any, Any]):
    """MinAtar's images as small whole numbers, with channels first, as convolutions need them."""

    def __init__(self, env: gymnasium.Env[Any, Any]):
        super().__init__(env)
        height, width, channels = env.observation_space.shape or ()
        self.observation_space = gymnasium.spaces.Box(0, 1, (channels, height, width), np.uint8)

    def observation(self, observation: Numbers) -> Numbers:
        return observation.transpose(2, 0, 1).astype(np.uint8)


def make(name: str) -> gymnasium.Env[Any, Any]:
    """Make the environment. An error names the existing ones, or the missing package."""
    family = name.partition("/")[0]
    try:
        if family in FAMILIES:
            if not any(one.startswith(f"{family}/") for one in gymnasium.registry):
                importlib.import_module(f"{FAMILIES[family]}.gym").register_envs()
            return ChannelsFirst(gymnasium.make(name, max_episode_steps=LONGEST))
        return gymnasium.make(name)
    except (gymnasium.error.Error, ImportError) as error:
        raise UsageError(f"environment = {name!r}: {error}") from error


@dataclass(frozen=True)
class Episode:
    observations: Numbers
    actions: Numbers
    rewards: Numbers

    @property
    def total(self) -> float:
        return float(self.rewards.sum())


Acting = Callable[[Numbers], Numbers]  # from a batch of observations


def play(name: str, act: Acting, episodes: int) -> list[Episode]:
    """Episodes played side by side, each in its own environment. The starts are the same in every call."""
    envs = [make(name) for _ in range(episodes)]
    seen: list[list[Numbers]] = [[env.reset(seed=SEEDS + i)[0]] for i, env in enumerate(envs)]
    done: list[list[Numbers]] = [[] for _ in envs]
    gained: list[list[float]] = [[] for _ in envs]
    running = list(range(episodes))
    while running:
        actions = act(np.stack([seen[i][-1] for i in running]))
        ended = set()
        for i, action in zip(running, actions, strict=True):
            observation, reward, terminated, truncated, _ = envs[i].step(action)
            done[i].append(action)
            gained[i].append(float(reward))
            if terminated or truncated:
                ended.add(i)
            else:
                seen[i].append(observation)
        running = [i for i in running if i not in ended]
    for env in envs:
        env.close()
    parts = zip(seen, done, gained, strict=True)
    return [Episode(np.stack(s), np.stack(d), np.array(g)) for s, d, g in parts]


def fluctuation(actions: Numbers) -> float:
    """How quickly actions change: (2/(n f_s)) Σᵢ Mᵢ fᵢ over the n frequencies fᵢ of their spectrum and the
    amplitudes Mᵢ there, with f_s = 1 per step; the mean over the numbers of an action (Mysore et al., 2021).

    It is 0 for a constant. Within bounds it is largest for a sequence that jumps between them at each step.
    """
    series = actions.reshape(len(actions), -1).astype(float)
    amplitudes = 2 * np.abs(np.fft.rfft(series, axis=0)[1:]) / len(series)
    frequencies = np.fft.rfftfreq(len(series))[1:, None]
    return float(2 * (amplitudes * frequencies).mean()) if amplitudes.size else 0.0


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Restores the global generators of Python and NumPy, which stable-baselines3 uses."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
