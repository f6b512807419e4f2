import math
import re
from dataclasses import replace

import pandas as pd
import pytest

from jacnorm.lab.claims import FAILS, HOLDS, OPEN, UNTESTED, Claim, decide, read_claims
from jacnorm.lab.config import ConfigError
from jacnorm.lab.reproduce.chapter import POINTS


def seeds(*values):
    return dict(enumerate(values))


def verdict(claim, **methods):
    quantities = {"accuracy": pd.DataFrame(methods, dtype=float)}
    (found,) = decide([claim], quantities, {"accuracy": POINTS})
    return found


A_OVER_B = Claim("a > b", more="a", less="b")


@pytest.mark.parametrize(
    ("a", "b", "outcome"),
    [
        (seeds(3.0, 3.1, 3.2), seeds(1.0, 1.2, 1.1), HOLDS),
        (seeds(1.0, 1.2, 1.1), seeds(3.0, 3.1, 3.2), FAILS),
        (seeds(3.0, 1.0, 2.0), seeds(1.0, 2.9, 2.0), OPEN),
    ],
)
def test_one_above_another(a, b, outcome):
    assert verdict(A_OVER_B, a=a, b=b).outcome == outcome


def test_the_evidence_is_the_difference():
    found = verdict(A_OVER_B, a=seeds(3.0, 3.1, 3.2), b=seeds(1.0, 1.2, 1.1))
    # differences 2, 1.9, 2.1: mean 2, s.e. 0.1/√3, t = 34.64, p = 1 − t/√(2 + t²)
    half = 4.302652729911275 * 0.1 / math.sqrt(3)
    interval = f"+2.00 [+{2 - half:.2f}, +{2 + half:.2f}] points of accuracy"
    assert found.evidence == f"a − b = {interval}, p < 0.001, n = 3"


def test_the_same_difference_in_every_seed_is_tested_by_its_sign():
    found = verdict(A_OVER_B, a=seeds(3.0, 3.5, 4.0), b=seeds(1.0, 1.5, 2.0))
    assert found.evidence == (
        "a − b = +2.00 points of accuracy in every seed (by the sign test), p = 0.250, n = 3"
    )


ONE_OF_TWO = Claim("one of a and c > b", any_of=("a", "c"), less="b")


@pytest.mark.parametrize(
    ("a", "c", "outcome"),
    [
        (seeds(3.0, 3.1, 3.2), seeds(0.0, 0.1, 0.2), HOLDS),  # one is enough
        (seeds(0.5, 0.6, 0.7), seeds(0.0, 0.1, 0.2), FAILS),  # all are below
        (seeds(1.0, 1.2, 1.0), seeds(0.0, 0.1, 0.2), OPEN),  # one may be above
    ],
)
def test_at_least_one_above_another(a, c, outcome):
    assert verdict(ONE_OF_TWO, a=a, b=seeds(1.0, 1.2, 1.1), c=c).outcome == outcome


def test_who_tries_twice_has_twice_the_chance():
    close, zero = seeds(1.0, 1.4, 0.7), seeds(0.0, 0.0, 0.0)
    found = verdict(ONE_OF_TWO, a=close, b=zero, c=seeds(0.1, -0.1, 0.3))
    assert (found.outcome, found.compared) == (OPEN, ("a", "b"))
    alone = verdict(A_OVER_B, a=close, b=zero)
    assert alone.evidence.endswith(", p = 0.036, n = 3")
    twice = ", the surest of 2, p times 2, p = 0.073, n = 3"
    assert found.evidence == alone.evidence.replace(", p = 0.036, n = 3", twice)
    assert alone.outcome == HOLDS
    below = verdict(ONE_OF_TWO, a=seeds(-1.0, -1.4, -0.7), b=zero, c=seeds(-5.0, -5.1, -5.2))
    assert (below.outcome, below.compared) == (FAILS, ("a", "b"))
    assert below.evidence.startswith("a − b = −1.03 ")
    assert below.evidence.endswith(" points of accuracy, the closest of 2, p = 0.036, n = 3")


def test_one_of_several_needs_them_all():
    assert verdict(ONE_OF_TWO, a=seeds(3.0, 3.1), b=seeds(1.0, 1.2), c={}).evidence == "no results for c"
    few = verdict(ONE_OF_TWO, a=seeds(3.0, 3.1), b=seeds(1.0, 1.2), c=seeds(1.0))
    assert (few.outcome, few.evidence) == (OPEN, "fewer than two seeds in common: there is nothing to test")


