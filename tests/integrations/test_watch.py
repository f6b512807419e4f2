"""A model that somebody else calls: its Jacobian is found, and nobody notices."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import jacnorm as jn
from jacnorm.integrations.indexing import Indexed, WithIndex, split_index
from jacnorm.integrations.watch import Watch
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
    monkeypatch.setattr("jacnorm.recording._record_and_verify", None)
    with watch.step():
        net(x)
    with pytest.raises(TypeError, match="NoneType"), watch.step():  # in another mode it is another model
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
    with pytest.raises(ZeroDivisionError), watch.step():
        1 / len(net(x)[:0])
    assert net.__dict__.get("forward") is (plain if own else None)
    assert watch._J is None  # with all its activations
    assert watch._calls[0].result is None


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


def test_positions_come_with_the_batches_and_go_again():
    x, y = torch.randn(6, 4), torch.arange(6)
    data = WithIndex(TensorDataset(x, y))
    assert len(data) == 6
    for batch in DataLoader(data, batch_size=4, shuffle=True):
        assert isinstance(batch, Indexed)
        (images, labels), index = split_index(batch)
        assert torch.equal(images, x[index])
        assert torch.equal(labels, y[index])


def test_positions_of_dicts():
    data = WithIndex([{"pixel_values": torch.ones(2), "labels": i} for i in range(3)])
    (batch,) = DataLoader(data, batch_size=3)
    rest, index = split_index(batch)
    assert index.tolist() == rest["labels"].tolist() == [0, 1, 2]
    assert set(rest) == {"pixel_values", "labels"}
    assert split_index(rest) == (rest, None)
