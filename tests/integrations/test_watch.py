"""A model that somebody else calls: its Jacobian is found, and nobody notices."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import jacnorm as jn
from jacnorm.integrations.indexing import Indexed, WithIndex, labels_of, split_index
from jacnorm.integrations.watch import OnceAnEpoch, Watch, measures
from jacnorm.lab.nets import MLP


@pytest.fixture
def net():
    return MLP((4, 5, 3))


@pytest.fixture
def x():
    return torch.randn(2, 4)


class Outer(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, scale=1.0):
        return self.net(2 * x) * scale


@pytest.mark.parametrize("call", [lambda m, x: m(x), lambda m, x: m(input=x)])
def test_the_jacobian_of_a_call(net, x, call):
    watch = Watch(net)
    for _ in range(2):
        with watch.step() as seen:
            output = call(net, x)
            assert seen.J.output is output
            assert seen.J.model is net
            torch.testing.assert_close(seen.J.dense(), jn.linearize(net, x).dense())


def test_a_known_model_is_not_examined(net, x, monkeypatch):
    watch = Watch(net)
    for _ in range(2):
        with watch.step():
            net(x)
    monkeypatch.setattr("jacnorm.recording.check_call", lambda *_: pytest.fail("examined"))
    with watch.step():
        net(x)
    with (
        pytest.raises(pytest.fail.Exception, match="examined"),
        watch.step(),
    ):  # in another mode it is another model
        net.eval()(x)


def test_the_outermost_and_first_call_counts(net, x):
    outer = Outer(net)
    with Watch(outer, net).step() as seen:
        outer(x, scale=3.0)
        net(5 * x)
        torch.testing.assert_close(seen.J.dense(), 6 * jn.linearize(net, 2 * x).dense())
    with Watch(outer, net).step() as seen:
        net(x)
        outer(x)
        torch.testing.assert_close(seen.J.dense(), jn.linearize(net, x).dense())


def test_a_call_without_gradients_does_not_count(net, x):
    with Watch(net).step() as seen:
        with torch.no_grad():
            net(10 * x)
        net(x)
        torch.testing.assert_close(seen.J.dense(), jn.linearize(net, x).dense())


def test_no_call_is_an_error_that_says_so(net):
    with Watch(net).step() as seen, pytest.raises(jn.InputError, match="has not called MLP"):
        seen.J  # noqa: B018


@pytest.mark.parametrize("own", [False, True])
def test_everything_is_put_back(net, x, own):
    if own:
        net.forward = plain = lambda input: input[:, :3]
    watch = Watch(net)
    with pytest.raises(ZeroDivisionError, match="division by zero"), watch.step():
        1 / len(net(x)[:0])
    assert net.__dict__.get("forward") is (plain if own else None)
    assert watch._J is None  # with all its activations


class Tokens(nn.Module):
    """Made like a text classifier of transformers, with a decoder that shares the embedding."""

    main_input_name = "input_ids"

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 3)

    def get_input_embeddings(self):
        return self.embedding

    def forward(self, input_ids=None, attention_mask=None, inputs_embeds=None, labels=None):
        e = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        shared = self.embedding(torch.zeros(len(e), dtype=torch.int64))
        logits = self.head(torch.tanh((e * attention_mask.unsqueeze(2)).sum(1)) + shared)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


@pytest.mark.parametrize("given", ["positional", "keyword", "embeddings"])
def test_tokens_are_seen_through_their_embeddings(given):
    model, ids, mask = Tokens(), torch.randint(7, (2, 5)), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    labels, e = torch.tensor([0, 2]), model.embedding(ids)
    plain = model(ids, mask, labels=labels)
    with Watch(model).step() as seen:
        if given == "positional":
            found = model(ids, mask, labels=labels)
        elif given == "keyword":
            found = model(input_ids=ids, attention_mask=mask, labels=labels)
        else:
            found = model(inputs_embeds=e, attention_mask=mask, labels=labels)
        torch.testing.assert_close(found, plain)
        assert seen.J.input_shape == (2, 5, 4)
        expected = jn.linearize(lambda e: model(inputs_embeds=e, attention_mask=mask)["logits"], e.detach())
        torch.testing.assert_close(seen.J.dense(), expected.dense())
        (seen.J.dense().square().sum() + found["loss"]).backward()
    assert model.embedding.weight.grad.norm() > 0
    assert "forward" not in model.embedding.__dict__


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x, mask=None, labels=None):
        return self.last((self.first(x) * mask).relu())


def test_the_first_argument_is_that_of_forward_in_whatever_order_it_is_called(x):
    model, mask = Scaled(), torch.rand(2, 6)
    with Watch(model).step() as seen:
        model(mask=mask, x=x)
        assert seen.J.input_shape == (2, 4)
        torch.testing.assert_close(seen.J.dense(), jn.linearize(model, x, mask=mask).dense())


def test_a_part_of_the_batch_takes_its_other_arguments_along():
    model, x, mask = Scaled(), torch.randn(8, 4), torch.rand(8, 6)
    expected = jn.SpectralPenalty(fraction=0.5)(jn.linearize(model, x, mask=mask))
    penalty = jn.SpectralPenalty(fraction=0.5)
    watch = Watch(model, linearize=penalty.linearize)
    for call in (lambda: model(x, mask=mask, labels=torch.arange(8)), lambda: model(x, mask)):
        penalty.load_state_dict(jn.SpectralPenalty().state_dict())  # the same part is drawn
        with watch.step() as seen:
            call()
            torch.testing.assert_close(penalty(seen.J), expected)


def test_a_jacobian_outlives_its_step(x):
    model, mask = Scaled(), torch.rand(2, 6)
    watch = Watch(model)
    with watch.step() as seen:
        model(x, mask)
        J = seen.J
    with watch.step():
        model(5 * x, 2 * mask)
    torch.testing.assert_close(J.subset(torch.tensor([1])).dense(), J.dense()[1:])


def test_a_part_of_a_batch_of_texts():
    model, ids = Tokens(), torch.randint(7, (4, 5))
    mask, labels = torch.ones(4, 5), torch.tensor([0, 2, 1, 0])
    with Watch(model).step() as seen:
        model(input_ids=ids, attention_mask=mask, labels=labels)
        part = seen.J.subset(torch.tensor([3, 1]))
        torch.testing.assert_close(part.dense(), seen.J.dense()[[3, 1]])


def test_positions_come_with_the_batches_and_go_again():
    x, y = torch.randn(6, 4), torch.arange(6)
    data = WithIndex(TensorDataset(x, y))
    assert len(data) == 6
    for batch in DataLoader(data, batch_size=4, shuffle=True):
        assert isinstance(batch, Indexed)
        (images, labels), index = split_index(batch)
        assert torch.equal(images, x[index])
        assert torch.equal(labels, y[index])


def test_a_key_index_of_the_samples_is_not_overwritten():
    with pytest.raises(jn.InputError, match="'index' already"):
        WithIndex([{"index": 5}])[0]


def test_positions_of_dicts():
    data = WithIndex([{"pixel_values": torch.ones(2), "labels": i} for i in range(3)])
    (batch,) = DataLoader(data, batch_size=3)
    rest, index = split_index(batch)
    assert index.tolist() == rest["labels"].tolist() == [0, 1, 2]
    assert set(rest) == {"pixel_values", "labels"}
    assert split_index(rest) == (rest, None)


class OfEight(nn.Module):
    """Takes batches of eight only."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x.view(16, 4))


