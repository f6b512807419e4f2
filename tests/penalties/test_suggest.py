"""A weight to begin with: the lengths of both gradients, against autograd on the dense Jacobian."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import jacnorm as jn
from jacnorm.lab.nets import MLP


def made(net=None):
    torch.manual_seed(0)
    x, y = torch.randn(24, 6), torch.arange(24) % 4
    return net or MLP((6, 16, 4)), x, y


def length(value, net):
    found = torch.autograd.grad(value, list(net.parameters()), allow_unused=True)
    return torch.cat([g.flatten() for g in found if g is not None]).norm().item()


def test_the_gradients_are_those_of_the_dense_jacobian():
    net, x, y = made()
    found = jn.suggest_weight(
        net.double(),
        DataLoader(TensorDataset(x.double(), y), 8),
        F.cross_entropy,
        penalty=jn.AnalyticPenalty(7.0),
    )
    lengths = []
    for part, labels in zip(x.double().split(8), y.split(8), strict=True):
        dense = torch.stack([torch.func.jacrev(net)(row[None])[0, :, 0] for row in part])
        sigma = torch.linalg.matrix_norm(dense, 2).mean()
        lengths.append((length(F.cross_entropy(net(part), labels), net), length(sigma, net), sigma.item()))
    of_loss, of_norm, norm = torch.tensor(lengths).mean(0).tolist()
    assert found.loss_gradient == pytest.approx(of_loss, rel=1e-5)
    assert found.norm_gradient == pytest.approx(of_norm, rel=1e-5)
    assert found.norm == pytest.approx(norm, rel=1e-5)
    assert found.weight == pytest.approx(0.01 * of_loss / of_norm, rel=1e-5)
    assert (found.batches, found.samples) == (3, 24)
    assert "its gradient has length" in str(found)


def test_nothing_changes():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4))
    net, x, y = made(net)
    F.cross_entropy(net(x), y).backward()
    penalty = jn.SpectralPenalty(0.1, target=0.5, every=3)
    before = [t.clone() for t in (*net.state_dict().values(), *(p.grad for p in net.parameters()))]
    state, random = penalty.get_extra_state(), torch.get_rng_state()
    jn.suggest_weight(net, [(x, y)], F.cross_entropy, penalty=penalty)
    after = [*net.state_dict().values(), *(p.grad for p in net.parameters())]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert torch.equal(penalty.get_extra_state(), state)
    assert torch.equal(torch.get_rng_state(), random)
    assert (penalty.weight, penalty.norms, len(penalty.u)) == (0.1, None, 0)


def test_the_state_of_the_network_matters_little():
    """Unlike the share in the loss, which the docs used to advise: σ grows more than twenty times here."""
    net, x, y = made(MLP((6, 32, 4)))
    with torch.no_grad():
        for p in net.parameters():
            p *= 0.3
    before = jn.suggest_weight(net, [(x, y)], F.cross_entropy)
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(30):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    after = jn.suggest_weight(net, [(x, y)], F.cross_entropy)
    assert after.norm > 20 * before.norm
    assert 1 / 6 < after.weight / before.weight < 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loader": []}, "gives no batches"),
        ({"loader": [torch.randn(4, 6)]}, "must give pairs of inputs and labels"),
        ({"loss": lambda output, y: F.cross_entropy(output, y, reduction="none")}, "must be one number"),
        ({"penalty": jn.WeightDecay(0.1)}, "a penalty on a norm of J is needed"),
        ({"penalty": jn.SpectralPenalty(reduction="none")}, "no single number"),
        ({"batches": 0}, "batches=0"),
        ({"model": nn.Linear(6, 4).requires_grad_(False)}, "The loss has no gradient"),
    ],
)
def test_what_cannot_be_compared_is_told(change, message):
    net, x, y = made()
    given = {"model": net, "loader": [(x, y)], "loss": F.cross_entropy, **change}
    with pytest.raises(jn.InputError, match=message):
        jn.suggest_weight(**given)
