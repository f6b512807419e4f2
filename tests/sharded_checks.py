"""Models under fully_shard in several gloo processes, and one process: run by test_sharded.py."""

import copy
import io
import sys
from datetime import timedelta
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as inside
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

import jacnorm as jn
from jacnorm.lab.bench.nets import Blocks
from jacnorm.pytorch.sharded import groups_of

BATCH, CLASSES, TOKENS, WIDTH = 8, 5, 6, 16
MAX_WAIT = timedelta(seconds=60)  # a hang becomes an error


class Recomputed(nn.Module):
    """The weights of a block are gathered around its checkpoint."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


def net(kind, dtype=torch.float64):
    torch.manual_seed(0)
    if kind in ("piecewise linear", "batch norm"):
        between = nn.BatchNorm1d(20) if kind == "batch norm" else nn.Identity()
        body = nn.Linear(TOKENS * WIDTH, 20), between, nn.ReLU(), nn.Linear(20, 20), nn.ReLU()
        return nn.Sequential(nn.Flatten(), *body, nn.Linear(20, CLASSES)).to(dtype)
    model = Blocks(WIDTH, 2, 2, CLASSES)
    if kind == "checkpointed":
        model.blocks = nn.Sequential(*map(Recomputed, model.blocks))
    if kind == "tied":  # in the group of the root, as fully_shard asks
        model.last = nn.Linear(WIDTH, WIDTH)
        model.last.weight, model.norm = model.first.weight, nn.Sequential(model.norm, model.last)
    return model.to(dtype)


def sharded(kind, dtype=torch.float64, mesh=None, **options):
    model, options = net(kind, dtype), {"mesh": mesh or world(), **options}
    parts = model.blocks if hasattr(model, "blocks") else [m for m in model if isinstance(m, nn.Linear)]
    for part in parts:
        fully_shard(part, **options)
    return fully_shard(model, **options)


def world():
    return init_device_mesh("cpu", (dist.get_world_size(),))


def spectral(**options):
    """With vectors for all samples: alone, a process would draw them for more samples at once."""
    penalty = jn.SpectralPenalty(0.5, **options)
    generator = torch.Generator().manual_seed(4)
    penalty.u = F.normalize(torch.randn(BATCH, CLASSES, generator=generator, dtype=torch.float64), dim=1)
    return penalty


def half_seen():
    """The first process knows a vector for each of its samples, and the others for none."""
    penalty = spectral()
    penalty.u[torch.arange(BATCH) % dist.get_world_size() > 0] = 0
    return penalty


PENALTIES = {
    "index": spectral,
    "half seen": half_seen,
    "guess": lambda: jn.SpectralPenalty(0.5),
    "rounds": lambda: jn.SpectralPenalty(0.5, iterations=3),
    "hinge": lambda: spectral(h="hinge", threshold=0.05),
    "each": lambda: jn.SchattenPenalty(0.5, reduction="none"),
    "frobenius": lambda: jn.FrobeniusPenalty(0.1),
    "margin": lambda: jn.GradientPenalty(0.5, h="square"),
    "labels": lambda: jn.MarginPenalty(0.5, radius=5.0, candidates=4),
}


def batch(dtype=torch.float64):
    x = torch.randn(BATCH, TOKENS, WIDTH, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return x.to(dtype), torch.arange(BATCH) % CLASSES, torch.arange(BATCH)


def loss(model, penalty, x, y, index):
    J = jn.linearize(model, x)
    return F.cross_entropy(J.output, y) + penalty(J, index=index, labels=y).mean(), J


def shares():
    count = dist.get_world_size()
    return [[t[rank::count] for t in batch()] for rank in range(count)]


def full(t):
    return t.full_tensor() if hasattr(t, "full_tensor") else t


def assert_same(model, alone, said, **tolerance):
    theirs = dict(alone.named_parameters())
    for name, p in model.named_parameters():
        ours, expected = full(p.grad), theirs[name].grad
        torch.testing.assert_close(ours, expected, msg=lambda m, n=name: f"{said}, {n}: {m}", **tolerance)


def alone_backward(alone, penalty, kind, name):
    """On the whole batch, or on each share by itself: with batch norm each process has its own statistics,
    and some penalties draw for their own samples."""
    if kind != "batch norm" and name != "frobenius":
        loss(alone, penalty, *batch())[0].backward()
        return
    before = copy.deepcopy(penalty)
    for share in shares():
        own = penalty if name == "index" else copy.deepcopy(before)  # whose state is one vector per sample
        (loss(alone, own, *share)[0] / dist.get_world_size()).backward()
    if name != "index":
        penalty.load_state_dict(own.state_dict())


def check_gradients(kind, name, *, steps=3, **options):
    """They are those of one process."""
    model, alone = sharded(kind, **options), net(kind)
    penalty, expected = PENALTIES[name](), PENALTIES[name]()
    mine = shares()[dist.get_rank()]
    for step in range(steps):  # examined, then known
        model.zero_grad()
        value, J = loss(model, penalty, *mine)
        assert (J.engine, J.reason) == ("layerwise", None)
        value.backward()
        alone.zero_grad()
        alone_backward(alone, expected, kind, name)
        assert_same(model, alone, f"{kind}, {name}, {options}, step {step}")


def check_accumulation(is_synchronized):
    """Two batches and one step."""
    model, alone = sharded("transformer"), net("transformer")
    penalty, expected = spectral(), spectral()
    x, y, index = shares()[dist.get_rank()]
    for part in (0, 1):
        model.set_requires_gradient_sync(is_synchronized or part == 1)
        loss(model, penalty, x[part::2], y[part::2], index[part::2])[0].backward()
        both = [torch.cat(ts) for ts in zip(*[[t[part::2] for t in s] for s in shares()], strict=True)]
        loss(alone, expected, *both)[0].backward()
    assert_same(model, alone, f"accumulation, {is_synchronized}")


def check_mixed_precision():
    """As one process that casts its weights and its input."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model, alone = sharded("transformer", torch.float32, mp_policy=policy), net("transformer", torch.float32)
    penalty, expected = spectral(), spectral()
    penalty.u, expected.u = penalty.u.float(), expected.u.float()

    def cast(x):
        weights = {name: p.bfloat16() for name, p in alone.named_parameters()}
        return functional_call(alone, weights, x.bfloat16())

    for share in shares():
        x, *rest = share
        (loss(cast, expected, x.float(), *rest)[0] / dist.get_world_size()).backward()
    x, *rest = shares()[dist.get_rank()]
    loss(model, penalty, x.float(), *rest)[0].backward()
    for name, p in alone.named_parameters():
        ours = full(dict(model.named_parameters())[name].grad)
        assert ours.dtype == torch.float32
        distance = (ours - p.grad).norm() / p.grad.norm().clamp_min(1e-3)
        assert distance < 0.01, (name, distance)  # the digits of bfloat16 are 0.004 apart


