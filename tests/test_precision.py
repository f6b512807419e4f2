"""Sweeps in half precision: the loss is untouched, and the penalty's gradient points where it did."""

import copy
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import gradient
from torch import nn

import jacnorm as jn
from jacnorm.errors import InputError
from jacnorm.pytorch import half

HALF = torch.bfloat16


@pytest.fixture(autouse=True)
def _nothing_has_been_tried():
    half._tried.cache_clear()
    half._warn.cache_clear()
    yield
    half._tried.cache_clear()


@pytest.fixture
def pays(monkeypatch):
    """Whatever the machine: right numbers do not depend on speed."""
    monkeypatch.setattr(half, "_why_not", lambda *_: None)


class Block(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + y + self.narrow(F.gelu(self.wide(x)))


def convolutions():
    layers = [nn.Conv2d(8, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
    layers += [
        nn.Conv2d(64, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(64, 16, 2, 2),
        nn.Tanh(),
    ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 64, 10)), torch.randn(4, 8, 8, 8)


def tokens():
    return nn.Sequential(Block(), Block(), nn.Flatten(), nn.Linear(64 * 9, 10)), torch.randn(4, 9, 64)


def dense():
    return nn.Sequential(nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10)), torch.randn(4, 96)


NETS = pytest.mark.parametrize("make", [convolutions, tokens, dense])
PENALTIES = pytest.mark.parametrize(
    "penalty",
    [
        jn.SpectralPenalty(1.0),
        jn.SpectralPenalty(1.0, h="square"),
        jn.FrobeniusPenalty(1.0),
        jn.SchattenPenalty(1.0),
        jn.GradientPenalty(1.0, h="square"),
        jn.MarginPenalty(1.0, h=lambda r: (-r).exp()),
    ],
    ids=str,
)


def cosine(a, b):
    return float(F.cosine_similarity(a.double(), b.double(), dim=0))


@NETS
@PENALTIES
def test_the_gradient_of_a_penalty_points_where_it_did(make, penalty, pays):
    torch.manual_seed(0)
    net, x = make()
    net.eval()
    index, found = torch.arange(4), {}
    for precision in (None, HALF):
        J = jn.linearize(net, x, precision=precision)
        value = copy.deepcopy(penalty)(J, index=index, labels=J.output.argmax(1))
        found[precision] = value, gradient(value, net)
    assert found[HALF][1].dtype == torch.float32
    assert found[HALF][0].item() == pytest.approx(found[None][0].item(), rel=0.02)
    assert 0.999 < cosine(found[None][1], found[HALF][1]) < 1 - 1e-9  # 1 if nothing ran in half precision


@NETS
def test_the_loss_and_its_gradient_stay_as_they_are(make, pays):
    torch.manual_seed(0)
    net, x = make()
    net.eval()
    output = net(x)
    J = jn.linearize(net, x, precision=HALF)
    torch.testing.assert_close(J.output, output)
    weights = torch.randn_like(output)
    expected = gradient((output * weights).sum(), net)
    torch.testing.assert_close(gradient((J.output * weights).sum(), net), expected)


@NETS
def test_products_come_back_in_float32_and_can_be_differentiated(make, pays):
    torch.manual_seed(0)
    net, x = make()
    net.eval()
    v, found = torch.randn_like(x), {}
    for precision in (None, HALF):
        w = jn.linearize(net, x, precision=precision).jvp(v)
        assert w.dtype == torch.float32
        found[precision] = w.detach(), gradient(w.square().sum(), net)
    assert 1e-5 < (found[HALF][0] - found[None][0]).norm() / found[None][0].norm() < 0.02
    assert cosine(found[None][1], found[HALF][1]) > 0.999


def test_small_sums_stay_in_float32(pays):
    net, x = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5)), torch.randn(3, 10)
    v = torch.randn_like(x)
    expected = jn.linearize(net, x).jvp(v)
    torch.testing.assert_close(jn.linearize(net, x, precision=HALF).jvp(v), expected, rtol=0, atol=0)


