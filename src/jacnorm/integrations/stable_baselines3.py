"""A callback for stable-baselines3."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.dqn.policies import QNetwork
from stable_baselines3.sac.policies import Actor as SquashedActor
from torch import Tensor

from ..errors import InputError
from ..penalties import Penalty
from .watch import OnceAnEpoch, measures

EPOCH = 10_000  # steps in the environment between two reports


class Part(NamedTuple):
    """A function of observations that an algorithm trains, and the method that its training step calls."""

    owner: Any
    call: str  # the name of a method, whose first argument is the batch of observations
    function: Callable[..., Tensor]
    takes_all: bool = False  # whether the function also takes the other arguments of the call


class AddedLoss(BaseCallback):
    """Adds a value to the loss of an algorithm, without changing its training step.

    The training step calls `part.call` with its batch. The result of that call then carries the value: when
    the loss is differentiated, the value is differentiated as well, as if it had been added to the loss.
    Gradient clipping and the optimizer see the sum.
    """

    def __init__(self, of: str | None = None):
        super().__init__()
        self.of = of
        self._part: Part | None = None

    @abstractmethod
    def value(self, observations: Tensor, *args: Any) -> Tensor:
        """The value to add, for the batch of this step."""

    @property
    def part(self) -> Part:
        assert self._part is not None
        return self._part

    def _init_callback(self) -> None:
        self._part = part_of(self.model, self.of)

    def _on_training_start(self) -> None:
        owner, call = self.part.owner, self.part.call
        plain = getattr(owner, call)

        def carrying(observations: Tensor, *args: Any, **kwargs: Any) -> Any:
            found = plain(observations, *args, **kwargs)
            if not torch.is_grad_enabled() or any(isinstance(a, Tensor) and a.requires_grad for a in args):
                return found  # the call is for a target, or for the critic in the loss of the actor
            value = self.value(observations, *args)
            if isinstance(found, Tensor):
                return _Carrying.apply(found, value)
            return (_Carrying.apply(found[0], value), *found[1:])

        setattr(owner, call, carrying)

    def _on_training_end(self) -> None:
        delattr(self.part.owner, self.part.call)  # this uncovers the method of the class

    def _on_step(self) -> bool:
        return True


class JacobianPenalty(AddedLoss):
    """A callback that adds the penalty to the loss of PPO, A2C, SAC, TD3, DDPG or DQN, and logs it.

        model.learn(100_000, callback=JacobianPenalty(jn.SpectralPenalty(weight=0.01)))

    The penalty runs the network once more, on the observations of each batch. Every 10,000 steps in the
    environment the callback logs `penalty.report`.

    penalty
        The penalty.
    of
        "policy" penalizes the Jacobian of the mean action with respect to the observations (of the scores, if
        actions are discrete). "critic" penalizes the Jacobian of the values. The default is the policy. DQN
        has only a value network, which is its default.
    precision
        As in `jacnorm.linearize`.
    """

    def __init__(self, penalty: Penalty, of: str | None = None, *, precision: torch.dtype | None = None):
        super().__init__(of)
        self.penalty, self.precision = penalty, precision
        self._reports = OnceAnEpoch(penalty)

    def value(self, observations: Tensor, *args: Any) -> Tensor:
        x = observations if observations.is_floating_point() else observations.float()
        others = args if self.part.takes_all else ()
        J = self.penalty.linearize(self.part.function, x, *others, precision=self.precision)
        value = self.penalty(J)
        for name, number in measures(self.penalty, value).items():
            self.logger.record_mean(f"train/{name}", float(number))
        for name, known in self._reports.report(self.num_timesteps // EPOCH, J).items():
            self.logger.record_mean(f"train/{name}", known)
        return value


class _Carrying(torch.autograd.Function):
    """Returns the output unchanged. In the backward pass the value gets the gradient 1."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(value)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (value,) = ctx.saved_tensors
        return gradient, torch.ones_like(value)


def part_of(model: BaseAlgorithm, of: str | None = None) -> Part:
    policy = model.policy
    networks = {"policy": getattr(policy, "actor", None), "critic": getattr(policy, "critic", None)}
    if isinstance(policy, ActorCriticPolicy):
        found = {"policy": _mean_action(policy), "critic": _values(policy)}
    elif isinstance(q_net := getattr(policy, "q_net", None), QNetwork):
        found = {"critic": Part(q_net, "forward", q_net.forward)}
    elif networks["critic"] is not None:
        found = {"policy": _actor(networks["policy"]), "critic": _critics(networks["critic"])}
    else:
        raise InputError(f"{type(model).__name__} has no policy or critic that jacnorm can penalize.")
    wanted = of or next(iter(found))
    if wanted not in found:
        raise InputError(f"of={of!r}: {type(model).__name__} has {' and '.join(found)}.")
    return found[wanted]


def _mean_action(policy: ActorCriticPolicy) -> Part:
    """The mean of a Gaussian policy; for discrete actions, the scores."""

    def mean(observations: Tensor) -> Tensor:
        features = BasePolicy.extract_features(policy, observations, policy.pi_features_extractor)
        return policy.action_net(policy.mlp_extractor.forward_actor(features))

    return Part(policy, "evaluate_actions", mean)


def _values(policy: ActorCriticPolicy) -> Part:
    return Part(policy, "evaluate_actions", policy.predict_values)


def _actor(actor: Any) -> Part:
    """The mean action of SAC (squashed by a tanh), or the action of TD3 (whose network ends in a tanh)."""
    if not isinstance(actor, SquashedActor):
        return Part(actor, "forward", actor.forward)

    def mean(observations: Tensor) -> Tensor:
        return torch.tanh(actor.get_action_dist_params(observations)[0])

    return Part(actor, "action_log_prob", mean)


def _critics(critic: Any) -> Part:
    """The values of all critics for the same observations."""
    plain = critic.forward

    def values(observations: Tensor, actions: Tensor) -> Tensor:
        return torch.cat(plain(observations, actions), 1)

    return Part(critic, "forward", values, takes_all=True)
