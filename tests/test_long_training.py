"""A training of many steps: what it holds, and what a step takes, stay as they are."""

import gc
import resource
import time
from statistics import quantiles

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jacnorm as jn

STEPS, LOOKS, SAMPLES = 20_000, 5, 256


def penalties():
    """With most of what can be asked for."""
    usual = {"every": 3, "h": "hinge", "threshold": 0.5}
    return [
        jn.SpectralPenalty(0.01, iterations="auto", samples=SAMPLES, stored_as=torch.bfloat16, **usual),
        jn.SpectralPenalty(0.01, fraction=0.5, **usual),
        jn.FrobeniusPenalty(0.001, every=2),
        jn.GradientPenalty(0.01, reduction="none"),
    ]


def resident():
    """Bytes of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def tensors():
    gc.collect()
    return sum(issubclass(type(found), torch.Tensor) for found in gc.get_objects())


def timed(do):
    begun = time.thread_time()
    do()
    return time.thread_time() - begun


def train():
    """For each stretch: tensors alive and bytes at its end, and the time of a step over that of a plain one.
    Both are those of steps that nothing else on the machine has slowed."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 5))
    x, y = torch.randn(SAMPLES, 12), torch.randint(5, (SAMPLES,))
    optimizer, terms = torch.optim.SGD(model.parameters(), lr=0.01), penalties()

    def step():
        index = torch.randint(SAMPLES, (8,)).unique()
        J = jn.linearize(model, x[index])
        value = sum(penalty(J, index=index, labels=y[index]).mean() for penalty in terms)
        optimizer.zero_grad()
        (F.cross_entropy(J.output, y[index]) + value).backward()
        optimizer.step()

    def plain():
        optimizer.zero_grad()
        F.cross_entropy(model(x[:8]), y[:8]).backward()

    stretches = []
    for _ in range(LOOKS):
        times = [(timed(step), timed(plain)) for _ in range(STEPS // LOOKS)]
        dear, cheap = (quantiles(some, n=10)[0] for some in zip(*times, strict=True))
        del times
        stretches.append((tensors(), resident(), dear / cheap))
    return stretches


@pytest.mark.long
def test_twenty_thousand_steps_hold_no_more_and_take_no_longer():
    (count, size, ratio), *rest = train()
    for later_count, later_size, later_ratio in rest:
        assert later_count == count
        assert later_size < size + 2**21  # a megabyte or two are the allocator's
        assert later_ratio < 1.2 * ratio