def test_small_numbers_do_not_underflow_in_float16(pays):
    """The weight of the penalty comes in where numbers are float32 again."""
    net, x = dense()
    found = [
        gradient(jn.SpectralPenalty(1e-7)(jn.linearize(net, x, precision=p), index=torch.arange(4)), net)
        for p in (None, torch.float16)
    ]
    assert cosine(*found) > 0.999
    assert found[1].norm() == pytest.approx(float(found[0].norm()), rel=0.01)


def test_terms_of_a_shared_weight_are_summed_in_float32(pays):
    """In bfloat16 a small term would be lost beside a large one."""
    layer = nn.Linear(64, 64, bias=False)

    def model(x):
        return torch.cat([layer(x), 2**-6 * layer(x)], 1)

    J = jn.linearize(model, torch.randn(4, 64), precision=HALF)
    terms = jn.FrobeniusPenalty(1.0)(J)
    found = gradient(terms, layer)
    assert (found != found.bfloat16().float()).float().mean() > 0.5


@NETS
def test_a_part_of_the_network_has_the_same_precision(make, pays):
    """Vectors come and go in float32 wherever J is taken apart."""
    net, x = make()
    net.eval()
    J, half_way = (jn.linearize(net, x, precision=p, through=["1"]) for p in (None, HALF))
    for ends in ((None, "1"), ("1", None)):
        full, low = J.between(*ends), half_way.between(*ends)
        v, u = torch.randn(full.input_shape), torch.randn(full.output_shape)
        for a, b in ((full.jvp(v), low.jvp(v)), (full.vjp(u), low.vjp(u))):
            assert b.dtype == torch.float32
            assert 1e-5 < (a - b).norm() / a.norm() < 0.03


def test_a_part_of_the_batch_has_the_same_precision(pays):
    net, x = dense()
    v = torch.randn_like(x)
    J = jn.linearize(net, x, precision=HALF)
    part = J.subset(torch.tensor([0, 2])).jvp(v[[0, 2]])
    torch.testing.assert_close(part, J.jvp(v)[[0, 2]], rtol=1e-3, atol=1e-3)
    assert (part - jn.linearize(net, x).jvp(v)[[0, 2]]).abs().max() > 1e-5


@pytest.mark.parametrize(
    ("precision", "x", "match"),
    [
        (torch.float32, torch.randn(2, 96), r"torch\.float32: choose torch\.bfloat16"),
        ("bfloat16", torch.randn(2, 96), "'bfloat16': choose"),
        (
            HALF,
            torch.randn(2, 96, dtype=torch.float64),
            "for models in float32, and x has dtype torch.float64",
        ),
    ],
)
def test_what_cannot_be_is_refused(precision, x, match):
    with pytest.raises(InputError, match=match):
        jn.linearize(dense()[0], x, precision=precision)


@pytest.mark.parametrize(
    ("trial", "match"),
    [
        (
            "raise RuntimeError('could not create a primitive')",
            "does not work .*could not create a primitive",
        ),
        ("import os; os.abort()", "does not work on this machine"),
        ('print(\'{"wrong": 0.5, "speed": 3.0}\')', "off by 50%"),
        ('print(\'{"wrong": 0.001, "speed": 0.5}\')', "no faster .*0.50 times"),
    ],
)
def test_a_machine_that_does_not_gain_stays_in_float32_and_says_so(trial, match, monkeypatch):
    monkeypatch.setattr(half, "TRIAL", trial)
    net, x = dense()
    v = torch.randn_like(x)
    with pytest.warns(UserWarning, match=match):
        J = jn.linearize(net, x, precision=HALF)
    torch.testing.assert_close(J.jvp(v), jn.linearize(net, x).jvp(v), rtol=0, atol=0)


def test_the_trial_runs_where_torch_does(monkeypatch):
    """Whatever it finds, it finds out by measuring."""
    why = half._why_not("bfloat16", "cpu", 1)
    assert why is None or "on this machine" in why
    assert "Error" not in (why or "")


def test_it_is_tried_once_for_each_device_and_number_of_threads(monkeypatch):
    """As the process has them."""
    asked, net, x = [], *dense()
    monkeypatch.setattr(half, "_why_not", lambda *how: asked.append(how))
    for threads in (1, 1, 2, 2):
        torch.set_num_threads(threads)
        jn.linearize(net, x, precision=HALF)
    assert asked == [("bfloat16", "cpu", 1), ("bfloat16", "cpu", 2)]
    half.half_pays(HALF, torch.device("cuda", 1))
    assert asked[2:] == [("bfloat16", "cuda:1", 2)]


