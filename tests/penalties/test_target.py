"""A target in the place of a weight: where it leads, what it leaves alone, what it says if it cannot."""

import io
import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jacnorm as jn
from jacnorm.lab.nets import MLP
from jacnorm.penalties import target as rules

pytestmark = pytest.mark.filterwarnings("ignore:The spectral penalty finds")  # one round is what is steered


def blobs(n=256, seed=0):
    """Four classes in eight dimensions, which overlap a little."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 4
    centres = 2 * torch.randn(4, 8, generator=torch.Generator().manual_seed(9))
    return centres[labels] + torch.randn(n, 8, generator=generator), labels


def small_net():
    torch.manual_seed(0)
    return MLP((8, 32, 32, 4))


def measured(net, x):
    """Mean σ from the singular values of all of J."""
    with torch.no_grad():
        J = jn.linearize(net.double(), x.double()).dense()
    net.float()
    return float(torch.linalg.svdvals(J)[:, 0].mean())


def trained(penalty, steps, net=None, x=None, labels=None, rate=0.05, loss=F.cross_entropy):
    net = small_net() if net is None else net
    if x is None:
        x, labels = blobs()
    optimizer = torch.optim.SGD(net.parameters(), rate, momentum=0.8)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        rows = torch.randint(len(x), (32,), generator=generator)
        J = jn.linearize(net, x[rows])
        optimizer.zero_grad()
        (loss(J.output, labels[rows]) + penalty(J)).backward()
        optimizer.step()
    return net


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_weight_moves_in_every_precision(dtype):
    penalty, (x, labels) = jn.SpectralPenalty(0.1, target=0.6), blobs()
    trained(penalty, 5, small_net().to(dtype), x.to(dtype), labels)
    assert penalty.weight != 0.1


@pytest.mark.parametrize("factor", [0.01, 1, 100])
def test_the_measured_norm_ends_at_its_target(factor):
    """On average over the last steps: a single step of so small a training scatters by ten percent."""
    penalty = jn.SpectralPenalty(0.1 * factor, target=0.6)
    net = trained(penalty, 1500)
    x, labels = blobs()
    found = [measured(trained(penalty, 40, net), x) for _ in range(15)]
    assert sum(found) / len(found) == pytest.approx(0.6, rel=0.05)
    assert (net(x).argmax(1) == labels).float().mean() > 0.9
    assert 1e-3 < penalty.weight < 1


def test_frobenius_and_exact_penalties_have_targets_too():
    penalty = jn.FrobeniusPenalty(0.1, target=0.8)
    net = trained(penalty, 1500)
    x, _ = blobs()
    J = jn.linearize(net, x).dense()
    assert J.square().sum((1, 2)).mean().item() == pytest.approx(0.8, rel=0.1)
    for penalty in (jn.AnalyticPenalty(0.1, target=1.0), jn.SchattenPenalty(0.1, target=1.0)):
        trained(penalty, 3)
        assert penalty.weight != 0.1


def test_a_quantile_is_that_of_the_data():
    penalty = jn.AnalyticPenalty(0.1, target=1.0, target_quantile=0.9)
    x, _ = blobs()
    J = jn.linearize(trained(penalty, 1500), x).dense()
    assert torch.linalg.svdvals(J)[:, 0].quantile(0.9).item() == pytest.approx(1.0, rel=0.07)


def test_the_quantile_of_a_batch_has_no_bias():
    drawn = torch.rand(4000, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for q in (0.5, 0.9, 0.95):
        found = torch.stack([rules.quantile(batch, q) for batch in drawn]).mean()
        assert float(found) == pytest.approx(q, abs=0.003)


def steps_of_one_layer(penalty, batches, learning_rate=0.1, optimizer=torch.optim.SGD, **options):
    """The weight at each call, of a linear map."""
    torch.manual_seed(0)
    net, weights = nn.Linear(4, 3), []
    optimizer = optimizer(net.parameters(), learning_rate, **options)
    sigmas = []
    for batch in batches:
        optimizer.zero_grad()
        for x in batch:
            J = jn.linearize(net, x)
            penalty(J).backward()
            weights.append(penalty.weight)
        sigmas.append(torch.linalg.matrix_norm(net.weight.detach().double(), 2).item())
        optimizer.step()
    return weights, sigmas


def by_hand(start, sigmas, target):
    """The weight before each step, from the norms in the steps before."""
    found, norm, error, weight = [start], None, 0.0, start
    for sigma in sigmas[:-1]:
        norm = sigma if norm is None else norm + rules.SMOOTH * (sigma - norm)
        before, error = error, min(math.log(norm / target), 1.0)
        weight *= math.exp(rules.RATE * min(norm / target - 1, 1.0) + rules.GAIN * (error - before))
        found.append(weight)
    return found


def batches(steps, calls=1, rows=4):
    generator = torch.Generator().manual_seed(0)
    return [[torch.randn(rows, 4, generator=generator) for _ in range(calls)] for _ in range(steps)]


def test_the_weight_moves_as_the_formula_says():
    weights, sigmas = steps_of_one_layer(jn.AnalyticPenalty(0.1, target=0.5), batches(20))
    assert weights == pytest.approx(by_hand(0.1, sigmas, 0.5), rel=1e-5)
    assert len(set(weights)) == 20


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}])
def test_calls_at_the_same_weights_are_one_step(options):
    """Whatever trace an optimizer leaves."""
    once, _ = steps_of_one_layer(jn.AnalyticPenalty(0.1, target=0.5), batches(8), 0.1, **options)
    four, _ = steps_of_one_layer(jn.AnalyticPenalty(0.1, target=0.5), batches(8, 4), 0.025, **options)
    assert four[::4] == pytest.approx(once, rel=1e-4)
    assert all(len(set(four[i : i + 4])) == 1 for i in range(0, 32, 4))


def test_it_moves_with_payments():
    penalty = jn.AnalyticPenalty(0.1, target=0.5, every=3)
    weights, _ = steps_of_one_layer(penalty, batches(9))
    assert [len(set(weights[i : i + 3])) for i in (0, 3, 6)] == [1, 1, 1]
    assert len(set(weights)) == 3


def test_looking_moves_nothing():
    penalty, net = jn.SpectralPenalty(0.1, target=0.5), small_net()
    x, _ = blobs(16)
    trained(penalty, 5, net)
    before = penalty.get_extra_state()
    with torch.no_grad():
        penalty(jn.linearize(net, x))
    penalty.report(jn.linearize(net, x))
    assert torch.equal(penalty.get_extra_state(), before)


def test_what_is_estimated_too_low_is_measured():
    """With u at random σ is a third too low; the target holds for the norm itself."""
    penalty = jn.SpectralPenalty(0.1, target=0.6, start="random")
    net = trained(penalty, 1500)
    x, _ = blobs()
    with torch.no_grad():
        penalty(jn.linearize(net, x))
    J = jn.linearize(net, x).dense()
    error = penalty.norms.mean() / torch.linalg.svdvals(J)[:, 0].mean()
    assert error < 0.93
    assert penalty.steering.state.ratio == pytest.approx(error.item(), abs=0.05)
    assert measured(net, x) == pytest.approx(0.6, rel=0.05)


class Noisy(nn.Sequential):
    """Dropout, and statistics."""

    def __init__(self):
        torch.manual_seed(0)
        layers = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4)
        super().__init__(*layers)


@pytest.mark.parametrize("index", [None, torch.arange(16)])
def test_a_measurement_leaves_no_trace(index, monkeypatch):
    x, labels = blobs(16)

    def run(is_measured):
        monkeypatch.setattr(jn.SpectralPenalty, "is_estimated", is_measured)
        net, penalty = Noisy(), jn.SpectralPenalty(0.1, target=0.5, start="random")
        torch.manual_seed(3)
        for _ in range(2):  # the weight is the same for two calls at the same weights
            J = jn.linearize(net, x)
            value = penalty(J, index=index)
            (F.cross_entropy(J.output, labels) + value).backward()
        gradients = [p.grad for p in net.parameters()]
        return [
            *gradients, *net.buffers(), *penalty.buffers(), penalty.norms, torch.get_rng_state(),
            penalty.get_extra_state()[:2], value,
        ]  # fmt: skip

    for with_one, without in zip(run(True), run(False), strict=True):
        assert torch.equal(with_one, without)


def test_measurements_are_rare():
    penalty = jn.SpectralPenalty(0.1, target=0.5)
    trained(penalty, 400)
    assert 8 <= penalty.steering.state.checks <= 30


def test_a_resumed_training_goes_on_bit_for_bit():
    def state(penalty, net):
        file = io.BytesIO()
        torch.save([penalty.state_dict(), net.state_dict()], file)
        return file.getvalue()

    x, labels = blobs()

    def goes_on(penalty, net):
        optimizer = torch.optim.SGD(net.parameters(), 0.05)
        for i in range(30):
            J = jn.linearize(net, x[i : i + 32])
            optimizer.zero_grad()
            (F.cross_entropy(J.output, labels[i : i + 32]) + penalty(J)).backward()
            optimizer.step()
        return penalty.weight, net.state_dict()

    penalty = jn.SpectralPenalty(0.1, target=0.5)
    net = trained(penalty, 25)
    saved = state(penalty, net)
    expected = goes_on(penalty, net)
    again, other = jn.SpectralPenalty(0.1, target=0.5), small_net()
    for part, of in zip((again, other), torch.load(io.BytesIO(saved), weights_only=True), strict=True):
        part.load_state_dict(of)
    found = goes_on(again, other)
    assert found[0] == expected[0] != 0.1
    for name, tensor in expected[1].items():
        assert torch.equal(found[1][name], tensor)


def test_old_checkpoints_load_and_targets_come_and_go():
    old = jn.SpectralPenalty(0.1)
    trained(old, 3)
    new = jn.SpectralPenalty(0.2, target=0.5)
    new.load_state_dict(old.state_dict())
    assert new.weight == 0.2
    trained(new, 3)
    old.load_state_dict(new.state_dict())
    assert old.weight == 0.1


def test_a_weight_set_by_hand_is_where_it_goes_on():
    penalty = jn.SpectralPenalty(0.1, target=0.5)
    net = trained(penalty, 20)
    penalty.weight = 7.0
    trained(penalty, 2, net)
    assert penalty.weight == pytest.approx(7.0, rel=0.5)


class Keeping(nn.Module):
    """x beside f(x), whose σ is never below 1."""

    def __init__(self):
        super().__init__()
        self.body = MLP((8, 32, 8))

    def forward(self, x):
        return torch.cat([x, self.body(x)], 1)


@pytest.mark.parametrize("rate", [0.001, 0.01])
def test_a_norm_that_does_not_follow_ends_in_a_warning(rate):
    torch.manual_seed(0)
    net, (x, _) = Keeping(), blobs()
    penalty = jn.AnalyticPenalty(0.1, target=0.5)
    with pytest.warns(UserWarning, match="target 0.5 is not reached: the norm is .*has (not followed|risen)"):
        trained(penalty, 1000, net, x, torch.cat([x, x], 1), rate=rate, loss=F.mse_loss)
    assert penalty.weight <= penalty.steering.state.ceiling < 50
    assert 1 <= measured(net, x) < 1.2
    assert net(x)[:, 8:].std() > 0.01  # not dead


def test_a_target_that_only_a_dead_network_meets_ends_in_a_warning():
    penalty = jn.SpectralPenalty(0.1, target=1e-3)
    with pytest.warns(UserWarning, match="target 0.001 is not reached.*the outputs of a batch differ by"):
        net = trained(penalty, 1500)
    x, labels = blobs()
    assert (net(x).argmax(1) == labels).float().mean() > 0.9
    assert measured(net, x) > 0.01


def test_a_target_that_is_met_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(jn.AnalyticPenalty(10.0, target=0.6), 800)


def test_a_compiled_step_is_refused():
    penalty, net = jn.SpectralPenalty(0.1, target=0.5), small_net()
    x, _ = blobs(4)
    with pytest.raises(RuntimeError, match="target= moves the weight"):
        torch.compile(lambda x: penalty(jn.linearize(net, x)), backend="eager")(x)


def test_a_callback_logs_the_weight():
    from jacnorm.integrations.watch import measures

    penalty, net = jn.SpectralPenalty(0.1, target=0.5), small_net()
    x, _ = blobs(4)
    found = measures(penalty, penalty(jn.linearize(net, x)))
    assert found["penalty_weight"].item() == pytest.approx(0.1)
    assert "weight 0.1 for a target of 0.5" in str(penalty.report(jn.linearize(net, x)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: jn.SpectralPenalty(target=0), "target=0: a norm to aim for is a number above 0"),
        (lambda: jn.SpectralPenalty(target=-1.0), "target=-1.0"),
        (lambda: jn.SpectralPenalty(target=float("nan")), "target=nan"),
        (lambda: jn.SpectralPenalty(target="1"), "target='1'"),
        (lambda: jn.SpectralPenalty(target=1, target_quantile=1.0), "target_quantile=1.0: it must lie"),
        (lambda: jn.SpectralPenalty(target=1, target_quantile=0), "target_quantile=0: it must lie"),
        (lambda: jn.SpectralPenalty(target_quantile=0.5), "give target=, too"),
        (lambda: jn.SpectralPenalty(0.0, target=1), "weight=0 with a target"),
        (lambda: jn.SpectralPenalty(target=1, reduction="max"), "not reduction='max'"),
        (lambda: jn.SpectralPenalty(target=1, reduction="none"), "not reduction='none'"),
        (lambda: jn.SpectralPenalty(target=1, h="hinge"), "slope 0 at 1"),
        (lambda: jn.SpectralPenalty(target=1, h=lambda s: (s - 3) ** 2), "slope -4 at 1"),
        (lambda: jn.FrobeniusPenalty(target=1, target_quantile=0.9), "projections='all'"),
        (lambda: jn.TracePenalty(target=1.0), "TracePenalty takes no target"),
        (lambda: jn.MarginPenalty(target=1.0, h=lambda r: -r), "MarginPenalty takes no target"),
    ],
)
def test_a_target_that_makes_no_sense_is_refused(make, message):
    with pytest.raises(jn.InputError, match=message.replace("(", r"\(")):
        make()


def test_shapes_that_make_sense_with_a_target():
    jn.SpectralPenalty(target=1, h="square")
    jn.SpectralPenalty(target=1, h="hinge", threshold=0.5)
    jn.FrobeniusPenalty(target=1, target_quantile=0.9, projections="all")
    assert "target=2" in repr(jn.SpectralPenalty(target=2.0))


@pytest.mark.parametrize("h", ["identity", "square", "hinge", lambda r: r, lambda r: (r - 0.7) ** 2])
def test_a_margin_penalty_must_not_shrink_the_radius(h):
    with pytest.raises(jn.InputError, match="rises with r"):
        jn.MarginPenalty(1.0, h=h)
    jn.MarginPenalty(1.0, h=h, reduction="none")  # to look at
    jn.MarginPenalty(1.0, h=lambda r: torch.exp(-r))


def test_a_head_that_stands_still_hides_no_step():
    """The last parameters of a network may be those of another output, which nobody trains here."""
    torch.manual_seed(0)
    net = nn.ModuleDict({"f": nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))})
    net["value"] = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    net.forward = lambda x: {"logits": net["f"](x), "value": net["value"](x)}
    penalty = jn.SpectralPenalty(0.01, target=0.1)
    optimizer = torch.optim.SGD(net["f"].parameters(), 0.1)
    for _ in range(20):
        J = jn.linearize(net, torch.randn(8, 8), output="logits")
        optimizer.zero_grad()
        (J.output.square().mean() + penalty(J)).backward()
        optimizer.step()
    assert penalty.steering.state.steps == 19
    assert penalty.weight > 0.01


def test_a_norm_that_is_not_finite_is_not_measured():
    """The penalty says NaN, as without a target; the weight waits."""
    net = nn.Linear(3, 2)
    penalty = jn.SpectralPenalty(0.01, target=0.1)
    x = torch.tensor([[0.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    assert penalty(jn.linearize(lambda x: net(x.abs().sqrt()), x)).isnan()
    assert penalty.weight == 0.01


def test_an_index_is_checked_where_there_is_one_output():
    with pytest.raises(jn.InputError, match="index has shape"):
        jn.SpectralPenalty()(jn.linearize(nn.Linear(3, 1), torch.randn(4, 3)), index=torch.arange(3))
