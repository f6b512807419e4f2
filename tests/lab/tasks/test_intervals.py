"""Interquartile means are compared with SciPy, and intervals with known ones."""

import numpy as np
import pytest
from scipy.stats import trim_mean

from jacnorm.lab.statistics import interquartile_mean, interval


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 10, 50])
def test_interquartile_mean_is_scipys_trimmed_mean(n):
    scores = np.random.Generator(np.random.PCG64(n)).standard_normal(n)
    assert interquartile_mean(scores) == pytest.approx(trim_mean(scores, 0.25))


def test_draws_stay_in_their_stratum():
    """If each stratum has one value, every draw is the same. Mixed strata would differ."""
    assert interval([np.zeros(5), np.ones(5)]) == (0.5, 0.5)
    low, high = interval([np.concatenate([np.zeros(5), np.ones(5)])])
    assert low < 0.5 < high


def test_the_interval_is_about_that_of_a_normal_mean():
    """The interquartile mean of n normal numbers has a standard error of about 1.09 / √n."""
    scores = np.random.Generator(np.random.PCG64(0)).standard_normal(400)
    low, high = interval([scores])
    assert low < interquartile_mean(scores) < high
    assert high - low == pytest.approx(2 * 1.96 * 1.09 / 20, rel=0.2)


def test_an_interval_of_a_difference():
    random = np.random.Generator(np.random.PCG64(0))
    a, b = random.standard_normal(100) + 2, random.standard_normal(100)
    low, high = interval([a], [b])
    assert 1.5 < low < interquartile_mean(a) - interquartile_mean(b) < high < 2.5
    assert interval([a], [b]) == (low, high)
