"""What policy and dqn share: an algorithm of stable-baselines3 runs epoch by epoch."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from torch import Tensor

from ... import linearize, spectral_norm
from ...errors import NonFiniteError
from ...integrations.stable_baselines3 import part_of
from ...penalties import Penalty
from ..checkpoint import part, prefixed
from ..errors import UsageError
from ..optimizers import load_optimizer, optimizer_tensors
from ..progress import Progress
from ..run import Run, Share
from ..wording import signed
from .kinds import Reinforcement
from .playing import Episode, kept_random_state, make, play

SIGMA_STATES = 500
STAGGER = 9_176  # the distance between the seeds of environments and the seeds of epochs
FINAL = 3  # times as many episodes at the end


class Learning(Run):
    """An epoch is a part of the steps. It begins with new episodes, so environments need not be stored."""

    def __init__(self, config: Reinforcement, model: BaseAlgorithm, additions: Sequence[BaseCallback] = ()):
        super().__init__(config, Share())
        self.config, self.model, self.additions = config, model, additions
        self.clock = Clock()
        model.set_logger(Logger(None, []))

    @property
    @abstractmethod
    def penalty(self) -> Penalty | None:
        """The objects whose state is stored."""

    @abstractmethod
    def learn(self, steps: int, callback: list[BaseCallback]) -> None: ...

    def extra_scores(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Further scores of these episodes."""
        return {}

    def epoch(self, epoch: int, progress: Progress) -> dict[str, Any]:
        begin, updates = time.perf_counter(), self.updates
        self.clock.reset()
        with kept_random_state():
            self.model.set_random_seed(self.seed(epoch) * STAGGER % 2**31)
            self.model._last_obs = None  # new episodes
            left = self.work * (epoch + 1) - self.model.num_timesteps
            try:
                self.learn(left, [*self.additions, self.clock, Heard(progress)])
            except (NonFiniteError, ValueError) as error:
                self.check_finite(error)
                raise
        self.check_finite()
        done = max(1, self.updates - updates)
        scores = self.scores(self.config.episodes)
        return {
            "epoch": epoch + 1,
            "steps": self.model.num_timesteps,
            **scores,
            **({} if self.penalty is None else {"weight": self.penalty.weight}),
            "seconds": time.perf_counter() - begin,
            "milliseconds_per_update": 1000 * self.clock.training / done,
        }

    def check_finite(self, cause: Exception | None = None) -> None:
        if not all(bool(p.isfinite().all()) for p in self.model.policy.parameters()):
            raise self.diverged("learning", "A weight of the network is NaN or inf.") from cause

    def scores(self, episodes: int) -> dict[str, float]:
        played = play(self.config.environment, self.act, episodes)
        return {
            "return": float(np.mean([one.total for one in played])),
            "length": float(np.mean([len(one.rewards) for one in played])),
            "sigma": self.sigma(played),
            **self.extra_scores(played),
        }

    def act(self, observations: Any) -> Any:
        return self.model.predict(observations, deterministic=True)[0]

    def sigma(self, played: Sequence[Episode]) -> float:
        """The mean σ of the penalized function, at states of these episodes."""
        states = np.concatenate([one.observations for one in played])
        some = np.linspace(0, len(states) - 1, min(SIGMA_STATES, len(states))).astype(int)
        self.model.policy.set_training_mode(False)
        x = torch.as_tensor(states[some]).float().to(self.model.device)
        function: Callable[[Tensor], Tensor] = part_of(self.model).function
        with torch.no_grad():
            return float(spectral_norm(linearize(function, x)).sigma.mean())

    def test(self) -> dict[str, float]:
        """Final scores, with the mean return over training, which is the area under its curve."""
        found = self.scores(FINAL * self.config.episodes)
        return found | {"mean_return": float(np.mean([one["return"] for one in self.history]))}

    @property
    def updates(self) -> int:
        """Steps of the optimizer."""
        steps = [state["step"] for state in self.model.policy.optimizer.state.values()]
        return int(max(steps, default=0))

    def tensors(self) -> dict[str, Tensor]:
        counters = {name: torch.tensor(getattr(self.model, name)) for name in self.counters}
        kept = {
            "policy": self.model.policy.state_dict(),
            "optimizer": optimizer_tensors(self.model.policy.optimizer),
            "counter": counters,
            "penalty": {} if self.penalty is None else self.penalty.state_dict(),
        }
        return {name: t for key, of in kept.items() for name, t in prefixed(key, of).items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.model.policy.load_state_dict(part("policy", tensors))
        load_optimizer(self.model.policy.optimizer, part("optimizer", tensors))
        for name, value in part("counter", tensors).items():
            setattr(self.model, name, int(value))
        if self.penalty is not None:
            self.penalty.load_state_dict(part("penalty", tensors))

    counters: Sequence[str] = ("num_timesteps", "_n_updates", "_episode_num")

    def weights(self) -> dict[str, Tensor]:
        return self.model.policy.state_dict()

    def line(self, m: Mapping[str, Any]) -> str:
        pace = f"{m['milliseconds_per_update']:.1f} ms per update"
        return f"return {signed(m['return'], 1)}  σ {m['sigma']:.3f}  {pace}"


def told(config: Reinforcement, result: dict[str, Any]) -> str:
    test = result["test"]
    return (
        f"{config.label} on {config.environment}: return {signed(test['return'], 1)} at the end, "
        f"{signed(test['mean_return'], 1)} over training, mean σ {test['sigma']:.3f}"
    )


def check_names(config: Reinforcement) -> None:
    make(config.environment).close()


def load(config: Reinforcement, data_root: Path | str | None, runs: Path) -> None:
    """Nothing is loaded: there is no data besides the environment."""


def check_actions(config: Reinforcement, kind: type[gymnasium.Space[Any]], otherwise: str) -> None:
    env = make(config.environment)
    if not isinstance(env.action_space, kind):
        raise UsageError(f"environment = {config.environment!r}: its actions are {otherwise}")
    env.close()


def environments(config: Reinforcement, count: int) -> VecEnv:
    return DummyVecEnv([lambda: make(config.environment) for _ in range(count)])


class Clock(BaseCallback):
    """Counts the seconds of updates, without playing."""

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def reset(self) -> None:
        self.training, self._since = 0.0, None  # type: float, float | None

    def _on_rollout_end(self) -> None:
        self._since = time.perf_counter()

    def _on_rollout_start(self) -> None:
        if self._since is not None:
            self.training += time.perf_counter() - self._since
        self._since = None

    def _on_training_end(self) -> None:
        self._on_rollout_start()

    def _on_step(self) -> bool:
        return True


class Heard(BaseCallback):
    """Reports the steps to the progress bar."""

    def __init__(self, progress: Progress):
        super().__init__()
        self._progress = progress

    def _on_step(self) -> bool:
        self._progress.step_done(self.model.n_envs)
        return True