def test_words_of_the_paper_stand_for_the_claims_after_them():
    says = [{"says": "“…” (1)"}, {}, {"says": ["“…” (2)", "“…” (3)"]}, {"ours": True}]
    claims = read_claims("", [{"text": "t", "more": "a", "less": "b", **one} for one in says])
    both = ("“…” (2)", "“…” (3)")
    assert [claim.says for claim in claims] == [("“…” (1)",), ("“…” (1)",), both, ()]  # ours quotes nobody
    assert [v.says for v in decide(claims, {"accuracy": pd.DataFrame()}, {})] == [
        claim.says for claim in claims
    ]


def test_both_p_values_are_told_where_they_differ():
    twice = [Claim(text, more="a", less="b") for text in "xy"]
    close = pd.DataFrame({"a": seeds(1.0, 1.4, 0.7), "b": seeds(0.0, 0.0, 0.0)})
    assert "p = 0.036, corrected 0.073, n = 3" in decide(twice, {"accuracy": close}, {})[0].evidence
    assert ", p = 0.036, n = 3" in decide(twice[:1], {"accuracy": close}, {})[0].evidence


def test_many_claims_must_stand_together():
    """p = 0.03 alone holds; two of them do not, by Holm. Our questions make nothing harder for theirs."""
    a = seeds(0.0, 0.0, 0.0)
    b = {i: -v for i, v in enumerate((1.0, 1.4, 0.7))}
    alone = verdict(A_OVER_B, a=a, b=b)
    assert alone.outcome == HOLDS
    claims = [Claim(str(i), more="a", less="b") for i in range(2)]
    quantities = {"accuracy": pd.DataFrame({"a": a, "b": b})}
    assert {v.outcome for v in decide(claims, quantities, {})} == {OPEN}
    apart = [claims[0], replace(claims[1], ours=True)]
    assert {v.outcome for v in decide(apart, quantities, {})} == {HOLDS}


@pytest.mark.parametrize(
    ("methods", "outcome", "why"),
    [
        ({"a": seeds(1.0, 2.0)}, UNTESTED, "no results for b"),
        ({}, UNTESTED, "no results for a, b"),
        (
            {"a": seeds(1.5), "b": seeds(1.0)},
            OPEN,
            "a − b = +0.50 points of accuracy in the one seed in common: there is nothing to test",
        ),
        ({"a": {0: 1.0}, "b": {1: 1.0}}, OPEN, "no seed in common"),
    ],
)
def test_what_cannot_be_told_says_why(methods, outcome, why):
    found = verdict(A_OVER_B, **methods)
    assert found.outcome == outcome
    assert why in found.evidence


@pytest.mark.parametrize(
    ("shift", "outcome"),
    [(0.0, HOLDS), (5.0, FAILS), (1.0, OPEN)],
    ids=["alike", "apart", "close to the edge"],
)
def test_alike(shift, outcome):
    claim = Claim("alike", within=1.0)
    methods = {
        "a": seeds(1.0, 1.1, 0.9),
        "b": seeds(1.1, 1.0, 0.9),
        "c": seeds(1 + shift, 1.1 + shift, 1.0 + shift),
    }
    assert verdict(claim, **methods).outcome == outcome
    some = Claim("alike", within=1.0, methods=("a", "b"))
    assert verdict(some, **methods).outcome == HOLDS


def test_a_pair_that_is_clearly_apart_counts_though_another_may_be_further():
    """a and c differ most, with a wide interval; a and b differ by 2 for certain."""
    methods = {"a": seeds(0.0, 0.1, 0.0), "b": seeds(2.0, 2.1, 2.01), "c": seeds(-4.0, 9.0, 3.0)}
    found = verdict(Claim("alike", within=1.0), **methods)
    assert found.outcome == FAILS
    assert "a − b = −2.00" in found.evidence


