"""Against scipy, closed forms, and counting all cases."""

import math
from itertools import permutations, product

import numpy as np
import pytest
from scipy import stats

from jacnorm.lab.reproduce.statistics import holm, paired, standard_errors, summary, trend


def seeds(values):
    return dict(enumerate(values))


def test_summary():
    found = summary([1.0, 2.0, 4.0])
    assert (found.n, found.mean) == (3, pytest.approx(7 / 3))
    assert found.sd == pytest.approx(math.sqrt(7 / 3))  # ((16 + 1 + 25)/9) / 2
    assert found.standard_error == pytest.approx(math.sqrt(7) / 3)
    assert summary([5.0]).sd is summary([5.0]).standard_error is None


@pytest.mark.parametrize("n", [2, 3, 5, 12])
def test_paired_differences_are_students(n):
    a, b = np.random.default_rng(n).normal(size=(2, n))
    a = a + 0.4
    found = paired(seeds(a), seeds(b))
    theirs = stats.ttest_rel(a, b)
    low, high = theirs.confidence_interval(0.95)
    assert (found.n, found.mean) == (n, pytest.approx((a - b).mean()))
    assert (found.low, found.high, found.p) == pytest.approx((low, high, theirs.pvalue))


def test_two_degrees_of_freedom_by_hand():
    """F(t) = 1/2 + t / (2 √(2 + t²))."""
    found = paired(seeds([3.0, 4.0, 6.0]), seeds([1.0, 1.5, 2.0]))  # differences 2, 2.5, 4
    mean, error = (
        8.5 / 3,
        math.sqrt((2.5 / 3) ** 2 + (1 / 3) ** 2 + (3.5 / 3) ** 2) / math.sqrt(2) / math.sqrt(3),
    )
    t = mean / error
    assert found.p == pytest.approx(1 - t / math.sqrt(2 + t**2))
    assert found.high - found.mean == pytest.approx(4.302652729911275 * error)


def test_only_seeds_that_both_have_count():
    found = paired({0: 1.0, 1: 2.0, 2: 9.0}, {1: 1.0, 0: 0.5, 7: -50.0})
    assert (found.n, found.mean) == (2, 0.75)
    assert paired({0: 1.0, 1: 2.0}, {1: 1.0}) is None
    assert paired({}, {}) is None


def test_differences_without_spread():
    same = paired(seeds([1.0, 2.0]), seeds([1.0, 2.0]))
    assert (same.mean, same.low, same.high, same.p) == (0, 0, 0, 1)


@pytest.mark.parametrize("n", [2, 3, 6])
def test_the_same_difference_in_every_seed_proves_no_more_than_its_sign(n):
    """Accuracy comes in steps of an image, so it happens by chance; Student's p would be 0."""
    b = [0.1 * seed for seed in range(n)]
    found = paired(seeds([x + 0.2 for x in b]), seeds(b))  # equal but for rounding
    assert found.p == pytest.approx(stats.binomtest(n, n).pvalue)
    assert (found.low, found.high) == pytest.approx((0.2, 0.2))


def test_standard_errors():
    ours = summary([95.0, 96.0, 97.0])  # sd 1
    assert standard_errors(ours, 95.0, 2.0) == pytest.approx(1 / math.sqrt(1 / 3 + 4 / 5))
    welch = stats.ttest_ind_from_stats(96.0, 1.0, 3, 95.0, 2.0, 5, equal_var=False)
    assert standard_errors(ours, 95.0, 2.0) == pytest.approx(welch.statistic)
    assert standard_errors(summary([95.0]), 95.0, 2.0) is None


@pytest.mark.parametrize("blocks", [[(1, 2, 3), (1, 3, 2)], [(1, 2, 3), (1, 2, 3)], [(3, 1, 2), (2, 1, 3)]])
def test_trend_counts_all_orders(blocks):
    """Under no order, each of the 3!² pairs of rankings is as likely."""

    def statistic(rankings):
        return sum((j + 1) * rank for ranking in rankings for j, rank in enumerate(ranking))

    everything = list(product(permutations((1, 2, 3)), repeat=2))
    at_least = sum(statistic(rankings) >= statistic(blocks) for rankings in everything)
    found = trend([seeds([block[j] / 10 for block in blocks]) for j in range(3)])
    assert (found.seeds, found.statistic) == (2, statistic(blocks))
    assert found.p == pytest.approx(at_least / 36)


def test_a_perfect_order_of_five_in_five_seeds():
    columns = [seeds([m + 0.1 * s for s in range(5)]) for m in range(5)]
    assert trend(columns).statistic == 5 * (1 + 4 + 9 + 16 + 25)
    assert trend(columns).p == pytest.approx(1 / math.factorial(5) ** 5)
    assert trend(columns[::-1]).p == pytest.approx(1)


def test_nothing_to_test():
    assert trend([seeds([1.0, 2.0]), seeds([2.0, 3.0])]) is None  # two methods
    assert trend([seeds([1.0]), seeds([2.0]), seeds([3.0])]) is None  # one seed


def test_holm():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
