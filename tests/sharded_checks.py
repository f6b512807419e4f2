"""Models under fully_shard in several gloo processes, and one process: run by test_sharded.py."""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

import jacnorm as jn
from jacnorm.lab.bench.nets import Blocks

BATCH, CLASSES, TOKENS, WIDTH = 8, 5, 6, 16


class Checkpointed(Blocks):
    """The weights of a block are gathered around its checkpoint."""

    def __init__(self, *args):
        super().__init__(*args)
        for i, block in enumerate(self.blocks):
            self.blocks[i] = Recomputed(block)


class Recomputed(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


def net(kind, dtype=torch.float64):
    torch.manual_seed(0)
    if kind == "transformer":
        return Blocks(WIDTH, 2, 3, CLASSES).to(dtype)
    if kind == "checkpointed":
        return Checkpointed(WIDTH, 2, 3, CLASSES).to(dtype)
    layers = [nn.Linear(TOKENS * WIDTH, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, CLASSES)]
    return nn.Sequential(nn.Flatten(), *layers).to(dtype)


def sharded(kind, dtype=torch.float64, **options):
    model = net(kind, dtype)
    parts = model.blocks if kind != "piecewise linear" else [m for m in model if isinstance(m, nn.Linear)]
    for part in parts:
        fully_shard(part, mesh=MESH, **options)
    return fully_shard(model, mesh=MESH, **options)


def spectral(**options):
    """With vectors for all samples: alone, a process would draw them for more samples at once."""
    penalty = jn.SpectralPenalty(0.5, **options)
    generator = torch.Generator().manual_seed(4)
    penalty.u = F.normalize(torch.randn(BATCH, CLASSES, generator=generator, dtype=torch.float64), dim=1)
    return penalty


PENALTIES = {
    "index": spectral,
    "guess": lambda: jn.SpectralPenalty(0.5),
    "bent": lambda: spectral(h="square"),
    "margin": lambda: jn.GradientPenalty(0.5),
}


def batch(dtype=torch.float64):
    x = torch.randn(BATCH, TOKENS, WIDTH, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return x.to(dtype), torch.arange(BATCH) % CLASSES, torch.arange(BATCH)


def loss(model, penalty, x, y, index):
    J = jn.linearize(model, x)
    return F.cross_entropy(J.output, y) + penalty(J, index=index), J


def share(*tensors):
    return [t[dist.get_rank() :: dist.get_world_size()] for t in tensors]


def gradients(model):
    return {
        n: p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad
        for n, p in model.named_parameters()
    }


def assert_same(model, alone, said, **tolerance):
    theirs = gradients(alone)
    for name, ours in gradients(model).items():
        torch.testing.assert_close(ours, theirs[name], msg=lambda m, n=name: f"{said}, {n}: {m}", **tolerance)


def check_gradients(kind, name, **options):
    """They are those of one process on the whole batch."""
    model, alone = sharded(kind, **options), net(kind)
    penalty, expected = PENALTIES[name](), PENALTIES[name]()
    for step in range(4):  # examined, then known, then examined again
        model.zero_grad()
        value, J = loss(model, penalty, *share(*batch()))
        assert (J.engine, J.reason) == ("layerwise", None)
        value.backward()
        alone.zero_grad()
        loss(alone, expected, *batch())[0].backward()
        assert_same(model, alone, f"{kind}, {name}, {options}, step {step}")
    return model


def main(rank, world, meeting):
    global MESH
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    MESH = init_device_mesh("cpu", (world,))
    for kind in ("piecewise linear", "transformer", "checkpointed"):
        for name in PENALTIES:
            check_gradients(kind, name)
            print(rank, kind, name, flush=True)
        check_gradients(kind, "guess", reshard_after_forward=False)
        check_gradients(kind, "guess", reshard_after_forward=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
