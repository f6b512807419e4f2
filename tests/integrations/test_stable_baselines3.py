"""The callback against the loss and the exact norm, written by hand."""

import gymnasium
import pytest
import torch
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3

import jacnorm as jn
from jacnorm.errors import InputError
from jacnorm.integrations.stable_baselines3 import JacobianPenalty, part_of

ARCHITECTURE = {"net_arch": [16, 16]}
STRONG = 1e4  # far above every loss: PPO and A2C clip the gradient of the sum
CONTINUOUS, DISCRETE = "Pendulum-v1", "CartPole-v1"
CASES = [
    (PPO, CONTINUOUS, "policy"),
    (PPO, DISCRETE, "policy"),
    (PPO, CONTINUOUS, "critic"),
    (A2C, DISCRETE, "policy"),
    (SAC, CONTINUOUS, "policy"),
    (SAC, CONTINUOUS, "critic"),
    (TD3, CONTINUOUS, "policy"),
    (DDPG, CONTINUOUS, "critic"),
    (DQN, DISCRETE, "critic"),
]


def made(algorithm, environment, **options):
    kwargs = dict(ARCHITECTURE)  # which algorithms change
    return algorithm("MlpPolicy", environment, seed=0, policy_kwargs=kwargs, device="cpu", **options)


def batch(model, size=5):
    torch.manual_seed(1)
    space = model.action_space
    observations = torch.randn(size, *model.observation_space.shape)
    if isinstance(space, gymnasium.spaces.Discrete):
        return observations, torch.randint(int(space.n), (size,))
    return observations, 0.5 * torch.randn(size, *space.shape)


def called(part, observations, actions):
    """As the training step calls it; all numbers that come back."""
    asks_for_actions = part.call == "evaluate_actions" or part.takes_all
    found = getattr(part.owner, part.call)(observations, *([actions] if asks_for_actions else []))
    return [found] if isinstance(found, torch.Tensor) else list(found)


def exact(part, observations, actions):
    """Mean squared Frobenius norm, from dense Jacobians with a graph."""
    others = [actions] if part.takes_all else []

    def norm(i):
        def of_one(x):
            return part.function(x[None], *[one[i][None] for one in others])[0]

        return torch.autograd.functional.jacobian(of_one, observations[i], create_graph=True).square().sum()

    return torch.stack([norm(i) for i in range(len(observations))]).mean()


@pytest.mark.parametrize(("algorithm", "environment", "of"), CASES)
def test_the_gradient_is_that_of_the_sum(algorithm, environment, of):
    model = made(algorithm, environment)
    observations, actions = batch(model)
    part = part_of(model, of)
    parameters = [p for p in model.policy.parameters() if p.requires_grad]

    torch.manual_seed(2)
    loss = sum(one.square().mean() for one in called(part, observations, actions))
    total = loss + 0.7 * exact(part, observations, actions)
    expected = torch.autograd.grad(total, parameters, allow_unused=True)

    callback = JacobianPenalty(jn.FrobeniusPenalty(0.7, "all"), of)
    callback.init_callback(model)
    model.set_logger(silent())
    callback.on_training_start({}, {})
    torch.manual_seed(2)
    sum(3 * one.square().mean() / 3 for one in called(part, observations, actions)).backward()
    for p, g in zip(parameters, expected, strict=True):
        if g is not None:
            torch.testing.assert_close(p.grad, g, rtol=1e-3, atol=1e-5)
    callback.on_training_end()
    assert part.call not in vars(part.owner)


def silent():
    from stable_baselines3.common.logger import Logger

    return Logger(None, [])


@pytest.mark.parametrize(("algorithm", "environment", "of"), CASES)
def test_training_makes_the_function_flatter(algorithm, environment, of):
    few = {"n_steps": 32} if algorithm in (PPO, A2C) else {"learning_starts": 20, "train_freq": 1}
    sizes = {} if algorithm is A2C else {"batch_size": 16}
    found = {}
    for weight in (0.0, STRONG):
        model = made(algorithm, environment, learning_rate=5e-3, **few, **sizes)
        model.learn(192, callback=JacobianPenalty(jn.SpectralPenalty(weight, iterations=2), of))
        part = part_of(model, of)
        observations, actions = batch(model, 64)
        J = jn.linearize(part.function, observations, *([actions] if part.takes_all else []))
        found[weight] = float(jn.spectral_norm(J).sigma.mean().detach())
    assert found[STRONG] < 0.8 * found[0.0]


def test_without_a_weight_nothing_changes():
    weights = []
    for callback in (None, JacobianPenalty(jn.SpectralPenalty(0.0))):
        model = made(PPO, CONTINUOUS, n_steps=32, batch_size=16)
        model.learn(32, callback=callback)
        weights.append(model.policy.state_dict())
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name]), name


def test_penalty_and_sigma_are_logged():
    model = made(PPO, CONTINUOUS, n_steps=32, batch_size=16)
    logged = {}
    model.set_logger(silent())
    model.logger.dump = lambda step=0: logged.update(model.logger.name_to_value)
    model.learn(64, callback=JacobianPenalty(jn.SpectralPenalty(0.5)))
    assert logged["train/penalty"] == pytest.approx(0.5 * logged["train/sigma"])


def test_the_penalty_reports_now_and_then(monkeypatch):
    monkeypatch.setattr("jacnorm.integrations.stable_baselines3.EPOCH", 48)
    model, reports = made(PPO, CONTINUOUS, n_steps=32, batch_size=16), []
    model.set_logger(silent())
    plain = model.logger.record_mean
    model.logger.record_mean = lambda name, value: (
        reports.append(value) if name == "train/sigma_error" else plain(name, value)
    )
    model.learn(128, callback=JacobianPenalty(jn.SpectralPenalty(0.5)))
    assert len(reports) == 3  # trained after 32, 64, 96, 128 steps
    assert max(reports) < 1e-2


def test_images_of_whole_numbers_are_taken():
    class Pictures(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 1, (3, 4, 4), dtype="uint8")
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.observation_space.sample(), {}

        def step(self, action):
            return self.observation_space.sample(), 0.0, False, False, {}

    model = made(DQN, Pictures(), learning_starts=8, buffer_size=32, batch_size=4, train_freq=1)
    model.learn(16, callback=JacobianPenalty(jn.SpectralPenalty(0.1)))
    assert model._n_updates > 0


def test_what_there_is_not():
    with pytest.raises(InputError, match=r"of='policy': DQN has critic\."):
        part_of(made(DQN, DISCRETE), "policy")
    with pytest.raises(InputError, match=r"of='actor': PPO has policy and critic\."):
        part_of(made(PPO, DISCRETE), "actor")


def test_products_in_half_precision(half_pays):
    values = {}
    for precision in (None, torch.bfloat16):
        model = made(PPO, CONTINUOUS)
        callback = JacobianPenalty(jn.FrobeniusPenalty(0.7, "all"), precision=precision)
        callback.init_callback(model)
        model.set_logger(silent())
        values[precision] = callback.value(batch(model)[0]).item()
    assert 1e-6 < abs(values[torch.bfloat16] / values[None] - 1) < 0.02
