"""Environments, episodes and the spectrum of actions."""

import numpy as np
import pytest

from jacnorm.lab.errors import UsageError
from jacnorm.lab.tasks.playing import fluctuation, make, play


def test_a_constant_does_not_fluctuate_and_jumps_do_most():
    assert fluctuation(np.full((100, 2), 3.0)) == pytest.approx(0, abs=1e-12)
    jumps = np.where(np.arange(100) % 2, 1.0, -1.0)[:, None]
    drawn = np.random.Generator(np.random.PCG64(0)).uniform(-1, 1, (100, 1))
    slow = np.sin(2 * np.pi * np.arange(100) / 50)[:, None]
    assert fluctuation(slow) < fluctuation(drawn)
    assert fluctuation(slow) < fluctuation(jumps)


@pytest.mark.parametrize("cycles", [1, 5, 20])
def test_a_sine_has_its_frequency_and_amplitude(cycles):
    """2/n · M f, with n = 50 frequencies of 100 steps."""
    wave = 3 * np.sin(2 * np.pi * cycles * np.arange(100) / 100)[:, None]
    assert fluctuation(wave) == pytest.approx(2 / 50 * 3 * cycles / 100)


def test_numbers_of_an_action_are_averaged():
    wave = np.sin(2 * np.pi * 5 * np.arange(100) / 100)
    both = np.stack([wave, np.zeros(100)], 1)
    assert fluctuation(both) == pytest.approx(fluctuation(wave[:, None]) / 2)


def test_episodes_repeat_themselves_and_end_by_themselves():
    def act(observations):
        return (observations[:, 2] > 0).astype(int)

    first, second = play("CartPole-v1", act, 4), play("CartPole-v1", act, 4)
    assert len({one.total for one in first}) > 1
    for a, b in zip(first, second, strict=True):
        assert (a.observations == b.observations).all()
        assert len(a.observations) == len(a.actions) == len(a.rewards) == a.total


def test_side_by_side_is_as_one_by_one():
    def act(observations):
        return np.clip(-observations[:, 1:2] - 0.3 * observations[:, 2:], -2, 2)

    together = play("Pendulum-v1", act, 3)
    assert together[0].total == play("Pendulum-v1", act, 1)[0].total
    assert len(together[2].rewards) == 200


def test_minatar_has_channels_in_front():
    env = make("MinAtar/Breakout-v1")
    observation, _ = env.reset(seed=0)
    assert observation.shape == env.observation_space.shape == (4, 10, 10)
    assert observation.dtype == np.uint8
    assert env.observation_space.contains(observation)


@pytest.mark.parametrize("name", ["CartPool-v1", "MinAtar/Chess-v1", "nowhere:Thing-v0"])
def test_what_does_not_exist_is_said(name):
    with pytest.raises(UsageError, match=rf"environment = '{name}': .+"):
        make(name)
