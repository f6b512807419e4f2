"""Never a wrong number in silence: models that change, hide something or defy a check are found out."""

import pytest
import torch
import torch.nn.functional as F
from functions import Rounded, Swish
from oracles import dense, slope
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import jacnorm as jn


def known(model, x, *args):
    """A model that was seen so often that the next visit is not one of the second, fourth, eighth …"""
    for _ in range(5):
        jn.linearize(model, x, *args)
    return model


class OwnBatchNorm(nn.Module):
    def forward(self, h):
        return (h - h.mean(0)) / h.std(0) if self.training else h


def test_a_module_inside_that_changes_its_mode():
    net = nn.Sequential(nn.Linear(3, 3), OwnBatchNorm(), nn.Tanh())
    x = torch.randn(4, 3)

    def model(z):
        return net(z)

    net.eval()
    known(model, x)
    net.train()
    with pytest.raises(jn.CoupledSamplesError, match="across the first axis"):
        jn.linearize(model, x)
    net[1].eval()
    known(net, x)
    net[1].train()
    with pytest.raises(jn.CoupledSamplesError, match="across the first axis"):
        jn.linearize(net, x)


def test_an_argument_that_decides_what_is_computed():
    def model(x, axis):
        return x.softmax(axis)

    x = torch.randn(4, 3)
    known(model, x, 1)
    with pytest.raises(jn.CoupledSamplesError, match="across the first axis"):
        jn.linearize(model, x, 0)


def test_arguments_that_never_repeat_do_not_fill_the_memory():
    model, x = nn.Linear(3, 3), torch.randn(2, 3)

    def scaled(x, times):
        return times * model(x)

    for times in range(1, 200):
        assert_close(jn.linearize(scaled, x, times).dense()[0], times * model.weight)
    assert len(jn.trust.verdicts.known_to_code(scaled)) < 20


def test_ways_that_never_repeat_do_not_fill_the_memory():
    """As with layers that are skipped at random."""
    layers, x = nn.ModuleList(nn.Linear(3, 3, bias=False) for _ in range(8)), torch.randn(2, 3)

    class Some(nn.Module):
        def forward(self, z):
            for i, layer in enumerate(layers):
                z = layer(z) if self.taken >> i & 1 else z
            return torch.relu(z)

    model = Some()
    for model.taken in range(1, 256, 2):
        assert_close(jn.linearize(model, x).dense(), dense(model, x))
    (history,) = jn.trust.verdicts._histories[model].values()
    assert len(history.plans) < 100


def lengths_seen(model, lengths):
    """How many of these batches were checked."""
    return sum(jn.linearize(model, torch.randn(2, n)).verified for n in lengths)


def test_texts_of_many_lengths_are_checked_once_each_and_then_seldom():
    """Beyond that: a few for the model as a whole, and one when a length has come eight times."""

    def model(z):
        return torch.relu(z - 0.1) * 2

    lengths = [n for _ in range(7) for n in range(10, 210)]
    assert 200 <= lengths_seen(model, lengths) <= 200 + (len(lengths)).bit_length()
    assert 200 <= lengths_seen(model, range(10, 210)) <= 201


def test_what_is_found_at_one_length_is_doubted_at_all():
    """A branch that starts at zero: the check of one length that finds it ends trust in the others."""
    gate, short, long = torch.zeros(()), torch.randn(4, 3), torch.randn(4, 5)

    def model(z):
        return torch.relu(z) + gate * (z - z.mean(0))

    assert [jn.linearize(model, x).verified for x in (short, long, short, long, short, long)] == [
        *(True, True, False, True, False, False)  # each at first, then at the fourth visit
    ]
    gate.fill_(1.0)
    assert not jn.linearize(model, short).verified
    for x in (short, long, short, long):  # the eighth, and all after it
        with pytest.raises(jn.CoupledSamplesError, match="across the first axis"):
            jn.linearize(model, x)
    gate.fill_(0.0)
    assert [jn.linearize(model, x).verified for x in (short, long)] == [True, True]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_coupled_samples_in_any_precision(dtype):
    with pytest.raises(jn.CoupledSamplesError, match="across the first axis"):
        jn.linearize(lambda z: z - z.mean(0), torch.randn(4, 3).to(dtype))


