"""What a step holds at most, in a loop that keeps J and the loss to the next step; verification included."""

import gc

import pytest
import torch
import torch.nn.functional as F
from live import Live

import jacnorm as jn
from jacnorm.engines.rules import attention
from jacnorm.lab.bench.nets import Blocks

STEPS, TOKENS, BATCH, WIDTH = 2, 256, 2, 64


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Attention takes so many scores at a time, however large the model is."""
    monkeypatch.setattr(attention, "BLOCK", 1 << 14)


def peak(loss_of):
    torch.manual_seed(0)
    model = Blocks(WIDTH, 2, 3)
    x, labels = torch.randn(BATCH, TOKENS, WIDTH), torch.randint(10, (BATCH,))
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    kept = None
    gc.collect()
    with Live() as live:
        for _ in range(STEPS):
            kept = loss_of(model, x, labels, kept)
            kept[1].backward()
    return live.peak


def plain(model, x, labels, kept):
    output = model(x)
    return output, F.cross_entropy(output, labels)


def penalized(penalty, **options):
    def loss_of(model, x, labels, kept):
        J = jn.linearize(model, x)
        return J, F.cross_entropy(J.output, labels) + penalty(J, **options)

    return loss_of


def with_product(model, x, labels, kept):
    J = jn.linearize(model, x)
    with torch.no_grad():
        product = J.jvp(x)
    return J, F.cross_entropy(J.output, labels), product


@pytest.mark.parametrize(
    ("loss_of", "times"),
    [
        (penalized(jn.SpectralPenalty(0.1), index=torch.arange(BATCH)), 2.1),
        (penalized(jn.SpectralPenalty(0.1)), 2.1),
        (penalized(jn.FrobeniusPenalty(0.1)), 2.1),
        (with_product, 1.35),
    ],
    ids=["index", "guess", "frobenius", "product"],
)
def test_a_step_of_a_transformer_holds_little_more_than_activations_and_cotangents(loss_of, times):
    assert peak(loss_of) <= times * peak(plain)


def test_the_meter_counts_what_is_alive():
    with Live() as live:
        a = torch.zeros(1000)
        b = a.view(10, 100)  # no memory of its own
        del a
        assert live.now == 4000
        c = b + 1
        assert (live.now, live.peak) == (8000, 8000)
        del b
        c = c * 2
    assert (live.now, live.peak) == (4000, 8000)