def test_a_report_that_cannot_be_made_ends_no_training():
    model, penalty = OfEight(), jn.SpectralPenalty(0.1)
    reports, J = OnceAnEpoch(penalty), jn.linearize(model, torch.randn(16, 4))
    with pytest.warns(UserWarning, match=r"is not logged.*Training continues") as found:
        assert reports.report(0, J) == {}
    assert [one.filename for one in found] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reports.report(1, J) == {}


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (jn.SpectralPenalty, "sigma"),
        (jn.AnalyticPenalty, "sigma"),
        (jn.FrobeniusPenalty, "norm"),
        (jn.MarginPenalty, "norm"),
    ],
)
def test_every_penalty_on_a_norm_is_logged(make, name):
    penalty, model, x = make(0.1, every=3), nn.Linear(4, 3), torch.randn(8, 4)
    reports, labels, found, logged = OnceAnEpoch(penalty), torch.zeros(8).long(), [], []
    for step in range(9):
        J = penalty.linearize(model, x)
        value = penalty(J, labels=labels)
        found.append(reports.report(step // 4, J, None, J.output.sum().square(), labels))
        logged.append(measures(penalty, value)[name].item())
    assert [bool(f) for f in found] == [True, False, False, False, False, False, True, False, False]
    assert {
        f"{name}_{what}" for what in ("estimated", "measured", "error", "cosine", "products", "share")
    } == set(found[0])
    before = make(0.1, reduction="none")
    before(jn.linearize(model, x), labels=labels)
    if make is not jn.FrobeniusPenalty:  # which draws
        assert logged[0] == pytest.approx(before.norms.mean().item(), rel=1e-4)
    assert logged[0] == logged[1] == logged[2]


def test_values_of_samples_are_no_part_of_a_trainers_loss():
    penalty = jn.SpectralPenalty(0.1, reduction="none")
    value = penalty(jn.linearize(nn.Linear(4, 3), torch.randn(8, 4)))
    with pytest.raises(jn.InputError, match="choose 'mean', 'sum' or 'max'"):
        measures(penalty, value)


def test_labels_of_usual_batches():
    x, y = torch.randn(2, 3), torch.arange(2)
    for batch in ((x, y), [x, y], {"pixel_values": x, "labels": y}, {"label": y}):
        assert labels_of(batch) is y
    assert labels_of({"x": x}) is None
    assert labels_of(x) is None