def test_a_first_batch_that_shows_nothing():
    def model(z):
        return z.relu() - z.relu().mean(0)

    known(model, torch.zeros(4, 3))
    with pytest.raises(jn.CoupledSamplesError, match="across the first axis"):
        jn.linearize(model, torch.randn(4, 3))


class ConstantSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z.exp()

    @staticmethod
    def backward(ctx, g):
        with torch.no_grad():
            return g * ctx.saved_tensors[0].exp()


@pytest.mark.parametrize(
    ("branch", "error", "message"),
    [
        (lambda z: torch.softmax(z @ z.T, 1) @ z, jn.CoupledSamplesError, "across the first axis"),
        (ConstantSlope.apply, jn.UnsupportedModelError, "cannot be differentiated"),
    ],
)
def test_a_branch_that_starts_at_zero(branch, error, message):
    gate, x = torch.zeros(()), torch.randn(3, 4)

    def model(z):
        return z + gate * branch(z)

    jn.linearize(model, x).jvp(x)
    gate.fill_(1.0)  # as a step of training may do
    with pytest.raises(error, match=message):
        jn.linearize(model, x).jvp(x)


class Switched(nn.Module):
    def __init__(self, branch):
        super().__init__()
        self.branch, self.on = branch, False

    def forward(self, z):
        return 2 * z + self.branch(z) if self.on else 2 * z


@pytest.mark.parametrize(
    "branch",
    [
        torch.jit.script(nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 3))),
        torch.func.vmap(torch.tanh),
        Rounded.apply,
    ],
    ids=["script", "vmap", "straight through"],
)
def test_a_branch_that_is_switched_on_later(branch):
    model, x = Switched(branch), torch.randn(2, 3)
    known(model, x)
    model.on = True
    assert_close(jn.linearize(model, x).dense(), dense(model, x))


def test_a_layer_that_is_exchanged():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 3))

        def forward(self, z):
            return z + self.block(z)

    model, x = Net(), torch.randn(2, 3)
    known(model, x)
    model.block = torch.jit.script(model.block)
    assert_close(jn.linearize(model, x).dense(), dense(model, x))


@pytest.mark.parametrize(
    "model",
    [
        lambda z: torch.where(z < 3, 2 * z, Rounded.apply(z)),
        lambda z: torch.maximum(2 * z - 3, Rounded.apply(z)),
    ],
)
def test_a_hidden_branch_that_the_first_batch_does_not_take(model):
    known(model, torch.rand(2, 3))
    x = torch.tensor([[1.0, 4.0, 5.0], [2.0, 6.0, 1.0]])
    assert_close(jn.linearize(model, x).dense(), dense(model, x))


@pytest.mark.parametrize("layer", [F.hardsigmoid, nn.Softshrink(), nn.LayerNorm(6), nn.ReLU()])
def test_checkpointed_layers(layer):
    """A second call recomputes what the first has saved, so it must be the same one."""
    first, x = nn.Linear(6, 6), torch.randn(3, 6)

    def model(z):
        return checkpoint(layer, first(z), use_reentrant=False)

    torch.manual_seed(1)
    J = jn.linearize(model, x)
    (ours,) = torch.autograd.grad(J.output.square().sum(), first.weight, retain_graph=True)
    torch.manual_seed(1)
    (theirs,) = torch.autograd.grad(model(x).square().sum(), first.weight)
    assert_close(ours, theirs)
    u = torch.randn(3, 6)
    torch.manual_seed(1)
    (expected,) = torch.autograd.grad(model(z := x.clone().requires_grad_()), z, u)
    with torch.no_grad():
        assert_close(J.vjp(u), expected)


def _low_rank():
    A, B = nn.Parameter(torch.randn(3, 5)), nn.Parameter(torch.randn(5, 2))
    return (lambda z: torch.relu(z @ A) @ B), A


def _affine_of_batch_norm():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())
    return net, net[1].weight


