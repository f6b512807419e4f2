"""Against scipy, closed forms, and counting all cases."""

import math
from itertools import permutations, product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from jacnorm.lab.statistics import (
    correlation_within,
    foretold,
    holm,
    paired,
    rise,
    welch,
)
from jacnorm.lab.wording import spread


def seeds(values):
    return pd.Series(dict(enumerate(values)), dtype=float)


def test_mean_and_standard_deviation_as_text():
    assert spread(seeds([1.0, 2.0, 4.0]), 3) == "2.333 ± 1.528"  # √(((16 + 1 + 25)/9) / 2) = √(7/3)
    assert (spread(seeds([5.0])), spread(seeds([]))) == ("5.00", "–")


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
    found = paired(pd.Series({0: 1.0, 1: 2.0, 2: 9.0}), pd.Series({1: 1.0, 0: 0.5, 7: -50.0}))
    assert (found.n, found.mean) == (2, 0.75)
    assert paired(seeds([1.0, 2.0]), pd.Series({1: 1.0})) is None
    assert paired(seeds([]), seeds([])) is None


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


def test_welch():
    """From the formulas: t = Δ/s.e., with the degrees of freedom of Welch and Satterthwaite."""
    ours = seeds([95.0, 96.0, 97.0])  # sd 1
    errors, p = welch(ours, 95.0, 2.0)
    a, b = 1 / 3, 4 / 5
    assert errors == pytest.approx(1 / math.sqrt(a + b))
    assert p == pytest.approx(2 * stats.t.sf(errors, (a + b) ** 2 / (a**2 / 2 + b**2 / 4)))
    assert all(map(math.isnan, welch(seeds([95.0]), 95.0, 2.0)))
    assert all(map(math.isnan, welch(seeds([95.0, 95.0]), 95.0, 0.0)))
    assert all(map(math.isnan, welch(ours, math.nan, math.nan)))  # the paper has no such method


@pytest.mark.parametrize("rows", [[(1, 2, 3), (1, 3, 2)], [(1, 2, 3), (1, 2, 3)], [(3, 1, 2), (2, 1, 3)]])
def test_a_rise_counts_all_orders(rows):
    """Without any, each of the 3!² pairs of rankings is as likely; both ends count."""

    def statistic(rankings):
        return sum((j + 1) * rank for ranking in rankings for j, rank in enumerate(ranking))

    everything = [statistic(rankings) for rankings in product(permutations((1, 2, 3)), repeat=2)]
    up = sum(found >= statistic(rows) for found in everything)
    down = sum(found <= statistic(rows) for found in everything)
    found = rise([[value / 10 for value in row] for row in rows])
    assert (found.n, found.statistic, found.rises) == (2, statistic(rows), up < down)
    assert found.p == pytest.approx(min(1, 2 * min(up, down) / 36))


def test_a_perfect_rise_of_five_in_five_rows():
    rows = [[m + 0.1 * s for m in range(5)] for s in range(5)]
    assert rise(rows).statistic == 5 * (1 + 4 + 9 + 16 + 25)
    assert rise(rows).rises
    assert rise(rows).p == pytest.approx(2 / math.factorial(5) ** 5)
    fall = rise([row[::-1] for row in rows])
    assert not fall.rises
    assert fall.p == rise(rows).p


def test_nothing_to_test():
    assert rise([[1.0, 2.0], [2.0, 3.0]]) is None  # two methods
    assert rise([[1.0, 2.0, 3.0]]) is None  # one seed
    assert rise(foretold(pd.DataFrame(), pd.DataFrame())) is None


def test_the_order_of_a_seed_is_foretold_by_the_others():
    """Seed 0 puts b on top by itself; the others put a there, and of them alone it is."""
    by = {"a": seeds([0.0, 9.0, 9.0]), "b": seeds([5.0, 1.0, 1.0]), "c": {0: 3.0, 1: 3.0, 2: 3.0, 3: 99.0}}
    of = {"a": seeds([10, 11, 12]), "b": seeds([20, 21, 22]), "c": {0: 30, 1: 31, 2: 32, 3: 33}}
    assert foretold(pd.DataFrame(of), pd.DataFrame(by)) == [
        [20, 30, 10],
        [21, 31, 11],
        [22, 32, 12],
    ]  # seed 3 is not in common


def test_two_quantities_that_share_only_chance_do_not_rise_together():
    """With the order of the very networks that are tested, half of these would be found to rise."""
    generator, found = np.random.default_rng(0), 0
    for _ in range(200):
        x = generator.normal(size=(6, 5))
        y = 0.9 * x + math.sqrt(1 - 0.81) * generator.normal(size=(6, 5))
        by, of = pd.DataFrame(x.T), pd.DataFrame(y.T)
        test = rise(foretold(of, by))
        found += test.rises and test.p < 0.05
    assert found < 0.08 * 200


def of_methods(rows):
    return pd.DataFrame({name: seeds(row) for name, row in zip("abcdef", rows, strict=False)})


def test_correlation_within_methods():
    """Whatever a method's scale and place, and whatever all networks of a seed have in common."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(2, 4, 5))
    z = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
    w = (y - y.mean(1, keepdims=True)) / y.std(1, keepdims=True)
    z, w = z - z.mean(0), w - w.mean(0)
    found = correlation_within(of_methods(x), of_methods(y))
    assert found.r == pytest.approx(np.corrcoef(z.ravel(), w.ravel())[0, 1])
    half = 1.96 / math.sqrt(3 * 4 - 2)
    assert found.low == pytest.approx(math.tanh(math.atanh(found.r) - half))
    assert found.high == pytest.approx(math.tanh(math.atanh(found.r) + half))
    scaled = np.array([[1.0], [30.0], [0.2], [5.0]]) * x + np.array([[0.0], [9.0], [-4.0], [1.0]])
    assert correlation_within(of_methods(scaled), of_methods(y)).r == pytest.approx(found.r)
    assert correlation_within(of_methods(scaled), of_methods(x)).r == pytest.approx(1)


def test_what_seeds_share_makes_no_correlation():
    """Two quantities that have nothing to do with each other, each with a large part that is the seed's.

    (By the mean of each method's own r a third of the intervals would leave out zero.)
    """
    draw = np.random.default_rng(1)
    apart = 0
    for _ in range(400):
        x, y = draw.normal(size=(2, 6, 5)) + 2 * draw.normal(size=(2, 1, 5))
        found = correlation_within(of_methods(x), of_methods(y))
        apart += not found.low < 0 < found.high
    assert apart < 0.09 * 400


def test_correlation_of_a_few_networks_is_not_told():
    few = of_methods([[1.0, 2.0, 4.0], [2.0, 1.0, 5.0]])
    assert correlation_within(few, few) is None
    assert correlation_within(of_methods([]), of_methods([])) is None
    flat = of_methods([[1.0] * 6, [2.0] * 6, [3.0] * 6])
    assert correlation_within(flat, flat) is None
    alike = of_methods([[1.0, 2.0, 4.0, 3.0, 7.0]] * 3)  # nothing is left but the seed's
    assert correlation_within(alike, alike) is None


def test_holm():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
