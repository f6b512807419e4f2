"""A penalty that is only looked at: a validation loop must not change what the next training step does."""

import copy
import io

import pytest
import torch
from torch import nn

import jacnorm as jn

MAKERS = {
    "spectral": lambda: jn.SpectralPenalty(0.1),
    "random start": lambda: jn.SpectralPenalty(0.1, start="random"),
    "part": lambda: jn.SpectralPenalty(0.1, fraction=0.5),
    "every": lambda: jn.FrobeniusPenalty(0.1, every=2),
    "target": lambda: jn.SpectralPenalty(0.1, target=0.5),
    "frobenius": lambda: jn.FrobeniusPenalty(0.1),
    "bound": lambda: jn.SpectralBoundPenalty(0.1),
    "trace": lambda: jn.TracePenalty(0.1),
    "nuclear bound": lambda: jn.NuclearBoundPenalty(0.1, at="0"),
}


def square_net(dtype=torch.float32):
    """From any number of values to as many, so that there are inputs of other sizes."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv1d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv1d(3, 1, 3, padding=1)).to(dtype)


def x_of(size=6, rows=4, seed=1, dtype=torch.float32):
    return torch.randn(rows, 1, size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def linearized(penalty, net, x):
    through = ["0"] if isinstance(penalty, jn.NuclearBoundPenalty) else []
    return jn.linearize(net, x, through=through)


def look(penalty, net, index):
    """As validation may: twice, at other inputs, with another network and in another precision."""
    with torch.no_grad():
        penalty(linearized(penalty, net, x_of(seed=5)), index=index)
        penalty(linearized(penalty, net, x_of(9, 11)), index=None if index is None else torch.arange(11) + 90)
    double = copy.deepcopy(net).double()
    with torch.inference_mode():
        penalty(linearized(penalty, double, x_of(dtype=torch.float64)), index=index)


@pytest.mark.parametrize("index", [None, torch.arange(4)], ids=["recent", "index"])
@pytest.mark.parametrize("kind", MAKERS)
def test_validation_changes_no_training(kind, index):
    def trained(looks):
        net, penalty = square_net(), MAKERS[kind]()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for step in range(4):
            if looks:
                look(penalty, net, index)
            J = linearized(penalty, net, x_of(seed=step))
            optimizer.zero_grad()
            (J.output.square().mean() + penalty(J, index=index)).backward()
            optimizer.step()
        return [*net.parameters(), *penalty.state_dict().values()]

    for found, expected in zip(trained(True), trained(False), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("index", [None, torch.arange(4)], ids=["recent", "index"])
def test_a_report_changes_no_training(index):
    """Of another part of the network, say."""
    net, penalty = square_net(), jn.SpectralPenalty(0.1)
    penalty(jn.linearize(net, x_of()), index=index)
    before = copy.deepcopy(penalty.state_dict())
    penalty.report(jn.linearize(net, x_of(9, 11)), None if index is None else torch.arange(11) + 90)
    penalty.report(jn.linearize(net.double(), x_of(dtype=torch.float64)), index)
    after = penalty.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_what_training_has_found_serves_validation():
    """With `index`, and as a guess without."""
    net, x, index = square_net(torch.float64), x_of(dtype=torch.float64), torch.arange(4)
    J = jn.linearize(net, x)
    sigma = torch.linalg.matrix_norm(J.dense().detach(), 2).mean().item()
    for given in (index, None):
        penalty = jn.SpectralPenalty(1.0)
        for _ in range(200):
            penalty(J, index=given)
        with torch.no_grad():
            assert penalty(J, index=given).item() == pytest.approx(sigma, rel=1e-4 if given is None else 1e-8)
            assert jn.SpectralPenalty(1.0)(J, index=given) < 0.999 * sigma


def test_a_look_at_samples_that_are_new_starts_from_a_guess():
    net, x = square_net(torch.float64), x_of(dtype=torch.float64)
    J, fresh = jn.linearize(net, x), jn.SpectralPenalty(1.0, reduction="none")
    penalty = jn.SpectralPenalty(1.0, reduction="none")
    for _ in range(200):
        known = penalty(J, index=torch.arange(4))
    with torch.no_grad():
        mixed = penalty(J, index=torch.tensor([0, 1, 1000, 3]))
        guess = fresh(J, index=torch.arange(4))
    torch.testing.assert_close(mixed, torch.where(torch.arange(4) == 2, guess, known))
    assert guess[2] < 0.999 * known[2]


def test_looking_many_times_draws_anew():
    """The mean of many looks meets ‖J‖_F², whose estimate is unbiased."""
    net, x = square_net(), x_of()
    penalty = jn.FrobeniusPenalty(1.0)
    with torch.no_grad():
        J = jn.linearize(net, x)
        found = torch.stack([penalty(J) for _ in range(2000)])
        assert found.unique().numel() > 1900
        exact = J.dense().square().sum((1, 2)).mean().item()
    assert found.mean().item() == pytest.approx(exact, rel=0.02)


def test_training_and_validation_draw_different_numbers():
    net, x = square_net(), x_of()
    penalty = jn.FrobeniusPenalty(1.0)
    trained = [penalty(jn.linearize(net, x)).item() for _ in range(5)]
    with torch.no_grad():
        looked = [penalty(jn.linearize(net, x)).item() for _ in range(5)]
    assert not set(trained) & set(looked)


def test_a_saved_penalty_does_not_remember_looks():
    net, penalty = square_net(), jn.SpectralPenalty(0.1)
    file, again = io.BytesIO(), io.BytesIO()
    torch.save(penalty.state_dict(), file)
    look(penalty, net, None)
    torch.save(penalty.state_dict(), again)
    assert file.getvalue() == again.getvalue()


def test_a_compiled_look_changes_nothing():
    torch.compiler.reset()
    net, x = square_net(), x_of()
    penalty = jn.FrobeniusPenalty(1.0)
    jn.linearize(net, x)

    @torch.compile(backend="eager", fullgraph=True)
    def value(x):
        return penalty(jn.linearize(net, x))

    first = value(x).item()
    with torch.no_grad():
        looked = [value(x).item() for _ in range(3)]
    second = value(x).item()
    plain = jn.FrobeniusPenalty(1.0)
    expected = [plain(jn.linearize(net, x)).item() for _ in range(2)]
    assert [first, second] == pytest.approx(expected, rel=1e-5)
    assert len({*looked, first, second}) == 5