def _mask():
    mask = torch.ones(3)
    return (lambda z: torch.relu(z) * mask), mask


def _order():
    order = torch.tensor([2, 0, 1])
    return (lambda z: torch.relu(z)[:, order]), order


def _assigned():
    mask = torch.tensor([True, False, True])

    def model(z):
        h = 2 * z
        h[:, mask] = 0
        return h

    return model, mask


@pytest.mark.parametrize("make", [_low_rank, _affine_of_batch_norm, _mask, _order, _assigned])
def test_any_factor_that_changes_after_linearize(make):
    model, factor = make()
    J = jn.linearize(model, torch.randn(4, 3))
    J.dense()
    with torch.no_grad():
        factor.copy_(factor.flip(0))
    with pytest.raises(jn.InputError, match="have changed since linearize"):
        J.dense()


def test_an_output_that_is_written_into():
    J = jn.linearize(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), torch.randn(2, 3))
    with torch.no_grad():
        J.output.sub_(1)
    with pytest.raises(jn.InputError, match=r"such as J\.output"):
        J.vjp(J.output.detach())


def test_a_call_in_place_on_overlapping_views_is_made_once():
    def model(z):
        h = z * 1
        left, right = h[:, :2], h[:, 2:]
        left.add_(right)
        return torch.relu(h)

    x = torch.randn(3, 4)
    for _ in range(3):
        J = jn.linearize(model, x)
        assert_close(J.output, model(x))
        assert_close(J.dense(), dense(model, x))


def test_what_is_added_may_change():
    """F does not read it, and autograd does not mind either."""
    centre = torch.zeros(3)

    def model(z):
        h = torch.relu(z - centre)
        centre.lerp_(z.detach().mean(0), 0.1)
        return h

    for _ in range(5):
        J = jn.linearize(model, torch.rand(4, 3) + 2)
        assert J.engine == "layerwise"
        assert_close(J.dense(), torch.eye(3).expand(4, 3, 3))


def test_an_argument_that_was_made_in_inference_mode():
    with torch.inference_mode():
        shift = torch.ones(3)
    x = torch.rand(2, 3)
    assert_close(jn.linearize(lambda z, s: torch.relu(z + s), x, shift).dense(), torch.eye(3).expand(2, 3, 3))


def test_a_factor_that_the_model_itself_changes_after_use():
    scale = torch.ones(3)

    def model(z):
        y = torch.relu(z) * scale
        scale.mul_(0.5)
        return y

    for _ in range(3):
        with pytest.raises(jn.UnsupportedModelError, match="modified by an inplace operation"):
            jn.linearize(model, torch.rand(2, 3))


def test_a_part_of_the_batch_is_what_it_was():
    x, scale = torch.rand(4, 4), torch.tensor([1.0, 2.0, 3.0, 4.0])  # as many samples as features
    J = jn.linearize(lambda z, s: torch.relu(z * s), x, scale)
    with pytest.raises(jn.InputError, match="not to belong to the samples"):
        J.subset(torch.tensor([2]))
    J = jn.linearize(F.relu, x)
    assert_close(J.subset(torch.tensor([2])).dense()[0], torch.eye(4))
    x.neg_()
    with pytest.raises(jn.InputError, match="x was changed in place"):
        J.subset(torch.tensor([2]))


@pytest.mark.parametrize(
    "norm",
    [
        lambda h: torch.ops.aten.layer_norm(h, (6,)),
        torch.jit.script(nn.LayerNorm(6).double()),
        lambda h: torch.native_layer_norm(h, (6,), None, None, 1e-5)[0],
    ],
)
def test_the_gradient_of_jv_through_a_norm_that_is_hidden(norm):
    """PyTorch's third derivative of it is wrong, and none is taken."""
    weight, x, direction = (torch.randn(*shape).double() for shape in ((2, 6), (3, 2), (2, 6)))

    def value(weight):
        return jn.linearize(lambda z: norm(z @ weight), x).jvp(x).square().sum()

    (ours,) = torch.autograd.grad(value(at := weight.clone().requires_grad_()), at)
    along = slope(lambda t: value(weight + t * direction))
    assert_close((ours * direction).sum(), along, rtol=1e-5, atol=1e-7)