def train(model, penalty, steps, begin=0):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y, index = shares()[dist.get_rank()] if hasattr(model, "unshard") else batch()
    for step in range(begin, begin + steps):
        some = slice(step % 2, None, 2)
        J = penalty.linearize(model, x[some])
        optimizer.zero_grad()
        (F.cross_entropy(J.output, y[some]) + penalty(J, index=index[some])).backward()
        optimizer.step()
    return {name: full(p).detach() for name, p in model.named_parameters()}


def check_resume():
    """every= and index=, stopped and gone on with, end at the weights of a run that was not stopped."""
    model, penalty = sharded("transformer"), spectral(every=3, seed=1)
    through = train(model, penalty, 8)
    model, penalty = sharded("transformer"), spectral(every=3, seed=1)
    train(model, penalty, 4)
    file = io.BytesIO()
    torch.save({"penalty": penalty.state_dict()}, file)
    file.seek(0)
    again = jn.SpectralPenalty(0.5, every=3, seed=1)
    again.load_state_dict(torch.load(file)["penalty"])
    resumed = train(model, again, 4, begin=4)
    for name, expected in through.items():
        torch.testing.assert_close(resumed[name], expected, rtol=0, atol=0, msg=f"resume, {name}")
    assert not torch.equal(again.u, spectral().u)  # vectors have moved
    without = train(sharded("transformer"), jn.SpectralPenalty(0.0), 8)
    assert any(not torch.equal(without[name], through[name]) for name in through)


