"""Two gloo processes and one: run by test_ddp.py, each check in both processes at once."""

import copy
import sys
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import jacnorm as jn
from jacnorm.integrations.distributed import share_vectors

WORLD, BATCH = 2, 8


def spectral():
    """With vectors for all samples: alone, a process would draw them for more samples at once."""
    penalty = jn.SpectralPenalty(0.5)
    penalty.u = F.normalize(torch.randn(BATCH, 5, generator=torch.Generator().manual_seed(4)).double(), dim=1)
    return penalty


PENALTIES = {
    "spectral": spectral,
    "frobenius": lambda: jn.FrobeniusPenalty(0.1),
    "bound": lambda: jn.SpectralBoundPenalty(0.1),
    "analytic": lambda: jn.AnalyticPenalty(0.5),
    "decay": lambda: jn.WeightDecay(0.1),
    "nuclear": lambda: jn.SchattenPenalty(0.5),
    "gradient": lambda: jn.GradientPenalty(0.5, h="square"),  # these two reach J.output, too
    "margin": lambda: jn.MarginPenalty(0.5, radius=5.0, candidates=4),
}


def net(kind):
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(16) if "batch norm" in kind else nn.Identity()
    activation = nn.Tanh() if "smooth" in kind else nn.ReLU()
    model = nn.Sequential(nn.Linear(12, 16), norm, activation, nn.Linear(16, 5)).double()
    if "unused" in kind:
        activation.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
    return model


def batch():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(BATCH, 12, generator=generator, dtype=torch.float64)
    return x, torch.arange(BATCH) % 5, torch.arange(BATCH)


def loss(model, penalty, x, y, index):
    J = jn.linearize(model, x)
    return F.cross_entropy(J.output, y) + penalty(J, index=index, labels=y), J


def shares(*tensors):
    return [[t[rank::WORLD] for t in tensors] for rank in range(WORLD)]


def gradients(model):
    return {n.removeprefix("module."): p.grad for n, p in model.named_parameters()}


def check_gradients(kind, name, **options):
    """Averaged over the processes they are those of one process on the whole batch or, since with batch norm
    each process has its own statistics, on each half by itself."""
    rank, own = dist.get_rank(), net(kind)
    model, penalty = DistributedDataParallel(own, **options), PENALTIES[name]()
    alone, expected_penalty = net(kind), PENALTIES[name]()
    for step in range(3):  # examined, then known
        x, y, index = shares(*batch())[rank]
        model.zero_grad()
        value, J = loss(model, penalty, x, y, index)
        value.backward()
        alone.zero_grad()
        if "batch norm" in kind or name == "frobenius":  # and each draws for its own samples
            before = expected_penalty
            for share in shares(*batch()):
                if name != "spectral":  # whose state is one vector a sample
                    expected_penalty = copy.deepcopy(before)
                (loss(alone, expected_penalty, *share)[0] / WORLD).backward()
        else:
            loss(alone, expected_penalty, *batch())[0].backward()
        assert (J.engine, J.reason) == ("layerwise", None)
        assert J.model is model
        torch.testing.assert_close(gradients(model), gradients(alone), msg=f"{kind}, {name}, step {step}")


def check_accumulation(kind, name, **options):
    """The first of two batches is not reduced, and the second reduces both: for two steps."""
    model, penalty = DistributedDataParallel(net(kind), **options), PENALTIES[name]()
    alone, expected_penalty = net(kind), PENALTIES[name]()
    rank = dist.get_rank()
    if "static_graph" in options:  # DDP itself cannot begin with a batch that is not reduced
        loss(model, copy.deepcopy(penalty), *shares(*batch())[rank])[0].backward()
    for step in range(2):
        model.zero_grad()
        alone.zero_grad()
        for part in range(2):
            x, y, index = (t[part::2] for t in shares(*batch())[rank])
            with model.no_sync() if part == 0 else nullcontext():
                loss(model, penalty, x, y, index)[0].backward()
            before = copy.deepcopy(expected_penalty)
            for share in shares(*batch()):
                if name != "spectral":
                    expected_penalty = copy.deepcopy(before)
                (loss(alone, expected_penalty, *[t[part::2] for t in share])[0] / WORLD).backward()
        torch.testing.assert_close(gradients(model), gradients(alone), msg=f"{kind}, {name}, step {step}")