def test_the_interval_that_is_shown_is_the_one_that_decides():
    """−2 [−2.9, −1.1] alone is outside the margin; for three pairs at once it is [−3.6, −0.4]."""
    apart = {"a": seeds(0.0, 0.0, 0.0), "b": seeds(2.0, 2.36, 1.64)}
    assert (
        "−2.00 [−2.89, −1.11] points of accuracy; alike"
        in verdict(Claim("alike", within=1.0), **apart).evidence
    )
    third = verdict(Claim("alike", within=1.0), **apart, c=seeds(1.0, 1.18, 0.82))
    assert third.outcome == OPEN
    assert "−2.00 [−3.59, −0.41] points of accuracy, of 3 pairs at once" in third.evidence


def test_methods_are_alike_by_intervals_of_each_pair_alone():
    alike = {"a": seeds(1.0, 1.1, 0.9), "b": seeds(1.1, 1.0, 0.9), "c": seeds(1.0, 1.1, 1.0)}
    assert "at once" not in verdict(Claim("alike", within=1.0), **alike).evidence


def test_times():
    methods = {"a": seeds(10.0, 20.0, 40.0), "b": seeds(1.0, 2.2, 3.7)}  # about ten times
    found = verdict(Claim("t", more="a", less="b", factor=(5, 20)), **methods)
    assert found.outcome == HOLDS
    # (10 · 20/2.2 · 40/3.7)^⅓ = 9.94
    assert re.fullmatch(r"accuracy of a / b = 9\.94 \[.*\], n = 3; asked for: 5 to 20", found.evidence)
    assert verdict(Claim("t", more="a", less="b", factor=(5, math.inf)), **methods).outcome == HOLDS
    assert verdict(Claim("t", more="a", less="b", factor=(10, 20)), **methods).outcome == OPEN
    assert verdict(Claim("t", more="a", less="b", factor=(50, 200)), **methods).outcome == FAILS


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ({"text": "x", "mor": "a", "less": "b"}, "a claim has no 'mor'"),
        ({"more": "a", "less": "b"}, "has a text"),
        ({"text": "x", "more": "a"}, "either more and less .* or rises_with"),
        ({"text": "x", "more": "a", "less": "b", "within": 1.0}, "either more and less .* or rises_with"),
        ({"text": "x", "more": "a", "less": "b", "factor": 5}, r"factor = 5: \[least, most\] is needed"),
        ({"text": "x", "more": "a", "less": "b", "factor": [5, 2]}, "least, most"),
        ({"text": "x", "within": "x"}, "within = 'x': a number above 0"),
        ({"text": 3, "within": 1.0}, "text = 3: a text"),
        ({"text": "x", "within": 1.0, "methods": "ab"}, "a list of two names"),
        ({"text": "x", "within": 1.0, "methods": ["a", "b"], "of": "c"}, "not among its methods"),
        ({"text": "x", "within": 1.0, "ours": "no"}, "true or false"),
        ({"text": "x", "within": 1.0, "methods": ["a", "a"]}, "a list of two names"),
        ({"text": "x", "within": 1.0, "factor": [1, 2]}, "either more and less"),
        ({"text": "x", "within": 1.0, "more": "a"}, "either more and less"),
        ({"text": "x", "more": "a", "less": "b", "of": "a"}, "either more and less"),
        ({"text": "x", "more": "", "less": ""}, "more = '': a text"),
        ({"text": "x", "more": "a", "less": "a"}, "compares 'a' with itself"),
        ({"text": "x", "any_of": ["a", "b"], "less": "b"}, "compares 'b' with itself"),
        ({"text": "x", "any_of": ["a"], "less": "b"}, r"any_of = \['a'\]: a list of two names"),
        ({"text": "x", "any_of": ["a", "c"], "more": "d", "less": "b"}, "either more and less"),
        ({"text": "x", "rises_with": "accuracy"}, "rises_with needs another quantity"),
        ({"text": "x", "rises_with": "size", "methods": ["a", "b"]}, "three methods or more"),
        ({"text": "x", "more": "a", "less": "b", "says": []}, r"says = \[\]: a text or several"),
    ],
)
def test_bad_claims(claim, message):
    with pytest.raises(ConfigError, match=message):
        read_claims("file.toml", [claim])


@pytest.mark.parametrize("claims", [{"text": "x"}, ["x"], "x"])
def test_claims_are_a_list_of_tables(claims):
    with pytest.raises(ConfigError, match=r"\[\[claims\]\], in double brackets"):
        read_claims("file.toml", claims)