def test_a_norm_before_x_is_not_in_the_way():
    body, head = nn.Sequential(nn.Linear(2, 6), nn.LayerNorm(6)), nn.Sequential(nn.Linear(6, 3), nn.Tanh())
    J = jn.linearize(head, body(torch.randn(3, 2)))
    J.jvp(torch.randn(3, 6)).square().sum().backward()
    assert head[0].weight.grad.any()
    head.zero_grad()
    J = jn.linearize(nn.Sequential(*body, *head), torch.randn(3, 2), at="1")
    J.jvp(torch.randn(3, 6)).square().sum().backward()
    assert head[0].weight.grad.any()


def test_the_gradient_of_jv_through_instance_norm_with_running_statistics():
    norm, weight = nn.InstanceNorm1d(2, track_running_stats=True).double(), torch.randn(2, 6).double()
    x, direction = torch.randn(3, 2).double(), torch.randn(2, 6).double()
    before = norm.running_mean.clone()

    def value(weight):
        J = jn.linearize(lambda z: norm((z @ weight).view(-1, 2, 3)).flatten(1), x)
        return J.jvp(x).square().sum()

    (ours,) = torch.autograd.grad(value(at := weight.clone().requires_grad_()), at)
    along = slope(lambda t: value(weight + t * direction))
    assert_close((ours * direction).sum(), along, rtol=1e-5, atol=1e-7)
    assert not torch.equal(norm.running_mean, before)


def test_a_function_that_keeps_what_it_computed_is_doubted():
    with pytest.warns(UserWarning, match="Swish saves tensors without a gradient") as caught:
        J = jn.linearize(lambda z: Swish.apply(2 * z), torch.randn(3, 4))
    assert caught[0].filename == __file__
    hidden = torch.jit.script(nn.Tanh())
    assert jn.linearize(hidden, Swish.apply(J.output)).engine == "autograd"  # before x: not its business


@pytest.mark.filterwarnings("error")
def test_a_function_that_keeps_its_input_is_not():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, z):
            ctx.save_for_backward(z, z > 0)
            return z * z

        @staticmethod
        def backward(ctx, g):
            return 2 * g * ctx.saved_tensors[0]

    jn.linearize(lambda z: Square.apply(2 * z), torch.randn(3, 4))


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Softplus(beta=50)])  # either engine
def test_a_stored_vector_that_leads_nowhere_is_given_up(activation):
    model = nn.Sequential(nn.Linear(2, 2), activation).double()
    x, index, penalty = torch.ones(1, 2).double(), torch.tensor([0]), jn.SpectralPenalty(1.0)
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(2))
        model[0].bias.copy_(torch.tensor([0.0, -50.0]))
    found = []
    for step in range(8):
        value = penalty(jn.linearize(model, x), index=index)
        value.backward()
        found.append(value.item())
        if step == 3:
            with torch.no_grad():
                model[0].bias.copy_(torch.tensor([-50.0, 0.0]))
    assert found[3:] == pytest.approx([1, 0, found[5], 1, 1])
    assert found[5] > 0.7


@pytest.mark.parametrize(
    "model",
    [
        lambda z: torch.fft.rfft(z).abs(),
        lambda z: torch.instance_norm(
            z.view(-1, 2, 3), None, None, None, None, True, 0.1, 1e-5, False
        ).flatten(1),
        torch.randn(6).add,
    ],
)
def test_spellings_that_were_refused_for_no_reason(model):
    x = torch.randn(3, 6)
    for _ in range(3):
        assert_close(jn.linearize(model, x).dense(), dense(model, x))


def test_a_model_under_no_grad():
    body, head = nn.Linear(3, 4), nn.Linear(4, 2)

    def model(z):
        with torch.no_grad():
            h = body(z).relu()
        return head(h)

    with pytest.raises(
        jn.UnsupportedModelError, match=r"linear is called under no_grad.*requires_grad_\(False"
    ):
        jn.linearize(model, torch.randn(2, 3))
