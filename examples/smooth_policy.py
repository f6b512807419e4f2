"""A policy for a pendulum, with a penalty on ‖∂a/∂s‖ by one callback.

python examples/smooth_policy.py [PICTURE]
"""

import sys

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO

import jacnorm as jn
from jacnorm.integrations.stable_baselines3 import JacobianPenalty

STEPS, WEIGHT, NOISE = 50_000, 0.03, 0.1


def learned(weight):
    options = {"learning_rate": 1e-3, "n_steps": 1024, "gamma": 0.9, "gae_lambda": 0.95}
    model = PPO("MlpPolicy", "Pendulum-v1", **options, seed=0, device="cpu")
    model.learn(STEPS, callback=JacobianPenalty(jn.SpectralPenalty(weight)))
    return model


def seen(angle, speed):
    return np.stack([np.cos(angle), np.sin(angle), speed], -1).astype(np.float32)


def actions(model, states):
    return model.predict(states.reshape(-1, 3), deterministic=True)[0].reshape(states.shape[:-1])


def episode(model, steps=100):
    """What it does when it sees everything with noise."""
    env, noise = gymnasium.make("Pendulum-v1"), np.random.default_rng(0)
    state, _ = env.reset(seed=0)
    done = []
    for _ in range(steps):
        action, _ = model.predict(state + NOISE * noise.standard_normal(3), deterministic=True)
        state, *_ = env.step(action)
        done.append(action.item())
    return np.array(done)


def change(played):
    return np.abs(np.diff(played)).mean()


def sigma(model, states):
    def mean_action(x):
        return model.policy.get_distribution(x).distribution.mean

    return jn.spectral_norm(jn.linearize(mean_action, torch.from_numpy(states))).sigma.mean().item()


def main(picture=None):
    angle, speed = np.meshgrid(np.linspace(-np.pi, np.pi, 61), np.linspace(-8, 8, 41))
    states, found = seen(angle, speed), {}
    for weight in (0, WEIGHT):
        model = learned(weight)
        slope, played = sigma(model, states.reshape(-1, 3)), episode(model)
        found[weight] = slope, actions(model, states), played
        print(f"λ = {weight}: mean σ {slope:.2f}, mean change of an action {change(played):.2f}")
    if picture:
        from drawings import smooth_policy

        smooth_policy(picture, found)
    (before, _, rough), (after, _, smooth) = found.values()
    assert after < 0.9 * before
    assert change(smooth) < change(rough) / 2


if __name__ == "__main__":
    main(*sys.argv[1:])