def check_measuring():
    """σ of each sample, by Lanczos, whose rounds processes decide on together."""
    model = fully_shard(nn.Sequential(nn.Flatten(), nn.Linear(96, 50), nn.Tanh(), nn.Linear(50, 40)).double())
    torch.manual_seed(0)
    full_weights = {name: full(p).detach() for name, p in model.named_parameters()}
    alone = nn.Sequential(nn.Flatten(), nn.Linear(96, 50), nn.Tanh(), nn.Linear(50, 40)).double()
    alone.load_state_dict(full_weights)
    x = shares()[dist.get_rank()][0]
    with torch.no_grad():
        J = jn.linearize(model, x)
        tol = (0.5, 1e-6, 1e-4, 1e-3)[dist.get_rank()]  # one alone would be content sooner
        e = jn.spectral_norm(J, tol=tol)
        expected = jn.linearize(alone, x).dense()
        torch.testing.assert_close(J.dense(), expected)
        torch.testing.assert_close(e.sigma, torch.linalg.matrix_norm(expected, 2), rtol=tol, atol=0)
        assert len(set(of_all(e.iterations))) == 1
        induced = jn.induced_norm(J, "inf")
        assert (induced.lower <= induced.upper * (1 + 1e-9)).all()


def check_cost():
    """How often the weights of a block are gathered: forward, backward, and once in each sweep."""
    x, _, index = shares()[dist.get_rank()]
    counts = {}
    for name, penalty in {"plain": jn.SpectralPenalty(0.0), "index": spectral(), "guess": spectral()}.items():
        model = sharded("transformer")
        for _ in range(3):  # the third is not verified
            with mock.patch.object(inside, "foreach_all_gather", wraps=inside.foreach_all_gather) as gather:
                J = jn.linearize(model, x)
                (J.output.square().mean() + penalty(J, index=index if name == "index" else None)).backward()
        (group,) = groups_of(model.blocks[0])
        counts[name] = sum(call.args[0] is group.fsdp_params for call in gather.mock_calls)
    assert counts == {"plain": 2, "index": 4, "guess": 5}, counts


def of_all(value):
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def check_two():
    for kind in ("piecewise linear", "batch norm", "transformer", "checkpointed", "tied"):
        check_gradients(kind, "index")
    for name in list(PENALTIES)[1:]:
        check_gradients("transformer", name)
    check_gradients("batch norm", "frobenius")
    for reshard in (False, True):
        check_gradients("transformer", "guess", reshard_after_forward=reshard)
        check_accumulation(reshard)
    check_mixed_precision()
    check_resume()
    check_measuring()
    check_cost()


def check_all():
    """Every net with every penalty."""
    for kind in ("piecewise linear", "batch norm", "transformer", "checkpointed", "tied"):
        for name in PENALTIES:
            for reshard in (False, True):
                check_gradients(kind, name, steps=5, reshard_after_forward=reshard)


def check_four():
    check_gradients("transformer", "index")
    check_gradients("piecewise linear", "half seen")
    check_gradients("transformer", "guess", reshard_after_forward=2)  # weights stay in pairs of processes
    copies = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "parts"))
    check_gradients("transformer", "index", mesh=copies)  # two copies, each in two parts


def begin(rank, count, meeting):
    torch.set_num_threads(1)
    how = {"init_method": f"file://{meeting}", "rank": rank, "world_size": count, "timeout": MAX_WAIT}
    dist.init_process_group("gloo", **how)


def main(group, rank, count, meeting):
    begin(rank, count, meeting)
    {"two": check_two, "four": check_four, "all": check_all}[group]()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
