"""Paying less: every k-th step, a part of the batch, a budget. The gradient stays right on average."""

from itertools import combinations

import pytest
import torch
from cases import SMALL
from oracles import gradient
from torch import nn

import jacnorm as jn
from jacnorm.penalties import base, pace


def net(norm=True, activation=nn.ReLU):
    torch.manual_seed(0)
    first = nn.BatchNorm2d(4) if norm else nn.Identity()
    layers = [nn.Conv2d(1, 4, 3), first, activation(), nn.Conv2d(4, 3, 3)]
    return nn.Sequential(*layers, nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 5)).double()


X = torch.randn(
    4, 1, 6, 6, dtype=torch.float64, generator=torch.Generator(torch.get_default_device()).manual_seed(1)
)


def test_every_third_call_pays_for_three():
    model, x = SMALL.make()
    J = jn.linearize(model, x)
    lazy, full = jn.AnalyticPenalty(0.1, every=3), jn.AnalyticPenalty(0.1)(J)
    values = [lazy(J) for _ in range(6)]
    assert [v.item() for v in values] == [3 * full.item(), 0, 0] * 2
    torch.testing.assert_close(
        sum(gradient(v, model) for v in (values[0], values[3])), 6 * gradient(full, model)
    )
    values[1].backward()  # zero, but nothing to trip over


def test_calls_without_gradient_do_not_count():
    model, x = SMALL.make()
    J = jn.linearize(model, x)
    lazy, full = jn.AnalyticPenalty(0.1, every=2), jn.AnalyticPenalty(0.1)(J)
    with torch.no_grad():
        assert [lazy(J).item() for _ in range(3)] == [full.item()] * 3
    assert [lazy(J).item() > 0 for _ in range(4)] == [True, False, True, False]


def test_the_place_between_two_payments_is_saved():
    model, x = SMALL.make()
    J = jn.linearize(model, x)
    lazy, resumed = jn.SpectralPenalty(every=3), jn.SpectralPenalty(every=3)
    lazy(J)
    resumed.load_state_dict(lazy.state_dict())
    assert [resumed(J).item() > 0 for _ in range(4)] == [False, False, True, False]


