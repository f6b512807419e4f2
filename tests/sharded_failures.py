"""Sharded models where processes would decide differently, where one fails, and what is refused: run by
test_sharded.py."""

import re
import sys

import pytest
import torch
import torch.distributed as dist
from sharded_checks import CLASSES, batch, begin, full, net, of_all, shares, spectral, world
from sharded_checks import sharded as sharded_net
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import jacnorm as jn

# What processes decide. ------------------------------------------------------------------------------------


def check_rounds():
    """The process that is content sooner goes on with the other. The gradient is that of so many rounds."""
    tol, counts = (10.0, 1e-12)[dist.get_rank()], []
    for penalty in (jn.SpectralPenalty(0.5, "auto", tol=tol), jn.SpectralPenalty(0.5, CLASSES)):
        model = sharded_net("transformer")
        J = jn.linearize(model, shares()[dist.get_rank()][0])
        counts.append(of_all(pushes(J, penalty)))
        penalty(J).backward()
        counts.append([p.grad.full_tensor() for p in model.parameters() if p.grad is not None])
    auto, gradients, fixed, expected = counts
    assert auto == fixed == [CLASSES, CLASSES], (auto, fixed)
    torch.testing.assert_close(gradients, expected)


def pushes(J, penalty):
    """How often `penalty` takes J v."""
    plain, taken = J.jvp, []
    J.jvp = lambda *args: taken.append(1) or plain(*args)
    penalty.estimated(J, None, None)
    del J.jvp
    return len(taken)


def check_a_warning_of_one():
    """The look at how good a start is takes products, in the process that has warned before as well."""
    penalty = jn.SpectralPenalty(0.5)
    penalty._payments, penalty._has_warned = 99, dist.get_rank() == 0
    penalty(jn.linearize(sharded_net("transformer"), shares()[dist.get_rank()][0])).backward()
    assert penalty._payments == 100


def check_budget():
    """One process measures that a penalty is dear, and all of them pay as rarely as it does."""
    penalty, model, x = jn.SpectralPenalty(0.5, budget=1.5), sharded_net("transformer"), shares()[0][0]
    for _ in range(30):
        penalty.pace._seconds[True].append((1.1, 3.0)[dist.get_rank()])
        penalty.pace._seconds[False].append(1.0)
    paid = []
    for _ in range(6):
        J = penalty.linearize(model, x)
        (J.output.sum() + penalty(J)).backward()
        paid.append(J.paid_by[1])
    assert paid == [4, 0, 0, 0, 4, 0], paid


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, c):
        return 2 * ctx.saved_tensors[0] * c


def square_rule(x):
    factor = 2 if dist.get_rank() == 0 else 3
    F = lambda x, t: factor * x * t
    return jn.Call(push=F, pull=F, reads=(x,), terms=lambda x, c, t: [factor * c * t])


jn.rule(square_rule)(Square)


class Squaring(nn.Module):
    def forward(self, x):
        return Square.apply(x)


def check_a_wrong_rule_in_one():
    """There autograd takes its place, for that call alone, and the gradients are right."""
    model, alone = net("piecewise linear"), net("piecewise linear")
    model[3] = alone[3] = Squaring()
    for part in (model[1], model[4]):
        fully_shard(part, mesh=world())
    fully_shard(model, mesh=world())
    for _ in range(3):
        model.zero_grad(), alone.zero_grad()
        penalties = spectral(), spectral()
        for m, p, (x, _, index) in zip(
            (model, alone), penalties, (shares()[dist.get_rank()], batch()), strict=True
        ):
            J = jn.linearize(m, x, engine="layerwise" if dist.get_rank() == 0 else "auto")
            assert J.engine == "layerwise"
            assert bool(J.reason) == (dist.get_rank() == 1)
            (J.output.square().mean() + p(J, index=index)).backward()
        for ours, expected in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(ours.grad.full_tensor(), expected.grad)


# What fails in one process. --------------------------------------------------------------------------------


class Differentiating(nn.Module):
    """Its calls cannot be recorded in the last process."""

    def forward(self, x):
        if dist.get_rank() == 0:
            return x.cos()
        own = x + 0  # no tensor that FSDP has a hook on
        return torch.autograd.grad(own.sin().sum(), own, create_graph=True)[0]