def test_of_one_method_its_own_pairs_count():
    """b and c are far apart, and a is near to both."""
    methods = {"a": seeds(0.0, 0.1, 0.0), "b": seeds(0.8, 0.9, 0.8), "c": seeds(-0.8, -0.7, -0.8)}
    assert verdict(Claim("alike", within=1.0), **methods).outcome == FAILS
    assert verdict(Claim("alike", within=1.0, of="a"), **methods).outcome == HOLDS
    apart = verdict(Claim("alike", within=0.5, of="a"), **methods)
    assert apart.outcome == FAILS
    assert "of 2 pairs" in apart.evidence


def test_all_methods_means_those_without_results_too():
    methods = {"a": seeds(1.0, 1.1), "b": seeds(1.0, 1.1), "c": {}}
    found = verdict(Claim("alike", within=1.0), **methods)
    assert (found.outcome, found.evidence) == (UNTESTED, "no results for c")


def test_there_is_no_ratio_of_what_is_not_positive():
    found = verdict(Claim("t", more="a", less="b", factor=(5, 20)), a=seeds(1.0, -2.0), b=seeds(1.0, 1.0))
    assert found.outcome == OPEN
    assert "not always above 0" in found.evidence


def frames(**quantities):
    return {name: pd.DataFrame(of, dtype=float) for name, of in quantities.items()}


def rising(size, robust, **more):
    claim = Claim("t", quantity="robust", rises_with="size", **more)
    (found,) = decide([claim], frames(size=size, robust=robust), {"robust": POINTS})
    return found


SIZES = {"a": seeds(9.0, 9.0, 9.0), "b": seeds(1.0, 3.0, 2.0), "c": seeds(5.0, 5.0, 5.0)}


def test_a_quantity_that_rises_with_another():
    """b < c < a by size, whatever the order of the methods. Three rows of three: one order of six in each."""
    found = rising(SIZES, {"a": seeds(3, 5, 4), "b": seeds(1, 2, 1), "c": seeds(2, 3, 2)})
    assert found.outcome == HOLDS
    assert found.evidence == f"b < c < a: Page's L = 42, p = {2 / 6**3:.3f}, n = 3"


def test_a_quantity_that_falls_with_another():
    found = rising(SIZES, {"a": seeds(1, 2, 1), "b": seeds(3, 5, 4), "c": seeds(2, 3, 2)})
    assert found.outcome == FAILS
    assert found.evidence == f"b < c < a: Page's L = 30, p = {2 / 6**3:.3f}, n = 3"


def test_neither_rises_nor_falls():
    found = rising(SIZES, {"a": seeds(1, 3, 2), "b": seeds(3, 1, 3), "c": seeds(2, 2, 1)})
    assert found.outcome == OPEN


def test_a_quantity_that_rises_with_another_among_some_methods():
    robust = {"a": seeds(3, 5, 4), "b": seeds(1, 2, 1), "c": seeds(2, 3, 2), "d": seeds(0, 0, 0)}
    sizes = {**SIZES, "d": seeds(10.0, 10.0, 10.0)}
    assert rising(sizes, robust).outcome == OPEN
    assert rising(sizes, robust, methods=("a", "b", "c")).outcome == HOLDS


def test_rises_are_corrected_with_the_comparisons():
    robust = {"a": seeds(3, 5, 4), "b": seeds(1, 2, 1), "c": seeds(2, 3, 2)}
    claims = [Claim(str(i), quantity="robust", rises_with="size") for i in range(10)]
    found = decide(claims, frames(size=SIZES, robust=robust), {})
    assert {verdict.outcome for verdict in found} == {OPEN}
    assert ", corrected 0.093, n = 3" in found[0].evidence  # ten times 2/216


@pytest.mark.parametrize(
    ("sizes", "robust", "outcome", "why"),
    [
        ({"c": {}}, {}, UNTESTED, "no size of c"),
        ({}, {"b": {}}, UNTESTED, "no results for b"),
        ({}, {"b": {0: 1.0}}, OPEN, "fewer than three methods or two seeds in common"),
    ],
)
def test_a_rise_needs_both_quantities_of_all_methods(sizes, robust, outcome, why):
    whole = {"a": seeds(3, 5, 4), "b": seeds(1, 2, 1), "c": seeds(2, 3, 2)}
    found = rising({**SIZES, **sizes}, {**whole, **robust})
    assert found.outcome == outcome
    assert why in found.evidence
