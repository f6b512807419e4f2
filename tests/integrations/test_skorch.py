"""skorch: a NeuralNet in whose loss a penalty is, with scikit-learn around it."""

import pickle

import pytest
import torch
from hand import BATCH, RATE, assert_in_half_precision, by_hand, plain_runs, small_net
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from skorch.callbacks import Checkpoint
from torch import nn

import jacnorm as jn
from jacnorm.integrations.skorch import RegularizedClassifier


def classifier(**options):
    defaults = {"max_epochs": 2, "lr": RATE, "batch_size": BATCH, "train_split": None, "verbose": 0}
    return RegularizedClassifier(small_net, criterion=nn.CrossEntropyLoss, **{**defaults, **options})


def test_the_weights_are_those_of_a_loop_by_hand(digits):
    net = classifier(penalty__weight=0.5).fit(*digits)
    expected, penalty = small_net(), jn.SpectralPenalty(0.5)
    values = by_hand(expected, digits, penalty)
    torch.testing.assert_close(net.module_.state_dict(), expected.state_dict())
    torch.testing.assert_close(net.penalty_.u, penalty.u)
    found = [batch["penalty"] for epoch in net.history for batch in epoch["batches"]]
    assert found == pytest.approx(values, rel=1e-4)
    assert net.history[-1, "penalty"] == pytest.approx(sum(values[3:]) / 3, rel=1e-4)
    assert net.history[-1, "batches", -1, "sigma"] == pytest.approx(2 * values[-1], rel=1e-4)


def test_steps_that_pay_nothing_are_plain(digits, monkeypatch):
    plain = plain_runs(monkeypatch)
    net, expected = classifier(penalty__weight=0.5, penalty__every=2).fit(*digits), small_net()
    values = by_hand(expected, digits, jn.SpectralPenalty(0.5, every=2))
    torch.testing.assert_close(net.module_.state_dict(), expected.state_dict())
    assert len(plain) == values.count(0) == 3


def test_any_penalty_as_an_instance_and_validation_without_it(digits):
    from skorch.helper import predefined_split
    from torch.utils.data import TensorDataset

    # At rate zero train and validation loss differ by the penalty alone.
    split = predefined_split(TensorDataset(*digits))
    net = classifier(penalty=jn.AnalyticPenalty(0.5), lr=1e-30, train_split=split).fit(*digits)
    last = net.history[-1]
    assert last["train_loss"] - last["valid_loss"] == pytest.approx(last["penalty"], rel=1e-4)


def test_a_grid_search_goes_over_the_weight(digits):
    search = GridSearchCV(
        classifier(max_epochs=1), {"penalty__weight": [1e-6, 1000.0]}, cv=2, scoring="accuracy"
    )
    search.fit(digits[0].numpy(), digits[1].numpy())
    assert set(search.cv_results_["param_penalty__weight"]) == {1e-6, 1000.0}
    assert search.best_estimator_.penalty_.weight == search.best_params_["penalty__weight"]


def test_it_can_be_cloned_pickled_and_trained_on(digits):
    net = classifier(penalty__weight=0.5, max_epochs=1).fit(*digits)
    again = pickle.loads(pickle.dumps(net)).partial_fit(*digits)
    whole = clone(net).set_params(max_epochs=2).fit(*digits)
    torch.testing.assert_close(again.module_.state_dict(), whole.module_.state_dict())
    torch.testing.assert_close(again.penalty_.u, whole.penalty_.u)


def test_checkpoints_hold_the_stored_vectors(digits, tmp_path):
    checkpoint = Checkpoint(dirname=str(tmp_path), monitor=None, f_penalty="penalty.pt")
    net = classifier(callbacks=[checkpoint]).fit(*digits)
    again = classifier().initialize()
    again.load_params(checkpoint=checkpoint)
    torch.testing.assert_close(again.penalty_.state_dict(), net.penalty_.state_dict())


def test_once_an_epoch_the_penalty_reports(digits):
    net = classifier(penalty__weight=0.5, penalty__start="random").fit(*digits)
    for epoch in net.history:
        assert epoch["sigma_error"] == pytest.approx(epoch["sigma_estimated"] / epoch["sigma_measured"] - 1)
        assert 0.3 < epoch["sigma_cosine"] <= 1
        assert 0 < epoch["sigma_share"] < 1
    # What is logged of a step is the mean over its own samples, not over those of the report.
    values = [step["penalty"] for step in net.history[0]["batches"]]
    assert [step["sigma"] for step in net.history[0]["batches"]] == pytest.approx([2 * v for v in values])


def test_margins_get_their_labels(digits):
    net = classifier(penalty=jn.MarginPenalty(0.1)).fit(*digits)
    assert net.history[-1, "batches", -1, "norm"] > 0


def test_products_in_half_precision(digits, half_pays):
    net = classifier(penalty__weight=0.5, precision=torch.bfloat16).fit(*digits)
    assert_in_half_precision(net.module_, small_net(), digits)