def test_the_warning_points_at_the_users_line(monkeypatch):
    monkeypatch.setattr(half, "_why_not", lambda *_: "is no faster here")
    net, x = dense()
    with pytest.warns(UserWarning, match="is no faster here: products of J stay in float32") as found:
        jn.SpectralPenalty(0.1).linearize(net, x, precision=HALF)
    assert [one.filename for one in found] == [__file__]


def choose(penalty, found, monkeypatch):
    """A step with the penalty on a machine where this is found; whether it ran in half precision."""
    monkeypatch.setattr(half, "_why_not", lambda *_: found)
    half._tried.cache_clear()
    net, x = dense()
    v = torch.randn_like(x)
    J = penalty.linearize(net, x, precision=HALF)
    return bool((J.jvp(v) - jn.linearize(net, x).jvp(v)).abs().max() > 1e-5)


@pytest.mark.filterwarnings("ignore:precision=torch.bfloat16 is no faster")
@pytest.mark.parametrize("first", [None, "is no faster"])
def test_a_training_goes_on_as_it_began(first, monkeypatch):
    """Wherever it is resumed; the penalty's state says how."""
    penalty, other = jn.SpectralPenalty(0.1), "is no faster" if first is None else None
    began = choose(penalty, first, monkeypatch)
    assert began is (first is None)
    assert choose(penalty, other, monkeypatch) is began
    resumed = jn.SpectralPenalty(0.1)
    resumed.load_state_dict(penalty.state_dict())
    assert choose(resumed, other, monkeypatch) is began
    assert choose(jn.SpectralPenalty(0.1), other, monkeypatch) is not began


def test_a_state_from_before_knows_of_no_choice(monkeypatch):
    old, penalty = jn.SpectralPenalty(0.1).state_dict(), jn.SpectralPenalty(0.1)
    old["_extra_state"] = torch.tensor([7, 0])
    penalty.load_state_dict(old)
    assert penalty.get_extra_state().tolist() == [7, 0, 0, 0]
    assert choose(penalty, None, monkeypatch)


def _decide(rank, meeting, found):
    """In a process of its own, where the trial finds what no other finds."""
    half._why_not = lambda *_: None if rank == 0 else "is no faster"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    with warnings.catch_warnings(record=True):
        found.put((rank, half.half_pays(HALF, torch.device("cpu"))))
    dist.barrier()
    dist.destroy_process_group()


def test_processes_that_train_together_decide_alike(tmp_path):
    context = torch.multiprocessing.get_context("spawn")
    found = context.Queue()
    processes = [context.Process(target=_decide, args=(k, tmp_path / "meeting", found)) for k in range(2)]
    for process in processes:
        process.start()
    try:
        answers = dict(found.get(timeout=120) for _ in processes)
    finally:
        for process in processes:
            process.join(30)
            process.kill()
    assert answers[0] == answers[1]


@pytest.mark.parametrize("swept_before", [False, True])
def test_weights_that_change_are_refused_and_not_taken_from_before(swept_before, pays):
    """They are kept in half precision from one sweep to the next."""
    net, x = dense()
    v = torch.randn_like(x)
    J = jn.linearize(net, x, precision=HALF)
    if swept_before:
        with torch.no_grad():
            J.jvp(v)
    with torch.no_grad():
        net[0].weight.mul_(2)
    for product in (lambda: J.jvp(v), lambda: J.vjp(torch.randn(4, 10)), lambda: jn.FrobeniusPenalty()(J)):
        with pytest.raises(InputError, match="weights have changed since linearize"):
            product()
    torch.testing.assert_close(
        jn.linearize(net, x, precision=HALF).jvp(v), jn.linearize(net, x).jvp(v), rtol=0.02, atol=0.02
    )


def test_penalties_are_modules_all_the_same():
    """With PyTorch's own half(), which takes the stored vectors along."""
    penalty = jn.SpectralPenalty(0.1)
    penalty(jn.linearize(dense()[0], torch.randn(4, 96)), index=torch.arange(4))
    assert penalty.half().u.dtype == torch.float16