@pytest.mark.parametrize("engine", ["auto", "autograd"])
@pytest.mark.parametrize("batch_norm", ["fixed", "flowing"])
@pytest.mark.parametrize("training", [True, False])
def test_a_subset_has_the_same_jacobians(engine, batch_norm, training):
    model = net().train(training)
    model[1].eval()  # one norm in each mode
    running = [b.clone() for b in model.buffers()]
    J = jn.linearize(model, X, engine=engine, batch_norm=batch_norm)
    moved = [b.clone() for b in model.buffers()]
    assert not training or not torch.equal(running[-3], moved[-3])
    part = J.subset(torch.tensor([2, 0]))
    assert part.engine == J.engine
    torch.testing.assert_close(part.dense(), J.dense()[[2, 0]], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(list(model.buffers()), moved, rtol=0, atol=0)  # not touched a second time


def test_a_subset_between_hidden_layers_and_of_a_transformed_jacobian():
    model, some = net(), torch.tensor([1, 3])
    J = jn.linearize(model, X, at="2", to="5").weighted(torch.full((4, 4), 3.0)).weighted(torch.tensor(0.5))
    torch.testing.assert_close(J.subset(some).dense(), J.dense()[some], rtol=1e-9, atol=1e-12)
    square = nn.Sequential(nn.BatchNorm2d(1), nn.Conv2d(1, 1, 3, padding=1), nn.ReLU()).double()
    J = jn.linearize(square, X).affine(2, -1)
    torch.testing.assert_close(J.subset(some).dense(), J.dense()[some], rtol=1e-9, atol=1e-12)


def test_a_subset_takes_its_rows_of_a_weighting():
    J, some = jn.linearize(net(), X).weighted(torch.rand_like(X)), torch.tensor([1, 3])
    torch.testing.assert_close(J.subset(some).dense(), J.dense()[some], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("engine", ["auto", "autograd"])
def test_a_subset_of_a_subset_has_the_statistics_of_the_whole_batch(engine):
    model = net()
    J = jn.linearize(model, X, engine=engine)
    moved = [b.clone() for b in model.buffers()]
    part = J.subset(torch.tensor([3, 2, 0])).subset(torch.tensor([1, 2]))
    torch.testing.assert_close(part.dense(), J.dense()[[2, 0]], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(list(model.buffers()), moved, rtol=0, atol=0)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])  # a smooth slope depends on the statistics
@pytest.mark.parametrize("batch_norm", ["fixed", "flowing"])
@pytest.mark.parametrize("engine", ["auto", "autograd"])
def test_all_parts_of_a_batch_make_up_its_gradient(engine, batch_norm, activation):
    model = net(activation=activation)
    J, penalty = jn.linearize(model, X, engine=engine, batch_norm=batch_norm), jn.AnalyticPenalty(1.0)
    parts = [gradient(penalty(J.subset(torch.tensor(p))), model) for p in combinations(range(4), 2)]
    torch.testing.assert_close(sum(parts) / len(parts), gradient(penalty(J), model), rtol=1e-8, atol=1e-10)


def test_parts_are_drawn_evenly_and_take_their_index_along():
    model = net(norm=False).eval()
    J, penalty = jn.linearize(model, X), jn.SpectralPenalty(fraction=0.5)
    counts = torch.zeros(4)
    for _ in range(200):
        penalty.u.zero_()
        penalty(J, index=torch.tensor([3, 0, 1, 2]))
        (seen,) = penalty.u.any(1).nonzero(as_tuple=True)
        assert len(seen) == 2
        counts[seen] += 1
    assert counts.min() > 70  # 100 expected, standard deviation 7


def test_a_part_of_two_is_drawn_with_all_others():
    model = net(norm=False).eval()
    J, penalty = jn.linearize(model, X), jn.SpectralPenalty(fraction=0.01)
    assert penalty(J) > 0  # at least one sample


class Clock:
    """Steps with the penalty take `paid` seconds, those without 1; those that verify the model 20 more."""

    def __init__(self, penalty, paid):
        self.penalty, self.paid, self.now = penalty, paid, 0.0

    def __call__(self):
        return self.now

    def step(self, J):
        made = J()
        paid = self.penalty(made).item() > 0
        self.now += (self.paid if paid else 1.0) + 20 * made.verified
        return self.paid if paid else 1.0


@pytest.mark.parametrize("engine", ["layerwise", "autograd"])
@pytest.mark.parametrize("by_penalty", [False, True])
@pytest.mark.parametrize(("paid", "budget", "every"), [(2.2, 1.3, 4), (2.0, 1.1, 10), (1.2, 1.3, 1)])
def test_a_budget_is_kept(monkeypatch, paid, budget, every, by_penalty, engine):
    model, x = SMALL.make()
    penalty = jn.SpectralPenalty(1.0, budget=budget)
    clock = Clock(penalty, paid)
    monkeypatch.setattr(pace.time, "perf_counter", clock)

    def J():
        return (penalty.linearize if by_penalty else jn.linearize)(model, x, engine=engine)

    for _ in range(20):
        clock.step(J)
    mean = sum(clock.step(J) for _ in range(100)) / 100
    assert penalty.pace.every == every
    assert mean <= budget + 1e-9


def test_the_first_steps_which_warm_caches_do_not_count(monkeypatch):
    model, x = SMALL.make()
    J = [jn.linearize(model, x) for _ in range(3)][-1]  # the third is not verified, and so not unusual
    penalty = jn.SpectralPenalty(1.0, budget=1.3)
    clock = Clock(penalty, paid=2.2)
    monkeypatch.setattr(pace.time, "perf_counter", clock)
    chosen = []
    for step in range(12):
        value = penalty(J)
        chosen.append(penalty.pace.every)
        clock.now += 100.0 if step < pace.SETTLING else 2.2 if value > 0 else 1.0
    known = pace.SETTLING + 2 * pace.NEEDED  # steps of both kinds, in turns
    assert chosen == [2] * known + [4] * (12 - known)


def test_plain_steps_that_find_cold_caches_are_not_taken_for_usual(monkeypatch):
    """The step behind a payment takes half as long again; what the others take is what counts."""
    model, x = SMALL.make()
    J = [jn.linearize(model, x) for _ in range(3)][-1]
    penalty = jn.SpectralPenalty(1.0, budget=1.3)
    clock = Clock(penalty, paid=2.8)
    monkeypatch.setattr(pace.time, "perf_counter", clock)
    was_paid = False
    for _ in range(120):
        is_paid = penalty(J).item() > 0
        clock.now += 2.8 if is_paid else 1.5 if was_paid else 1.0
        was_paid = is_paid
    assert penalty.pace.every == 6  # 1 + 1.8 / 6 = 1.3


def test_recording_counts_for_the_step_that_pays(monkeypatch):
    """A step begins where the penalty linearizes; from penalty to penalty the one before would pay for it."""
    net, x = SMALL.make()
    penalty = jn.SpectralPenalty(1.0, budget=1.3)
    clock, record = Clock(penalty, paid=0.0), base.linearized

    def slow_record(request):
        clock.now += 1.2
        return record(request)

    def model(x):
        clock.now += 1.0
        return net(x)

    monkeypatch.setattr(pace.time, "perf_counter", clock)
    monkeypatch.setattr(base, "linearized", slow_record)
    for _ in range(40):
        penalty(penalty.linearize(model, x))
    assert penalty.pace.every == 4


def test_a_budget_gives_the_right_total(monkeypatch):
    model, x = SMALL.make()
    J = jn.linearize(model, x)
    penalty, full = jn.AnalyticPenalty(1.0, budget=1.3), jn.AnalyticPenalty(1.0)(J).item()
    clock = Clock(penalty, 2.2)
    monkeypatch.setattr(pace.time, "perf_counter", clock)
    total, steps = 0.0, 0
    while steps < 40 or penalty.pace.wait:
        value = penalty(J).item()
        clock.now += 2.2 if value > 0 else 1.0
        total, steps = total + value, steps + 1
    assert total == pytest.approx(steps * full)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every=0"),
        ({"budget": 1.0}, "try budget=1.3"),
        ({"budget": 1.3, "every": 2}, "give one of them"),
        ({"fraction": 0.0}, "above 0"),
        ({"fraction": 1.5}, "at most 1"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(jn.InputError, match=message):
        jn.SpectralPenalty(**options)


def test_they_are_told_in_the_repr():
    assert "every=4" in repr(jn.SpectralPenalty(every=4))
    assert "budget=1.3" in repr(jn.FrobeniusPenalty(budget=1.3))
    assert "every" not in repr(jn.SpectralBoundPenalty())


def test_a_step_that_pays_nothing_is_a_plain_one(monkeypatch):
    model, x = SMALL.make()
    lazy = jn.AnalyticPenalty(0.1, every=2)
    assert lazy(lazy.linearize(model, x)) > 0
    monkeypatch.setattr("jacnorm.penalties.base.linearized", None)
    J = lazy.linearize(model, x)
    torch.testing.assert_close(J.output, model(x), rtol=0, atol=0)
    value = lazy(J)
    assert value == 0
    (J.output.sum() + value).backward()


def test_it_linearizes_as_it_is_told():
    model = net()
    lazy = jn.SpectralPenalty(every=2)
    J = lazy.linearize(model, X, engine="autograd", batch_norm="flowing", at="2", to="7")
    assert (J.engine, J.input_shape) == ("autograd", (4, 4, 4, 4))
    assert lazy(J) > 0
    flowing = jn.linearize(model, X, batch_norm="flowing")
    found, expected = (
        gradient(jn.AnalyticPenalty(1.0)(J), model)
        for J in (jn.AnalyticPenalty().linearize(model, X, batch_norm="flowing"), flowing)
    )
    torch.testing.assert_close(found, expected)
    assert lazy.linearize(model, X, engine="autograd", at="2", to="7").output.shape == (4, 5)
    with torch.no_grad():  # measuring between steps
        assert lazy.linearize(model, X).engine == "layerwise"


def test_what_was_not_recorded_says_so():
    model, x = SMALL.make()
    lazy = jn.SpectralPenalty(every=2)
    lazy(lazy.linearize(model, x))
    J = lazy.linearize(model, x)
    assert repr(J) == f"Unrecorded({tuple(model(x).shape)})"
    for ask in (lambda: J.vjp(J.output), lambda: jn.spectral_norm(J), J.dense, lambda: J.engine):
        with pytest.raises(jn.InputError, match="pays nothing in this step"):
            ask()


def test_arguments_of_the_model_come_along_and_its_errors_too():
    def model(x, factor, shift=0):
        return factor * x + shift

    lazy = jn.FrobeniusPenalty(every=2)
    x = torch.ones(2, 3)
    lazy(lazy.linearize(model, x, 2, shift=1))
    assert lazy.linearize(model, x, 2, shift=1).output.unique() == 3
    lazy.pace.wait = 3
    with pytest.raises(jn.NonFiniteError, match="NaN or inf"):
        lazy.linearize(model, x, float("inf"))
    with pytest.raises(jn.ModelError, match="needs more arguments than x"):
        lazy.linearize(model, x)
    with pytest.raises(jn.InputError, match="engine='foo'"):
        lazy.linearize(model, x, 2, engine="foo")


def test_what_linearize_decided_holds():
    """For two batches in one step, and for a J that is penalized twice."""
    model, x = SMALL.make()
    lazy = jn.AnalyticPenalty(1.0, every=3)
    full = jn.AnalyticPenalty(1.0)(jn.linearize(model, x)).item()
    found = []
    for _ in range(3):
        pair = lazy.linearize(model, x), lazy.linearize(model, x)
        found += [lazy(J).item() for J in pair]
        assert lazy(pair[0]).item() == found[-2]
    assert found == pytest.approx([3 * full, 0, 0, 3 * full, 0, 0])


def test_transforms_of_what_was_not_recorded_pay_nothing():
    lazy = jn.SpectralPenalty(every=2)
    model, x = nn.Linear(3, 3), torch.randn(2, 3)
    values = [lazy(lazy.linearize(model, x).affine(2, -1).weighted(torch.ones(3))).item() for _ in range(4)]
    assert [value > 0 for value in values] == [True, False, True, False]


def test_another_penalty_is_told_what_to_do():
    model, x = SMALL.make()
    lazy = jn.SpectralPenalty(every=2)
    lazy.linearize(model, x)
    with pytest.raises(jn.InputError, match="For several penalties"):
        jn.FrobeniusPenalty()(lazy.linearize(model, x))


def test_the_batch_is_not_written_into():
    lazy, x = jn.FrobeniusPenalty(every=2), torch.tensor([[-1.0, 2.0]])
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(2, 2))
    for _ in range(2):
        lazy(lazy.linearize(model, x))
    assert x.tolist() == [[-1.0, 2.0]]