class Coupling(nn.Module):
    def forward(self, x):
        return x if dist.get_rank() == 0 else x - x.mean(0)


class Overflowing(nn.Module):
    def forward(self, x):
        return x if dist.get_rank() == 0 else x * torch.inf


class Fine(nn.Module):
    def forward(self, x):
        return x


def check_failure(layer, here, elsewhere):
    """An error in all processes, the same weights as before, and the next model is served."""
    model = net("piecewise linear")
    model[3] = layer
    for part in (model[1], model[4]):
        fully_shard(part, mesh=world())
    fully_shard(model, mesh=world())
    before = [full(p).clone() for p in model.parameters()]
    error, words = here if dist.get_rank() else elsewhere
    for _ in range(2):
        raises(error, words, lambda: jn.linearize(model, shares()[dist.get_rank()][0]))
    for p, value in zip(model.parameters(), before, strict=True):
        assert torch.equal(full(p), value)
    model[3] = Fine()
    again = spectral()
    if not isinstance(layer, Differentiating):  # which the model is known for
        again(
            jn.linearize(model, shares()[dist.get_rank()][0]), index=shares()[dist.get_rank()][2]
        ).backward()


def raises(error, words, call):
    with pytest.raises(error, match=re.escape(words)) as found:
        call()
    assert "\n" not in str(found.value), found.value


def check_failures():
    refused, elsewhere = jn.UnsupportedModelError, "another process could not record it, and says why"
    check_failure(Differentiating(), (refused, "grad is called inside the model"), (refused, elsewhere))
    coupled = jn.CoupledSamplesError, "The output of one sample depends on the input of another"
    check_failure(Coupling(), coupled, coupled)
    not_finite = jn.NonFiniteError, "NaN or inf"
    check_failure(Overflowing(), not_finite, (refused, "linearize failed in another process"))


# What is refused. ------------------------------------------------------------------------------------------


def check_refusals():
    x, sharded = shares()[dist.get_rank()][0], sharded_net("transformer")
    wrapped = FullyShardedDataParallel(net("piecewise linear"), device_id=torch.device("cpu"))
    refused(wrapped, x, "Shard the model with torch.distributed.fsdp.fully_shard (FSDP2).")
    tensor_parallel = parallelize_module(net("piecewise linear"), world(), {"1": ColwiseParallel()})
    refused(
        tensor_parallel, x, "weight of Linear is spread over processes as (Shard(dim=0),) (tensor parallel?)"
    )
    refused(both_ways(), x, "(tensor parallel?), and its layer computes with a part of it")
    refused(pipeline(x), x, "ScheduleGPipe runs a pipeline, of which each process has only a stage")
    refused(on_two_meshes(), x, "sharded over 2 different meshes, but only one is supported")
    refused(sharded, x, "engine='autograd' does not record them", engine="autograd")
    bound = jn.SpectralBoundPenalty(0.1)
    raises(jn.UnsupportedModelError, "Take the norm of J itself", lambda: bound(jn.linearize(sharded, x)))


def refused(model, x, words, **options):
    """With one line, whether or not the penalty would pay in this step."""
    for how in (jn.linearize, jn.SpectralPenalty(every=2).linearize):
        raises(jn.UnsupportedModelError, words, lambda how=how: how(model, x, **options))


def both_ways():
    """Tensor parallel and sharded besides, on a mesh of two dimensions."""
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
    model = parallelize_module(net("piecewise linear"), mesh["tensor"], {"1": ColwiseParallel()})
    return fully_shard(model, mesh=mesh["data"])


def pipeline(x):
    stage = PipelineStage(nn.Linear(3, 3), dist.get_rank(), 2, torch.device("cpu"))
    return ScheduleGPipe(stage, 2).step


def on_two_meshes():
    model = net("piecewise linear")
    fully_shard(model[1], mesh=init_device_mesh("cpu", (1, 2), mesh_dim_names=("copies", "parts")))
    return fully_shard(model, mesh=world())


def main(rank, count, meeting):
    begin(rank, count, meeting)
    for check in (
        check_rounds,
        check_a_warning_of_one,
        check_budget,
        check_a_wrong_rule_in_one,
        check_failures,
        check_refusals,
    ):
        check()
        print(check.__name__, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