def check_shared_vectors():
    """After an epoch everyone has every vector, also of samples that only another process has had."""
    rank, penalty = dist.get_rank(), jn.SpectralPenalty(0.5)
    model = net("plain")
    x, y, index = batch()
    mine = index[: BATCH // 2] if rank == 0 else index[BATCH // 2 - 1 :]  # one sample is in both
    loss(model, penalty, x[mine], y[mine], mine)[0].backward()
    before = penalty.u.clone()
    share_vectors(penalty, mine)
    gathered = [torch.empty_like(penalty.u) for _ in range(WORLD)]
    dist.all_gather(gathered, penalty.u)
    assert torch.equal(gathered[0], gathered[1])
    assert len(penalty.u) >= BATCH
    torch.testing.assert_close(penalty.u[mine[1:-1]], before[mine[1:-1]])
    torch.testing.assert_close(penalty.u.norm(dim=1), torch.ones(len(penalty.u), dtype=torch.float64))
    share_vectors(jn.FrobeniusPenalty(0.1), mine)  # has none


def check_shared_vectors_of_steps_that_paid():
    """Samples of the other steps have no row yet, in any process."""
    penalty = jn.SpectralPenalty(0.5, every=2)
    model = net("plain")
    x, y, index = batch()
    for some in (index[:2], index[2:]):
        loss(model, penalty, x[some], y[some], some)[0].backward()
    share_vectors(penalty, index)
    assert len(penalty.u) == 2
    torch.testing.assert_close(penalty.u.norm(dim=1), torch.ones(2, dtype=torch.float64))


def check_targets():
    """All processes have one weight, which is that of one process with the whole batch."""
    rank, models = dist.get_rank(), (DistributedDataParallel(net("plain")), net("plain"))
    penalties = [jn.AnalyticPenalty(0.1, target=0.2) for _ in models]
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
    for _ in range(5):
        for model, penalty, optimizer in zip(models, penalties, optimizers, strict=True):
            own = shares(*batch())[rank] if model is models[0] else batch()
            optimizer.zero_grad()
            loss(model, penalty, *own)[0].backward()
            optimizer.step()
    weights = [torch.tensor([penalties[0].weight], dtype=torch.float64) for _ in range(WORLD)]
    dist.all_gather(weights, weights[rank].clone())
    assert weights[0] == weights[1] != 0.1
    torch.testing.assert_close(penalties[0].weight, penalties[1].weight)


def check_measured_targets():
    """What is measured on the samples of each process corrects all weights alike."""
    rank, model = dist.get_rank(), DistributedDataParallel(net("plain"))
    penalty = jn.SpectralPenalty(0.1, target=0.2, start="random", seed=rank)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(5):
        x, y, _ = shares(*batch())[rank]
        optimizer.zero_grad()
        loss(model, penalty, x, y, None)[0].backward()
        optimizer.step()
    s = penalty.steering.state
    found = torch.tensor([penalty.weight, s.ratio, s.norm, s.checks, s.next_check], dtype=torch.float64)
    other = [torch.empty_like(found) for _ in range(WORLD)]
    dist.all_gather(other, found)
    assert torch.equal(other[0], other[1])
    assert s.ratio < 1


def check_that_a_budget_is_refused():
    model, penalty = DistributedDataParallel(net("plain")), jn.AnalyticPenalty(0.1, target=0.2, budget=1.5)
    with pytest.raises(jn.InputError, match="give every= instead"):
        loss(model, penalty, *batch())


def main(rank, meeting):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=WORLD)
    for kind in ("plain", "batch norm", "smooth", "smooth batch norm"):
        for name in PENALTIES:
            check_gradients(kind, name)
    for name in ("spectral", "frobenius", "margin", "gradient"):
        for kind in ("plain", "smooth batch norm"):
            check_gradients(f"{kind} unused", name, find_unused_parameters=True)
            check_gradients(kind, name, static_graph=True)
            check_accumulation(kind, name)
        check_accumulation("smooth", name, static_graph=True)
        check_accumulation("smooth unused", name, find_unused_parameters=True)
    check_shared_vectors()
    check_shared_vectors_of_steps_that_paid()
    check_targets()
    check_measured_targets()
    check_that_a_budget_is_refused()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
